"""The meaning of each command for one job: pure functions of its row, the command and the time.

A backend loads rows, calls `decide`, and writes the decision: events, the new row, signals kept and used. It decides
nothing itself. So a command means the same in every backend, and tests need no backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.errors import IdempotencyConflict, InvalidTransition, NotInDoubt, QuestionClosed, StaleAttempt
from holdfast.machines import TERMINAL_JOB_STATES, HistoryEvent, JobEvent, JobState
from holdfast.machines.event import GENESIS, Frozen, freeze, freeze_plain, seal_frozen, seal_span, vouch
from holdfast.machines.keys import BUDGET_KEY, PAUSE_KEY, deploy_key, doubt_key
from holdfast.machines.run_projection import DEADLINE, HANDED_OVER
from holdfast.store import commands as c
from holdfast.store import plain_moves
from holdfast.store.commands import ASKED, EVENTS, WORK
from holdfast.store.continuation import hand_over, replace
from holdfast.store.inbox import Inbox
from holdfast.store.rows import Job, JobSpec, Lease, Signal
from holdfast.store.stream_writer import GROWING, Decision, StreamWriter, with_past

ID_LENGTH = 36  # of the names that `holdfast.ids` makes
# The fields of job_created, in the order of its JSON text: a job's facts, and three that only this event has.
_ONLY_CREATED = {"args": "entry", "due_at": "priority", "budget": "attributes"}  # and after which fact it stands
_CREATED_FIELDS = list(JobSpec.__struct_fields__)
for _field, _before in _ONLY_CREATED.items():
    _CREATED_FIELDS.insert(_CREATED_FIELDS.index(_before) + 1, _field)
_created = attrgetter(*_CREATED_FIELDS)
_CREATED, _RUNNING, _COMPLETED = JobEvent.CREATED.value, JobEvent.RUNNING.value, JobEvent.COMPLETED.value

# Minimum length of a parent's wait for many children, unless the last child ends or something else wakes the parent.
# Not every child wakes the parent, because every wake replays its whole stream. Meanwhile children end at the rate of
# the store, some hundreds to thousands a second, so each wake takes at least half of those that are left.
WAKE_SECONDS_PER_CHILD = 0.003
WAKE_SECONDS_MAX = 5.0


def submit(command: c.Submit, now: float, existing: Job | None) -> Decision:
    """Create a job, or return the existing one. The caller has checked `fence_parent`."""
    if existing is not None:
        identity = attrgetter("plugin", "entry", "fingerprint")
        if identity(existing) != identity(command):
            raise IdempotencyConflict(command.idempotency_key or command.job, existing.id)
        return Decision(existing, answer=c.Submitted(existing.id, existing=True))
    facts = dict(zip(_CREATED_FIELDS, _created(command), strict=True))
    frozen = freeze_plain({name: value for name, value in facts.items() if value is not None})
    event = seal_frozen(command.job, 1, GENESIS, _CREATED, frozen, at=now, attempt=None)
    if len(command.job) != ID_LENGTH or not command.job.isascii():
        vouch(event)  # a name from outside
    due_at = max(command.due_at or 0.0, now)
    for name in _ONLY_CREATED:
        del facts[name]
    job = Job(
        id=command.job, created_at=now, version=1, head=event.hash, due_at=due_at, updated_at=now,
        kept_for=command.kept_for, **facts,
    )  # fmt: skip
    submitted = c.Submitted(command.job, existing=False, at=now)
    return with_past(command, Decision(job, [event], [frozen.text], answer=submitted, change=EVENTS | WORK), now)


def succeed(successor: c.Submit, ended: Decision, now: float) -> Decision:
    """Create the successor of a job that has ended, with the signals that move to it."""
    decision = submit(successor, now, None)
    decision.kept = ended.moving
    return decision


def claim(job: Job, command: c.Claim, now: float) -> Decision:
    """Take one claimable job: job_running under the next attempt, and the lease."""
    payload, lease = _taken_by(command.worker, command.build), Lease(command.worker, now + command.lease_seconds)
    kept_for = None if job.course.stage == HANDED_OVER else job.kept_for
    if kept_for is None and command.pins and (job.plugin, job.entry) in command.pins:
        kept_for = command.build
    plain = plain_moves.claimed(job, payload, command.build, lease, kept_for, now)
    if plain is not None:
        return plain
    writer = StreamWriter(job, now)
    writer.put(_RUNNING, payload, attempt=job.attempt + 1)
    writer.set(lease=lease, kept_for=kept_for)
    return writer.end()


def fence(job: Job, attempt: int, now: float) -> None:
    """Check that an attempt may write.

    Raises:
        StaleAttempt: it may not, or no longer.
    """
    if not job.held_by(attempt, now):
        raise StaleAttempt(job.id, attempt, job.attempt)


def fence_parent(command: c.Submit, parent: Job | None, now: float) -> None:
    """Check that the attempt that starts a child still holds the parent (L12).

    Raises:
        StaleAttempt: it does not.
    """
    if command.parent is None or command.parent_attempt is None:
        return
    if parent is None:
        raise StaleAttempt(command.parent, command.parent_attempt, 0)
    fence(parent, command.parent_attempt, now)


@lru_cache(maxsize=64)
def _taken_by(worker: str, build: str | None) -> Frozen:
    """Return the payload of a claim's job_running events, the same for every job."""
    return freeze({"worker": worker, **({"build": build} if build is not None else {})})[0]


