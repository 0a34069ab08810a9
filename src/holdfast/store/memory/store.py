"""The reference backend: dictionaries. For tests, simulations, and to say plainly what the others must do.

Nothing is durable. Everything else of the contract holds; commands are decided by the same code as everywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, UnknownJob
from holdfast.machines import TERMINAL_JOB_STATES, Event, JobState
from holdfast.store import commands as c
from holdfast.store import continuation, decide
from holdfast.store.commands import WORK
from holdfast.store.memory.limits import MemoryLimits
from holdfast.store.rows import FORGOTTEN_SECONDS, Evidence, Job, Signal, WorkerCard
from holdfast.store.sql.limit_claims import Places

__all__ = ["MemoryStore"]


class MemoryStore(MemoryLimits):
    """Keeps jobs in this process's memory."""

    floor_seconds: float | None = None

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock())
        self._events: dict[str, list[tuple[Event, bytes]]] = {}  # with payloads as text: every reader gets its own
        self._inboxes: dict[str, _Inbox] = {}
        self._evidence: dict[tuple[str, str, int, int], Evidence] = {}
        self._workers: dict[str, WorkerCard] = {}
        self._next: deque[c.Command] = deque()  # what a command brings about for other jobs, in the same transaction
        self._handlers: dict[type, Callable[[Any], Any]] = {
            c.Submit: self._submit,
            c.Claim: self._claim,
            c.Renew: self._renew,
            c.Reclaim: self._reclaim,
            c.Expire: self._expire,
            c.Bury: self._bury,
            c.Purge: self._purge,
            c.KeepEvidence: self._keep,
            c.Progress: self.report_progress,
            c.KeepExport: self.keep_export,
            c.PutBlob: self.put_blob,
            c.Report: self._report,
            c.Leave: self._leave,
            c.SetLimits: self.set_limits,
            c.PauseQueue: self.pause_queue,
            c.SpendBudget: self.spend_budget,
        }
        self._lock = threading.Lock()
        self._notices: list[Callable[[int], None]] = []

    async def commit(self, batch: Sequence[c.Command]) -> list[Any]:
        """Carry out commands; see the protocol."""
        return self.commit_blocking(batch)

    def commit_blocking(self, batch: Sequence[c.Command]) -> list[Any]:
        """Carry out commands, from any thread."""
        with self._lock:
            self._now = self._clock.now()
            self._change, self._places = 0, Places()
            answers = [self._answer(command) for command in batch]
            change = self._change | self._places.left(self._limits)
        if change:
            for notice in list(self._notices):
                notice(change)
        return answers

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
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
        return [_whole(*sealed) for sealed in self._events.get(job, [])[after:]]

    async def inbox(self, job: str) -> list[Signal]:
        """Read the unused signals of a job."""
        return [_own(signal) for signal in self._inbox(job).unused()]

    async def evidence(self, job: str) -> list[Evidence]:
        """Read what came too late."""
        return [one for one in self._evidence.values() if one.job == job]

    async def workers(self) -> list[WorkerCard]:
        """Read who is there."""
        return sorted(self._workers.values(), key=lambda card: card.name)

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

    async def next_due(self, after: float | None = None) -> float | None:
        """Find the next time at which time alone brings something about."""
        since = self._clock.now() if after is None else after
        return min((time for job in self._jobs.values() for time in _times(job, since)), default=None)

    async def stirs(self) -> bool:
        """See whether there is anything to do."""
        now = self._clock.now()
        return any(time <= now for job in self._jobs.values() for time in _times(job, 0.0))

    async def now(self) -> float:
        """Read the clock."""
        return self._clock.now()

    def attend(self, worker: str) -> None:
        """Nobody here can tell; a supervisor can."""

    async def dead(self) -> list[str]:
        """Nobody here can tell."""
        return []

    async def close(self) -> None:
        """Nothing is held."""

    def _answer(self, command: c.Command) -> Any:
        try:
            answer = self._carry_out(command)
        except HoldfastError as refusal:
            return refusal
        while self._next:
            following = self._next.popleft()
            if getattr(following, "job", None) in self._jobs:
                self._carry_out(following)
        return answer

    def _carry_out(self, command: c.Command) -> Any:
        return self._handlers.get(type(command), self._about_one_job)(command)

    def _about_one_job(self, command: Any) -> Any:
        job = self._jobs.get(command.job)
        if job is None:
            raise UnknownJob(command.job)
        if job.course.continued_as is not None:
            command, job = self._forwarded(command, job)
        return self._write(decide.decide(command, job, self._now, self._inbox(job.id)))

    def _forwarded(self, command: Any, job: Job) -> tuple[Any, Job]:
        """Give what is asked of a job that was continued to the one that goes on for it."""
        going_on = continuation.current(job, self._jobs.get)
        if isinstance(command, c.SendSignal):
            if continuation.stays(command, self._inbox(job.id)):
                return command, job
            if going_on.state not in TERMINAL_JOB_STATES:
                self._write(continuation.noted(command, job, self._now))
        return msgspec.structs.replace(command, job=going_on.id), going_on

    def _submit(self, command: c.Submit) -> Any:
        decide.fence_parent(command, self._jobs.get(command.parent or ""), self._now)
        existing = self._existing(command)
        if existing is None:
            self.admit(command)
        return self._write(decide.submit(command, self._now, existing))

    def _write(self, decision: decide.Decision) -> Any:
        job = decision.job
        self._places.move(self._jobs.get(job.id), job)
        self._jobs[job.id] = job
        self._events.setdefault(job.id, []).extend(zip(decision.events, decision.payloads, strict=True))
        self._change |= decision.change
        for signal in decision.kept:
            self._inbox(signal.job).keep(_own(signal))
        for signal in decision.used:
            self._inbox(signal.job).use(signal.id)
        if decision.past is not None:
            self.keep_run(decision.job.id, decision.job.run - 1, decision.past)
        if decision.successor is not None:
            self._continue(decision.successor, decision)
        self._next += decision.follow
        if decision.orphans is not None:
            self._next += [c.Cancel(name, decision.orphans) for name in self._children(job.id)]
        return decision.answer

    def _continue(self, successor: c.Submit, ended: decide.Decision) -> None:
        """Create the job that goes on in place of another, and have the first of the chain name it."""
        self._write(decide.succeed(successor, ended, self._now))
        first = self._jobs.get(successor.first or "")
        if first is not None:
            self._jobs[first.id] = msgspec.structs.replace(first, newest=successor.job)

    def _children(self, parent: str) -> list[str]:
        """The jobs that this one has started and that have not ended, oldest first."""
        return sorted(
            job.id for job in self._jobs.values() if job.parent == parent and job.state not in TERMINAL_JOB_STATES
        )

    def _keep(self, command: c.KeepEvidence) -> bool:
        evidence = command.evidence
        known = (evidence.job, evidence.node, evidence.attempt, evidence.number)
        if evidence.job not in self._jobs:
            raise UnknownJob(evidence.job)
        if known in self._evidence:
            return False
        self._evidence[known] = msgspec.structs.replace(evidence, at=self._now)
        return True

    def _report(self, command: c.Report) -> None:
        card, now = command.card, self._now
        before = self._workers.get(card.name)
        started = before.started_at if before is not None else now
        heard_of = {name: one for name, one in self._workers.items() if one.seen_at > now - FORGOTTEN_SECONDS}
        self._workers = {**heard_of, card.name: msgspec.structs.replace(card, started_at=started, seen_at=now)}

    def _existing(self, command: c.Submit) -> Job | None:
        if command.job in self._jobs or command.idempotency_key is None:
            return self._jobs.get(command.job)
        wanted = (command.plugin, command.entry, command.idempotency_key)
        same = (job for job in self._jobs.values() if (job.plugin, job.entry, job.idempotency_key) == wanted)
        return next(same, None)

    def _inbox(self, job: str) -> _Inbox:
        return self._inboxes.setdefault(job, _Inbox())

    def _claim(self, command: c.Claim) -> c.Claims:
        names, held = self.choose(command)
        claimed = []
        for name in names:
            decision = decide.claim(self._jobs[name], command, self._now)
            self._write(decision)
            claimed.append(c.Claimed(decision.job, [_whole(*sealed) for sealed in self._events[name]]))
        return c.Claims(claimed, held)

    def _renew(self, command: c.Renew) -> c.Leases:
        lost, cancel, pause = set(), set(), set()
        for name, attempt in command.held:
            job = self._jobs.get(name)
            renewed = decide.renew(job, command, attempt, self._now) if job is not None else None
            if renewed is None:
                lost.add(name)
                continue
            self._jobs[name] = renewed
            cancel |= {name} if renewed.cancel is not None else set()
            pause |= {name} if renewed.pause else set()
        return c.Leases(frozenset(lost), frozenset(cancel), frozenset(pause))

    def _leave(self, command: c.Leave) -> None:
        self._workers.pop(command.worker, None)

    def _reclaim(self, command: c.Reclaim) -> c.Swept:
        return self._sweep(command.limit, lambda job: decide.reclaim(job, self._now), _by_lease)

    def _expire(self, command: c.Expire) -> c.Swept:
        return self._sweep(command.limit, lambda job: decide.expire(job, self._now, self._inbox(job.id)), _by_end)

    def _sweep(
        self, limit: int, decided: Callable[[Job], decide.Decision | None], order: Callable[[Job], float]
    ) -> c.Swept:
        swept: list[str] = []
        ending = [(at, job.id, job) for job in self._jobs.values() if (at := order(job)) <= self._now]
        for _, _, job in sorted(ending, key=lambda one: one[:2]):
            decision = decided(job) if len(swept) < limit else None
            if decision is not None:
                self._write(decision)
                swept.append(job.id)
        return c.Swept(swept)

    def _bury(self, command: c.Bury) -> c.Swept:
        dead = sorted(
            job.id for job in self._jobs.values() if job.lease is not None and job.lease.worker == command.worker
        )
        for name in dead:
            self._jobs[name] = decide.buried(self._jobs[name], self._now)
        self._workers.pop(command.worker, None)
        self._change |= WORK if dead else 0
        return c.Swept(dead)

    def _purge(self, command: c.Purge) -> c.Swept:
        old = [job for job in self._jobs.values() if self._is_purged(job, command)]
        gone = [job.id for job in sorted(old, key=lambda job: (job.created_at, job.id))[: command.limit]]
        for name in gone:
            del self._jobs[name], self._events[name]
            self._inboxes.pop(name, None)
        self.forget_runs()
        self._evidence = {known: one for known, one in self._evidence.items() if one.job in self._jobs}
        return c.Swept(gone)

    def _is_purged(self, job: Job, command: c.Purge) -> bool:
        parent = self._jobs.get(job.parent) if job.parent is not None else None
        newest = self._jobs.get(job.newest) if job.newest is not None else None
        return (
            job.state in TERMINAL_JOB_STATES & command.states
            and job.updated_at <= command.before
            and (parent is None or parent.state in TERMINAL_JOB_STATES - {JobState.FAILED})
            and (newest is None or newest.state in TERMINAL_JOB_STATES)
        )


