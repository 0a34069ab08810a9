"""The reference backend: dictionaries. For tests, simulations, and to say plainly what the others must do.

Nothing is durable. Everything else of the contract holds; commands are decided by the same code as everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, UnknownJob
from holdfast.machines import TERMINAL_JOB_STATES, Event, JobState
from holdfast.store import commands as c
from holdfast.store import decide
from holdfast.store.rows import Job, Signal

__all__ = ["MemoryStore"]


class MemoryStore:
    """Keeps jobs in this process's memory."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jobs: dict[str, Job] = {}
        self._events: dict[str, list[Event]] = {}
        self._signals: dict[str, dict[str, Signal]] = {}  # by job, by id; used ones are kept to know repeats
        self._used: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._notices: list[Callable[[], None]] = []
        self._written = 0

    async def commit(self, batch: Sequence[c.Command]) -> list[Any]:
        """Carry out commands; see the protocol."""
        return self.commit_blocking(batch)

    def commit_blocking(self, batch: Sequence[c.Command]) -> list[Any]:
        """Carry out commands, from any thread."""
        with self._lock:
            now = self._clock.now()
            before = self._written
            answers = [self._answer(command, now) for command in batch]
        if self._written != before or any(isinstance(command, c.Pause) for command in batch):
            for notice in list(self._notices):
                notice()
        return answers

    def subscribe(self, notice: Callable[[], None]) -> Callable[[], None]:
        """Have `notice` called after each commit."""
        self._notices.append(notice)
        return lambda: self._notices.remove(notice)

    def changes(self) -> int:
        """Nobody else can write here."""
        return 0

    async def get(self, job: str) -> Job | None:
        """Read one job's row."""
        return self._jobs.get(job)

    async def events(self, job: str, after: int = 0) -> list[Event]:
        """Read a job's stream from behind a number."""
        return self._events.get(job, [])[after:]

    async def inbox(self, job: str) -> list[Signal]:
        """Read the unused signals of a job."""
        return [signal for signal in self._signals.get(job, {}).values() if (job, signal.id) not in self._used]

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        plugin: str | None = None,
        entry: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List jobs, newest id first."""
        chosen = (
            job
            for job in sorted(self._jobs.values(), key=lambda job: job.id, reverse=True)
            if (state is None or job.state is state)
            and (plugin is None or job.plugin == plugin)
            and (entry is None or job.entry == entry)
            and (before is None or job.id < before)
        )
        return [job for job, _ in zip(chosen, range(limit), strict=False)]

    async def requests(self, worker: str) -> c.Leases:
        """Read what was asked of a worker's jobs."""
        held = [job for job in self._jobs.values() if job.lease is not None and job.lease.worker == worker]
        cancel = frozenset(job.id for job in held if job.cancel is not None)
        return c.Leases(frozenset(), cancel, frozenset(job.id for job in held if job.pause))

    async def next_due(self) -> float | None:
        """Find the next time at which time alone brings something about."""
        now = self._clock.now()
        return min((time for job in self._jobs.values() for time in _times(job, now)), default=None)

    async def now(self) -> float:
        """Read the clock."""
        return self._clock.now()

    async def close(self) -> None:
        """Nothing is held."""

    def _answer(self, command: c.Command, now: float) -> Any:
        try:
            return self._carry_out(command, now)
        except HoldfastError as refusal:
            return refusal

    def _carry_out(self, command: c.Command, now: float) -> Any:
        match command:
            case c.Submit():
                return self._write(decide.submit(command, now, self._existing(command)))
            case c.Claim():
                return self._claim(command, now)
            case c.Renew():
                return self._renew(command, now)
            case c.Reclaim():
                return self._sweep(command.limit, lambda job: decide.reclaim(job, now), _by_lease)
            case c.Expire():
                return self._sweep(command.limit, lambda job: decide.expire(job, now), _by_end)
            case c.Bury():
                return self._bury(command, now)
            case _:
                job = self._jobs.get(command.job)
                if job is None:
                    raise UnknownJob(command.job)
                known = self._signals.get(command.job, {}).__contains__
                return self._write(decide.decide(command, job, now, lambda key: self._first(job.id, key), known))

    def _write(self, decision: decide.Decision) -> Any:
        job = decision.job
        self._jobs[job.id] = job
        self._events.setdefault(job.id, []).extend(decision.events)
        self._written += len(decision.events)
        for signal in decision.kept:
            self._signals.setdefault(signal.job, {})[signal.id] = signal
        self._used |= {(signal.job, signal.id) for signal in decision.used}
        for told in decision.follow:
            if told.job in self._jobs:
                self._carry_out(told, job.updated_at)
        return decision.answer

    def _existing(self, command: c.Submit) -> Job | None:
        if command.job in self._jobs or command.idempotency_key is None:
            return self._jobs.get(command.job)
        wanted = (command.plugin, command.entry, command.idempotency_key)
        same = (job for job in self._jobs.values() if (job.plugin, job.entry, job.idempotency_key) == wanted)
        return next(same, None)

    def _first(self, job: str, key: str) -> Signal | None:
        unused = (signal for signal in self._signals.get(job, {}).values() if (job, signal.id) not in self._used)
        return next((signal for signal in unused if signal.key == key), None)

    def _claim(self, command: c.Claim, now: float) -> list[c.Claimed]:
        fitting = [
            job
            for job in self._jobs.values()
            if job.state is JobState.QUEUED
            and job.due_at <= now
            and (job.plugin, job.entry) in command.entries
            and (command.queues is None or job.queue in command.queues)
        ]
        claimed = []
        for job in sorted(fitting, key=lambda job: (-job.priority, job.due_at, job.id))[: command.limit]:
            decision = decide.claim(job, command, now)
            self._write(decision)
            claimed.append(c.Claimed(decision.job, list(self._events[job.id])))
        return claimed

    def _renew(self, command: c.Renew, now: float) -> c.Leases:
        lost, cancel, pause = set(), set(), set()
        for name, attempt in command.held:
            job = self._jobs.get(name)
            renewed = decide.renew(job, command, attempt, now) if job is not None else None
            if renewed is None:
                lost.add(name)
                continue
            self._jobs[name] = renewed
            cancel |= {name} if renewed.cancel is not None else set()
            pause |= {name} if renewed.pause else set()
        return c.Leases(frozenset(lost), frozenset(cancel), frozenset(pause))

    def _sweep(
        self, limit: int, decided: Callable[[Job], decide.Decision | None], order: Callable[[Job], float]
    ) -> c.Swept:
        swept: list[str] = []
        for job in sorted(self._jobs.values(), key=lambda job: (order(job), job.id)):
            decision = decided(job) if len(swept) < limit else None
            if decision is not None:
                self._write(decision)
                swept.append(job.id)
        return c.Swept(swept)

    def _bury(self, command: c.Bury, now: float) -> c.Swept:
        dead = sorted(
            job.id for job in self._jobs.values() if job.lease is not None and job.lease.worker == command.worker
        )
        for name in dead:
            self._jobs[name] = decide.buried(self._jobs[name], now)
        return c.Swept(dead)


def _times(job: Job, now: float) -> Iterable[float]:
    if job.state is JobState.QUEUED and job.due_at > now:
        yield job.due_at
    if job.wait is not None and job.wait.deadline is not None:
        yield job.wait.deadline
    if job.lease is not None:
        yield job.lease.until
    elif job.deadline is not None and job.state not in TERMINAL_JOB_STATES:
        yield job.deadline


def _by_lease(job: Job) -> float:
    return job.lease.until if job.lease is not None else float("inf")


def _by_end(job: Job) -> float:
    ends = [job.deadline, job.wait.deadline if job.wait is not None else None]
    return min((end for end in ends if end is not None), default=float("inf"))
