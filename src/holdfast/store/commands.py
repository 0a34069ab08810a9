"""The commands of the engine, their results, and the change flags. A store commits a batch in one transaction.

Each command is one decision about one job. `Claim`, `Reclaim`, `Expire` and `Purge` are about all jobs that qualify. A
command is written completely or not at all. Its result has its place in the list of results. If a command is refused,
its result is the error, and the others of the batch are executed.

Who may write what (L3): `Append`, `Renew`, `Progress`, `KeepExport`, `PutBlob` and the `Submit` of a child carry an
attempt and are fenced. All others are the closed list of unfenced writers: submit by a client, signal, the operator's
commands, reclaim, expiry and purge. They read the row inside the transaction. If the stream has moved, they do what is
right for the current state, or nothing. `KeepEvidence`, `PutWorker`, `SpendBudget` and `RemoveWorker` touch no job at
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.machines import TERMINAL_JOB_STATES, JobState
from holdfast.machines.event import Frozen
from holdfast.store.audit import Audited
from holdfast.store.limits import Blocked, Limits
from holdfast.store.request_keys import KeepAnswer, Once
from holdfast.store.rows import Evidence, Job, JobSpec, PastEvent, WorkerCard
from holdfast.store.schedule_commands import (
    Advance,
    BackfillSchedule,
    ChangeSchedule,
    CreateSchedule,
    DeclareSchedules,
    DeleteSchedule,
    FireSchedule,
    PauseSchedule,
    ResumeSchedule,
)
from holdfast.store.shared_budgets import SpendBudget

# What a commit has changed, as a sum of flags. Subscribers of a store get it.
EVENTS = 1  # an event was written
WORK = 2  # a job can be claimed or reclaimed now, or a due time has changed
ASKED = 4  # a running job has a request to cancel or to pause
PROGRESS = 8  # a run has reported progress or an export, which is not an event
LIMITS = 16  # a limit of a queue was changed, or a queue was paused or resumed
ROOM = 32  # a job of a limited queue has ended, and the transaction has claimed no other in its place
DEATHS = 64  # the process of a worker has died; its leases are to be released

EVERYTHING = EVENTS | WORK | ASKED | PROGRESS | ROOM  # for a commit of another process, whose changes are unknown


class Submit(JobSpec, frozen=True, kw_only=True, gc=False):
    """Create a job: its row and job_created, in one transaction. Result: `Submitted`.

    A repeat of an idempotency key for the same plugin and entry returns the existing job. If the fingerprint of the
    arguments differs, it is refused with `IdempotencyConflict`. An existing job id is treated the same way. A queue at
    its maximum depth refuses with `QueueFull`. It still accepts jobs that have a parent.

    A `plan` is recorded with the job, as plan_generated. A `past` holds events of another job's calls that this job
    reuses. They are written under an administrative claim, job_leased{purpose: fork}, that job_requeued ends.

    A job that a worker starts for another job, its parent, carries the parent's attempt in `parent_attempt`. If that
    attempt no longer holds the parent, the result is `StaleAttempt` and nothing is written (L12).

    With `kept_for`, only workers of that build may claim the job.
    """

    job: str
    args: Any
    due_at: float | None = None
    parent_attempt: int | None = None
    budget: dict[str, int] | None = None  # what the run may spend, in millionths of each unit
    plan: dict[str, Any] | None = None
    past: tuple[tuple[str, dict[str, Any]], ...] = ()
    kept_for: str | None = None


class Submitted(msgspec.Struct, frozen=True):
    """The job's id, whether it existed before, and when it was created, if this command created it."""

    job: str
    existing: bool
    at: float | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Take up to `limit` claimable jobs under a new attempt each, with job_running. Result: `Claims`.

    Jobs of the named entries (pairs of plugin and entry) and, unless None, queues are taken, in the order of L7. Where
    a queue has limits, claims take no more in all processes together. Groups take turns, in order within each. A job
    that is kept for a build is taken only by a claim of that build.
    """

    worker: str
    entries: frozenset[tuple[str, str]]
    queues: frozenset[str] | None
    limit: int
    lease_seconds: float
    build: str | None = None  # of the worker's code, for job_running
    pins: frozenset[tuple[str, str]] = frozenset()  # entries whose jobs are kept for the build that first runs them
    kept_only: bool = False  # take only jobs that are kept for the build

    @property
    def builds(self) -> tuple[str, ...]:
        """Return for which builds a job may be kept that this claim takes; "" means all builds."""
        everyone = () if self.kept_only else ("",)
        return everyone if self.build is None else (*everyone, self.build)


class Claimed(msgspec.Struct, frozen=True):
    """A claimed job with its whole stream, oldest first, job_running last."""

    job: Job
    events: list[PastEvent]


class Claims(msgspec.Struct, frozen=True):
    """The jobs that a claim has taken, and the limits that kept it from taking more."""

    claimed: list[Claimed]
    held: tuple[Blocked, ...] = ()

    def __iter__(self) -> Iterator[Claimed]:
        """Iterate over the claimed jobs."""
        return iter(self.claimed)

    def __len__(self) -> int:
        """Count the claimed jobs."""
        return len(self.claimed)


class Renew(msgspec.Struct, frozen=True):
    """Extend live leases of one worker; the attempt stays. Result: `Leases`. An expired lease is lost (L2)."""

    worker: str
    held: tuple[tuple[str, int], ...]  # (job, attempt)
    lease_seconds: float


class Leases(msgspec.Struct, frozen=True):
    """A worker's leases: `lost` have ended; `cancel` and `pause` have such a request; `signalled` have signals."""

    lost: frozenset[str]
    cancel: frozenset[str]
    pause: frozenset[str]
    signalled: frozenset[str] = frozenset()


