"""The verbs of the engine, as values. A store commits a batch of them in one transaction.

Each command is one decision about one job (`Claim`, `Reclaim`, `Expire`, `Purge`: about the jobs that qualify). What is
written for it is written whole or not at all, and its answer stands at its place in the list of answers. A command that
is refused is refused alone: its answer is the error, and the others of the batch go through.

Who may write what (L3): `Append`, `Renew`, `Progress`, `KeepExport`, `PutBlob` and the `Submit` of a child carry an
attempt and are fenced; everything else is the closed list of unfenced writers: submit by a client, signal, the
operator's verbs, reclaim, expiry and purge.
They look at the row inside the transaction, and where the stream has moved they do what is right for where it is now,
or nothing. `KeepEvidence`, `PutWorker`, `SpendBudget` and `RemoveWorker` touch no job at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.machines import TERMINAL_JOB_STATES, Event, JobState
from holdfast.machines.event import Frozen
from holdfast.store.limits import Blocked, Limits
from holdfast.store.rows import Evidence, Job, WorkerCard
from holdfast.store.shared_budgets import SpendBudget

__all__ = [
    "ASKED",
    "DEATHS",
    "EVENTS",
    "EVERYTHING",
    "LIMITS",
    "PROGRESS",
    "ROOM",
    "WORK",
    "Append",
    "Appended",
    "Cancel",
    "Claim",
    "Claimed",
    "Claims",
    "Command",
    "Expire",
    "JobIds",
    "KeepEvidence",
    "KeepExport",
    "Leases",
    "Pause",
    "PauseQueue",
    "Progress",
    "Purge",
    "PutBlob",
    "PutWorker",
    "Reclaim",
    "ReleaseLeases",
    "RemoveWorker",
    "Renew",
    "Resolve",
    "Resume",
    "Retry",
    "SendSignal",
    "SetLimits",
    "SignalResult",
    "SpendBudget",
    "Submit",
    "Submitted",
    "Successor",
]

# What a commit has changed, as a sum of flags. Subscribers of a store get it.
EVENTS = 1  # an event was written
WORK = 2  # a job can be claimed or reclaimed now, or something will come about by time alone
ASKED = 4  # a job that is held was asked to cancel or to pause
PROGRESS = 8  # a run has reported something of itself that is no event
LIMITS = 16  # a limit of a queue was changed, or a queue was paused or resumed
ROOM = 32  # a job of a queue with a limit has ended, and whoever ended it has not taken another in its place
DEATHS = 64  # the process of a worker is gone, and the worker is to be buried

EVERYTHING = EVENTS | WORK | ASKED | PROGRESS | ROOM  # what a process may have changed that does not say what


class Submit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Create a job: its row and job_created, one transaction. Answer: `Submitted`.

    The same idempotency key for the same plugin and entry gives the existing job if the fingerprint of the arguments
    is equal, and `IdempotencyConflict` if it is not. A job id that exists already is treated the same way. A queue that
    is as deep as it may be takes no more: `QueueFull`; but the children of a job, which was taken, it takes.

    A `plan` is recorded with it, as plan_generated. A `past` are events of calls that another job has made and this one
    is to reuse: they are written under an administrative claim, job_leased{purpose: fork}, that job_requeued ends.

    A job that a worker starts for another job, its parent, carries the parent's attempt in `parent_attempt`. If that
    attempt no longer holds the parent, the answer is `StaleAttempt` and nothing is written (L12).
    """

    job: str
    plugin: str
    entry: str
    args: Any
    queue: str = "default"
    priority: int = 0
    due_at: float | None = None
    deadline: float | None = None
    max_attempts: int = 5
    idempotency_key: str | None = None
    fingerprint: str = ""
    parent: str | None = None
    parent_key: str | None = None
    parent_attempt: int | None = None
    trace_id: str | None = None
    attributes: dict[str, Any] | None = None
    budget: dict[str, int] | None = None  # what the run may spend, in millionths of each unit
    group: str | None = None
    plan: dict[str, Any] | None = None
    past: tuple[tuple[str, dict[str, Any]], ...] = ()
    continues: str | None = None  # the job in whose place this one goes on
    first: str | None = None  # and the first of that chain


