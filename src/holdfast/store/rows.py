"""What is kept of a job beside its stream: one row, every part of it made from the events (SPEC J6).

The row is what a claim, a fence or a listing looks at. It is written in the same transaction as the event that changes
it, and `rebuilt` makes it anew from the stream and the few facts that were fixed at creation; the two are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.machines import GENESIS, CancelRequest, Event, Fold, JobEvent, JobState, OpenWait, RunRecord
from holdfast.machines.job import TARGETS
from holdfast.machines.run_projection import RunFields, follow, record_of

__all__ = ["FORGOTTEN_SECONDS", "OUTDATED", "Evidence", "GateCard", "Job", "Lease", "Signal", "WorkerCard", "rebuilt"]

FORGOTTEN_SECONDS = 86_400.0  # a worker not heard of for so long is no longer listed


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to execute: who has it, and until when by the store's clock. Live iff now < until (L2)."""

    worker: str
    until: float


class Signal(msgspec.Struct, frozen=True):
    """One signal in a job's inbox: kept before anything else happens, handed to the wait with its key (E12)."""

    job: str
    id: str
    key: str
    payload: Any
    at: float


class Evidence(msgspec.Struct, frozen=True):
    """What a call reported when it was too late: its attempt had lost the job, or its time was up (E5).

    Attributes:
        job: the job.
        node: the call.
        attempt: the attempt that made the call.
        number: which try of the call it was.
        at: when it was kept, by the store's clock; what the sender says is replaced.
        result: what the call returned, as JSON; None if it raised.
        error: what it raised, in words; None if it returned.
    """

    job: str
    node: str
    attempt: int
    number: int
    result: Any = None
    error: str | None = None
    at: float = 0.0


class GateCard(msgspec.Struct, frozen=True):
    """A gate of a worker's process, as it was when the worker last reported.

    Attributes:
        name: the gate's name; ``worker`` is the worker's own readiness.
        state: what it said last.
        why: what held it closed; None if nothing did.
        held: the state by which that is told, `busy`, `budget_exhausted` or `retry_after`; None if nothing did, or if
            there was just nothing to do.
        opens_at: when time alone opens it, by the store's clock; None if time does not.
        waiting: how many stood in line.
        jobs: jobs of this worker whose calls were held by it; 100 at most.
        polls: how often it was asked, by what it said.
        wakes: how often it was woken, by the source.
        seconds: how long it was in each state.
        violations: how often it broke its own contract; 0 unless there is a bug.
        violation: what the last of those was.
    """

    name: str
    state: str
    why: str | None = None
    opens_at: float | None = None
    waiting: int = 0
    jobs: tuple[str, ...] = ()
    polls: dict[str, int] = {}
    wakes: dict[str, int] = {}
    seconds: dict[str, float] = {}
    violations: int = 0
    held: str | None = None
    violation: str | None = None


