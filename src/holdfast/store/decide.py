"""What each command means for one job: a pure function of its row, the command and the time.

A backend loads rows, calls `decide`, and writes what comes back: events, the new row, signals kept and used. It decides
nothing itself. So every backend means the same by every verb, and the meaning can be tested without one.

Every event is sealed here and taken by a strict reader before anybody sees it: an illegal write cannot be produced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.errors import IdempotencyConflict, InvalidTransition, NotInDoubt, StaleAttempt
from holdfast.machines import TERMINAL_JOB_STATES, Event, HistoryEvent, JobEvent, JobState, Place
from holdfast.machines.event import freeze, seal_frozen, vouch
from holdfast.store import commands as c
from holdfast.store.changes import ASKED, EVENTS, WORK
from holdfast.store.rows import Job, Lease, Signal, grown, projected, reader_of

__all__ = ["DOUBT", "PAUSE_KEY", "Decision", "buried", "claim", "decide", "expire", "reclaim", "renew", "submit"]

PAUSE_KEY = "holdfast:pause"  # correlation key of the wait that a pause is
DOUBT = "holdfast:doubt:"  # and, with the node behind it, of the wait for an operator's answer

# What the holder of a job may always write, and what moves nothing. A plan is recorded once only (E11).
_GROWING = frozenset(event.value for event in HistoryEvent) - {
    HistoryEvent.CANCEL_REQUESTED.value,
    HistoryEvent.PLAN_GENERATED.value,
}
# Names that need no check; a job's first event stands for the job's own name, and is looked at whole.
_VOUCHED = frozenset(event.value for event in (*JobEvent, *HistoryEvent)) - {JobEvent.CREATED.value}
_thaw = msgspec.json.Decoder(dict[str, Any]).decode

Inbox = Callable[[str], Signal | None]  # the oldest unused signal of this job with this key


@dataclass(slots=True)
class Decision:
    """What to write for one command, and what to answer.

    The payload of each event is in `payloads`, as canonical JSON. An event's own payload is only there where a rule or
    the row needs it.
    """

    job: Job
    events: list[Event] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    kept: tuple[Signal, ...] = ()
    used: tuple[Signal, ...] = ()
    follow: tuple[c.SendSignal, ...] = ()
    orphans: str | None = None  # the job ended badly: cancel its children that have not ended, for this reason
    answer: Any = None
    grew_only: bool = False  # nothing of the row has changed but where its stream ends
    change: int = 0  # what there is to tell; see `holdfast.store.changes`


class _Pen:
    """Writes onto the end of one job's stream. Nothing illegal comes out of it."""

    def __init__(self, job: Job, now: float) -> None:
        self.decision = Decision(job)
        self._reader = reader_of(job)
        self._now = now
        self._seq = job.version
        self._head = job.head
        self._behind = False  # whether the row is still to be brought up to the stream
        self._moved = False

    @property
    def job(self) -> Job:
        """The row, brought up to everything that was put."""
        if self._behind:
            project = projected if self._moved else grown
            self.decision.job = project(self.decision.job, self._reader, self.decision.events[-1])
            self._behind = False
        return self.decision.job

    def put(self, kind: str, payload: Mapping[str, Any] | bytes, *, attempt: int | None = None) -> None:
        """Add an event; its payload as values, or frozen."""
        name = str.__str__(kind)  # not a member of an enumeration, but its value
        frozen, plain = (payload, _thaw(payload)) if isinstance(payload, bytes) else freeze(payload)
        job, seq, prev = self.decision.job.id, self._seq + 1, self._head
        event = seal_frozen(job, seq, prev, name, frozen, at=self._now, attempt=attempt, payload=plain)
        if name not in _VOUCHED:
            vouch(event)
        moves = name not in _GROWING
        self._reader.take(event)
        self.decision.events.append(event)
        self.decision.payloads.append(frozen)
        self._seq, self._head, self._behind = event.seq, event.hash, True
        self._moved = self._moved or moves

    def set(self, **fields: object) -> None:
        self._moved = True
        self.decision.job = msgspec.structs.replace(self.job, **fields)

    def administrative(self, purpose: str, kind: str, payload: Mapping[str, Any]) -> None:
        """A claim that never starts user code, and the event it is for, under one fresh attempt (J8)."""
        attempt = self.job.attempt + 1
        self.put(JobEvent.LEASED, {"purpose": purpose}, attempt=attempt)
        self.put(kind, payload, attempt=attempt)

    def complete_wait(
        self, outcome: str, payload: Any = None, *, signal: str | None = None, place: Place | None = None
    ) -> None:
        """End the wait: at this place, or at the one that ends first by time."""
        wait = self.job.wait
        assert wait is not None, "only a blocked job has a wait to complete"
        at = place if place is not None else wait.places()[0]
        said = {"correlation_key": at.correlation_key, "node": at.node, "outcome": outcome, "payload": payload}
        self.put(JobEvent.WAIT_COMPLETED, {**said, "signal": signal})

    def end(self) -> Decision:
        """Close the books: no lease without a running job, and a parent is told of its child's end."""
        job = self.job
        if job.state is not JobState.RUNNING and job.lease is not None:
            self.set(lease=None)
        if job.state in TERMINAL_JOB_STATES and self.decision.events:
            self.set(pause=False)
            self._tell_the_parent(self.decision.events[-1])
            if job.state is not JobState.COMPLETED:
                self.decision.orphans = f"its parent {job.id} has ended: {job.state}"
        self.decision.grew_only = bool(self.decision.events) and not self._moved
        self.decision.change = EVENTS if self.decision.events else 0
        if self._moved:
            self.decision.change |= _told_of(self.job)
        return self.decision

    def _tell_the_parent(self, last: Event) -> None:
        job = self.job
        if job.parent is not None and job.parent_key is not None:
            told = {"state": job.state.value, **{key: last.payload.get(key) for key in ("result", "error", "reason")}}
            self.decision.follow = (c.SendSignal(job.parent, job.parent_key, told, f"{job.id}.{job.run}"),)


