"""One batch of commands in one database transaction: the part that all SQL backends share.

The batch loads rows once. It buffers decisions and writes them in few statements, many rows each. A command that
searches for jobs (a claim, a sweep) flushes the buffer first, so that it finds them.

A backend is a subclass. It implements the abstract methods with its database's reads and writes. `decide` decides.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from holdfast.errors import HoldfastError, UnknownJob
from holdfast.machines import TERMINAL_JOB_STATES, Event, JobState, RunRecord
from holdfast.machines.event import SealedSpan
from holdfast.schedules.schedule import Schedule
from holdfast.store import commands as c
from holdfast.store import continuation, decide
from holdfast.store.audit import audit_rows, unwrapped
from holdfast.store.commands import EVENTS, PROGRESS, WORK
from holdfast.store.inbox import SignalTable, StoredInbox
from holdfast.store.limits import LimitRow
from holdfast.store.request_keys import KeepAnswer, Known, Once, Requests
from holdfast.store.rows import OUTDATED, Evidence, Job, PastEvent, Signal, WorkerCard, rebuilt
from holdfast.store.run_queries import attribute_text
from holdfast.store.schedule_commands import EndedRun
from holdfast.store.schedule_writes import SCHEDULE_COMMANDS, ScheduleTable, ends_run, schedule_answer
from holdfast.store.shared_budgets import BudgetRow, SpendBudget, Spent, spent_of
from holdfast.store.sql.event_rows import SHARING_BYTES_MAX, EventRow, Sealed, event_rows
from holdfast.store.sql.limit_claims import QueueLimits, Running
from holdfast.store.stream_writer import Decision

Key = tuple[str, str, str]  # plugin, entry and idempotency key

LARGE_PLACES = 50  # a job that waits at so many places has a large row


class Batch(SignalTable, ScheduleTable):
    """The commands of one batch; made and used inside one transaction, by one thread.

    Args:
        now: the store's time, read inside the transaction.
        known: rows that equal those in the database and need not be read.
    """

    sharing_bytes_max: ClassVar[int] = SHARING_BYTES_MAX  # payloads of events that share a row; fills pages well

    def __init__(self, now: float, known: Mapping[str, Job]) -> None:
        self.now = now
        self.change = 0  # change flags; see `holdfast.store.commands`
        self.ended = False  # whether a job has ended; others may wait for it
        self.limits = QueueLimits()
        self._known = known
        self._stored: dict[str, Job | None] = {}  # as in the database; None: not there
        self.jobs: dict[str, Job] = {}  # as they will be written
        self._sealed: list[Sealed | SealedSpan] = []
        self._next: deque[c.Command] = deque()  # commands for other jobs that a command causes
        self._keys: dict[Key, str | None] = {}  # jobs by idempotency key, as far as looked up
        self._offspring: dict[str, list[str]] = {}  # the stored children of a job, as far as looked up
        self._born: dict[str, list[str]] = {}  # and those that this batch creates
        self._changed: set[str] = set()  # rows changed beyond the end of their stream
        self._inboxes: dict[str, StoredInbox] = {}
        self._new_signals: list[Signal] = []  # signals to be written
        self._used_signals: list[Signal] = []  # and those to be marked as used
        self._follows = False  # whether the current command was caused by another one
        self.schedules: dict[str, Schedule] = {}  # rows of schedules, to be written
        self._ended_runs: list[EndedRun] = []  # runs of schedules that have ended, to be written
        self._peeked: dict[str, Job] = {}  # rows of jobs that were read without a lock

    def carry_out(self, batch: Sequence[c.Command]) -> list[Any]:
        """Execute every command, in order, write everything, and return the results."""
        if any(isinstance(command, Once) for command in batch):
            return self._carry_out_once(Requests(batch))
        return self._execute(batch)

    def _carry_out_once(self, requests: Requests) -> list[Any]:
        """Execute the commands whose keys are new, and keep their answers."""
        requests.have(self.claim_requests(requests.fingerprints()))
        answers = self._execute(requests.todo)
        self.keep_requests(requests.kept(answers), requests.refused(answers))
        return requests.answers(answers)

    def _execute(self, batch: Sequence[c.Command]) -> list[Any]:
        commands = unwrapped(batch)
        self.prepare(commands)
        answers = [self._answer(command) for command in commands]
        self.flush()
        if rows := audit_rows(batch, answers):
            self.write_audit(rows)
        self._inboxes.clear()  # they refer to the batch: the cycle would keep all rows until the garbage collector runs
        self.change |= self.limits.freed()
        return answers

    def prepare(self, batch: Sequence[c.Command]) -> None:
        """Read ahead the rows that the batch will need."""
        self.load({name for command in batch if (name := getattr(command, "job", None)) is not None})

    def held(self) -> dict[str, Job | None]:
        """Return the touched rows that are worth caching, None for the others.

        These are running jobs, and parents that wait for many children: their rows are large.
        """
        held = {name: job for name, job in self.jobs.items() if job.state is JobState.RUNNING or _is_large(job)}
        return {name: held.get(name) for name in (*self._stored, *self.jobs)}  # removed ones are in the first alone

    # Database operations

    @abstractmethod
    def read_rows(self, names: list[str]) -> Iterable[Job]:
        """Read rows, and lock them until the transaction ends."""

    @abstractmethod
    def write_audit(self, rows: list[tuple[str, str | None, str, str, str]]) -> None:
        """Add rows to the audit log."""

    @abstractmethod
    def purge_audit(self, command: c.PurgeAudit) -> int:
        """Remove the oldest rows of the audit log; return how many."""

    @abstractmethod
    def claim_requests(self, keys: list[tuple[str, str]]) -> Known:
        """Return the known ones of these keys. No other transaction executes a request with one of the others."""

    @abstractmethod
    def keep_requests(self, rows: list[tuple[str, str, str]], refused: list[str]) -> None:
        """Keep the answers of requests, free the keys of refused ones, and remove old keys."""

    @abstractmethod
    def read_streams(self, names: list[str]) -> dict[str, list[Event]]:
        """Read whole streams, each oldest first."""

    @abstractmethod
    def read_history(self, names: list[str]) -> dict[str, list[PastEvent]]:
        """Read whole streams, each oldest first, without the parts that only a check of the stream needs."""

    @abstractmethod
    def find_keys(self, keys: list[Key]) -> dict[Key, str]:
        """Find the jobs with idempotency keys."""

    @abstractmethod
    def write_signals(self, kept: list[Signal], used: list[Signal]) -> None:
        """Put signals into inboxes, in this order, then mark signals as used."""

    @abstractmethod
    def find_children(self, parents: list[str]) -> dict[str, list[str]]:
        """Find the open children of each parent."""

    @abstractmethod
    def find_expired(self, limit: int) -> list[str]:
        """Find jobs whose lease has run out, the oldest first."""

    @abstractmethod
    def find_ended(self, limit: int) -> list[str]:
        """Find jobs without a lease whose wait or run has ended by time, the oldest first."""

    @abstractmethod
    def find_held(self, worker: str) -> list[str]:
        """Find the jobs that a worker holds, by name."""

    @abstractmethod
    def find_finished(self, command: c.Purge) -> list[str]:
        """Find the jobs that a purge removes, in its order, and lock them."""

    @abstractmethod
    def remove(self, names: list[str]) -> None:
        """Remove jobs completely: rows, streams, signals, evidence."""

    @abstractmethod
    def keep_evidence(self, evidence: Evidence) -> bool:
        """Store a piece of evidence; return whether it was new."""

    @abstractmethod
    def put_card(self, card: WorkerCard) -> None:
        """List a worker, and drop workers that have not reported for long."""

    @abstractmethod
    def drop_card(self, worker: str) -> None:
        """Remove a worker from the list."""

    @abstractmethod
    def write(self, events: list[EventRow], new: list[Job], grown: list[Job], changed: list[Job]) -> None:
        """Write events, new rows, rows of which only the stream's end is new, and rows that changed."""

    @abstractmethod
    def keep_run(self, job: str, number: int, record: RunRecord) -> None:
        """Store the record of a run that another follows; the new run begins with its exports."""

    @abstractmethod
    def put_attributes(self, rows: list[tuple[str, str, str]]) -> None:
        """Index jobs by their attributes; rows are (name, value, job)."""

    @abstractmethod
    def put_progress(self, job: str, number: int, progress_json: bytes) -> None:
        """Store a run's progress report, in place of the last one."""

    @abstractmethod
    def keep_export(self, command: c.KeepExport, number: int) -> int:
        """Store an export of a run, unless its key is known; return its number."""

    @abstractmethod
    def put_blob(self, command: c.PutBlob) -> None:
        """Store a piece of a blob; a repeat changes nothing."""

    # Database operations of queues with limits, and of shared budgets

    @abstractmethod
    def look_again(self, name: str) -> Job | None:
        """Look for a job that was assumed to be new without a check."""

    @abstractmethod
    def read_limits(self) -> Iterable[LimitRow]:
        """Read the rows of all queues that have one."""

    @abstractmethod
    def put_limits(self, row: LimitRow) -> None:
        """Write a queue's row, which may be new."""

    @abstractmethod
    def put_grouped(self, row: LimitRow) -> None:
        """Write that a queue has groups; other processes may write it at the same time."""

    @abstractmethod
    def drop_limits(self, queue: str) -> None:
        """Remove a queue's row."""

    @abstractmethod
    def promote(self) -> None:
        """Mark jobs that have become due."""

    @abstractmethod
    def count_waiting(self, queue: str, most: int) -> int:
        """Count the jobs of a queue that are due and wait, after `promote`; not beyond `most`."""

    @abstractmethod
    def running_since(self, queue: str, most: int) -> tuple[int, list[float]]:
        """Count the jobs of a queue with a live lease; for some, return since when their code has run."""

    @abstractmethod
    def find_claimable(self, command: c.Claim, excluded: list[str]) -> list[str]:
        """Find the jobs that a claim takes of all queues but some, in its order."""

    @abstractmethod
    def look_at(self, command: c.Claim, queues: list[str]) -> Callable[[], dict[str, Running]]:
        """Ask which queues have waiting jobs that a claim could take, and what runs there.

        The result is read later, so that it can share a round trip with another statement.
        """

    @abstractmethod
    def lock_limits(self, queues: list[str], seen: Mapping[str, Running]) -> list[tuple[LimitRow, Running]]:
        """Lock queues by name; read their rows, then the time, and count their running jobs.

        Queues that another claim has locked may be skipped: it takes what there is, and ends soon.
        """

    @abstractmethod
    def lock_row(self, queue: str) -> LimitRow | None:
        """Lock a queue's row and read it, then the time; return None if there is none."""

    @abstractmethod
    def lock_budget(self, name: str) -> BudgetRow | None:
        """Lock a budget and read its row."""

    @abstractmethod
    def put_budget(self, name: str, row: BudgetRow) -> None:
        """Write a budget's row."""

    @abstractmethod
    def find_groups(self, command: c.Claim, row: LimitRow, most: int) -> list[str]:
        """Find groups of a queue with jobs that a claim could take, in turn; "" means no group."""

    @abstractmethod
    def find_heads(self, command: c.Claim, queue: str, wanted: Mapping[str, int]) -> dict[str, list[str]]:
        """Find and load the first jobs of each group, in the claim's order."""

    # Database operations of schedules; the others are in `holdfast.store.schedule_writes`

    @abstractmethod
    def peek_rows(self, names: list[str]) -> Iterable[Job]:
        """Read rows without a lock."""

    @abstractmethod
    def write_schedules(self, rows: list[Schedule]) -> None:
        """Write rows of schedules, which may be new."""

    @abstractmethod
    def write_ended_runs(self, rows: list[EndedRun]) -> None:
        """Add runs of schedules that have ended."""

    @abstractmethod
    def stand_at_doors(self, queues: list[str]) -> None:
        """Lock queues with a maximum depth, so that no other transaction adds to them."""

    def time(self) -> float:
        """Return the time of the transaction."""
        return self.now

    def put_schedule(self, row: Schedule, events: list[Sealed], *, wakes: bool) -> None:
        """Buffer the events of a schedule, and its row."""
        self._sealed += events
        self.schedules[row.id] = row
        self.change |= EVENTS | (WORK if wakes else 0)

    def expect_runs(self, submits: Sequence[Key], queues: Sequence[str]) -> None:
        """Look for the keys of new runs, and lock their queues."""
        self.stand_at_doors(list(queues))
        if submits:
            self.look_up(list(submits))

    def runs_at(self, names: Sequence[str]) -> Mapping[str, Job]:
        """Return rows as this batch has changed them so far, without a lock."""
        unread = sorted({name for name in names if name not in self.jobs and name not in self._peeked})
        if unread:
            self._peeked.update((job.id, job) for job in self.peek_rows(unread))
        rows = {name: self.jobs.get(name) or self._peeked.get(name) for name in names}
        return {name: row for name, row in rows.items() if row is not None}

    def start_run(self, command: c.Submit) -> tuple[str, bool]:
        """Create the run of a schedule, unless its key exists."""
        assert command.idempotency_key is not None, "a tick has a key"
        key = command.plugin, command.entry, command.idempotency_key
        if key not in self._keys:
            self.look_up([key])
        existing = self._keys[key]
        if existing is not None:
            return existing, True
        self._stored[command.job] = None  # its id is new, because its key is: there is nothing to read
        self.limits.admit(self, command)
        self._take(decide.submit(command, self.now, None))
        self._keys[key] = command.job
        return command.job, False

    def cancel_run(self, job: str, reason: str) -> None:
        """Cancel a run of a schedule, with what follows."""
        self._next.append(c.Cancel(job, reason))
        self._drain()

    # Commands

    def _answer(self, command: c.Command) -> Any:
        try:
            answer = self._carry_out(command)
        except HoldfastError as refusal:
            return refusal
        if self._next:
            self._drain()
        return answer

    def _drain(self) -> None:
        while self._next:
            following = self._next.popleft()
            if self.job(getattr(following, "job", "")) is not None:
                self._follows = True
                try:
                    self._carry_out(following)
                finally:
                    self._follows = False

    def _carry_out(self, command: c.Command) -> Any:
        if self.limits.depths and type(command) is not c.Submit:
            self.limits.depths.clear()  # the command may change how many jobs wait
        handler = self._handlers.get(type(command))
        return handler(self, command) if handler is not None else self._about_one_job(command)

    def _about_one_job(self, command: Any) -> Any:
        job = self.require(command.job)
        if job.course.continued_as is not None:
            command, job = self._forwarded(command, job)
        return self._take(decide.decide(command, job, self.now, self.inbox(command.job)))

    def _forwarded(self, command: Any, job: Job) -> tuple[Any, Job]:
        """Redirect a command about a continued job to its successor."""
        going_on = continuation.current(job, self.job)
        if isinstance(command, c.SendSignal):
            if continuation.stays(command, self.inbox(job.id)):
                return command, job
            if going_on.state not in TERMINAL_JOB_STATES:
                self._take(continuation.noted(command, job, self.now))
        return msgspec.structs.replace(command, job=going_on.id), going_on

    def _append(self, command: c.Append) -> Any:
        job = self.require(command.job)
        return self._take(decide.append(command, job, self.now, self.inbox(command.job)))

    def _submit(self, command: c.Submit) -> Any:
        if command.parent is not None and command.parent_attempt is not None:
            decide.fence_parent(command, self.job(command.parent), self.now)
        existing = self._existing(command) or self.limits.admit(self, command)
        answer = self._take(decide.submit(command, self.now, existing))
        if existing is None and command.idempotency_key is not None:
            self._keys[command.plugin, command.entry, command.idempotency_key] = command.job
        if existing is None and command.parent is not None:
            self._born.setdefault(command.parent, []).append(command.job)
        return answer

    def _existing(self, command: c.Submit) -> Job | None:
        job = self.job(command.job)
        if job is not None or command.idempotency_key is None:
            return job
        key = command.plugin, command.entry, command.idempotency_key
        if key not in self._keys:
            self.look_up([key])
        name = self._keys[key]
        return self.job(name) if name is not None else None

    def _claim(self, command: c.Claim) -> c.Claims:
        self.flush()
        chosen, held = self.limits.choose(self, command)
        names = self._found(chosen)
        streams = self.read_history(names) if names else {}
        for name in names:
            decision = decide.claim(self.jobs[name], command, self.now)
            self._take(decision)
            for event, payload in zip(decision.events, decision.payloads, strict=True):
                streams[name].append(PastEvent(event.type, event.attempt, payload))
        return c.Claims([c.Claimed(self.jobs[name], streams[name]) for name in names], held)

    def _renew(self, command: c.Renew) -> c.Leases:
        self.load(name for name, _ in command.held)
        lost, cancel, pause = set(), set(), set()
        for name, attempt in command.held:
            job = self.jobs.get(name)
            renewed = decide.renew(job, command, attempt, self.now) if job is not None else None
            if renewed is None:
                lost.add(name)
                continue
            self.put_row(renewed)
            if renewed.cancel is not None:
                cancel.add(name)
            if renewed.pause:
                pause.add(name)
        return c.Leases(frozenset(lost), frozenset(cancel), frozenset(pause))

    def _reclaim(self, command: c.Reclaim) -> c.JobIds:
        self.flush()
        return self._sweep(self.find_expired(command.limit), lambda job: decide.reclaim(job, self.now))

    def _expire(self, command: c.Expire) -> c.JobIds:
        self.flush()
        names = self.find_ended(command.limit)
        if names:
            self.expect_orphans(names)
        return self._sweep(names, lambda job: decide.expire(job, self.now, self.inbox(job.id)))

    def _sweep(self, names: list[str], decided: Callable[[Job], Decision | None]) -> c.JobIds:
        swept = []
        for name in self._found(names):
            decision = decided(self.jobs[name])
            if decision is not None:
                self._take(decision)
                swept.append(name)
        return c.JobIds(swept)

    def _release_leases(self, command: c.ReleaseLeases) -> c.JobIds:
        self.flush()
        names = self._found(self.find_held(command.worker))
        for name in names:
            self.put_row(decide.release_lease(self.jobs[name], self.now))
        self.drop_card(command.worker)
        self.change |= WORK if names else 0
        return c.JobIds(names)

    def _purge(self, command: c.Purge) -> c.JobIds:
        self.flush()
        names = self.find_finished(command)
        if names:
            self.remove(names)
        for name in names:
            self.jobs.pop(name, None)
            self._stored[name] = None
        return c.JobIds(names)

    def _keep(self, command: c.KeepEvidence) -> bool:
        self.require(command.evidence.job)
        return self.keep_evidence(command.evidence)

    def _progress(self, command: c.Progress) -> None:
        """Store a run's progress report."""
        job = self._fenced(command)
        self.put_progress(job.id, job.run, msgspec.json.encode(command.report))
        self.change |= PROGRESS

    def _export(self, command: c.KeepExport) -> int:
        """Store an export of a run; return its number."""
        job = self._fenced(command)
        number = self.keep_export(command, job.run)
        if number > job.exported:
            self.put_row(msgspec.structs.replace(job, exported=number))
        self.change |= PROGRESS
        return number

    def _put_piece(self, command: c.PutBlob) -> None:
        """Store a piece of a blob."""
        self._fenced(command)
        self.put_blob(command)

    def _fenced(self, command: c.Progress | c.KeepExport | c.PutBlob) -> Job:
        job = self.require(command.job)
        decide.fence(job, command.attempt, self.now)
        return job

    def _put_worker(self, command: c.PutWorker) -> None:
        self.put_card(command.card)

    def _remove_worker(self, command: c.RemoveWorker) -> None:
        self.drop_card(command.worker)

    def _spend_budget(self, command: SpendBudget) -> Spent:
        answer, row = spent_of(command, self.lock_budget(command.budget))
        if row is not None:
            self.put_budget(command.budget, row)
        return answer

    # Loaded rows

    def load(self, names: Iterable[str]) -> None:
        """Load rows that are not loaded yet."""
        missing = []
        for name in names:
            if name in self._stored:
                continue
            if name in self._known:
                self._stored[name] = self.jobs[name] = self._known[name]
            else:
                missing.append(name)
        if not missing:
            return
        self._stored.update(dict.fromkeys(missing))
        for job in self.read_rows(missing):
            self._stored[job.id] = self.jobs[job.id] = job
        self.bring_up(missing)

    def bring_up(self, names: Iterable[str]) -> None:
        """Rebuild rows that an older release has not kept up to date with their stream."""
        outdated = [name for name in names if name in self.jobs and self.jobs[name].course is OUTDATED]
        for name, stream in self.read_streams(outdated).items() if outdated else ():
            self.put_row(rebuilt(self.jobs[name], stream))

    def job(self, name: str) -> Job | None:
        """Return a row as it will be written; None if there is no such job."""
        if name not in self.jobs:
            self.load([name])
        return self.jobs.get(name)

    def look_up(self, keys: list[Key]) -> None:
        """Load the jobs with these idempotency keys, and remember which keys have none."""
        by_key = self.find_keys(keys)
        self._keys.update({key: by_key.get(key) for key in keys})
        self.load(by_key.values())

    def expect_orphans(self, parents: list[str]) -> None:
        """Read the children of many jobs at once, for jobs that may fail or be cancelled."""
        by_parent = self.find_children(parents)
        self._offspring.update({parent: by_parent.get(parent, []) for parent in parents})

    def _children(self, parent: str) -> list[str]:
        """Return the open children of a job, oldest first, including those not yet written."""
        if parent not in self._offspring:
            self.expect_orphans([parent])
        names = sorted({*self._offspring[parent], *self._born.get(parent, ())})
        return [name for name in self._found(names) if self.jobs[name].state not in TERMINAL_JOB_STATES]

    def put_row(self, job: Job) -> None:
        """Buffer a changed row for writing."""
        self.jobs[job.id] = job
        self._changed.add(job.id)

    def require(self, name: str) -> Job:
        """Return a row that must exist; raise `UnknownJob` if it does not."""
        job = self.job(name)
        if job is None:
            raise UnknownJob(name)
        return job

    def _found(self, names: list[str]) -> list[str]:
        self.load(names)
        return [name for name in names if name in self.jobs]

    def _take(self, decision: Decision) -> Any:
        job = decision.job
        self.limits.places.move(self.jobs.get(job.id), job)
        self.jobs[job.id] = job
        if decision.span is not None:
            self._sealed.append(decision.span)
        if decision.events:
            self._sealed += zip(decision.events, decision.payloads, strict=True)
        self.change |= decision.change
        if decision.grew_only and not decision.used:
            return decision.answer
        self._changed.add(job.id)
        self.ended = self.ended or job.state in TERMINAL_JOB_STATES
        if job.tells_schedule and job.schedule is not None and decision.events and ends_run(job):
            self._ended_runs.append(EndedRun(job.schedule, job.id, job.course.status.value))
            self.change |= WORK
        for signal in decision.kept:
            self._new_signals.append(signal)
            self.inbox(signal.job).kept(signal)
        if decision.used:
            self._used_signals += decision.used
            self.inbox(job.id).used()
        if decision.past is not None:
            self.keep_run(job.id, job.run - 1, decision.past)
        if decision.successor is not None:
            self._continue(decision.successor, decision)
        self._next += decision.follow
        if decision.orphans is not None:
            self._next += [c.Cancel(name, decision.orphans) for name in self._children(job.id)]
        return decision.answer

    def _continue(self, successor: c.Submit, ended: Decision) -> None:
        """Create the successor of a job, and name it in the row of the chain's first job."""
        self._stored[successor.job] = None  # its id is new: there is nothing to read
        self._take(decide.succeed(successor, ended, self.now))
        if successor.parent is not None:
            self._born.setdefault(successor.parent, []).append(successor.job)
        first = self.job(successor.first) if successor.first is not None else None
        if first is not None:
            self.put_row(msgspec.structs.replace(first, newest=successor.job))

    def inbox(self, job: str) -> StoredInbox:
        """Return a job's inbox, as this batch has changed it so far."""
        if job not in self._inboxes:
            self._inboxes[job] = StoredInbox(job, self)
        return self._inboxes[job]

    def written(self) -> None:
        """Write the buffered signals."""
        kept, self._new_signals = self._new_signals, []
        used, self._used_signals = self._used_signals, []
        if kept or used:
            self.write_signals(kept, used)

    def flush(self) -> None:
        """Write everything that is buffered."""
        self.written()
        sealed, self._sealed = self._sealed, []
        new, grown, changed = [], [], []
        for name, job in self.jobs.items():
            stored = self._stored.get(name)
            if stored is job:
                continue
            if stored is None:
                new.append(job)
            elif name in self._changed:
                changed.append(job)
            else:
                grown.append(job)
            self._stored[name] = job
        self._changed.clear()
        if sealed or new or grown or changed:
            self.write(event_rows(sealed, self.sharing_bytes_max), new, grown, changed)
        attributes = [
            (name, attribute_text(value), job.id) for job in new for name, value in (job.attributes or {}).items()
        ]
        if attributes:
            self.put_attributes(attributes)
        if self.schedules:
            schedules, self.schedules = self.schedules, {}
            self.write_schedules(list(schedules.values()))
        if self._ended_runs:
            ended, self._ended_runs = self._ended_runs, []
            self.write_ended_runs(ended)

    # On the class: on each batch it would make a cycle, which keeps all rows until the garbage collector runs.
    _handlers: ClassVar[Mapping[type, Callable[..., Any]]] = {
        c.Append: _append,
        c.Submit: _submit,
        c.Claim: _claim,
        c.Renew: _renew,
        c.Reclaim: _reclaim,
        c.Expire: _expire,
        c.ReleaseLeases: _release_leases,
        c.Purge: _purge,
        c.KeepEvidence: _keep,
        c.Progress: _progress,
        c.KeepExport: _export,
        c.PutBlob: _put_piece,
        c.PutWorker: _put_worker,
        c.RemoveWorker: _remove_worker,
        c.SetLimits: lambda batch, command: batch.limits.set_limits(batch, command),
        c.PauseQueue: lambda batch, command: batch.limits.pause_queue(batch, command),
        SpendBudget: _spend_budget,
        c.PurgeAudit: lambda batch, command: batch.purge_audit(command),
        KeepAnswer: lambda _, command: command.answer,
        **dict.fromkeys(SCHEDULE_COMMANDS, schedule_answer),
    }


def _is_large(job: Job) -> bool:
    return job.wait is not None and len(job.wait.also) >= LARGE_PLACES
