"""Budgets that processes share. They are exact, because each change is one transaction.

Only the newest window of a budget is kept. A process whose clock is late gets nothing of a window that has ended for
others. What it has already used counts in the newest window, so nothing is lost.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


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