def _told_of(job: Job) -> int:
    """What a worker has to know of a job that has moved."""
    if job.state is JobState.RUNNING:
        return ASKED if job.cancel is not None or job.pause else 0
    return 0 if job.state in TERMINAL_JOB_STATES else WORK


def submit(command: c.Submit, now: float, existing: Job | None) -> Decision:
    """Create, or answer with the job that is there."""
    if existing is not None:
        same = (existing.plugin, existing.entry, existing.fingerprint) == (
            command.plugin,
            command.entry,
            command.fingerprint,
        )
        if not same:
            raise IdempotencyConflict(command.idempotency_key or command.job, existing.id)
        return Decision(existing, answer=c.Submitted(existing.id, existing=True))
    job = Job(
        id=command.job,
        plugin=command.plugin,
        entry=command.entry,
        queue=command.queue,
        priority=command.priority,
        created_at=now,
        deadline=command.deadline,
        max_attempts=command.max_attempts,
        idempotency_key=command.idempotency_key,
        fingerprint=command.fingerprint,
        parent=command.parent,
        parent_key=command.parent_key,
    )
    pen = _Pen(job, now)
    said = {
        "plugin": command.plugin,
        "entry": command.entry,
        "args": command.args,
        "queue": command.queue,
        "priority": command.priority,
        "due_at": command.due_at,
        "deadline": command.deadline,
        "max_attempts": command.max_attempts,
        "idempotency_key": command.idempotency_key,
        "fingerprint": command.fingerprint,
        "parent": command.parent,
        "parent_key": command.parent_key,
        "trace_id": command.trace_id,
    }
    pen.put(JobEvent.CREATED, {name: value for name, value in said.items() if value is not None})
    decision = pen.end()
    decision.answer = c.Submitted(command.job, existing=False)
    return decision


def claim(job: Job, command: c.Claim, now: float) -> Decision:
    """Take one claimable job: job_running under the next attempt, and the lease."""
    pen = _Pen(job, now)
    pen.put(JobEvent.RUNNING, {"worker": command.worker}, attempt=job.attempt + 1)
    pen.set(lease=Lease(command.worker, now + command.lease_seconds))
    return pen.end()