def renew(job: Job, command: c.Renew, attempt: int, now: float) -> Job | None:
    """Extend one lease; return None if it is lost."""
    if not job.held_by(attempt, now) or job.lease is None or job.lease.worker != command.worker:
        return None
    return msgspec.structs.replace(job, lease=Lease(command.worker, now + command.lease_seconds))


def release_lease(job: Job, now: float) -> Job:
    """End the lease of a worker that is known to be dead; `reclaim` does the rest (L10)."""
    assert job.lease is not None, "a job without a lease has no worker to bury"
    return msgspec.structs.replace(job, lease=Lease(job.lease.worker, min(now, job.lease.until)))


def reclaim(job: Job, now: float) -> Decision | None:
    """Take back a job whose lease has expired; return None if it has not (L5)."""
    expired = job.state is JobState.RUNNING and job.lease is not None and job.lease.until <= now
    if not expired:
        return None
    writer = StreamWriter(job, now)
    writer.put(JobEvent.REQUEUED, {"reason": "lease_expired", "attempt": job.attempt})
    if _deadline_passed(writer.job, now):
        _end_late(writer, now)
    elif writer.job.cancel is not None:
        writer.administrative("cancel", JobEvent.CANCELLED, _cancellation(writer.job, now))
    elif writer.job.attempts >= job.max_attempts:
        message = f"crashed {writer.job.attempts} times; {job.max_attempts} are allowed"
        writer.administrative("fail", JobEvent.FAILED, {"reason": "poison", "message": message})
    return writer.end()


def moved(job: Job, now: float) -> Decision:
    """Requeue a running job whose store moves; its attempt is stale from now on."""
    writer = StreamWriter(job, now)
    writer.put(JobEvent.REQUEUED, {"reason": "moved", "attempt": job.attempt})
    if writer.job.cancel is not None:
        writer.administrative("cancel", JobEvent.CANCELLED, _cancellation(writer.job, now))
    return writer.end()


def expire(job: Job, now: float, inbox: Inbox) -> Decision | None:
    """End the run or the wait of a job without a lease, if its time is up; return None if it is not.

    A parent that is due to get results of its children is woken by the oldest of them.
    """
    if job.state in TERMINAL_JOB_STATES or job.state is JobState.RUNNING:
        return None
    writer = StreamWriter(job, now)
    if _deadline_passed(job, now):
        if job.wait is not None:
            writer.complete_wait(DEADLINE)  # not by its own time: a retried run waits there again
        _end_late(writer, now)
        return writer.end()
    if job.wait is not None and job.wake_at is not None and job.wake_at <= now:
        writer.set(wake_at=None)
        _look_into_the_inbox(writer, inbox)
        return writer.end()
    if job.wait is not None and job.wait.deadline is not None and job.wait.deadline <= now:
        writer.complete_wait("expired")
        return writer.end()
    return None


def decide(command: c.Command, job: Job, now: float, inbox: Inbox) -> Decision:
    """Decide a command about one job that exists.

    Args:
        command: any command that names one job.
        job: its row.
        now: the store's time.
        inbox: its signals.
    """
    match command:
        case c.Append():
            return append(command, job, now, inbox)
        case c.SendSignal():
            return _signal(command, job, now, inbox)
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
        case c.Answer():
            return _answer(command, job, now, inbox)
        case c.Keep():
            return _keep(command, job, now)
        case _:
            raise TypeError(f"{type(command).__name__} is not about one job")


