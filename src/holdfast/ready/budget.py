"""So much per window: calls, tokens, money.

Windows lie end to end on the gate's clock, at whole multiples of `per`. Shares and `try_spend` never take a window over
its limit. `spend` records what has been used already, so it can: then the rest of the window is closed. Amounts are
counted in whole millionths, so ten times 0.1 is 1.

A used-up window is BudgetExhausted, told once; then whoever waits is Pending on a timer for the next.

What is spent is kept by a `Ledger`, in memory unless said. One that several processes share makes the budget theirs
together: all must then name the budget alike and read one clock, ``now=time.time`` for example, or the ledger's own.
A clock that is set back does not reopen a window that has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from holdfast.errors import InvalidSetting
from holdfast.machines.ready import BudgetExhausted, WakeSource
from holdfast.ready.gate import OnViolation, log_violation
from holdfast.ready.leaf_gate import LeafGate, positive
from holdfast.ready.next_reading import Hold, HoldKey

__all__ = ["BudgetGate", "Ledger", "MemoryLedger"]

MILLIONTHS = 1_000_000
_SOURCES = frozenset(WakeSource)  # the next window, what was put back unused or by another process, a new limit


class Ledger(Protocol):
    """Where it is kept what of a budget is spent. Called with the gate's lock held: answer soon.

    Whoever learns that others have put something back calls `BudgetGate.wake`.
    """

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        """Add to what is spent in a window, in one step; refuse, and add nothing, if it would be over the limit.

        Without a limit it is added in any case; fewer than 0 are put back.
        """
        ...

    def peek(self, budget: str, window_start: float) -> int:
        """Say how many millionths are spent in a window."""
        ...


class MemoryLedger:
    """A ledger for one process. It remembers the newest window of each budget, which is the only one in use."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, int]] = {}

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        """Add to what is spent, unless that would be over the limit."""
        spent = self.peek(budget, window_start) + millionths
        if limit is not None and spent > limit:
            return False
        self._spent[budget] = (window_start, spent)
        return True

    def peek(self, budget: str, window_start: float) -> int:
        """Say what is spent in a window."""
        start, spent = self._spent.get(budget, (window_start, 0))
        return spent if start == window_start else 0


def _millionths(amount: float) -> int:
    """Count an amount over 0; the smallest is one millionth, so that nothing is free."""
    return max(1, round(amount * MILLIONTHS))


class BudgetGate(LeafGate):
    """Lets `limit` of `unit` be spent in each window of `per` seconds.

    A share costs `cost`: 1 for calls, and nothing for other units, whose cost is known afterwards and told by `spend`.
    """

    def __init__(
        self,
        limit: float,
        *,
        per: float,
        unit: str = "calls",
        cost: float | None = None,
        ledger: Ledger | None = None,
        name: str = "budget",
        now: Callable[[], float] = time.monotonic,
        on_violation: OnViolation = log_violation,
    ) -> None:
        self._per_ns = round(positive("per", per) * 1e9)
        if self._per_ns < 1:
            raise InvalidSetting("per", per, "it must be a nanosecond or more")
        if not unit:
            raise InvalidSetting("unit", unit, "it must be a word, such as calls, tokens or usd")
        self._unit = unit
        share_cost = (1 if unit == "calls" else 0) if cost is None else cost
        self._cost = _millionths(positive("cost", share_cost)) if share_cost != 0 else 0
        self._set(limit)
        self._ledger: Ledger = MemoryLedger() if ledger is None else ledger
        self._window = -1  # number of the newest window that was seen
        self._refused = -1  # number of a window in which the ledger refused a share
        super().__init__(name, now, on_violation)

    def _set(self, limit: float) -> None:
        millionths = _millionths(positive("limit", limit))
        if millionths < self._cost:
            raise InvalidSetting("limit", limit, f"a share costs {self._cost / MILLIONTHS:g}, so it would never open")
        self._limit, self._limit_millionths = limit, millionths

    @property
    def remaining(self) -> float:
        """What is left of this window; below 0 if more was spent than there was."""
        with self.lock:
            return (self._limit_millionths - self._spent()) / MILLIONTHS

    def spend(self, amount: float) -> None:
        """Record what has been used already, even if it is more than is left."""
        millionths = _millionths(positive("amount", amount))
        with self.lock:
            self._ledger.take(self.name, self._window_start(), millionths, None)

    def try_spend(self, amount: float) -> bool:
        """Take an amount if the window has it left, or nothing."""
        millionths = _millionths(positive("amount", amount))
        with self.lock:
            return self._ledger.take(self.name, self._window_start(), millionths, self._limit_millionths)

    def set_limit(self, limit: float) -> None:
        """Change the limit, of this window as well."""

        def change() -> bool:
            self._set(limit)
            return self._forget_refusal()

        self.change(WakeSource.CONFIG_RELOAD, change)

    def wake(self) -> None:
        """Have those who wait look again: others who share the ledger have put something back."""
        self.change(WakeSource.IO_READY, self._forget_refusal)

    def _forget_refusal(self) -> bool:
        self._refused = -1
        return True

    def _window_start(self) -> float:
        self._window = max(self._window, self.clock_ns() // self._per_ns)
        return self._window * self._per_ns / 1e9

    def _spent(self) -> int:
        return self._ledger.peek(self.name, self._window_start())

    def look(self) -> Hold | None:
        """Closed while what is left of this window does not pay for a share."""
        left = self._limit_millionths - self._spent()
        if left >= max(1, self._cost) and self._refused != self._window:
            return None
        reason = f"{self.name}: {self._limit:g} {self._unit} are used up"
        news = BudgetExhausted(limit=self._limit, remaining=left / MILLIONTHS)
        until_ns = (self._window + 1) * self._per_ns
        return Hold(HoldKey(self.number, self._window), reason, _SOURCES, self.clock_ns, news, until_ns)

    def take(self) -> object | None:
        """Pay for a share; a ledger that others share may refuse although there was enough a moment ago."""
        start = self._window_start()
        if self._cost and not self._ledger.take(self.name, start, self._cost, self._limit_millionths):
            self._refused = self._window
            return None
        return start

    def undo(self, receipt: object) -> bool:
        """Put back what a share cost, if its window is still the newest; it stays spent if the ledger is away."""
        if self._cost == 0 or receipt != self._window_start():
            return False
        try:
            self._ledger.take(self.name, self._window_start(), -self._cost, None)
        except Exception:  # noqa: BLE001 - of a ledger, whatever it is: what else was taken must come back all the same
            return False
        return True

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """Nothing comes back: what was done counts, however it ended."""
        del receipt, error
        return False