def renew(job: Job, command: c.Renew, attempt: int, now: float) -> Job | None:
    """Extend one lease, or None if it is lost."""
    if not job.held_by(attempt, now) or job.lease is None or job.lease.worker != command.worker:
        return None
    return msgspec.structs.replace(job, lease=Lease(command.worker, now + command.lease_seconds))


def buried(job: Job, now: float) -> Job:
    """End the lease of a worker that is known to be dead; `reclaim` does the rest (L10)."""
    assert job.lease is not None, "a job without a lease has no worker to bury"
    return msgspec.structs.replace(job, lease=Lease(job.lease.worker, min(now, job.lease.until)))


def reclaim(job: Job, now: float) -> Decision | None:
    """Take a job back whose lease has expired, after looking again: None if it is not so (L5)."""
    expired = job.state is JobState.RUNNING and job.lease is not None and job.lease.until <= now
    if not expired:
        return None
    pen = _Pen(job, now)
    pen.put(JobEvent.REQUEUED, {"reason": "lease_expired", "attempt": job.attempt})
    if _deadline_passed(pen.job, now):
        _end_late(pen)
    elif pen.job.cancel is not None:
        pen.administrative("cancel", JobEvent.CANCELLED, {"reason": pen.job.cancel.reason})
    elif pen.job.attempts >= job.max_attempts:
        said = {"reason": "poison", "message": f"crashed {pen.job.attempts} times; {job.max_attempts} are allowed"}
        pen.administrative("fail", JobEvent.FAILED, said)
    return pen.end()


def expire(job: Job, now: float) -> Decision | None:
    """End what has run out while nobody holds the job: the run's deadline, or the wait; None if neither has."""
    if job.state in TERMINAL_JOB_STATES or job.state is JobState.RUNNING:
        return None
    pen = _Pen(job, now)
    if _deadline_passed(job, now):
        if job.wait is not None:
            pen.complete_wait("expired")
        _end_late(pen)
        return pen.end()
    if job.wait is not None and job.wait.deadline is not None and job.wait.deadline <= now:
        pen.complete_wait("expired")
        return pen.end()
    return None


def decide(command: c.Command, job: Job, now: float, inbox: Inbox, known: Callable[[str], bool]) -> Decision:
    """Decide a command about one job that exists.

    Args:
        command: any command that names one job.
        job: its row.
        now: the store's time.
        inbox: the oldest unused signal with a key.
        known: whether a signal id is in the inbox already, used or not.
    """
    match command:
        case c.Append():
            return _append(command, job, now, inbox)
        case c.SendSignal():
            return _signal(command, job, now, known)
        case c.Cancel():
            return _cancel(command, job, now)
        case c.Pause():
            return _pause(command, job, now)
        case c.Resume():
            return _resume(command, job, now)
        case c.Retry():
            return _retry(command, job, now)
        case c.Resolve():
            return _resolve(command, job, now)
        case _:
            raise TypeError(f"{type(command).__name__} is not about one job")


def _append(command: c.Append, job: Job, now: float, inbox: Inbox) -> Decision:
    if not job.held_by(command.attempt, now):
        raise StaleAttempt(job.id, command.attempt, job.attempt)
    if command.events and all(kind in _GROWING for kind, _ in command.events):
        return _grow(command, job, now)
    pen = _Pen(job, now)
    for kind, payload in command.events:
        pen.put(kind, payload, attempt=command.attempt)
    _look_into_the_inbox(pen, inbox)
    decision = pen.end()
    decision.answer = c.Appended(decision.job.version, decision.job.state)
    return decision


def _grow(command: c.Append, job: Job, now: float) -> Decision:
    """Append events that move nothing: legal for whoever holds the job, which was just seen. Most writes are these."""
    decision = Decision(job, grew_only=True, change=EVENTS)
    seq, head = job.version, job.head
    for kind, payload in command.events:
        frozen = payload if isinstance(payload, bytes) else freeze(payload)[0]
        seq += 1
        event = seal_frozen(job.id, seq, head, str.__str__(kind), frozen, at=now, attempt=command.attempt)
        head = event.hash
        decision.events.append(event)
        decision.payloads.append(frozen)
    decision.job = msgspec.structs.replace(job, version=seq, head=head, updated_at=now)
    decision.answer = c.Appended(seq, job.state)
    return decision