def append(command: c.Append, job: Job, now: float, inbox: Inbox) -> Decision:
    """Write under an attempt, if it still holds the job."""
    fence(job, command.attempt, now)
    moving = None
    if not GROWING.issuperset([kind for kind, _ in command.events]):
        moving = next(place for place, (kind, _) in enumerate(command.events) if kind not in GROWING)
    elif command.events:
        grown = _grow(command.events, command.attempt, job, now)
        if command.uses:
            grown.used = _used(command, now)
        return grown
    before = _grow(command.events[:moving], command.attempt, job, now) if moving else None
    row = before.job if before is not None else job
    only = moving is not None and moving + 1 == len(command.events)
    decision = _completed(command, row, now) if only else None
    decision = decision or _moved(command, command.events[moving:], row, now, inbox)
    if command.successor is not None and decision.job.state is JobState.COMPLETED:
        hand_over(decision, command.successor, job, now, inbox)
    decision.span = before.span if before is not None else None
    decision.answer = c.Appended(decision.job.version, decision.job.state)
    return decision


def _completed(command: c.Append, job: Job, now: float) -> Decision | None:
    """Return the end of a job by the last event of a command, if it can be decided without a reader."""
    kind, payload = command.events[-1]
    if kind != _COMPLETED or not isinstance(payload, Frozen) or command.successor is not None:
        return None
    decision = plain_moves.completed(job, payload, command.attempt, now)
    if decision is not None and command.uses:
        decision.used = _used(command, now)
    return decision


def _moved(command: c.Append, events: Sequence[tuple[str, Any]], job: Job, now: float, inbox: Inbox) -> Decision:
    """Append events of which the first moves the job."""
    writer = StreamWriter(job, now)
    continued = command.successor is not None
    for kind, payload in events:
        writer.put(*_as_asked(kind, payload, job, now, continued=continued), attempt=command.attempt)
    writer.decision.used = _used(command, now)
    if writer.job.course.stage == HANDED_OVER:
        writer.set(kept_for=writer.decision.events[-1].payload.get("build"))
    if writer.job.cancel is not None:
        _cancel_what_was_let_go(writer, now)
    else:
        _look_into_the_inbox(writer, inbox, frozenset(command.uses))
    return writer.end()


def _used(command: c.Append, now: float) -> tuple[Signal, ...]:
    """Return the signals that a job has taken while it runs; only their names count."""
    return tuple(Signal(command.job, name, "", None, now) for name in command.uses)


def _grow(events: Sequence[tuple[str, Any]], attempt: int, job: Job, now: float) -> Decision:
    """Append events that move nothing. They are legal for the holder, which was checked. Most writes are these."""
    frozen = [
        (str.__str__(kind), payload if isinstance(payload, Frozen) else freeze(payload)[0]) for kind, payload in events
    ]
    span = seal_span(job.id, job.version + 1, job.head, frozen, at=now, attempt=attempt)
    version = job.version + len(frozen)
    row = msgspec.structs.replace(job, version=version, head=span.hashes[-1], updated_at=now)
    return Decision(row, span=span, grew_only=True, change=EVENTS, answer=c.Appended(version, job.state))


def _as_asked(
    kind: str, payload: dict[str, Any] | Frozen, job: Job, now: float, *, continued: bool
) -> tuple[str, dict[str, Any] | Frozen]:
    """Return the holder's last event, completed with a cancel request that came while the job ran (R6).

    The first reason is in the row, which the holder has not read since its claim. If the deadline has passed too, the
    job is still cancelled, and its event says so. A job that would continue as another one is cancelled instead, and
    no successor begins.
    """
    if job.cancel is not None and continued and kind == JobEvent.COMPLETED:
        return JobEvent.CANCELLED, _cancellation(job, now)
    if job.cancel is None or kind not in {JobEvent.CANCELLED, JobEvent.FAILED}:
        return kind, payload
    fields = msgspec.json.decode(payload.text) if isinstance(payload, Frozen) else payload
    if kind == JobEvent.CANCELLED:
        return kind, {**fields, **_cancellation(job, now)}
    if fields.get("reason") == DEADLINE:
        return JobEvent.CANCELLED, {**_cancellation(job, now), DEADLINE: True}
    return kind, payload