class Successor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The job that continues one that ends by `continue_as`. Its other fields come from that job.

    Attributes:
        job: its id.
        args: its arguments.
        fingerprint: of the arguments.
        first: the first job of the chain.
        budget: what is left of the budget, in millionths of each unit.
    """

    job: str
    args: Any
    fingerprint: str
    first: str
    budget: dict[str, int] | None = None


class Append(msgspec.Struct, frozen=True, gc=False):
    """Write events under an attempt, in order. Result: `Appended`, or `StaleAttempt` and nothing was written.

    An event that leaves Running ends the lease in the same transaction (L6). job_waiting checks the inbox first: a
    signal that came before the wait completes it at once (E12). The end of a child is signalled to its parent. If a
    job fails or is cancelled, its open children are cancelled. All of this is in the same transaction.

    A job that completes with a `successor` is continued by it. The successor is created, and unused signals and a
    requested pause move to it. The parent gets no signal. If a cancel was requested, the job is cancelled instead.
    """

    job: str
    attempt: int
    events: tuple[tuple[str, dict[str, Any] | Frozen], ...]  # payloads as values, or frozen
    uses: tuple[str, ...] = ()  # ids of signals in the inbox that this uses
    parent: str | None = None  # the job's, if the writer knows it: a store may lock both rows at once, in order
    successor: Successor | None = None


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The stream's length and the job's state after the write."""

    version: int
    state: JobState


class Progress(msgspec.Struct, frozen=True):
    """Store a run's progress report, in place of the last one (R9). Result: None, or `StaleAttempt`."""

    job: str
    attempt: int
    report: dict[str, Any]


class KeepExport(msgspec.Struct, frozen=True, kw_only=True):
    """Store an export of a run (R10). Result: its number in the run, or `StaleAttempt`.

    The same key again is the same export: nothing is written, and the result is its number. A large value is in a blob,
    whose pieces were stored before.
    """

    job: str
    attempt: int
    key: str
    name: str
    kind: str
    media_type: str
    size: int
    value: Any = None
    blob: str | None = None


class PutBlob(msgspec.Struct, frozen=True):
    """Store one piece of a blob; numbers run from 1. Result: None, or `StaleAttempt`."""

    job: str
    attempt: int
    blob: str
    number: int
    content: bytes


class SendSignal(msgspec.Struct, frozen=True):
    """Put a signal into the inbox; if the job waits for its key, complete the wait. Result: `SignalResult`.

    A repeat with the same id changes nothing. A job that has ended accepts none; the successor of a continued one does.

    If a person answers the wait for its key, a signal that was not `checked` changes nothing, and the outcome is
    ``asks``. The sender compares the payload with the form of the wait, and sends it again. `actor` is who answers.
    A signal with a `node` is for the wait there alone. If the job does not wait there, it is refused: `QuestionClosed`.

    The result of a child is sent with `may_wait`. If its parent also waits for other children, the signal is kept. The
    parent wakes a little later, with all results that have come by then. The last result wakes it at once.
    """

    job: str
    key: str
    payload: Any
    id: str
    may_wait: bool = False
    checked: bool = False
    actor: str | None = None
    node: str | None = None


class SignalResult(msgspec.Struct, frozen=True):
    """The outcome of a signal: delivered to a wait, kept for later, a repeat, too late, or unchecked for a form."""

    outcome: str  # "delivered" | "kept" | "repeat" | "too_late" | "asks"


class Cancel(msgspec.Struct, frozen=True):
    """Cancel a job: at once if no worker holds it, else by a request that its code sees. Result: the `Job`.

    A repeat is harmless and keeps the first reason (R6). A job that has ended does not change. If it was continued,
    this and every other command of an operator applies to its successor. If the job ends at once, its children are
    cancelled in the same transaction.
    """

    job: str
    reason: str | None
    actor: str | None = None


class Pause(msgspec.Struct, frozen=True):
    """Pause a job: at once if it is queued, else at its next step boundary (J13). Result: the `Job`."""

    job: str
    actor: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """Let a paused job go on, or withdraw a pause that has not taken effect yet. Result: the `Job`."""

    job: str
    actor: str | None = None


class Retry(msgspec.Struct, frozen=True):
    """Reopen a failed job: a new run (R4). Result: the `Job`, or `InvalidTransition` if it has not failed.

    The job is no longer kept for the build `released`, whose workers are gone.
    """

    job: str
    actor: str
    reason: str
    released: str | None = None


