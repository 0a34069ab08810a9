"""Gates and grants, as a client of a store asks for them.

A grant is more for a run to spend than its budget says: a signal of Holdfast's own, kept until it is needed.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.authoring.spend import amounts
from holdfast.client.run_handle import job_of_run
from holdfast.client.worker_status import GateView, gates
from holdfast.ids import new_id
from holdfast.store import SendSignal, Store
from holdfast.store.decide import BUDGET_KEY
from holdfast.store.shared_budgets import SpendBudget, Spent

if TYPE_CHECKING:
    from holdfast.client.app_worker import AppWorker

__all__ = ["StoreGates", "StoreLedger"]


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


class StoreGates:
    """These verbs, on a store."""

    own_workers: set[AppWorker]

    @abstractmethod
    def store(self) -> Store:
        """Give the store, opened."""

    def ledger(self) -> StoreLedger:
        """Give a ledger for budgets that all processes of this store share: ``BudgetGate(…, ledger=app.ledger())``."""
        return StoreLedger(self.store)

    def own_gates(self) -> builtins.list[GateView]:
        """List the readiness of the workers in this process; see `Client.own_gates`."""
        return [view for one in list(self.own_workers) if (view := one.gate()) is not None]

    async def agates(self) -> builtins.list[GateView]:
        """List gates; see `Client.agates`."""
        return await gates(self.store())

    async def agrant(
        self,
        run_id: str,
        granted: Mapping[str, float] | None = None,
        *,
        actor: str | None = None,
        id: str | None = None,  # noqa: A002 - as a signal's
        **more: float,
    ) -> str:
        """Let a run spend more than its budget; see `Client.agrant`. Who granted it is in the signal's id."""
        name = f"grant by {actor or 'somebody'}: {id or new_id()}"
        given: dict[str, Any] = {**(granted or {}), **more}
        command = SendSignal(job_of_run(run_id)[0], BUDGET_KEY, amounts("grant", given), name)
        (answer,) = await self.store().commit([command])
        if isinstance(answer, Exception):
            raise answer
        return str(answer.outcome)
