"""A ledger of budgets in the store, for gates that several processes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.store import Store
from holdfast.store.shared_budgets import SpendBudget, Spent

if TYPE_CHECKING:
    pass

__all__ = ["StoreLedger"]


class StoreLedger:
    """What is spent of budgets, kept in the store: exact over all processes that name a budget alike.

    For a `BudgetGate` with ``now=time.time``, for all must agree on the windows. Each use is a transaction for which
    the caller waits.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        """Add to what is spent in a window, unless that would be over the limit."""
        return self._spend(SpendBudget(budget, window_start, millionths, limit)).taken

    def peek(self, budget: str, window_start: float) -> int:
        """Say how many millionths are spent in a window."""
        return self._spend(SpendBudget(budget, window_start)).total

    def _spend(self, command: SpendBudget) -> Spent:
        (answer,) = self._store().commit_blocking([command])
        if isinstance(answer, Exception):
            raise answer
        spent: Spent = answer
        return spent
