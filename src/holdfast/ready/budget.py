"""Budgets per time window: calls, tokens, money.

Windows follow each other on the gate's clock, at whole multiples of `per`. Shares and `try_spend` never exceed the
limit of a window. `spend` records what was already used, so it can exceed the limit; the rest of the window is then
closed. Amounts are counted in whole millionths, so ten times 0.1 is 1.

A used-up window is BudgetExhausted, reported once. After that a waiting caller is Pending on a timer for the next one.

A `Ledger` keeps the amounts, in memory by default. Processes that share a ledger share the budget. All of them must
then use the same budget name and the same clock, for example ``now=time.time``. A clock that is set back does not
reopen a window that has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from holdfast.errors import InvalidSetting
from holdfast.machines.ready_table import BudgetExhausted, WakeSource
from holdfast.ready.gate import OnViolation, log_violation
from holdfast.ready.leaf_gate import LeafGate, positive
from holdfast.ready.next_reading import Hold, HoldKey

MILLIONTHS = 1_000_000
_SOURCES = frozenset(WakeSource)  # the next window, an amount put back, a new limit


class Ledger(Protocol):
    """Storage for the amounts spent of a budget. It is called with the gate's lock held, so it must answer quickly.

    Code that learns of amounts put back by other processes calls `BudgetGate.wake`.
    """

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        """Add to the amount spent in a window, atomically. Return False and add nothing if that would exceed the limit.

        Without a limit, the amount is always added. A negative amount is put back.
        """
        ...

    def peek(self, budget: str, window_start: float) -> int:
        """Return the millionths spent in a window."""
        ...


class MemoryLedger:
    """A ledger for one process. It keeps only the newest window of each budget, the only one in use."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, int]] = {}

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        """Add to the amount spent, unless that would exceed the limit."""
        spent = self.peek(budget, window_start) + millionths
        if limit is not None and spent > limit:
            return False
        self._spent[budget] = (window_start, spent)
        return True

    def peek(self, budget: str, window_start: float) -> int:
        """Return the millionths spent in a window."""
        start, spent = self._spent.get(budget, (window_start, 0))
        return spent if start == window_start else 0


def _millionths(amount: float) -> int:
    """Return an amount over 0 in millionths; at least 1, so that nothing is free."""
    return max(1, round(amount * MILLIONTHS))


class BudgetGate(LeafGate):
    """A gate that lets `limit` of `unit` be spent in each window of `per` seconds.

    Args:
        limit: the amount per window.
        per: the length of a window, in seconds.
        unit: what is counted, such as ``calls``, ``tokens`` or ``usd``.
        cost: the cost of a share. By default 1 for calls, and 0 for other units, whose cost `spend` records afterwards.
        ledger: where the amounts are kept; in memory by default.
        name: the name in counts and displays, and of the budget in the ledger.
        now: the clock, in seconds.
        on_violation: called if the gate breaks its own contract.
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
        """The amount left in this window; negative if more was spent than the limit."""
        with self.lock:
            return (self._limit_millionths - self._spent()) / MILLIONTHS

    def spend(self, amount: float) -> None:
        """Record an amount that was already used, even if it is more than is left."""
        millionths = _millionths(positive("amount", amount))
        with self.lock:
            self._ledger.take(self.name, self._window_start(), millionths, None)

    def try_spend(self, amount: float) -> bool:
        """Spend an amount if the window has it left; else return False and spend nothing."""
        millionths = _millionths(positive("amount", amount))
        with self.lock:
            return self._ledger.take(self.name, self._window_start(), millionths, self._limit_millionths)

    def set_limit(self, limit: float) -> None:
        """Change the limit, also of the current window."""

        def change() -> bool:
            self._set(limit)
            return self._forget_refusal()

        self.change(WakeSource.CONFIG_RELOAD, change)

    def wake(self) -> None:
        """Make waiting callers check again, because another process that shares the ledger has put an amount back."""
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
        """Return the hold while the rest of this window does not pay for a share."""
        left = self._limit_millionths - self._spent()
        if left >= max(1, self._cost) and self._refused != self._window:
            return None
        reason = f"{self.name}: {self._limit:g} {self._unit} are used up"
        news = BudgetExhausted(limit=self._limit, remaining=left / MILLIONTHS)
        until_ns = (self._window + 1) * self._per_ns
        return Hold(HoldKey(self.number, self._window), reason, _SOURCES, self.clock_ns, news, until_ns)

    def take(self) -> object | None:
        """Pay for a share. A shared ledger may refuse although there was enough a moment ago."""
        start = self._window_start()
        if self._cost and not self._ledger.take(self.name, start, self._cost, self._limit_millionths):
            self._refused = self._window
            return None
        return start

    def undo(self, receipt: object) -> bool:
        """Put back the cost of a share of the newest window. It stays spent if the ledger is unavailable."""
        if self._cost == 0 or receipt != self._window_start():
            return False
        try:
            self._ledger.take(self.name, self._window_start(), -self._cost, None)
        except Exception:  # noqa: BLE001 - a ledger's error must not keep other gates' shares
            return False
        return True

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """Return False: a share that was used stays spent, however the work ended."""
        del receipt, error
        return False