class WorkerCard(msgspec.Struct, frozen=True):
    """A worker, as it describes itself (L9). What it runs is seen from the leases of the jobs, not from here.

    Attributes:
        name: its name, which leases carry.
        host: the machine.
        pid: the process.
        slots: how many jobs it runs at once.
        queues: the queues it serves; None is all.
        entries: what it can run, as ``plugin.entry``.
        lease_seconds: how long its leases last; it reports at least as often.
        started_at: when it first reported, by the store's clock; what the sender says is replaced, as with the next.
        seen_at: when it last did.
        gates: the gates of its process, its own readiness first.
        blocked: what blocks its event loop, while something does.
    """

    name: str
    host: str
    pid: int
    slots: int
    queues: tuple[str, ...] | None
    entries: tuple[str, ...]
    lease_seconds: float
    started_at: float = 0.0
    seen_at: float = 0.0
    gates: tuple[GateCard, ...] = ()
    blocked: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job's row.

    Fixed at creation: `id`, `plugin`, `entry`, `queue`, `priority`, `created_at`, `deadline`, `max_attempts`,
    `idempotency_key`, `fingerprint`, `parent`, `parent_key`, `trace_id`, `attributes`, `group`, `continues`, `first`.
    Made from the stream: everything else but the lease, `pause`, `exported`, `wake_at` and `newest`, which are about
    now and not about what happened.
    """

    id: str
    plugin: str
    entry: str
    queue: str
    priority: int
    created_at: float
    deadline: float | None
    max_attempts: int
    idempotency_key: str | None
    fingerprint: str
    parent: str | None
    parent_key: str | None
    trace_id: str | None = None
    attributes: dict[str, Any] | None = None
    group: str | None = None
    continues: str | None = None  # the job in whose place it goes on
    first: str | None = None  # and the first of that chain

    version: int = 0
    head: str = GENESIS
    state: JobState = JobState.QUEUED
    attempt: int = 0
    attempts: int = 0
    run: int = 1
    started: bool = False
    due_at: float = 0.0
    wait: OpenWait | None = None
    cancel: CancelRequest | None = None
    updated_at: float = 0.0
    course: RunFields = RunFields()  # of its newest run

    lease: Lease | None = None
    pause: bool = False
    exported: int = 0  # how many exports its newest run has
    wake_at: float | None = None  # when a wait is completed by signals that are already in the inbox
    newest: str | None = None  # of the first of a chain: the job that goes on for it now

    @property
    def ends_by(self) -> float | None:
        """When its newest run must have ended; each run has as long as the first had (R7)."""
        if self.deadline is None or self.course.opened_at is None:
            return self.deadline
        return self.course.opened_at + (self.deadline - self.created_at)

    def held_by(self, attempt: int, now: float) -> bool:
        """Whether this attempt may write now: it is the newest, the job runs, and its lease is live."""
        return (
            self.state is JobState.RUNNING
            and self.attempt == attempt
            and self.lease is not None
            and now < self.lease.until
        )

    def record(self) -> RunRecord:
        """Give the record of its newest run, as far as events tell of it."""
        return record_of(
            self.course,
            job=self.id,
            number=self.run,
            created_at=self.created_at,
            updated_at=self.updated_at,
            plugin_id=self.plugin,
            entry_id=self.entry,
            trace_id=self.trace_id,
            idempotency_key=self.idempotency_key,
            attributes=self.attributes or {},
            continues=self.continues,
        )


def reader_of(job: Job) -> Fold:
    """Give a reader that stands where this row's stream ends, without the calls, which a row does not hold."""
    reader = Fold(calls=False)
    if job.version:
        reader.length = job.version
        reader.state = job.state
        reader.attempt = job.attempt
        reader.attempts = job.attempts
        reader.run = job.run
        reader.started = job.started
        reader.wait = job.wait
        reader.cancel = job.cancel
    return reader


OUTDATED = RunFields(stage="outdated")  # an older release has moved the job, and knew nothing of its run


def course_after(course: RunFields, reader: Fold, event: Event) -> RunFields:
    """Give a run's course after an event that the job's reader has taken; a new one's, where the event opens a run."""
    if event.type == JobEvent.REQUEUED and course.error is not None:
        course = RunFields(opened_at=event.at)
    return follow(course, reader, event.type, event.payload, event.at)


def projected(job: Job, reader: Fold, last: Event, course: RunFields) -> Job:
    """Bring a row up to where its reader stands, `last` being the newest event."""
    return msgspec.structs.replace(
        job,
        version=last.seq,
        head=last.hash,
        state=reader.state or JobState.QUEUED,
        attempt=reader.attempt,
        attempts=reader.attempts,
        run=reader.run,
        started=reader.started,
        due_at=_due_at(job, reader, last),
        wait=reader.wait,
        cancel=reader.cancel,
        updated_at=last.at,
        course=course,
    )


def grown(job: Job, reader: Fold, last: Event, course: RunFields) -> Job:
    """Bring a row up to its stream where no event has moved the job: only where the stream ends is new."""
    del reader, course
    return msgspec.structs.replace(job, version=last.seq, head=last.hash, updated_at=last.at)


def _due_at(job: Job, reader: Fold, last: Event) -> float:
    """From when a queued job may be claimed; of a job that is not queued, from when it last could."""
    if reader.state is not JobState.QUEUED or last.type not in TARGETS:
        return job.due_at
    if last.type == JobEvent.CREATED:
        return max(last.payload.get("due_at") or 0.0, last.at)
    if last.type == JobEvent.WAIT_COMPLETED:
        return max(job.due_at, last.at)  # a job that was paused before it was due is still not due
    return last.at if reader.not_before is None else reader.not_before


def rebuilt(job: Job, events: Iterable[Event]) -> Job:
    """Make a job's row anew from its stream. What is about now is taken over as it stands."""
    reader = Fold(calls=False)
    made = Job(
        id=job.id,
        plugin=job.plugin,
        entry=job.entry,
        queue=job.queue,
        priority=job.priority,
        created_at=job.created_at,
        deadline=job.deadline,
        max_attempts=job.max_attempts,
        idempotency_key=job.idempotency_key,
        fingerprint=job.fingerprint,
        parent=job.parent,
        parent_key=job.parent_key,
        trace_id=job.trace_id,
        attributes=job.attributes,
        group=job.group,
        continues=job.continues,
        first=job.first,
        lease=job.lease,
        pause=job.pause,
        exported=job.exported,
        wake_at=job.wake_at,
        newest=job.newest,
    )
    course = RunFields()
    for event in events:
        reader.push(event)
        course = course_after(course, reader, event)
        made = projected(made, reader, event, course)
    return made
