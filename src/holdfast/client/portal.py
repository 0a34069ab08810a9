"""An event loop in its own thread, for blocking calls. A call runs on that loop and blocks its caller.

What can fail:

- A callback or a task raises KeyboardInterrupt or SystemExit, or stops the loop. The portal logs it, and the loop
  continues.
- The loop is closed, its thread ends, or a worker finds that it hangs. Then calls raise `LoopDied`, including calls in
  progress. A call never waits for a loop that cannot answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

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
        self._calls: set[_Call[Any]] = set()  # that callers wait for
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
        call = _Call(coroutine, self.loop)
        try:
            with self._lock:
                self._calls.add(call)
                if self._error is None:
                    self.loop.call_soon_threadsafe(call.begin)
                else:
                    coroutine.close()
                    call.end(LoopDied(str(self._error)))
            return call.result()
        except BaseException:
            if not call.has_ended:  # the caller was interrupted, and nothing hears of the result
                self.loop.call_soon_threadsafe(call.cancel)
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
            call.end(LoopDied(str(error)))

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


class _Call(Generic[T]):
    """A coroutine on the loop, and the thread that waits for it.

    A signal handler may interrupt the thread at any line. So the loop takes no lock that the thread may have left
    locked, as it may with a `Future`.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.has_ended = False
        self._coroutine = coroutine
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._is_left = False
        self._error: BaseException | None = None
        self._value: Any = None
        self._first = threading.Lock()  # taken by the first end, which counts
        self._unset = threading.Lock()
        self._unset.acquire()

    def begin(self) -> None:
        """Run the coroutine. Called on the loop."""
        if self._is_left:
            self._coroutine.close()
            return
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Cancel the coroutine, or let it never begin. Called on the loop."""
        self._is_left = True
        if self._task is not None:
            self._task.cancel()

    def end(self, error: BaseException | None, value: Any = None) -> None:
        """Let the thread continue with an error or a value. The first end counts."""
        if self._first.acquire(blocking=False):
            self._error, self._value, self.has_ended = error, value, True
            self._unset.release()

    def result(self) -> T:
        """Wait for the end. Return the value or raise the error."""
        self._unset.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback refers to this frame
        value: T = self._value
        return value

    def _done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.end(CancelledError())
        elif (error := task.exception()) is not None:
            self.end(error)
        else:
            self.end(None, task.result())
