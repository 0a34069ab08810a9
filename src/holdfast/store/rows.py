"""The rows of a store: jobs, leases, signals, evidence, workers. A job's row is a projection of its stream (SPEC J6).

Claims, fences and listings read a job's row. A store writes it in the same transaction as the event that changes it.
`rebuilt` makes it again from the stream and the few fields that were fixed at creation. The two are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.machines import GENESIS, CancelRequest, Event, Fold, JobEvent, JobState, OpenWait, RunRecord
from holdfast.machines.job_table import TARGETS
from holdfast.machines.run_projection import RunFields, follow, record_of

_payload = msgspec.json.Decoder(dict[str, Any]).decode
FORGOTTEN_SECONDS = 86_400.0  # a worker not heard of for so long is no longer listed


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A worker's right to execute a job, until a time of the store's clock. Live iff now < until (L2)."""

    worker: str
    until: float


class PastEvent(msgspec.Struct, frozen=True, gc=False, eq=False):
    """An event of a claimed job, with what a replay needs of it.

    A long history is claimed as text, which is small. `payload` decodes it on each access.
    """

    type: str
    attempt: int | None
    text: str | bytes | msgspec.Raw  # the payload, as JSON

    @property
    def payload(self) -> dict[str, Any]:
        """Return the payload, as new values."""
        return _payload(self.text)

    def __eq__(self, other: object) -> bool:
        """Compare values: each store has the text in its own form."""
        if not isinstance(other, PastEvent):
            return NotImplemented
        return (self.type, self.attempt, self.payload) == (other.type, other.attempt, other.payload)

    def __hash__(self) -> int:
        return hash((self.type, self.attempt))


class Signal(msgspec.Struct, frozen=True):
    """One signal in a job's inbox. It is stored first, then delivered to the wait with its key (E12)."""

    job: str
    id: str
    key: str
    payload: Any
    at: float


class Evidence(msgspec.Struct, frozen=True):
    """A late report of a call: its attempt had lost the job, or its time was up (E5).

    Attributes:
        job: the job.
        node: the call.
        attempt: the attempt that made the call.
        number: which try of the call it was.
        at: when it was stored, by the store's clock; the sender's value is replaced.
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
        state: its last state.
        why: why it was closed; None if it was not.
        held: the state that reports it, `busy`, `budget_exhausted` or `retry_after`; None if it was not closed, or if
            there was nothing to do.
        opens_at: when time alone opens it, by the store's clock; None if time does not.
        waiting: how many callers waited.
        jobs: jobs of this worker whose calls it held; 100 at most.
        polls: number of polls, by the state they returned.
        wakes: number of wakes, by source.
        seconds: how long it was in each state.
        violations: how often it broke its own contract; 0 unless there is a bug.
        violation: the last of those.
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
    """A worker, as it describes itself (L9). The leases of the jobs show what it runs.

    Attributes:
        name: its name, which leases carry.
        host: the machine.
        pid: the process.
        slots: how many jobs it runs at once.
        queues: the queues it serves; None is all.
        entries: the entries it can run, as ``plugin.entry``.
        lease_seconds: how long its leases last; it reports at least as often.
        started_at: when it first reported, by the store's clock; the sender's value is replaced.
        seen_at: when it last reported; replaced likewise.
        gates: the gates of its process, its own readiness first.
        blocked: what blocks its event loop, while something does.
        build: the build of its code; None if it is unknown.
        draining: whether it takes only what is kept for its build.
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
    build: str | None = None
    draining: bool = False


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts of a job that are fixed when it is created.

    This is the one list of them. `Submit` carries them to the store, job_created records them, and `Job` keeps them. A
    new fact is a field here; a fact without a column of its own is stored in the column `facts`.
    """

    plugin: str
    entry: str
    queue: str = "default"
    priority: int = 0
    deadline: float | None = None
    max_attempts: int = 5
    idempotency_key: str | None = None
    fingerprint: str = ""
    parent: str | None = None
    parent_key: str | None = None
    trace_id: str | None = None
    attributes: dict[str, Any] | None = None
    group: str | None = None
    continues: str | None = None  # the job that this one continues
    first: str | None = None  # the first job of that chain
    schedule: str | None = None  # whose tick has started it
    tells_schedule: bool | None = None  # whether the schedule waits for its end

    def spec(self) -> dict[str, Any]:
        """Return the facts by name, as arguments for another job's."""
        return dict(zip(JobSpec.__struct_fields__, _facts_of(self), strict=True))


_facts_of = attrgetter(*JobSpec.__struct_fields__)


class Job(JobSpec, frozen=True, kw_only=True, gc=False):
    """One job's row.

    Fixed at creation: the fields of `JobSpec`, `id` and `created_at`. Made from the stream: all others but the lease,
    `pause`, `exported`, `wake_at`, `newest` and `kept_for`. Those describe the present and are not in the stream.
    """

    id: str
    created_at: float

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
    newest: str | None = None  # of the first job of a chain: the chain's newest job
    kept_for: str | None = None  # the build whose workers alone may claim it

    @property
    def ends_by(self) -> float | None:
        """Return the deadline of its newest run; each run has as long as the first (R7)."""
        if self.deadline is None or self.course.opened_at is None:
            return self.deadline
        return self.course.opened_at + (self.deadline - self.created_at)

    def held_by(self, attempt: int, now: float) -> bool:
        """Return whether this attempt may write now: it is the newest, the job runs, and its lease is live."""
        return (
            self.state is JobState.RUNNING
            and self.attempt == attempt
            and self.lease is not None
            and now < self.lease.until
        )

    def record(self) -> RunRecord:
        """Return the record of its newest run, without progress reports."""
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
    """Return a reader at the end of this row's stream. It does not follow calls, which a row does not hold."""
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


OUTDATED = RunFields(stage="outdated")  # an older release has moved the job without these fields


def course_after(course: RunFields, reader: Fold, event: Event) -> RunFields:
    """Return a run's fields after an event that the job's reader has taken; of a new run, if the event opens one."""
    if event.type == JobEvent.REQUEUED and course.error is not None:
        course = RunFields(opened_at=event.at)
    return follow(course, reader, event.type, event.payload, event.at)


def projected(job: Job, reader: Fold, last: Event, course: RunFields) -> Job:
    """Return a row updated to its reader; `last` is the newest event."""
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
    """Return a row updated to its stream where no event has moved the job: only the end of the stream is new."""
    del reader, course
    return msgspec.structs.replace(job, version=last.seq, head=last.hash, updated_at=last.at)


def _due_at(job: Job, reader: Fold, last: Event) -> float:
    """Return from when a queued job may be claimed; for other jobs, from when it last could."""
    if reader.state is not JobState.QUEUED or last.type not in TARGETS:
        return job.due_at
    if last.type == JobEvent.CREATED:
        return max(last.payload.get("due_at") or 0.0, last.at)
    if last.type == JobEvent.WAIT_COMPLETED:
        return max(job.due_at, last.at)  # a job that was paused before it was due is still not due
    return last.at if reader.not_before is None else reader.not_before


def rebuilt(job: Job, events: Iterable[Event]) -> Job:
    """Return a job's row, new again from its stream. The fields about the present are copied."""
    reader = Fold(calls=False)
    present = {name: getattr(job, name) for name in ("lease", "pause", "exported", "wake_at", "newest", "kept_for")}
    new = Job(id=job.id, created_at=job.created_at, **job.spec(), **present)
    course = RunFields()
    for event in events:
        reader.push(event)
        course = course_after(course, reader, event)
        new = projected(new, reader, event, course)
    return new
