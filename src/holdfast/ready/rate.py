"""A rate limit with bursts: a token bucket.

In any stretch of t seconds, at most ``burst + rate · t / per`` shares are taken, whatever the order of calls. This is
exact. The bucket is stored as the time at which it will be full, in steps so small that a token is a whole number of
them, so nothing is rounded.

An empty bucket is BudgetExhausted, reported once. After that a waiting caller is Pending on a timer for the next token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction

from holdfast.machines.ready_table import BudgetExhausted, WakeSource
from holdfast.ready.gate import OnViolation, log_violation
from holdfast.ready.leaf_gate import LeafGate, positive, whole
from holdfast.ready.next_reading import Hold, HoldKey

_SOURCES = frozenset(WakeSource)  # the next token, a token put back unused, a new rate


class RateGate(LeafGate):
    """A gate that lets `rate` shares out in `per` seconds.

    Args:
        rate: shares per period.
        per: the length of a period, in seconds.
        burst: shares that may be taken at once; by default one period's worth.
        name: the name in counts and displays.
        now: the clock, in seconds.
        on_violation: called if the gate breaks its own contract.
    """

    def __init__(
        self,
        rate: float,
        *,
        per: float = 1.0,
        burst: int | None = None,
        name: str = "rate",
        now: Callable[[], float] = time.monotonic,
        on_violation: OnViolation = log_violation,
    ) -> None:
        self._set(rate, per, burst)
        super().__init__(name, now, on_violation)
        self._full_at = self._steps()  # when the bucket will be full, in steps; a past time if it is full

    def _set(self, rate: float, per: float, burst: int | None) -> None:
        per_second = Fraction(str(positive("rate", rate))) / Fraction(str(positive("per", per)))
        checked = whole("burst", max(1, math.floor(rate)) if burst is None else burst)
        self._rate, self._burst = rate, checked
        self._steps_per_ns = per_second.numerator  # so a token is a whole number of steps
        self._steps_per_token = per_second.denominator * 1_000_000_000

    def _steps(self) -> int:
        return self.clock_ns() * self._steps_per_ns

    def set_rate(self, rate: float, *, per: float = 1.0, burst: int | None = None) -> None:
        """Change the rate. Tokens that are missing from the bucket now stay missing."""

        def change() -> bool:
            missing = Fraction(max(0, self._full_at - self._steps()), self._steps_per_token)
            self._set(rate, per, burst)
            self._full_at = self._steps() + math.ceil(missing * self._steps_per_token)
            return True

        self.change(WakeSource.CONFIG_RELOAD, change)

    def look(self) -> Hold | None:
        """Return the hold until there is a whole token."""
        opens_at = self._full_at + (1 - self._burst) * self._steps_per_token
        if opens_at <= self._steps():
            return None
        until_ns = -(-opens_at // self._steps_per_ns)  # the first whole nanosecond that is not before it
        reason = f"{self.name}: the rate of {self._rate:g} is used up"
        news = BudgetExhausted(limit=self._rate)
        return Hold(HoldKey(self.number, 0), reason, _SOURCES, self.clock_ns, news, until_ns)

    def take(self) -> object:
        """Take a token."""
        self._full_at = max(self._full_at, self._steps()) + self._steps_per_token
        return True

    def undo(self, receipt: object) -> bool:
        """Put the token back."""
        del receipt
        self._full_at -= self._steps_per_token
        return True