def _own(signal: Signal) -> Signal:
    """Copy a signal: what its sender or its reader does to the payload changes nothing that is kept."""
    return msgspec.structs.replace(signal, payload=msgspec.json.decode(msgspec.json.encode(signal.payload)))


class _Inbox:
    """One job's signals: the unused ones by id, oldest first, and the ids of all, to know repeats."""

    def __init__(self) -> None:
        self._unused: dict[str, Signal] = {}
        self._known: set[str] = set()

    def oldest(self, keys: Container[str | None], besides: Container[str] = ()) -> Signal | None:
        fitting = (one for one in self._unused.values() if one.key in keys and one.id not in besides)
        return next(fitting, None)

    def knows(self, signal: str) -> bool:
        return signal in self._known

    def count(self) -> int:
        return len(self._unused)

    def keys(self) -> Collection[str]:
        return [signal.key for signal in self._unused.values()]

    def unused(self) -> list[Signal]:
        return list(self._unused.values())

    def keep(self, signal: Signal) -> None:
        self._known.add(signal.id)
        self._unused[signal.id] = signal

    def use(self, signal: str) -> None:
        self._unused.pop(signal, None)


def _whole(event: Event, payload: bytes) -> Event:
    return msgspec.structs.replace(event, payload=msgspec.json.decode(payload))


def _times(job: Job, since: float) -> Iterable[float]:
    if job.state is JobState.QUEUED and job.due_at > since:
        yield job.due_at
    if job.wait is not None and job.wait.deadline is not None:
        yield job.wait.deadline
    if job.wake_at is not None:
        yield job.wake_at
    if job.lease is not None:
        yield job.lease.until
    elif job.ends_by is not None and job.state not in TERMINAL_JOB_STATES:
        yield job.ends_by


def _by_lease(job: Job) -> float:
    return job.lease.until if job.lease is not None else float("inf")


def _by_end(job: Job) -> float:
    ends = [job.ends_by, job.wait.deadline if job.wait is not None else None, job.wake_at]
    return min((end for end in ends if end is not None), default=float("inf"))