def _cancellation(job: Job, now: float) -> dict[str, Any]:
    """Return the payload of job_cancelled for a job with a cancel request."""
    assert job.cancel is not None, "only of a job that was asked to cancel"
    late = {DEADLINE: True} if _deadline_passed(job, now) else {}
    return {"reason": job.cancel.reason, **late}


def _cancel_what_was_let_go(writer: StreamWriter, now: float) -> None:
    """Cancel a job whose request came just before its wait: no worker holds it now that could see it (R6)."""
    if writer.job.state is JobState.WAITING:
        writer.put(JobEvent.CANCELLED, _cancellation(writer.job, now))
    elif writer.job.state is JobState.QUEUED:
        writer.administrative("cancel", JobEvent.CANCELLED, _cancellation(writer.job, now))


def _look_into_the_inbox(writer: StreamWriter, inbox: Inbox, used: frozenset[str] = frozenset()) -> None:
    """Complete a wait at once with the oldest signal that is already in the inbox for one of its places (E12)."""
    wait = writer.job.wait
    early = inbox.oldest(wait.by_key, used) if wait is not None else None
    if wait is not None and early is not None:
        writer.complete_wait("signal", early.payload, signal=early.id, place=wait.place(early.key))
        writer.decision.used = (*writer.decision.used, early)


def _wake_later(job: Job, key: str, now: float, inbox: Inbox) -> float | None:
    """Return when to wake a parent that waits for several children, one of which has ended; None means at once."""
    assert job.wait is not None, "only a job that waits is woken"
    children = job.wait.child_keys
    wake_at = job.wake_at
    if wake_at is None:
        wake_at = job.updated_at + min(WAKE_SECONDS_PER_CHILD * len(children), WAKE_SECONDS_MAX)
    if now >= wake_at:
        return None
    may_be_last = inbox.count() + 1 >= len(children)  # only then all keys are read
    return None if may_be_last and children <= {key, *inbox.keys()} else wake_at


def _signal(command: c.SendSignal, job: Job, now: float, inbox: Inbox) -> Decision:
    if inbox.knows(command.id):
        return Decision(job, answer=c.SignalResult("repeat"))
    place = job.wait.place(command.key, command.node) if job.wait is not None else None
    if command.node is not None and place is None:
        raise QuestionClosed(job.id, command.node)
    if job.state in TERMINAL_JOB_STATES:
        return Decision(job, answer=c.SignalResult("too_late"))
    signal = Signal(command.job, command.id, command.key, command.payload, now)
    writer = StreamWriter(job, now)
    writer.decision.kept = (signal,)
    if job.wait is not None and not command.checked and job.wait.asks_person(command.key):
        return Decision(job, answer=c.SignalResult("asks"))
    wake_at = _wake_later(job, command.key, now, inbox) if place is not None and command.may_wait else None
    if wake_at is not None:
        place = None
        if job.wake_at is None:
            writer.set(wake_at=wake_at)
    if place is not None:
        writer.complete_wait("signal", command.payload, signal=command.id, place=place, actor=command.actor)
        writer.decision.used = (signal,)
    decision = writer.end()
    decision.answer = c.SignalResult("delivered" if place is not None else "kept")
    if job.state is JobState.RUNNING:
        decision.change |= ASKED  # one branch may wait for this while another works
    return decision


def _answered(writer: StreamWriter, *, tells_parent: bool = True) -> Decision:
    """Finish a decision whose result is the job's row."""
    decision = writer.end(tells_parent=tells_parent)
    decision.answer = decision.job
    return decision


def _cancel(command: c.Cancel, job: Job, now: float) -> Decision:
    writer = StreamWriter(job, now)
    payload = {"reason": command.reason, "actor": command.actor}
    match job.state:
        case JobState.QUEUED:
            writer.administrative("cancel", JobEvent.CANCELLED, payload)
        case JobState.WAITING:
            writer.put(JobEvent.CANCELLED, payload)
        case JobState.RUNNING if job.cancel is None:
            writer.put(HistoryEvent.CANCEL_REQUESTED, payload)
        case _:
            pass  # ended, or already requested
    return _answered(writer)