class Submitted(msgspec.Struct, frozen=True):
    """The job's id, whether it was there before, and when it was created, where that was now."""

    job: str
    existing: bool
    at: float | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Take up to `limit` claimable jobs under a new attempt each, with job_running. Answer: `Claims`.

    In the order of L7: priority, higher first; then due time; then age. Only jobs of the entries named (pairs of plugin
    and entry) and, unless None, of the queues named. Where a queue has limits, no more than they allow at this moment,
    whoever else claims; where its jobs have groups, these take turns, and the order is that within each.
    """

    worker: str
    entries: frozenset[tuple[str, str]]
    queues: frozenset[str] | None
    limit: int
    lease_seconds: float


class Claimed(msgspec.Struct, frozen=True):
    """A job that is now held, with its whole stream, oldest first, job_running last."""

    job: Job
    events: list[Event]


class Claims(msgspec.Struct, frozen=True):
    """What a claim has taken, and what kept it from taking more of queues in which jobs wait."""

    claimed: list[Claimed]
    held: tuple[Blocked, ...] = ()

    def __iter__(self) -> Iterator[Claimed]:
        """Go through what was taken."""
        return iter(self.claimed)

    def __len__(self) -> int:
        """Count what was taken."""
        return len(self.claimed)


class Renew(msgspec.Struct, frozen=True):
    """Extend live leases of one worker; the attempt stays. Answer: `Leases`. An expired lease is lost (L2)."""

    worker: str
    held: tuple[tuple[str, int], ...]  # (job, attempt)
    lease_seconds: float


class Leases(msgspec.Struct, frozen=True):
    """What became of a worker's leases: `lost` are over; `cancel` and `pause` are asked for."""

    lost: frozenset[str]
    cancel: frozenset[str]
    pause: frozenset[str]


class Successor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The job that goes on in place of one that ends by `continue_as`; everything else it has from that one.

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
    """Write events under an attempt, in order. Answer: `Appended`, or `StaleAttempt` and nothing was written.

    An event that leaves Running ends the lease in the same transaction (L6). job_waiting looks into the inbox first: a
    signal that came before the wait completes it at once (E12). The end of a child is signalled to its parent; with a
    job that fails or is cancelled, its children that have not ended are cancelled, all in this transaction.

    A job that completes with a `successor` is continued by it: that job is created, and unused signals and a requested
    pause move to it. The parent is not told. If a cancel was requested, the job is cancelled instead.
    """

    job: str
    attempt: int
    events: tuple[tuple[str, dict[str, Any] | Frozen], ...]  # payloads as values, or frozen
    uses: tuple[str, ...] = ()  # ids of signals in the inbox that are used up with this
    parent: str | None = (
        None  # the job's, if whoever writes knows it: a store may lock both rows at once, in their order
    )
    successor: Successor | None = None


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where the stream and the job stand now."""

    version: int
    state: JobState


class Progress(msgspec.Struct, frozen=True):
    """Keep what a run reports of itself, in place of what it reported before (R9). Answer: None, or `StaleAttempt`."""

    job: str
    attempt: int
    said: dict[str, Any]


class KeepExport(msgspec.Struct, frozen=True, kw_only=True):
    """Keep something that a run has produced (R10). Answer: its number in the run, or `StaleAttempt`.

    The same key again is the same export: nothing is written, and its number is given. What is not small is in a blob,
    whose pieces were put before.
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
    """Keep one piece of a blob; numbers run from 1. Answer: None, or `StaleAttempt`."""

    job: str
    attempt: int
    blob: str
    number: int
    content: bytes


class SendSignal(msgspec.Struct, frozen=True):
    """Put a signal into the inbox; if the job waits for its key, complete the wait. Answer: `SignalResult`.

    A repeat with the same id changes nothing. A job that has ended takes no signals; if it was continued, the job that
    goes on for it takes them.

    The result of a child is sent with `may_wait`. If its parent waits for other children, too, the signal is kept and
    the parent is woken a little later, with all results that have come by then; with the last of them at once.
    """

    job: str
    key: str
    payload: Any
    id: str
    may_wait: bool = False


