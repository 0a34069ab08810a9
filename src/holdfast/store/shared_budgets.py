"""Budgets that processes share, exact because each change is one transaction: what is decided about a row.

Only the newest window of a budget is kept. A process whose clock is behind gets nothing of a window that has ended for
others; what it has used already counts in the newest, so that nothing is lost.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = ["BudgetRow", "SpendBudget", "Spent", "spent_of"]


class SpendBudget(msgspec.Struct, frozen=True):
    """Add to what is spent of a budget in a window, unless that would be over the limit. Answer: `Spent`.

    Amounts are millionths. Without a limit it is added in any case; fewer than 0 are put back; 0 only looks.
    """

    budget: str
    window_start: float
    millionths: int = 0
    limit: int | None = None


class Spent(msgspec.Struct, frozen=True):
    """Whether it was taken, and what is spent in the newest window now."""

    taken: bool
    total: int


class BudgetRow(NamedTuple):
    """The newest window of a budget."""

    window_start: float
    spent: int


def spent_of(command: SpendBudget, row: BudgetRow | None) -> tuple[Spent, BudgetRow | None]:
    """Decide: the answer, and the row to write, if one is to be."""
    ended = row is not None and command.window_start < row.window_start
    if row is None or command.window_start > row.window_start:
        row = BudgetRow(command.window_start, 0)
    total = max(0, row.spent + command.millionths)
    over = command.limit is not None and (ended or total > command.limit)
    if command.millionths == 0 or over:
        return Spent(not over, row.spent), None
    return Spent(taken=True, total=total), BudgetRow(row.window_start, total)