def _pause(command: c.Pause, job: Job, now: float) -> Decision:
    writer = StreamWriter(job, now)
    if job.state is JobState.QUEUED:
        wait = {"node": None, "correlation_key": PAUSE_KEY, "wait_type": "human", "park": True}
        writer.administrative("pause", JobEvent.WAITING, {**wait, "actor": command.actor})
    elif job.state not in TERMINAL_JOB_STATES:
        writer.set(pause=True)
    return _answered(writer)


def _resume(command: c.Resume, job: Job, now: float) -> Decision:
    if job.wait is not None and job.wait.place(BUDGET_KEY) is not None and not job.pause:
        detail = "the run has spent more than its budget: grant more budget, and it continues by itself"
        raise InvalidTransition(job.state, JobEvent.WAIT_COMPLETED.value, detail=detail, rule="J12")
    writer = StreamWriter(job, now)
    if job.wait is not None and job.wait.correlation_key == PAUSE_KEY:
        writer.complete_wait("resumed", {"actor": command.actor})
    writer.set(pause=False)
    return _answered(writer)


def _retry(command: c.Retry, job: Job, now: float) -> Decision:
    if job.state is not JobState.FAILED:
        detail = "only a failed job is retried by an operator"
        raise InvalidTransition(job.state, JobEvent.REQUEUED.value, detail=detail, rule="J11")
    writer = StreamWriter(job, now)
    writer.put(JobEvent.REQUEUED, {"actor": command.actor, "reason": command.reason})
    if command.released is not None and job.kept_for == command.released:
        writer.set(kept_for=None)
    decision = _answered(writer)
    decision.past = job.record()
    return decision


def _resolve(command: c.Resolve, job: Job, now: float) -> Decision:
    place = job.wait.place(doubt_key(command.node)) if job.wait is not None else None
    if place is None:
        raise NotInDoubt(job.id, command.node)
    if command.version not in {None, job.version}:
        raise QuestionClosed(job.id, command.node)
    writer = StreamWriter(job, now)
    answer = {"answer": command.answer, "result": command.result, "actor": command.actor}
    writer.complete_wait("resolved", answer, place=place)
    return _answered(writer)


def _answer(command: c.Answer, job: Job, now: float, inbox: Inbox) -> Decision:
    """Answer the question of a job that does not fit the code."""
    place = job.wait.place(deploy_key(command.node)) if job.wait is not None else None
    if place is None or command.version != job.version:
        raise QuestionClosed(job.id, command.node)
    writer = StreamWriter(job, now)
    answer: dict[str, Any] = {"answer": command.answer, "actor": command.actor}
    match command.answer:
        case "accept":
            answer["nodes"] = list(command.nodes)
        case "build":
            answer["build"] = command.build
        case "fork" if command.fork is not None:
            answer["fork"] = command.fork.job
        case _:
            pass
    writer.complete_wait("resolved", answer, place=place)
    if command.answer == "build":
        writer.set(kept_for=command.build)
    elif command.answer == "fork":
        reason = f"forked as {answer['fork']}, because the code does not fit its history"
        writer.administrative("cancel", JobEvent.CANCELLED, {"reason": reason, "actor": command.actor})
    elif command.answer == "fail":
        writer.administrative("fail", JobEvent.FAILED, {"reason": "error", **(command.error or {})})
    forked = command.fork is not None
    decision = _answered(writer, tells_parent=not forked)
    if command.fork is not None:
        replace(decision, command.fork, job, command.signals, now, inbox)
    return decision


def _keep(command: c.Keep, job: Job, now: float) -> Decision:
    writer = StreamWriter(job, now)
    unclaimed = job.state is JobState.QUEUED and job.course.stage == HANDED_OVER
    if job.kept_for == command.was and job.state not in TERMINAL_JOB_STATES and (unclaimed or not command.unclaimed):
        writer.set(kept_for=command.build)
    return _answered(writer)


def _deadline_passed(job: Job, now: float) -> bool:
    return job.ends_by is not None and job.ends_by <= now


def _end_late(writer: StreamWriter, now: float) -> None:
    """End a queued job whose run's deadline has passed: failed, or cancelled if that was requested (R6, R7)."""
    if writer.job.cancel is not None:
        writer.administrative("cancel", JobEvent.CANCELLED, _cancellation(writer.job, now))
    else:
        writer.administrative("fail", JobEvent.FAILED, {"reason": DEADLINE, "message": "the run's deadline passed"})