class Resolve(msgspec.Struct, frozen=True):
    """Record an operator's answer for a tool in doubt (E5); the job goes on. Result: the `Job`, or `NotInDoubt`."""

    job: str
    node: str
    answer: str  # "done" | "not_done" | "fail"
    result: Any = None
    actor: str | None = None
    version: int | None = None  # that of the job when the sender has read it; otherwise `QuestionClosed`


class Answer(msgspec.Struct, frozen=True):
    """Record an operator's answer for a job that does not fit the code; the job goes on or ends. Result: the `Job`.

    - ``accept``: the job goes on with any build, and leaves the outcomes of `nodes` unused.
    - ``build``: the job goes on, and only workers of `build` may claim it.
    - ``fork``: the job is cancelled, and `fork` is created in the same transaction. The parent of a child waits for
      the fork in its place. The fork gets the unused signals of the job, and `signals`.
    - ``fail``: the job fails.

    A job that does not ask this, or whose version is another than the sender has read, refuses it: `QuestionClosed`.
    """

    job: str
    node: str
    answer: str
    version: int
    actor: str | None = None
    nodes: tuple[str, ...] = ()
    build: str | None = None
    fork: Submit | None = None
    signals: tuple[tuple[str, str, Any], ...] = ()  # id, key and payload of used signals that the fork waits for again
    error: dict[str, Any] | None = None  # of the failure


class Keep(msgspec.Struct, frozen=True):
    """Keep a job for the workers of a build, or for none, if it is still kept for another. Result: the `Job`.

    With `unclaimed`, only a job that was handed over to that build, and that none of its workers has claimed.
    """

    job: str
    was: str
    build: str | None
    actor: str | None = None
    unclaimed: bool = False


class Reclaim(msgspec.Struct, frozen=True):
    """Requeue up to `limit` jobs with an expired lease; fail frequent crashers (L5, J14). Result: `JobIds`."""

    limit: int = 100


class Expire(msgspec.Struct, frozen=True):
    """End up to `limit` waits, and runs without a lease, whose time is up. Result: `JobIds`.

    It also wakes parents that are due to get results of their children.
    """

    limit: int = 100


class ReleaseLeases(msgspec.Struct, frozen=True):
    """End the leases of a dead worker, so that the next `Reclaim` takes its jobs (L10). Result: `JobIds`."""

    worker: str


class Purge(msgspec.Struct, frozen=True):
    """Remove up to `limit` jobs that ended at `before` or earlier, permanently. Result: `JobIds`.

    The oldest go first. Only jobs in one of `states` that have ended are removed. A child is removed only if its parent
    is gone, completed or cancelled. A parent that goes on or is retried asks for its child by name, and would start it
    again. The first job of a chain (`continue_as`) stays until the chain has ended. A job is removed completely, in
    this transaction: row, stream, signals and evidence. Its id and its idempotency key are free again.

    With `jobs`, only jobs of that list are removed.
    """

    before: float
    limit: int = 1000
    states: frozenset[JobState] = TERMINAL_JOB_STATES
    jobs: tuple[str, ...] | None = None


class PurgeAudit(msgspec.Struct, frozen=True):
    """Remove up to `limit` rows of the audit log that are older than `before`, the oldest first. Result: how many."""

    before: float
    limit: int = 1000


class KeepEvidence(msgspec.Struct, frozen=True):
    """Store the report of a call whose attempt had lost the right to write (E5). Result: whether it was new.

    The operator who has to resolve the call sees it. It is never applied automatically.
    """

    evidence: Evidence


class PutWorker(msgspec.Struct, frozen=True):
    """List a worker, or update its entry (L9). Result: None. Entries older than `FORGOTTEN_SECONDS` are dropped."""

    card: WorkerCard


class RemoveWorker(msgspec.Struct, frozen=True):
    """Remove a worker from the list. Result: None."""

    worker: str


class SetLimits(msgspec.Struct, frozen=True):
    """Set all limits of a queue; whether it is paused stays. Result: None.

    `expected` has the limits that the caller has read. Others make the result `LimitsChanged`.
    """

    limits: Limits
    actor: str | None = None
    expected: Limits | None = None


class PauseQueue(msgspec.Struct, frozen=True):
    """Pause or resume a queue: a paused queue starts no job. Running jobs go on. Result: None."""

    queue: str
    paused: bool
    actor: str | None = None


class JobIds(msgspec.Struct, frozen=True):
    """The jobs that a command has changed, in order."""

    jobs: list[str]


Command = (
    Submit
    | Claim
    | Renew
    | Append
    | SendSignal
    | Cancel
    | Pause
    | Resume
    | Retry
    | Resolve
    | Answer
    | Keep
    | Reclaim
    | Expire
    | ReleaseLeases
    | Purge
    | PurgeAudit
    | Progress
    | KeepExport
    | PutBlob
    | KeepEvidence
    | PutWorker
    | SpendBudget
    | RemoveWorker
    | SetLimits
    | PauseQueue
    | Advance
    | CreateSchedule
    | DeclareSchedules
    | ChangeSchedule
    | PauseSchedule
    | ResumeSchedule
    | FireSchedule
    | BackfillSchedule
    | DeleteSchedule
    | Audited
    | KeepAnswer
    | Once
)