def _look_into_the_inbox(pen: _Pen, inbox: Inbox) -> None:
    """A signal that came before the wait completes it at once (E12), whichever place it is for."""
    for place in pen.job.wait.places() if pen.job.wait is not None else ():
        early = inbox(place.correlation_key) if place.correlation_key is not None else None
        if early is not None:
            pen.complete_wait("signal", early.payload, signal=early.id, place=place)
            pen.decision.used = (early,)
            return


def _signal(command: c.SendSignal, job: Job, now: float, known: Callable[[str], bool]) -> Decision:
    if known(command.id):
        return Decision(job, answer=c.Kept("repeat"))
    if job.state in TERMINAL_JOB_STATES:
        return Decision(job, answer=c.Kept("too_late"))
    signal = Signal(command.job, command.id, command.key, command.payload, now)
    pen = _Pen(job, now)
    pen.decision.kept = (signal,)
    place = job.wait.place(command.key) if job.wait is not None else None
    if place is not None:
        pen.complete_wait("signal", command.payload, signal=command.id, place=place)
        pen.decision.used = (signal,)
    decision = pen.end()
    decision.answer = c.Kept("delivered" if place is not None else "kept")
    return decision


def _cancel(command: c.Cancel, job: Job, now: float) -> Decision:
    pen = _Pen(job, now)
    said = {"reason": command.reason, "actor": command.actor}
    match job.state:
        case JobState.QUEUED:
            pen.administrative("cancel", JobEvent.CANCELLED, said)
        case JobState.WAITING:
            pen.put(JobEvent.CANCELLED, said)
        case JobState.RUNNING if job.cancel is None:
            pen.put(HistoryEvent.CANCEL_REQUESTED, said)
        case _:
            pass  # ended, or asked already
    decision = pen.end()
    decision.answer = decision.job
    return decision


def _pause(command: c.Pause, job: Job, now: float) -> Decision:
    pen = _Pen(job, now)
    if job.state is JobState.QUEUED:
        said = {"node": None, "correlation_key": PAUSE_KEY, "wait_type": "human", "park": True, "actor": command.actor}
        pen.administrative("pause", JobEvent.WAITING, said)
    elif job.state not in TERMINAL_JOB_STATES:
        pen.set(pause=True)
    decision = pen.end()
    decision.answer = decision.job
    return decision


def _resume(command: c.Resume, job: Job, now: float) -> Decision:
    pen = _Pen(job, now)
    if job.wait is not None and job.wait.correlation_key == PAUSE_KEY:
        pen.complete_wait("resumed", {"actor": command.actor})
    pen.set(pause=False)
    decision = pen.end()
    decision.answer = decision.job
    return decision


def _retry(command: c.Retry, job: Job, now: float) -> Decision:
    if job.state is not JobState.FAILED:
        detail = "only a failed job is retried by an operator"
        raise InvalidTransition(job.state, JobEvent.REQUEUED.value, detail=detail, rule="J11")
    pen = _Pen(job, now)
    pen.put(JobEvent.REQUEUED, {"actor": command.actor, "reason": command.reason})
    decision = pen.end()
    decision.answer = decision.job
    return decision


def _resolve(command: c.Resolve, job: Job, now: float) -> Decision:
    place = job.wait.place(f"{DOUBT}{command.node}") if job.wait is not None else None
    if place is None:
        raise NotInDoubt(job.id, command.node)
    pen = _Pen(job, now)
    answer = {"answer": command.answer, "result": command.result, "actor": command.actor}
    pen.complete_wait("resolved", answer, place=place)
    decision = pen.end()
    decision.answer = decision.job
    return decision


def _deadline_passed(job: Job, now: float) -> bool:
    return job.deadline is not None and job.deadline <= now


def _end_late(pen: _Pen) -> None:
    """End a queued job whose run's deadline has passed: failed, or cancelled if that was asked for before (R6, R7)."""
    if pen.job.cancel is not None:
        pen.administrative("cancel", JobEvent.CANCELLED, {"reason": pen.job.cancel.reason, "deadline": True})
    else:
        pen.administrative("fail", JobEvent.FAILED, {"reason": "deadline", "message": "the run's deadline passed"})