class SignalResult(msgspec.Struct, frozen=True):
    """What became of a signal: delivered to a wait, kept for later, a repeat, or too late."""

    outcome: str  # "delivered" | "kept" | "repeat" | "too_late"


class Cancel(msgspec.Struct, frozen=True):
    """Cancel a job: at once if no worker holds it, else by a request that its code sees. Answer: the `Job`.

    Repeating is harmless and keeps the first reason (R6); a job that has ended is left as it is. If it was continued,
    this and every other verb of an operator is about the job that goes on for it. The children of a job
    that ends by it are cancelled in the same transaction.
    """

    job: str
    reason: str | None
    actor: str | None = None


class Pause(msgspec.Struct, frozen=True):
    """Pause a job: at once if it is queued, else at its next step boundary (J13). Answer: the `Job`."""

    job: str
    actor: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """Let a paused job go on, or take a pause back that has not taken effect yet. Answer: the `Job`."""

    job: str
    actor: str | None = None


class Retry(msgspec.Struct, frozen=True):
    """Reopen a failed job: a new run (R4). Answer: the `Job`, or `InvalidTransition` if it has not failed."""

    job: str
    actor: str
    reason: str


class Resolve(msgspec.Struct, frozen=True):
    """An operator's answer for a tool in doubt (E5); the job goes on. Answer: the `Job`, or `NotInDoubt`."""

    job: str
    node: str
    answer: str  # "done" | "not_done" | "fail"
    result: Any = None
    actor: str | None = None


class Reclaim(msgspec.Struct, frozen=True):
    """Requeue up to `limit` jobs with an expired lease; fail what crashed too often (L5, J14). Answer: `JobIds`."""

    limit: int = 100


class Expire(msgspec.Struct, frozen=True):
    """End up to `limit` waits, and runs that nobody holds, whose time is up. Answer: `JobIds`.

    Parents that are due to be woken by results of their children are woken by it.
    """

    limit: int = 100


class ReleaseLeases(msgspec.Struct, frozen=True):
    """A worker is known to be dead: end its leases, for the next `Reclaim` to take its jobs (L10). Answer: `JobIds`."""

    worker: str


class Purge(msgspec.Struct, frozen=True):
    """Remove up to `limit` jobs that ended at `before` or earlier, for good. Answer: `JobIds`.

    Those created first go first. Only jobs in one of `states`, which have ended, whatever else is named; and of a child
    only when its parent is gone, or completed or cancelled: a parent that goes on, or is retried, asks for its child by
    name, and would start it again. The first of a chain (`continue_as`) stays until the chain has ended. A job goes
    whole, in this transaction: its row, stream, signals and evidence. Its id and its idempotency key are free again.
    """

    before: float
    limit: int = 1000
    states: frozenset[JobState] = TERMINAL_JOB_STATES


class KeepEvidence(msgspec.Struct, frozen=True):
    """Keep what a call reported after its attempt had lost the right to write (E5). Answer: whether it was new.

    It is shown to whoever has to answer for the call, and is never applied by itself.
    """

    evidence: Evidence


class PutWorker(msgspec.Struct, frozen=True):
    """A worker says that it is there (L9). Answer: None. Workers not heard of for `FORGOTTEN_SECONDS` are dropped."""

    card: WorkerCard


class RemoveWorker(msgspec.Struct, frozen=True):
    """A worker says that it is gone. Answer: None."""

    worker: str


class SetLimits(msgspec.Struct, frozen=True):
    """Set the limits of a queue, all of them but whether it is paused. Answer: None."""

    limits: Limits
    actor: str | None = None


class PauseQueue(msgspec.Struct, frozen=True):
    """Have nothing more of a queue started, or have it go on. Answer: None. What runs goes on."""

    queue: str
    paused: bool
    actor: str | None = None


class JobIds(msgspec.Struct, frozen=True):
    """Which jobs a sweep has touched, in the order it did."""

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
    | Reclaim
    | Expire
    | ReleaseLeases
    | Purge
    | Progress
    | KeepExport
    | PutBlob
    | KeepEvidence
    | PutWorker
    | SpendBudget
    | RemoveWorker
    | SetLimits
    | PauseQueue
)
