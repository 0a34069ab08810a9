"""The budget of a run: what it may spend, what it has spent, and what happens when it has spent more.

Amounts are whole millionths. Spent amounts are kept in the job's stream as recorded values. So a replay knows them and
does not spend them again. A call's amounts are written with the next batch, not only with the call's end. So a crash
during a call does not lose them. A call that spends repeatedly is written at most twenty times a second.

A run over its budget is parked at its next call until an operator grants more. A grant is a signal. If it comes early,
it waits in the inbox.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.machines import HistoryEvent
from holdfast.machines.keys import BUDGET_KEY, GRANTED, SPENT, node_of_ended

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

GATHER_SECONDS = 0.05  # during which further amounts of a call are gathered


class Budget:
    """The budget of one attempt's run."""

    def __init__(self, attempt: Attempt, limits: Mapping[str, int]) -> None:
        self._attempt = attempt
        self._limits: Counter[str] = Counter(limits)
        self._capped = frozenset(limits)
        self._spent: Counter[str] = Counter()
        self._unwritten: dict[str, Counter[str]] = {}  # by call, amounts not written yet
        self._gathering: dict[str, asyncio.TimerHandle] = {}  # by call, the timer that ends the gathering
        self._parts: Counter[str] = Counter()  # by call and try, the number of amounts written
        self._asking = asyncio.Lock()
        self._asked = 0
        values, waits = attempt.replay.values, attempt.replay.completed_waits
        for node, value in values.items():
            if node.startswith(SPENT) and isinstance(value, dict):
                self._spent.update(value)
        ended = {wait: value for name, value in values.items() if (wait := node_of_ended(name)) is not None}
        for node, completed in {**ended, **waits}.items():
            if node.startswith(GRANTED):
                self._grant(completed)
                self._asked = max(self._asked, int(node.removeprefix(GRANTED)))

    def spend(self, node: str | None, amounts: dict[str, int]) -> None:
        """Count an amount spent by a call, or by the job's own code. Runs on the loop."""
        if node is not None:
            self._unwritten.setdefault(node, Counter()).update(amounts)
            if node not in self._gathering:
                self._write(node)
            return
        attempt = self._attempt
        value_node = attempt.replay.value_node(f"{SPENT}job")
        if value_node not in attempt.replay.values and attempt.goes_on():
            attempt.recorded(value_node, lambda: amounts)
            self._add(amounts)

    def ended(self, node: str) -> None:
        """Write the rest of what a try of a call has spent, before its end is written."""
        if node in self._gathering:
            self._gathering.pop(node).cancel()
        if node in self._unwritten:
            self._write(node)

    def _write(self, node: str) -> None:
        """Write what a call has spent so far, and gather what it spends next."""
        attempt, amounts = self._attempt, self._unwritten.pop(node, None)
        self._gathering.pop(node, None)
        if not amounts or attempt.write_closed:
            return
        name = f"{SPENT}{node}:{attempt.replay.tries[node]}"
        self._parts[name] += 1
        payload = {"node": f"{name}:{self._parts[name]}", "value": dict(amounts)}
        attempt.record((HistoryEvent.VALUE_RECORDED.value, payload))
        self._add(amounts)
        self._gathering[node] = attempt.loop.call_later(GATHER_SECONDS, self._write, node)

    def _add(self, amounts: Mapping[str, int]) -> None:
        self._spent.update(amounts)
        self._attempt.reports.spent({unit: amount / 1e6 for unit, amount in sorted(self._spent.items())})

    def _grant(self, completed: Mapping[str, Any]) -> None:
        granted = completed.get("payload")
        if isinstance(granted, dict) and completed.get("outcome") == "signal":
            self._limits.update(granted)

    def exceeded(self) -> list[str]:
        """List the units of which the run has spent more than it may."""
        return sorted(unit for unit in self._capped if self._spent[unit] > self._limits[unit])

    def left(self) -> dict[str, int]:
        """Return what is left of each unit. It is negative where more was spent."""
        return {unit: self._limits[unit] - self._spent[unit] for unit in sorted(self._capped)}

    async def wait_for_grant(self) -> None:
        """Wait before a call while the run is over its budget."""
        with self._attempt.waits.not_working():
            await self._asking.acquire()  # one call waits for all of them
        try:
            while self.exceeded():
                self._attempt.check_cancelled()
                self._asked += 1
                node = f"{GRANTED}{self._asked}"
                self._grant(
                    await self._attempt.waits.blocked_on(node, BUDGET_KEY, "human", details=self._wait_payload())
                )
        finally:
            self._asking.release()

    def _wait_payload(self) -> dict[str, Any]:
        over = {unit: [self._spent[unit] / 1e6, self._limits[unit] / 1e6] for unit in self.exceeded()}
        return {"over_budget": over}
