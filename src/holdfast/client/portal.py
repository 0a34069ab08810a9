"""An event loop in its own thread, for blocking calls. A call runs on that loop and blocks its caller.

What can fail:

- A callback or a task raises KeyboardInterrupt or SystemExit, or stops the loop. The portal logs it, and the loop
  continues.
- The loop is closed, its thread ends, or a worker finds that it hangs. Then calls raise `LoopDied`, including calls in
  progress. A call never waits for a loop that cannot answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from holdfast.errors import LoopDied

T = TypeVar("T")

END_SECONDS = 2.0  # for canceled tasks to end

_log = logging.getLogger("holdfast")


class Portal:
    """An event loop in a thread, for callers without a loop.

    Args:
        name: for errors and the log.
        loop: the loop, which the portal closes at the end. Default: a new one.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop if loop is not None else asyncio.new_event_loop()
        self._name = name
        self._ending = False
        self._error: LoopDied | None = None
        self._lock = threading.RLock()  # a signal handler may call in the middle of a call
        self._calls: set[Future[Any]] = set()  # futures that callers wait for
        self._thread = threading.Thread(target=self._serve, name=f"holdfast-{name}", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            LoopDied: The loop has ended or hangs.
            RuntimeError: The caller is the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call on the app's own event loop would wait for itself: use the async form")
        call: Future[T] = Future()

        def begin() -> None:
            if call.done():  # the caller was interrupted before this
                coroutine.close()
                return
            task = self.loop.create_task(coroutine)
            task.add_done_callback(partial(_copy, call))
            call.add_done_callback(partial(_cancel_left, self.loop, task))

        try:
            with self._lock:
                self._calls.add(call)
                if self._error is None:
                    self.loop.call_soon_threadsafe(begin)
                else:
                    coroutine.close()
                    call.set_exception(LoopDied(str(self._error)))
            return call.result()
        except BaseException:
            call.cancel()  # if the caller was interrupted: nothing hears of the result
            raise
        finally:
            self._calls.discard(call)

    @property
    def is_dead(self) -> bool:
        """Return whether calls raise because the loop has ended or hangs."""
        return self._error is not None

    def die(self, error: LoopDied) -> None:
        """Make every call raise, including calls in progress. Any thread may call this after the loop has died."""
        with self._lock:
            if self._error is None:
                self._error = error
            calls = list(self._calls)
        for call in calls:
            if not call.done():
                call.set_exception(LoopDied(str(error)))

    def stop(self) -> None:
        """Stop the loop and its thread. A dead loop stays as it is: it cannot be stopped."""
        self._ending = True
        if self._error is not None:
            return
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self.loop)
        self._thread.join()
        self.loop.close()

    async def _end_tasks(self) -> None:
        """Cancel what still runs on the loop, such as a watch that its reader has left, and stop the loop."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)
        self.loop.stop()

    def _serve(self) -> None:
        """Run the loop until `stop` is called, whatever a callback raises."""
        try:
            while not self._ending and not self.loop.is_closed():
                try:
                    self.loop.run_forever()
                except BaseException:  # noqa: BLE001 - the loop is intact, and its other tasks must continue
                    _log.exception("an error stopped the event loop of %s; it was started again", self._name)
        finally:
            if not self._ending:
                self.die(
                    LoopDied(f"the event loop of {self._name} has ended: close the app, or start the process again")
                )


def _copy(call: Future[T], task: asyncio.Task[T]) -> None:
    """Pass the outcome of a coroutine to the caller's future, unless `die` has already completed it."""
    if call.done():
        if not task.cancelled():
            task.exception()  # nothing hears of it
        return
    if task.cancelled():
        call.cancel()
        call.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        call.set_exception(error)
    else:
        call.set_result(task.result())


def _cancel_left(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], call: Future[T]) -> None:
    """Cancel a coroutine whose caller no longer waits."""
    if call.cancelled():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(task.cancel)
