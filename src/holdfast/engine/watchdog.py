"""A watchdog for a worker: it watches the leases, and whether the loop answers (SPEC L11).

It runs in its own thread and never calls the store. It handles these cases:

- A lease was not renewed in time. Its attempt is stopped, whatever the store is doing.
- The loop does not answer. The log names the job, the step and the line of code that blocks it. Leases are still
  renewed, because a long step may be legitimate.
- The loop does not answer for `stall_seconds`, its thread has ended, or it was closed. The worker is dead. It gives its
  leases up, so that other workers take its jobs at once.
- The whole process was stopped for a while. Leases are checked first. A loop that had no time to answer is not stalled.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from holdfast.clock import elapsed
from holdfast.engine.blocked_loop import describe
from holdfast.errors import LoopDied

LOOK_SECONDS = 1.0  # longest pause between two checks while leases are held
REPORT_SECONDS = 2.0  # of silence before the first log line; the next comes after twice that, and so on
LATE_SECONDS = 1.0  # by which a check may be late before the process counts as stopped

_log = logging.getLogger("holdfast.worker")


class Watchdog(threading.Thread):
    """Watches one worker until it is stopped.

    Args:
        worker: the worker's name, for the log.
        end_overdue: ends overdue leases; returns seconds until the next is due, None if none is held.
        stall_seconds: returns how long the loop may stay silent.
        died: called once, from this thread, when the worker is dead.
        every_seconds: longest pause between two checks, used while no lease is held.
    """

    def __init__(
        self,
        worker: str,
        end_overdue: Callable[[], float | None],
        stall_seconds: Callable[[], float],
        died: Callable[[LoopDied], None],
        *,
        every_seconds: float,
    ) -> None:
        super().__init__(name="holdfast-watchdog", daemon=True)
        self.blocked: str | None = None  # what blocks the loop, while something does
        self._worker = worker
        self._end_overdue = end_overdue
        self._stall_seconds = stall_seconds
        self._died = died
        self._every_seconds = every_seconds
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.current_thread()
        self._bell = threading.Event()
        self._ended = False
        self._rests = False  # whether the last check found no lease
        self._asked_at: float | None = None  # when the loop was asked, while it has not answered
        self._reported_seconds = 0.0

    def run(self) -> None:
        """Check until stopped, or until the worker is dead."""
        pause = 0.0
        while True:
            expected = elapsed() + pause
            self._bell.wait(pause)
            self._bell.clear()
            if self._ended:
                return
            try:
                due = self._end_overdue()  # first, also when the process was stopped for a while
                now = elapsed()
                if now - expected > LATE_SECONDS:
                    self._asked_at = None
                error = self._ask_loop(now)
            except Exception:  # it must check again, or leases would be kept for a dead loop
                _log.exception("the watchdog of worker %s failed, and continues", self._worker)
                due, error = 0.0, None
            if error is not None:
                self._died(error)
                return
            self._rests = due is None
            pause = self._every_seconds if due is None else min(LOOK_SECONDS, self._every_seconds, max(0.01, due))

    def stop(self) -> None:
        """Stop. Do not wait for a check that is under way: it may be the one that reports a death."""
        self._ended = True
        self._bell.set()

    def wake(self) -> None:
        """Check again soon: there is a lease now. Cheap, and safe from any thread."""
        if self._rests:
            self._rests = False
            self._bell.set()

    def _ask_loop(self, now: float) -> LoopDied | None:
        """Ask the loop to answer, or measure how long it has been silent. Return the error if it is dead."""
        if self._loop.is_closed() or not self._loop_thread.is_alive():
            return LoopDied(f"the event loop of worker {self._worker} has ended while it had work")
        if self._asked_at is None:
            self._asked_at = now
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # closed just now
                return LoopDied(f"the event loop of worker {self._worker} was closed while it had work")
            return None
        silent = now - self._asked_at
        if silent < REPORT_SECONDS:
            return None
        limit = self._stall_seconds()
        if silent >= limit:
            place = describe(self._loop_thread)
            return LoopDied(f"the event loop of worker {self._worker} did not answer for {silent:.0f} s: {place}")
        if silent >= 2 * self._reported_seconds:
            self._reported_seconds = silent
            self.blocked = describe(self._loop_thread)
            _log.warning(
                "worker %s has not answered for %.0f s: %s. No other job of this worker moves meanwhile. Write the"
                " function without `async`, or await something. The worker ends after %.0f s.",
                self._worker, silent, self.blocked, limit,
            )  # fmt: skip
        return None

    def _answer(self) -> None:
        """Note that the loop answers. Runs on the loop."""
        if self._reported_seconds:
            _log.warning("worker %s answers again", self._worker)
        self._asked_at, self._reported_seconds, self.blocked = None, 0.0, None
