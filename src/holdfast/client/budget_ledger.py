"""A budget ledger in the store, for gates that several processes share."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.store import Store
from holdfast.store.shared_budgets import SpendBudget, Spent


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
