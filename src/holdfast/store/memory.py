"""The memory store: the reference backend, in dictionaries. For tests and simulations.

Nothing is durable. The rest of the contract holds. `decide` decides commands, as in every backend.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, QueueFull, UnknownJob
from holdfast.machines import TERMINAL_JOB_STATES, TERMINAL_RUN_STATUSES, Event, JobState, RunRecord, RunStatus
from holdfast.machines.run_projection import run_name
from holdfast.schedules.outcome import EVENTS_OF_A_TICK, KINDS, TickEvent, TickOutcome, outcomes_of
from holdfast.schedules.schedule import Schedule, stream_of
from holdfast.store import commands as c
from holdfast.store import continuation, decide
from holdfast.store.audit import AuditRow, audit_rows, unwrapped
from holdfast.store.commands import EVENTS, LIMITS, PROGRESS, WORK
from holdfast.store.limits import (
    Blocked,
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
from holdfast.store.request_keys import KEPT_SECONDS, KeepAnswer, Requests
from holdfast.store.rows import FORGOTTEN_SECONDS, Evidence, Job, PastEvent, Signal, WorkerCard
from holdfast.store.run_queries import (
    BuildCounts,
    Counts,
    EndedJob,
    ExportRow,
    IndexEntries,
    RecordCounts,
    RunCursor,
    RunFilter,
    WaitCount,
    Window,
    WindowCounts,
    build_counts_of,
    counts_of,
    expected_index_entries,
    marks_in,
    merged,
    with_progress,
)
from holdfast.store.schedule_commands import EndedRun
from holdfast.store.schedule_writes import SCHEDULE_COMMANDS, ScheduleTable, ends_run, schedule_answer
from holdfast.store.shared_budgets import BudgetRow, SpendBudget, Spent, spent_of
from holdfast.store.sql.limit_claims import Pick, Places, held_back, interleaved, is_waiting, place_of
from holdfast.store.stream_writer import Decision

Read = TypeVar("Read", bound=Callable[..., Any])


def _alone(read: Read) -> Read:
    """Let a read wait for a commit of another thread."""

    async def locked(self: MemoryStore, /, *args: Any, **kwargs: Any) -> Any:
        with self._lock:  # the read does not give up the loop
            return await read(self, *args, **kwargs)

    return cast("Read", locked)


class MemoryStore(ScheduleTable):
    """A store in this process's memory."""

    floor_seconds: float | None = None

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jobs: dict[str, Job] = {}
        self._events: dict[str, list[tuple[Event, bytes]]] = {}  # with payloads as text: every reader gets its own
        self._inboxes: dict[str, MemoryInbox] = {}
        self._evidence: dict[tuple[str, str, int, int], Evidence] = {}
        self._workers: dict[str, WorkerCard] = {}
        self._past: dict[RunCursor, RunRecord] = {}
        self._progress: dict[RunCursor, tuple[bytes, float]] = {}
        self._exports: dict[RunCursor, list[ExportRow]] = {}
        self._blobs: dict[tuple[str, str, int], bytes] = {}
        self._limits: dict[str, LimitRow] = {}
        self._budgets: dict[str, BudgetRow] = {}
        self._audit: deque[AuditRow] = deque()
        self._audited = 0  # rows that were ever written
        self._schedules: dict[str, Schedule] = {}
        self._ended_runs: list[tuple[float, EndedRun]] = []  # that their schedules have not taken note of
        self._builds: dict[str, dict[str, int]] = {}  # that have declared schedules, by app, with their order
        self._requests: dict[str, tuple[str, str]] = {}  # fingerprint and answer of requests, by key
        self._request_times: deque[tuple[float, str]] = deque()
        self._now = 0.0  # the time of the transaction under way
        self._change = 0  # its change flags
        self._next: deque[c.Command] = deque()  # commands for other jobs that a command causes, in the same transaction
        self._handlers: dict[type, Callable[[Any], Any]] = {
            c.Submit: self._submit,
            c.Claim: self._claim,
            c.Renew: self._renew,
            c.Reclaim: self._reclaim,
            c.Expire: self._expire,
            c.ReleaseLeases: self._release_leases,
            c.Purge: self._purge,
            c.KeepEvidence: self._keep,
            c.Progress: self._report_progress,
            c.KeepExport: self._keep_export,
            c.PutBlob: self._put_blob,
            c.PutWorker: self._put_worker,
            c.RemoveWorker: self._remove_worker,
            c.SetLimits: self._set_limits,
            c.PauseQueue: self._pause_queue,
            SpendBudget: self._spend_budget,
            c.PurgeAudit: self._purge_audit,
            KeepAnswer: lambda command: command.answer,
            **dict.fromkeys(SCHEDULE_COMMANDS, partial(schedule_answer, self)),
        }
        self._lock = threading.Lock()
        self._notices: list[Callable[[int], None]] = []

    async def commit(self, batch: Sequence[c.Command]) -> list[Any]:
        return self.commit_blocking(batch)

    def commit_blocking(self, batch: Sequence[c.Command]) -> list[Any]:
        with self._lock:
            self._now = self._clock.now()
            self._change, self._places = 0, Places()
            requests = Requests(batch)
            requests.have(
                {key: kept for key, _ in requests.fingerprints() if (kept := self._requests.get(key)) is not None}
            )
            done = [self._answer(command) for command in unwrapped(requests.todo)]
            for actor, said, verb, subject, detail in audit_rows(requests.todo, done):
                self._audited += 1
                row = AuditRow(self._audited, self._now, actor, said, verb, subject, msgspec.json.decode(detail))
                self._audit.append(row)
            for key, fingerprint, answer_json in requests.kept(done):
                self._requests[key] = fingerprint, answer_json
                self._request_times.append((self._now, key))
            while self._request_times and self._request_times[0][0] < self._now - KEPT_SECONDS:
                del self._requests[self._request_times.popleft()[1]]
            answers = requests.answers(done)
            change = self._change | self._places.left(self._limits)
        if change:
            for notice in list(self._notices):
                notice(change)
        return answers

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        """Call `notice` after each commit."""
        self._notices.append(notice)
        return lambda: self._notices.remove(notice)

    def change_count(self) -> int:
        """Return 0: no other process can write here."""
        return 0

    async def get(self, job: str) -> Job | None:
        return self._jobs.get(job)

    async def events(self, job: str, after: int = 0, limit: int | None = None) -> list[Event]:
        end = after + limit if limit is not None else None
        return [_whole(*sealed) for sealed in self._events.get(job, [])[after:end]]

    @_alone
    async def last_event(self, job: str) -> Event | None:
        return _whole(*self._events[job][-1]) if job in self._events else None

    @_alone
    async def versions(self, jobs: Sequence[str]) -> dict[str, Any]:
        rows = [self._jobs[job] for job in jobs if job in self._jobs]
        return {row.id: (row.version, self._progress.get((row.id, row.run))) for row in rows}

    @_alone
    async def kept_builds(self) -> list[str]:
        """List the builds that jobs are kept for."""
        live = (job for job in self._jobs.values() if job.state not in TERMINAL_JOB_STATES)
        return sorted({job.kept_for for job in live if job.kept_for is not None})

    @_alone
    async def kept_jobs(self, build: str, after: str | None = None, limit: int = 100) -> list[Job]:
        """List the jobs that are kept for a build."""
        kept = (job for name, job in sorted(self._jobs.items()) if job.kept_for == build and name > (after or ""))
        return [job for job in kept if job.state not in TERMINAL_JOB_STATES][:limit]

    @_alone
    async def ended_jobs(
        self, before: float, after: tuple[float, str] | None = None, limit: int = 1000
    ) -> list[EndedJob]:
        """List jobs that have ended, oldest first."""
        ended = [job for job in self._jobs.values() if job.state in TERMINAL_JOB_STATES and job.created_at <= before]
        ended.sort(key=lambda job: (job.created_at, job.id))
        rows = [
            EndedJob(job.id, job.created_at, job.updated_at, job.plugin, job.entry, job.state.value)
            for job in ended
            if after is None or (job.created_at, job.id) > after
        ]
        return rows[:limit]

    @_alone
    async def build_counts(self) -> BuildCounts:
        """Count the open jobs by the build that they need."""
        rows: dict[tuple[str, str | None], tuple[int, str]] = {}
        for name, job in sorted(self._jobs.items()):
            if job.state in TERMINAL_JOB_STATES:
                continue
            is_running = job.state is JobState.RUNNING
            worker = job.lease.worker if job.lease is not None else None
            kinds = [("running", worker) if is_running else ("waiting", job.course.build)]
            for kind in [*kinds, ("kept", job.kept_for)]:
                number, oldest = rows.get(kind, (0, name))
                rows[kind] = (number + 1, oldest)
        return build_counts_of((*kind, *counted) for kind, counted in rows.items())

    @_alone
    async def open_jobs(self, before: str | None = None, limit: int = 100) -> list[Job]:
        """List the jobs that have not ended."""
        chosen = (job for name, job in sorted(self._jobs.items(), reverse=True) if before is None or name < before)
        return [job for job in chosen if job.state not in TERMINAL_JOB_STATES][:limit]

    @_alone
    async def marks(self, jobs: Sequence[str]) -> dict[str, dict[str, bool]]:
        """Read the marked changes of jobs."""
        return marks_in(_whole(*sealed) for job in jobs for sealed in self._events.get(job, ()))

    @_alone
    async def audit(self, before: int | None, limit: int) -> list[AuditRow]:
        """Read the audit log."""
        rows = [row for row in reversed(self._audit) if before is None or row.number < before]
        return rows[:limit]

    async def inbox(self, job: str) -> list[Signal]:
        return [_own(signal) for signal in self._inbox(job).unused()]

    @_alone
    async def evidence(self, job: str, after: int = 0, limit: int | None = None) -> list[Evidence]:
        reports = [kept for kept in self._evidence.values() if kept.job == job]
        return reports[after : after + limit if limit is not None else None]

    @_alone
    async def workers(self) -> list[WorkerCard]:
        return sorted(self._workers.values(), key=lambda card: card.name)

    @_alone
    async def jobs(
        self,
        *,
        state: JobState | None = None,
        plugin: str | None = None,
        entry: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        chosen = (
            job
            for job in sorted(self._jobs.values(), key=lambda job: job.id, reverse=True)
            if (state is None or job.state is state)
            and (plugin is None or job.plugin == plugin)
            and (entry is None or job.entry == entry)
            and (before is None or job.id < before)
        )
        return [job for job, _ in zip(chosen, range(limit), strict=False)]

    @_alone
    async def requests_for(self, worker: str) -> c.Leases:
        held = [job for job in self._jobs.values() if job.lease is not None and job.lease.worker == worker]
        cancel = frozenset(job.id for job in held if job.cancel is not None)
        pause = frozenset(job.id for job in held if job.pause)
        return c.Leases(frozenset(), cancel, pause, frozenset(job.id for job in held if self._inbox(job.id).count()))

    @_alone
    async def next_due(self, after: float | None = None) -> float | None:
        since = self._clock.now() if after is None else after
        times = [time for job in self._jobs.values() for time in _times(job, since)]
        return min([*times, *self._schedule_times()], default=None)

    @_alone
    async def has_work(self) -> bool:
        now = self._clock.now()
        times = [time for job in self._jobs.values() for time in _times(job, 0.0)]
        return any(time <= now for time in [*times, *self._schedule_times()])

    async def now(self) -> float:
        return self._clock.now()

    def hold_liveness_lock(self, worker: str) -> None:
        """Do nothing: this store cannot detect a death; a supervisor can."""

    async def dead_workers(self) -> list[str]:
        """Return no workers: this store cannot detect a death."""
        return []

    async def close(self) -> None:
        """Do nothing: the store holds no resources."""

    def _answer(self, command: c.Command) -> Any:
        try:
            answer = self._carry_out(command)
        except HoldfastError as refusal:
            return refusal
        self._follow()
        return answer

    def _follow(self) -> None:
        while self._next:
            following = self._next.popleft()
            if getattr(following, "job", None) in self._jobs:
                self._carry_out(following)

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
        """Redirect a command about a continued job to its successor."""
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
            self._admit(command)
        return self._write(decide.submit(command, self._now, existing))

    def _write(self, decision: Decision) -> Any:
        job = decision.job
        self._places.move(self._jobs.get(job.id), job)
        self._jobs[job.id] = job
        stream = self._events.setdefault(job.id, [])
        if decision.span is not None:
            stream += decision.span.events()
        stream += zip(decision.events, decision.payloads, strict=True)
        self._change |= decision.change
        ends = decision.events and not decision.grew_only and ends_run(job)
        if job.tells_schedule and job.schedule is not None and ends:
            self._ended_runs.append((self._now, EndedRun(job.schedule, job.id, job.course.status.value)))
            self._change |= WORK
        for signal in decision.kept:
            self._inbox(signal.job).keep(_own(signal))
        for signal in decision.used:
            self._inbox(signal.job).use(signal.id)
        if decision.past is not None:
            self._keep_run(decision.job.id, decision.job.run - 1, decision.past)
        if decision.successor is not None:
            self._continue(decision.successor, decision)
        self._next += decision.follow
        if decision.orphans is not None:
            self._next += [c.Cancel(name, decision.orphans) for name in self._children(job.id)]
        return decision.answer

    def _continue(self, successor: c.Submit, ended: Decision) -> None:
        """Create the successor of a job, and name it in the row of the chain's first job."""
        self._write(decide.succeed(successor, ended, self._now))
        first = self._jobs.get(successor.first or "")
        if first is not None:
            self._jobs[first.id] = msgspec.structs.replace(first, newest=successor.job)

    def _children(self, parent: str) -> list[str]:
        """Return the open children of a job, oldest first."""
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

    def _put_worker(self, command: c.PutWorker) -> None:
        card, now = command.card, self._now
        before = self._workers.get(card.name)
        started = before.started_at if before is not None else now
        heard_of = {name: other for name, other in self._workers.items() if other.seen_at > now - FORGOTTEN_SECONDS}
        self._workers = {**heard_of, card.name: msgspec.structs.replace(card, started_at=started, seen_at=now)}

    def _existing(self, command: c.Submit) -> Job | None:
        if command.job in self._jobs or command.idempotency_key is None:
            return self._jobs.get(command.job)
        wanted = (command.plugin, command.entry, command.idempotency_key)
        same = (job for job in self._jobs.values() if (job.plugin, job.entry, job.idempotency_key) == wanted)
        return next(same, None)

    def _inbox(self, job: str) -> MemoryInbox:
        return self._inboxes.setdefault(job, MemoryInbox())

    def _claim(self, command: c.Claim) -> c.Claims:
        names, held = self._choose(command)
        claimed = []
        for name in names:
            decision = decide.claim(self._jobs[name], command, self._now)
            self._write(decision)
            events = [PastEvent(event.type, event.attempt, payload) for event, payload in self._events[name]]
            claimed.append(c.Claimed(decision.job, events))
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

    def _remove_worker(self, command: c.RemoveWorker) -> None:
        self._workers.pop(command.worker, None)

    def _reclaim(self, command: c.Reclaim) -> c.JobIds:
        return self._sweep(command.limit, lambda job: decide.reclaim(job, self._now), _by_lease)

    def _expire(self, command: c.Expire) -> c.JobIds:
        return self._sweep(command.limit, lambda job: decide.expire(job, self._now, self._inbox(job.id)), _by_end)

    def _sweep(self, limit: int, decided: Callable[[Job], Decision | None], order: Callable[[Job], float]) -> c.JobIds:
        swept: list[str] = []
        ending = [(at, job.id, job) for job in self._jobs.values() if (at := order(job)) <= self._now]
        for _, _, job in sorted(ending, key=lambda entry: entry[:2]):
            decision = decided(job) if len(swept) < limit else None
            if decision is not None:
                self._write(decision)
                swept.append(job.id)
        return c.JobIds(swept)

    def _release_leases(self, command: c.ReleaseLeases) -> c.JobIds:
        dead = sorted(
            job.id for job in self._jobs.values() if job.lease is not None and job.lease.worker == command.worker
        )
        for name in dead:
            self._jobs[name] = decide.release_lease(self._jobs[name], self._now)
        self._workers.pop(command.worker, None)
        self._change |= WORK if dead else 0
        return c.JobIds(dead)

    def _purge(self, command: c.Purge) -> c.JobIds:
        old = [job for job in self._jobs.values() if self._is_purged(job, command)]
        gone = [job.id for job in sorted(old, key=lambda job: (job.created_at, job.id))[: command.limit]]
        for name in gone:
            del self._jobs[name], self._events[name]
            self._inboxes.pop(name, None)
        self._forget_runs()
        self._evidence = {key: report for key, report in self._evidence.items() if report.job in self._jobs}
        return c.JobIds(gone)

    def _purge_audit(self, command: c.PurgeAudit) -> int:
        removed = 0
        while self._audit and self._audit[0].at < command.before and removed < command.limit:
            self._audit.popleft()
            removed += 1
        return removed

    def _is_purged(self, job: Job, command: c.Purge) -> bool:
        parent = self._jobs.get(job.parent) if job.parent is not None else None
        newest = self._jobs.get(job.newest) if job.newest is not None else None
        return (
            (command.jobs is None or job.id in command.jobs)
            and job.state in TERMINAL_JOB_STATES & command.states
            and job.updated_at <= command.before
            and (parent is None or parent.state in TERMINAL_JOB_STATES - {JobState.FAILED})
            and (newest is None or newest.state in TERMINAL_JOB_STATES)
        )

    # Schedules

    @_alone
    async def schedule(self, schedule: str) -> Schedule | None:
        return self._schedules.get(schedule)

    @_alone
    async def schedules(self, after: str | None = None, limit: int = 100) -> list[Schedule]:
        return [row for name, row in sorted(self._schedules.items()) if name > (after or "")][:limit]

    @_alone
    async def outcomes(self, schedules: Sequence[Schedule], limit: int) -> dict[str, list[TickOutcome]]:
        return {row.id: outcomes_of(self._tick_events(row, limit), limit) for row in schedules}

    def _tick_events(self, row: Schedule, limit: int) -> Iterator[TickEvent]:
        newest = self._events.get(stream_of(row.id), [])[-EVENTS_OF_A_TICK * limit :]
        for event, _ in reversed(newest):
            if event.type in KINDS:
                job = self._jobs.get(event.payload.get("job", ""))
                yield TickEvent(event.type, event.payload, event.at, job.course.status.value if job else None)

    def _schedule_times(self) -> list[float]:
        due = [row.due_at for row in self._schedules.values() if row.due_at is not None]
        return [*due, *(at for at, _ in self._ended_runs[:1])]

    def time(self) -> float:
        """Return the time of the transaction."""
        return self._now

    def lock_schedule(self, schedule: str) -> Schedule | None:
        """Return a schedule's row."""
        return self._schedules.get(schedule)

    def lock_due_schedules(self, limit: int) -> list[Schedule]:
        """Return the schedules that are due or have ended runs."""
        due = sorted((row.due_at, name) for name, row in self._schedules.items() if row.due_at is not None)
        names = {name for at, name in due[:limit] if at <= self._now}
        first, later = self._ended_runs[:limit], self._ended_runs[limit:]
        names |= {run.schedule for _, run in first}
        self._ended_runs = [(at, run) for at, run in first if run.schedule in self._schedules] + later
        return [self._schedules[name] for name in sorted(names & self._schedules.keys())]

    def lock_declarations(self, plugin: str) -> dict[str, int]:
        """Return the builds that have declared schedules."""
        return dict(self._builds.get(plugin, {}))

    def put_build(self, plugin: str, build: str, number: int) -> None:
        """Keep the number of a build."""
        self._builds.setdefault(plugin, {})[build] = number

    def schedules_of(self, plugin: str) -> list[Schedule]:
        """Return the schedules of an app."""
        return [row for _, row in sorted(self._schedules.items()) if row.plugin == plugin]

    def take_ended(self, schedules: Sequence[str]) -> list[EndedRun]:
        """Remove and return the ended runs of schedules."""
        taken = [run for _, run in self._ended_runs if run.schedule in schedules]
        self._ended_runs = [(at, run) for at, run in self._ended_runs if run.schedule not in schedules]
        return taken

    def put_schedule(self, row: Schedule, events: list[tuple[Event, bytes]], *, wakes: bool) -> None:
        """Keep a row and its new events."""
        self._schedules[row.id] = row
        self._events.setdefault(stream_of(row.id), []).extend(events)
        self._change |= EVENTS | (WORK if wakes else 0)

    def drop_schedule(self, schedule: str) -> None:
        """Remove a schedule."""
        del self._schedules[schedule], self._events[stream_of(schedule)]
        self._ended_runs = [(at, run) for at, run in self._ended_runs if run.schedule != schedule]

    def expect_runs(self, submits: Sequence[tuple[str, str, str]], queues: Sequence[str]) -> None:
        """Do nothing: every row is loaded."""

    def runs_at(self, names: Sequence[str]) -> Mapping[str, Job]:
        """Return rows of jobs."""
        return {name: self._jobs[name] for name in names if name in self._jobs}

    def start_run(self, command: c.Submit) -> tuple[str, bool]:
        """Create the run of a schedule, unless its key exists."""
        existing = self._existing(command)
        if existing is not None:
            return existing.id, True
        self._admit(command)
        self._write(decide.submit(command, self._now, None))
        return command.job, False

    def cancel_run(self, job: str, reason: str) -> None:
        """Cancel a run of a schedule, with what follows."""
        self._carry_out(c.Cancel(job, reason))
        self._follow()

    # Queues with limits

    @_alone
    async def limits(self) -> list[QueueState]:
        now = self._clock.now()
        return [
            queue_state(row, self._running(queue, now), self._waiting(queue, now), now)
            for queue, row in sorted(self._limits.items())
        ]

    def _set_limits(self, command: c.SetLimits) -> None:
        """Set the limits of a queue."""
        row = self._row(command.limits.queue)
        self._put(row.set(command.limits, self._now, command.actor, command.expected))

    def _pause_queue(self, command: c.PauseQueue) -> None:
        """Pause or resume a queue."""
        self._put(self._row(command.queue).pause(self._now, command.actor, paused=command.paused))

    def _admit(self, command: c.Submit) -> None:
        """Check that a new job may enter."""
        row = self._row(command.queue)
        depth = row.limits.depth
        if depth is not None and command.parent is None and self._waiting(command.queue, self._now) >= depth:
            held = [job for job in self._jobs.values() if job.queue == command.queue and self._is_live(job, self._now)]
            ages = [self._now - job.course.started_at for job in held if job.course.started_at is not None]
            raise QueueFull(command.queue, depth, retry_after(row.limits, len(held), ages))
        if command.group is not None and not row.grouped:
            self._limits[command.queue] = msgspec.structs.replace(row, grouped=True)

    def _choose(self, command: c.Claim) -> tuple[list[str], tuple[Blocked, ...]]:
        """Return the jobs that a claim takes, in order, and the limits that keep it from more."""
        waiting = [job for job in self._jobs.values() if job.state is JobState.QUEUED and is_waiting(job, self._now)]
        fitting = [
            job
            for job in sorted(waiting, key=place_of)
            if (job.plugin, job.entry) in command.entries and (command.queues is None or job.queue in command.queues)
            if (job.kept_for or "") in command.builds
        ]
        plain = [job.id for job in fitting if job.queue not in self._limits]
        limited = sorted({job.queue for job in fitting} & self._limits.keys())
        picks = [self._pick(command, queue, [job for job in fitting if job.queue == queue]) for queue in limited]
        names = interleaved([plain, *(pick.names for pick in picks)], self._jobs, command.limit)
        held: list[Blocked] = []
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

    def _spend_budget(self, command: SpendBudget) -> Spent:
        """Spend from a shared budget."""
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

    # Runs: records, progress, exports

    @_alone
    async def outcome(self, job: str, number: int) -> tuple[RunRecord, Event | None] | None:
        record, row = self._record(job, number), self._jobs.get(job)
        if record is None:
            return None
        ended = row is not None and row.run == number and row.state in TERMINAL_JOB_STATES
        return record, _whole(*self._events[job][-1]) if ended else None

    @_alone
    async def record(self, job: str, number: int) -> RunRecord | None:
        return self._record(job, number)

    def _record(self, job: str, number: int) -> RunRecord | None:
        row = self._jobs.get(job)
        kept = row.record() if row is not None and row.run == number else self._past.get((job, number))
        return with_progress(kept, *self._progress.get((job, number), (None, None))) if kept is not None else None

    @_alone
    async def records(self, where: RunFilter, limit: int, before: RunCursor | None = None) -> list[RunRecord]:
        matching = [
            (place, record)
            for place, record in self._records().items()
            if (before is None or (place > before if where.oldest_first else place < before))
            and _fits(self._jobs[place[0]], record, where)
        ]
        return merged(matching, limit, oldest_first=where.oldest_first)

    @_alone
    async def count_records(self, where: RunFilter, limit: int, before: str | None = None) -> RecordCounts:
        listed = sorted((name for name in self._jobs if before is None or name < before), reverse=True)
        seen = set(listed[:limit])
        runs = Counter(
            record.status.value
            for place, record in self._records().items()
            if place[0] in seen and _fits(self._jobs[place[0]], record, where)
        )
        return RecordCounts(dict(runs), listed[limit - 1] if len(listed) > limit else None)

    @_alone
    async def questions(self, *, group: str | None = None, after: str | None = None, limit: int = 100) -> list[Job]:
        asking = (
            job
            for name, job in sorted(self._jobs.items())
            if (after is None or name > after) and (group is None or job.group == group)
            if job.wait is not None and job.started and job.wait.waits_for_person
        )
        return [job for job, _ in zip(asking, range(limit), strict=False)]

    @_alone
    async def index_entries(self, job: str) -> IndexEntries | None:
        """Return a job's index entries, which are its row here."""
        row = self._jobs.get(job)
        if row is None:
            return None
        expected = expected_index_entries(row, [self._past[job, number] for number in range(1, row.run)])
        exports = {place[1]: len(kept) for place, kept in self._exports.items() if place[0] == job and kept}
        return msgspec.structs.replace(expected, exports=exports)

    @_alone
    async def counts(self) -> Counts:
        now = self._clock.now()
        runs = Counter(job.course.status.value for job in self._jobs.values())
        queues: Counter[tuple[str, str]] = Counter()
        due = []
        for job in self._jobs.values():
            if job.state not in TERMINAL_JOB_STATES:
                delayed = job.state is JobState.QUEUED and job.due_at > now
                queues[job.queue, "delayed" if delayed else job.state.value] += 1
                due += [job.due_at] if job.state is JobState.QUEUED and not delayed else []
        counted = [(queue, state, count) for (queue, state), count in queues.items()]
        ticks = [row.due_at for row in self._schedules.values() if row.due_at is not None and row.due_at <= now]
        return counts_of(list(runs.items()), counted, min(due, default=None), min(ticks, default=None))

    async def window_counts(self, window: Window) -> WindowCounts:
        listed = sorted(self._jobs.values(), key=lambda job: job.id, reverse=True)
        newest = [job for job in listed if job.id >= window.oldest][: window.limit]
        queued = [job for job in listed if job.id < window.oldest and job.course.status is RunStatus.QUEUED]
        seen = [*newest, *queued[: window.limit]]
        groups: dict[tuple[int, int | None, bool], list[float]] = {}
        ends: Counter[tuple[int, str]] = Counter()
        for job in seen:
            if window.queue is not None and job.queue != window.queue:
                continue
            begun, ended = job.course.started_at, job.course.status in TERMINAL_RUN_STATUSES
            due = job.created_at if begun is not None and job.due_at > begun else job.due_at
            gone = begun if begun is not None else job.updated_at if ended else None
            paused = begun is None and job.state is JobState.WAITING
            if due < window.end and (gone is None or gone >= window.start) and not paused:
                left = window.bucket(gone) if gone is not None else None
                groups.setdefault((window.bucket(due), left, begun is not None), []).append(due)
            if ended and window.start <= job.updated_at < window.end:
                ends[window.bucket(job.updated_at), job.course.status.value] += 1
        waits = [WaitCount(*group, len(dues), min(dues)) for group, dues in groups.items()]
        return WindowCounts(len(seen), min((job.created_at for job in seen), default=None), waits, dict(ends))

    async def exports(self, job: str, number: int, after: int, limit: int) -> list[ExportRow]:
        return self._exports.get((job, number), [])[after : after + limit]

    async def blob(self, job: str, blob: str, number: int) -> bytes | None:
        return self._blobs.get((job, blob, number))

    def _keep_run(self, job: str, number: int, record: RunRecord) -> None:
        """Store the record of a run that another follows."""
        self._past[job, number] = record
        self._exports[job, number + 1] = list(self._exports.get((job, number), []))

    def _report_progress(self, command: c.Progress) -> None:
        """Store a run's progress report."""
        job = self._fenced(command)
        self._progress[job.id, job.run] = msgspec.json.encode(command.report), self._now
        self._change |= PROGRESS

    def _keep_export(self, command: c.KeepExport) -> int:
        """Store an export of a run; return its number."""
        job = self._fenced(command)
        kept = self._exports.setdefault((job.id, job.run), [])
        known = next((export.number for export in kept if export.key == command.key), None)
        if known is None:
            fields = {name: getattr(command, name) for name in ("key", "name", "kind", "media_type", "size", "blob")}
            value = msgspec.json.decode(msgspec.json.encode(command.value)) if command.blob is None else None
            kept.append(ExportRow(**fields, number=len(kept) + 1, value=value, at=self._now))
            self._jobs[job.id] = msgspec.structs.replace(job, exported=len(kept))
        self._change |= PROGRESS
        return known or len(kept)

    def _put_blob(self, command: c.PutBlob) -> None:
        """Store a piece of a blob; a repeat changes nothing."""
        self._fenced(command)
        self._blobs.setdefault((command.job, command.blob, command.number), command.content)

    def _forget_runs(self) -> None:
        """Drop the data of jobs that were removed."""
        self._past = {place: record for place, record in self._past.items() if place[0] in self._jobs}
        self._progress = {place: report for place, report in self._progress.items() if place[0] in self._jobs}
        self._exports = {place: exports for place, exports in self._exports.items() if place[0] in self._jobs}
        self._blobs = {place: piece for place, piece in self._blobs.items() if place[0] in self._jobs}

    def _records(self) -> dict[RunCursor, RunRecord]:
        records = {**self._past, **{(job.id, job.run): job.record() for job in self._jobs.values()}}
        none = (None, None)
        return {place: with_progress(record, *self._progress.get(place, none)) for place, record in records.items()}

    def _fenced(self, command: c.Progress | c.KeepExport | c.PutBlob) -> Job:
        job = self._jobs.get(command.job)
        if job is None:
            raise UnknownJob(command.job)
        decide.fence(job, command.attempt, self._now)
        return job


def _own(signal: Signal) -> Signal:
    """Copy a signal, so that its sender and its readers cannot change the stored payload."""
    return msgspec.structs.replace(signal, payload=msgspec.json.decode(msgspec.json.encode(signal.payload)))


class MemoryInbox:
    """One job's signals: the unused ones by id, oldest first, and all ids, to detect repeats."""

    def __init__(self) -> None:
        self._unused: dict[str, Signal] = {}
        self._known: set[str] = set()

    def oldest(self, keys: Container[str | None], excluded: Container[str] = ()) -> Signal | None:
        fitting = (signal for signal in self._unused.values() if signal.key in keys and signal.id not in excluded)
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


def _fits(job: Job, record: RunRecord, where: RunFilter) -> bool:
    wanted = {
        "id": where.task_id,
        "plugin": where.plugin_id,
        "entry": where.entry_id,
        "queue": where.queue,
        "group": where.group,
        "idempotency_key": where.idempotency_key,
        "parent": where.parent,
    }
    return (
        all(value is None or getattr(job, name) == value for name, value in wanted.items())
        and (not where.status or record.status in where.status)
        and (not where.newest or record.run_id == run_name(job.id, job.run))
        and all(_same((job.attributes or {}).get(name), value) for name, value in where.attributes.items())
        and (where.created_after is None or job.created_at >= where.created_after)
        and (where.created_before is None or job.created_at < where.created_before)
        and (where.finished_after is None or (record.finished_at or -math.inf) >= where.finished_after)
        and (where.finished_before is None or (record.finished_at or math.inf) < where.finished_before)
        and not (where.top and job.parent is not None)
        and not (where.asks and (record.finished_at is not None or job.wait is None or not job.wait.in_doubt))
    )


def _same(kept: object, wanted: object) -> bool:
    return kept is not None and msgspec.json.encode(kept) == msgspec.json.encode(wanted)
