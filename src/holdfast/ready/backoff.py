"""Back-off and circuit breaker: stop calling an upstream while it asks for that, or while it fails.

========= ========================================= ==========================================
circuit   admits                                    changes
========= ========================================= ==========================================
closed    every caller                              opens after `trip_after` failures in a row
open      no caller, until its time is over         then half-open
half-open one caller at a time, as a trial          success closes it, failure opens it longer
========= ========================================= ==========================================

Each opening after failures lasts `factor` times as long as the one before, from `first_seconds` up to `cap_seconds`. A
success resets the sequence. `retry_after` opens the circuit for as long as the upstream asks, and never shortens an
opening. After it, one caller is admitted as a trial as well, so that callers do not all return at once.

An open circuit is RetryAfter, reported once, then Pending on a timer. During a trial there is nothing to report: the
gate is Pending until the outcome is known (IoReady).

Shares report how they ended. The errors named in `errors` are failures, and no error is a success. Any other error,
such as a cancelled task, counts as neither. Nor does a share acquired before the circuit last opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.errors import InvalidSetting
from holdfast.machines.ready_table import RetryAfter, WakeSource
from holdfast.ready.gate import OnViolation, log_violation
from holdfast.ready.leaf_gate import LeafGate, positive, whole
from holdfast.ready.next_reading import Hold, HoldKey

_TIME = frozenset({WakeSource.TIMER, WakeSource.IO_READY})  # its time is over, or a reset
_OUTCOME = frozenset({WakeSource.IO_READY})


class BackoffGate(LeafGate):
    """A gate that closes for a while when an upstream asks for it or fails.

    Args:
        first_seconds: how long the first opening of the circuit lasts.
        cap_seconds: the longest opening.
        factor: how much longer each opening lasts than the one before.
        trip_after: failures in a row that open the circuit.
        errors: exceptions that count as failures of the upstream.
        name: the name in counts and displays.
        now: the clock, in seconds.
        on_violation: called if the gate breaks its own contract.
    """

    def __init__(
        self,
        first_seconds: float = 1.0,
        *,
        cap_seconds: float = 60.0,
        factor: float = 2.0,
        trip_after: int = 5,
        errors: type[Exception] | tuple[type[Exception], ...] = Exception,
        name: str = "backoff",
        now: Callable[[], float] = time.monotonic,
        on_violation: OnViolation = log_violation,
    ) -> None:
        self._first_seconds = positive("first_seconds", first_seconds)
        self._cap_seconds = positive("cap_seconds", cap_seconds)
        if cap_seconds < first_seconds:
            raise InvalidSetting("cap_seconds", cap_seconds, f"must not be below first_seconds={first_seconds!r}")
        self._factor = positive("factor", factor)
        if factor < 1:
            raise InvalidSetting("factor", factor, "waits must not get shorter: give 1 or more")
        self._trip_after = whole("trip_after", trip_after)
        self._errors = errors
        self._failures = 0  # in a row, while closed
        self._next_seconds = first_seconds  # how long the next opening by failures will last
        self._opened = 0  # number of openings; also tells old shares from new ones
        self._until_ns: int | None = None  # end of the opening; None while closed
        self._trying = False  # half-open, with a trial running
        super().__init__(name, now, on_violation)

    # The outcomes of the upstream

    def retry_after(self, seconds: float) -> None:
        """Close the gate for as long as the upstream asks."""
        wait_ns = max(1, round(positive("seconds", seconds) * 1e9))
        self.change(WakeSource.IO_READY, lambda: self._open(wait_ns))

    def failed(self) -> None:
        """Count a failure of the upstream. It has no effect while the circuit is open."""
        self.change(WakeSource.IO_READY, self._failed)

    def succeeded(self) -> None:
        """Count a success. It closes a half-open circuit, and has no effect on an open one."""
        self.change(WakeSource.IO_READY, self._succeeded)

    def reset(self) -> None:
        """Close the circuit now and forget every failure. For an operator who knows that the upstream works."""
        self.change(WakeSource.IO_READY, self._close)

    def _open(self, wait_ns: int) -> bool:
        until_ns = self.clock_ns() + wait_ns
        if self._until_ns is not None and until_ns <= self._until_ns:
            return False
        self._until_ns, self._failures, self._trying = until_ns, 0, False
        self._opened += 1
        return True

    def _close(self) -> bool:
        self._until_ns, self._failures, self._trying = None, 0, False
        self._next_seconds = self._first_seconds
        return True

    def _is_open(self) -> bool:
        return self._until_ns is not None and self.clock_ns() < self._until_ns

    def _failed(self) -> bool:
        if self._is_open():
            return False
        self._failures += 1
        if self._until_ns is not None or self._failures >= self._trip_after:
            self._open(max(1, round(self._next_seconds * 1e9)))
            self._next_seconds = min(self._next_seconds * self._factor, self._cap_seconds)
        return True

    def _succeeded(self) -> bool:
        if self._is_open():
            return False
        return self._close()

    # The gate

    def look(self) -> Hold | None:
        """Return the hold while the circuit is open, or while a trial runs."""
        if self._until_ns is None:
            return None
        key = HoldKey(self.number, self._opened)
        left_ns = self._until_ns - self.clock_ns()
        if left_ns > 0:
            wait_seconds = left_ns / 1e9
            reason = f"{self.name}: closed for {wait_seconds:g} s"
            return Hold(key, reason, _TIME, self.clock_ns, RetryAfter(wait_seconds), self._until_ns)
        if self._trying:
            return Hold(key, f"{self.name}: a trial call is running", _OUTCOME, self.clock_ns)
        return None

    def take(self) -> object:
        """Admit a caller. The first one after an opening is a trial, and alone."""
        self._trying = self._until_ns is not None
        return self._opened

    def undo(self, receipt: object) -> bool:
        """End a share that was not used. If it was a trial, another caller may try."""
        if receipt != self._opened or not self._trying:
            return False
        self._trying = False
        return True

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """Apply the outcome of a share to the circuit."""
        if receipt != self._opened:
            return False
        if error is None:
            return self._succeeded()
        return self._failed() if isinstance(error, self._errors) else self.undo(receipt)
