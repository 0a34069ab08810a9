"""The part of the reference backend that is about queues with limits: what it means, without any index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from holdfast.clock import Clock
from holdfast.errors import QueueFull
from holdfast.machines import JobState
from holdfast.store import commands as c
from holdfast.store.commands import LIMITS, WORK
from holdfast.store.limits import (
    Held,
    LimitRow,
    Limits,
    QueueState,
    fill,
    in_turn,
    may_take,
    queue_state,
    retry_after,
    room_of,
)
from holdfast.store.memory.runs import MemoryRuns
from holdfast.store.rows import Job
from holdfast.store.shared_budgets import BudgetRow, SpendBudget, Spent, spent_of
from holdfast.store.sql.limit_claims import Pick, held_back, interleaved, is_waiting, place_of

__all__ = ["MemoryLimits"]


class MemoryLimits(MemoryRuns):
    """Keeps the limits of queues, and goes by them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._limits: dict[str, LimitRow] = {}
        self._budgets: dict[str, BudgetRow] = {}

    async def limits(self) -> list[QueueState]:
        """Read the limits of queues, and how these stand."""
        now = self._clock.now()
        return [
            queue_state(row, self._running(queue, now), self._waiting(queue, now), now)
            for queue, row in sorted(self._limits.items())
        ]

    def set_limits(self, command: c.SetLimits) -> None:
        """Set the limits of a queue."""
        self._put(self._row(command.limits.queue).set(command.limits, self._now, command.actor))

    def pause_queue(self, command: c.PauseQueue) -> None:
        """Pause a queue, or let it go on."""
        self._put(self._row(command.queue).pause(self._now, command.actor, paused=command.paused))

    def admit(self, command: c.Submit) -> None:
        """See that a new job may come in."""
        row = self._row(command.queue)
        depth = row.limits.depth
        if depth is not None and command.parent is None and self._waiting(command.queue, self._now) >= depth:
            held = [job for job in self._jobs.values() if job.queue == command.queue and self._is_live(job, self._now)]
            ages = [self._now - job.course.started_at for job in held if job.course.started_at is not None]
            raise QueueFull(command.queue, depth, retry_after(row.limits, len(held), ages))
        if command.group is not None and not row.grouped:
            self._limits[command.queue] = msgspec.structs.replace(row, grouped=True)

    def choose(self, command: c.Claim) -> tuple[list[str], tuple[Held, ...]]:
        """Say which jobs a claim takes, in order, and what keeps it from more."""
        waiting = [job for job in self._jobs.values() if job.state is JobState.QUEUED and is_waiting(job, self._now)]
        fitting = [
            job
            for job in sorted(waiting, key=place_of)
            if (job.plugin, job.entry) in command.entries and (command.queues is None or job.queue in command.queues)
        ]
        plain = [job.id for job in fitting if job.queue not in self._limits]
        limited = sorted({job.queue for job in fitting} & self._limits.keys())
        picks = [self._pick(command, queue, [job for job in fitting if job.queue == queue]) for queue in limited]
        names = interleaved([plain, *(pick.names for pick in picks)], self._jobs, command.limit)
        held: list[Held] = []
        for pick in picks:
            taken = [name for name in pick.names if name in names]
            row = pick.row.spend([self._jobs[name].group or "" for name in taken], self._now)
            self._limits[row.queue] = row
            held += (
                [pick.held]
                if pick.held is not None and not pick.room
                else held_back(pick, row, len(taken), command.limit)
            )
        return names, tuple(held)

    def _pick(self, command: c.Claim, queue: str, fitting: list[Job]) -> Pick:
        row, running = self._limits[queue], self._running(queue, self._now)
        room, held = room_of(row, sum(running.values()), self._now)
        heads: dict[str, list[str]] = {}
        for job in fitting:
            heads.setdefault(job.group or "", []).append(job.id)
        groups = in_turn(list(heads), row.turn)
        order = fill(row, groups, running, min(room, command.limit), {name: len(heads[name]) for name in groups})
        taken = Counter(order)
        left = [name for name in groups if len(heads[name]) > taken[name]]
        full = any(not may_take(row.limits, name, running.get(name, 0) + taken[name]) for name in left)
        queued = {name: iter(names) for name, names in heads.items()}
        return Pick(row, [next(queued[name]) for name in order], room, held, bool(left), full)

    def _running(self, queue: str, now: float) -> Mapping[str, int]:
        return Counter(job.group or "" for job in self._jobs.values() if job.queue == queue and self._is_live(job, now))

    @staticmethod
    def _is_live(job: Job, now: float) -> bool:
        return job.state is JobState.RUNNING and job.lease is not None and job.lease.until > now

    def _waiting(self, queue: str, now: float) -> int:
        return sum(job.queue == queue and is_waiting(job, now) for job in self._jobs.values())

    def spend_budget(self, command: SpendBudget) -> Spent:
        """Take of a budget."""
        answer, row = spent_of(command, self._budgets.get(command.budget))
        if row is not None:
            self._budgets[command.budget] = row
        return answer

    def _row(self, queue: str) -> LimitRow:
        return self._limits.get(queue) or LimitRow(Limits(queue=queue))

    def _put(self, row: LimitRow) -> None:
        self._limits[row.queue] = row
        if row.is_bare():
            del self._limits[row.queue]
        self._change |= WORK | LIMITS
