"""Budgets that processes share. They are exact, because each change is one transaction.

Only the newest window of a budget is kept. A process whose clock is late gets nothing of a window that has ended for
others. What it has already used counts in the newest window, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from holdfast.store.protocol import Store


class SpendBudget(msgspec.Struct, frozen=True):
    """Spend an amount of a budget in a window, unless that would exceed the limit. Result: `Spent`.

    Amounts are millionths. Without a limit the amount is always added. A negative amount is refunded; 0 only reads.
    """

    budget: str
    window_start: float
    millionths: int = 0
    limit: int | None = None


class Spent(msgspec.Struct, frozen=True):
    """Whether the amount was spent, and the total in the newest window."""

    taken: bool
    total: int


class BudgetRow(NamedTuple):
    """The newest window of a budget."""

    window_start: float
    spent: int


def spent_of(command: SpendBudget, row: BudgetRow | None) -> tuple[Spent, BudgetRow | None]:
    """Return the result, and the row to write, if any."""
    ended = row is not None and command.window_start < row.window_start
    if row is None or command.window_start > row.window_start:
        row = BudgetRow(command.window_start, 0)
    total = max(0, row.spent + command.millionths)
    over = command.limit is not None and (ended or total > command.limit)
    if command.millionths == 0 or over:
        return Spent(not over, row.spent), None
    return Spent(taken=True, total=total), BudgetRow(row.window_start, total)


class StoreLedger:
    """A ledger that keeps the spent amounts in the store. It is exact over all processes that use the same budget name.

    Use it with a `BudgetGate` that has ``now=time.time``, because all processes must agree on the windows. Each call is
    one transaction and blocks the caller.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        """Add an amount to a window unless the total would exceed the limit. Return whether it was added."""
        return self._spend(SpendBudget(budget, window_start, millionths, limit)).taken

    def peek(self, budget: str, window_start: float) -> int:
        """Return the amount that is spent in a window, in millionths."""
        return self._spend(SpendBudget(budget, window_start)).total

    def _spend(self, command: SpendBudget) -> Spent:
        (answer,) = self._store().commit_blocking([command])
        if isinstance(answer, Exception):
            raise answer
        spent: Spent = answer
        return spent
