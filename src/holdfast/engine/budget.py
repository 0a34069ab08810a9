"""What a run may spend, what it has spent, and what happens when that is more.

Amounts are whole millionths. What was spent is kept in the job's stream as recorded values, so that a replay knows it
and does not spend it again; what a call has spent is written with its end. Over budget the job is parked at its next
call, and a person is asked: a grant is a signal, which waits in the inbox if it comes early.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from holdfast.engine.bridge import later
from holdfast.machines import HistoryEvent
from holdfast.store.decide import BUDGET_KEY

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Budget", "Spending"]

SPENT, GRANTED = "spent:", "budget:"  # how the nodes of these values and waits begin


class Budget:
    """The budget of one attempt's run."""

    def __init__(self, attempt: Attempt, limits: Mapping[str, int]) -> None:
        self._attempt = attempt
        self._limits: Counter[str] = Counter(limits)
        self._capped = frozenset(limits)
        self._spent: Counter[str] = Counter()
        self._unsaid: dict[str, Counter[str]] = {}  # by call, what it has spent and not written yet
        self._asking = asyncio.Lock()
        self._asked = 0
        values, waits = attempt.replay.values, attempt.replay.completed_waits
        for node, value in values.items():
            if node.startswith(SPENT) and isinstance(value, dict):
                self._spent.update(value)
        ended = {node.removesuffix(":ended"): one for node, one in values.items() if node.endswith(":ended")}
        for node, one in {**ended, **waits}.items():
            if node.startswith(GRANTED):
                self._grant(one)
                self._asked = max(self._asked, int(node.removeprefix(GRANTED)))

    def spend(self, node: str | None, amounts: dict[str, int]) -> None:
        """Take an amount: of a call, which is written with its end, or of the job's own code; on the loop."""
        if node is not None:
            self._unsaid.setdefault(node, Counter()).update(amounts)
            return
        attempt = self._attempt
        value_node = attempt.replay.value_node(f"{SPENT}job")
        if value_node not in attempt.replay.values and attempt.goes_on():
            attempt.recorded(value_node, lambda: amounts)
            self._add(amounts)

    def ended(self, node: str) -> None:
        """A try of a call has ended: write what it has spent, before its end."""
        amounts = self._unsaid.pop(node, None)
        if amounts:
            attempt = self._attempt
            name = f"{SPENT}{node}:{attempt.replay.tries[node]}"
            attempt.record((HistoryEvent.VALUE_RECORDED.value, {"node": name, "value": dict(amounts)}))
            self._add(amounts)

    def _add(self, amounts: Mapping[str, int]) -> None:
        self._spent.update(amounts)
        self._attempt.products.spent({unit: amount / 1e6 for unit, amount in sorted(self._spent.items())})

    def _grant(self, completed: Mapping[str, Any]) -> None:
        granted = completed.get("payload")
        if isinstance(granted, dict) and completed.get("outcome") == "signal":
            self._limits.update(granted)
        else:  # resumed: what was spent until then is forgiven
            for unit in self._capped:
                self._limits[unit] = max(self._limits[unit], self._spent[unit])

    def over(self) -> list[str]:
        """List the units of which more was spent than there is."""
        return sorted(unit for unit in self._capped if self._spent[unit] > self._limits[unit])

    async def kept(self) -> None:
        """Before a call: stay here while the run is over its budget."""
        with self._attempt.waits.not_working():
            async with self._asking:  # one branch asks for all
                while self.over():
                    self._attempt.check_cancelled()
                    self._asked += 1
                    node = f"{GRANTED}{self._asked}"
                    self._grant(await self._attempt.waits.blocked_on(node, BUDGET_KEY, "human", said=self._said()))

    def _said(self) -> dict[str, Any]:
        over = {unit: [self._spent[unit] / 1e6, self._limits[unit] / 1e6] for unit in self.over()}
        return {"over_budget": over}


class Spending:
    """What an attempt does for `spend`."""

    budget_given: Mapping[str, int] | None

    @property
    def budgeted(self) -> bool:
        """Whether it may spend only so much."""
        return self.budget_given is not None

    @property
    def spends(self) -> bool:
        """Whether anything was spent, or asked for, in this attempt."""
        return "budget" in vars(self)

    @cached_property
    def budget(self) -> Budget:
        """What it may spend, and has."""
        return Budget(cast("Attempt", self), self.budget_given or {})

    def spent(self, call: str | None, amounts: dict[str, int]) -> None:
        """Take what code says it has spent; from any thread."""
        attempt = cast("Attempt", self)
        node = call.removeprefix(f"holdfast:{attempt.job}:") if call is not None else None
        if attempt.in_loop():
            self.budget.spend(node, amounts)
        else:
            attempt.from_thread(later(self.budget.spend, node, amounts))
