"""A loop in a thread of its own, for callers without one: a plain call runs there and blocks its caller.

What can go wrong, and what happens then:

- A callback or a task raises KeyboardInterrupt or SystemExit, or stops the loop: that is logged, and the loop goes on.
- The loop is closed, its thread ends, or a worker finds that it hangs: calls raise `LoopDied`, also those under way.
  They never wait for a loop that cannot answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.errors import LoopDied

__all__ = ["Portal"]

T = TypeVar("T")

_log = logging.getLogger("holdfast")


class Portal:
    """A loop in a thread, for callers without one."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._name = name
        self._ending = False
        self._error: LoopDied | None = None
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()  # that callers wait for
        self._thread = threading.Thread(target=self._serve, name=f"holdfast-{name}", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something there and wait for it.

        Raises:
            LoopDied: the loop has ended or hangs.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a plain call inside the app's own loop would wait for itself: use the `a` twin")
        call: Future[T] = Future()
        with self._lock:
            if self._error is not None:
                coroutine.close()
                raise LoopDied(str(self._error)) from self._error
            self._calls.add(call)
            asyncio.run_coroutine_threadsafe(coroutine, self.loop).add_done_callback(lambda done: _copy(done, call))
        try:
            return call.result()
        finally:
            self._calls.discard(call)

    def die(self, error: LoopDied) -> None:
        """The loop answers no more: have every call raise, those that are under way too. From any thread."""
        with self._lock:
            if self._error is None:
                self._error = error
            calls = list(self._calls)
        for call in calls:
            if not call.done():
                call.set_exception(LoopDied(str(error)))

    def stop(self) -> None:
        """End the loop and its thread; a loop that has died is left as it is."""
        self._ending = True
        if self._error is not None:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _serve(self) -> None:
        """Run the loop until the portal is stopped, whatever a callback raises."""
        try:
            while not self._ending and not self.loop.is_closed():
                try:
                    self.loop.run_forever()
                except BaseException:  # noqa: BLE001 - the loop is whole: what is left to be done in it can be done
                    _log.exception("an error left the loop of %s, which goes on", self._name)
        finally:
            if not self._ending:
                self.die(
                    LoopDied(f"the event loop of {self._name} has ended: close the app, or start the process again")
                )


def _copy(done: Future[T], call: Future[T]) -> None:
    """Hand the end of a call to its caller, unless that has been told already that the loop has died."""
    if call.done():
        return
    if done.cancelled():
        call.cancel()
        call.set_running_or_notify_cancel()
    elif (error := done.exception()) is not None:
        call.set_exception(error)
    else:
        call.set_result(done.result())
