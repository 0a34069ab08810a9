"""The columns of SQL rows, and their conversion to and from values. Payloads are JSON text, which people can read."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from holdfast.machines import TERMINAL_JOB_STATES, CancelRequest, Event, JobState, OpenWait
from holdfast.machines.run_projection import RunFields
from holdfast.store.limits import LimitRow, Limits
from holdfast.store.rows import OUTDATED, Evidence, Job, Lease, Signal, WorkerCard

__all__ = [
    "EVENT_COLUMNS",
    "EVENT_READ",
    "JOB_COLUMNS",
    "LIMIT_COLUMNS",
    "card_of",
    "ends_at",
    "event_of",
    "event_row",
    "evidence_of",
    "job_of",
    "job_row",
    "limits_of",
    "limits_row",
    "signal_of",
]

_JOB_NAMES = [
    *("id", "plugin", "entry", "queue", "priority", "created_at", "deadline", "max_attempts", "idempotency_key"),
    *("fingerprint", "parent", "parent_key", "facts", "group_name", "version", "head", "state", "attempt"),
    *("attempts", "run", "started", "due_at", "wait", "cancel", "updated_at", "course", "lease_worker", "lease_until"),
    *("pause", "exported", "wake_at", "newest"),
]
JOB_COLUMNS = ", ".join(_JOB_NAMES)
JOB_WRITTEN = [*_JOB_NAMES, "claimable", "ends_at", "status"]
EVENT_COLUMNS = "job, seq, type, payload, attempt, at, schema, prev, hash"
LIMIT_COLUMNS = "queue, settings, grouped, tokens, tokens_at, turn, changed_at, changed_by"
LIMIT_WRITTEN = f"{LIMIT_COLUMNS}, opens_at"  # the last is for people who read with SQL, and for the release before
EVENT_READ = EVENT_COLUMNS.replace("payload", "payload::text")  # where JSON is a type of its own

_FIXED = _JOB_NAMES.index("version")  # columns that never change come first
_STATES = {state.value: state for state in JobState}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_wait = msgspec.json.Decoder(OpenWait).decode
_decode_cancel = msgspec.json.Decoder(CancelRequest).decode
_decode_course = msgspec.json.Decoder(RunFields).decode
_decode_facts = msgspec.json.Decoder(dict[str, Any]).decode
_decode_limits = msgspec.json.Decoder(Limits).decode
_decode_card = msgspec.json.Decoder(WorkerCard).decode


def event_row(event: Event, payload: bytes) -> tuple[Any, ...]:
    """Return an event's columns; its payload is the JSON text that is stored."""
    prev, hashed = bytes.fromhex(event.prev), bytes.fromhex(event.hash)
    return event.job, event.seq, event.type, payload.decode(), event.attempt, event.at, event.schema, prev, hashed


def event_of(row: tuple[Any, ...]) -> Event:
    """Return an event from its columns. A damaged row is returned as it is; `check` finds the damage."""
    job, seq, kind, payload, attempt, at, schema, prev, hashed = row
    return Event(f"{job}:{seq}", job, seq, kind, _decode(payload), attempt, at, schema, prev.hex(), hashed.hex())


def job_row(job: Job, now: float) -> tuple[Any, ...]:
    """Return a job's columns, including those for indexes."""
    wait = _encode(job.wait).decode() if job.wait is not None else None
    cancel = _encode(job.cancel).decode() if job.cancel is not None else None
    worker, until = (job.lease.worker, job.lease.until) if job.lease is not None else (None, None)
    claimable = job.state is JobState.QUEUED and job.due_at <= now
    return (
        job.id,
        job.plugin,
        job.entry,
        job.queue,
        job.priority,
        job.created_at,
        job.deadline,
        job.max_attempts,
        job.idempotency_key,
        job.fingerprint,
        job.parent,
        job.parent_key,
        _facts(job),
        job.group or "",
        job.version,
        job.head,
        job.state.value,
        job.attempt,
        job.attempts,
        job.run,
        job.started,
        job.due_at,
        wait,
        cancel,
        job.updated_at,
        _encode(job.course).decode(),
        worker,
        until,
        job.pause,
        job.exported,
        job.wake_at,
        job.newest,
        claimable,
        ends_at(job),
        job.course.status.value,
    )


def job_of(row: tuple[Any, ...]) -> Job:
    """Return a job from its columns."""
    fixed, (version, head, state, attempt, attempts, run, started, due_at, *now) = row[:_FIXED], row[_FIXED:]
    wait, cancel, updated_at, course, worker, until, pause, exported, wake_at, newest = now
    name, plugin, entry, queue, priority, created_at, deadline, max_attempts, key, fingerprint, *family = fixed
    parent, parent_key, facts, group = family
    return Job(
        id=name,
        plugin=plugin,
        entry=entry,
        queue=queue,
        priority=priority,
        created_at=created_at,
        deadline=deadline,
        max_attempts=max_attempts,
        idempotency_key=key,
        fingerprint=fingerprint,
        parent=parent,
        parent_key=parent_key,
        **(_decode_facts(facts) if facts is not None else {}),
        group=group or None,
        version=version,
        head=head,
        state=_STATES[state],
        attempt=attempt,
        attempts=attempts,
        run=run,
        started=bool(started),
        due_at=due_at,
        wait=_decode_wait(wait) if wait is not None else None,
        cancel=_decode_cancel(cancel) if cancel is not None else None,
        updated_at=updated_at,
        course=_decode_course(course) if course else OUTDATED,
        lease=Lease(worker, until) if worker is not None else None,
        pause=bool(pause),
        exported=exported,
        wake_at=wake_at,
        newest=newest,
    )


def signal_of(row: tuple[Any, ...]) -> Signal:
    """Return a signal from its columns."""
    job, name, key, payload, at = row
    return Signal(job, name, key, _decode(payload), at)


def signal_payload(signal: Signal) -> str:
    """Return a signal's payload as JSON text."""
    return _encode(signal.payload).decode()


def evidence_of(row: tuple[Any, ...]) -> Evidence:
    """Return a piece of evidence from its columns."""
    job, node, attempt, number, result, error, at = row
    return Evidence(job, node, attempt, number, _decode(result), error, at)


def evidence_row(evidence: Evidence, now: float) -> tuple[Any, ...]:
    """Return the columns of a piece of evidence."""
    identity = evidence.job, evidence.node, evidence.attempt, evidence.number
    return (*identity, _encode(evidence.result).decode(), evidence.error, now)


def card_of(row: tuple[Any, ...]) -> WorkerCard:
    """Return a worker from its columns."""
    card, started_at, seen_at = row
    return msgspec.structs.replace(_decode_card(card), started_at=started_at, seen_at=seen_at)


def card_row(card: WorkerCard, now: float) -> tuple[Any, ...]:
    """Return a worker's columns."""
    return card.name, _encode(card).decode(), now, now


@lru_cache(maxsize=4096)
def _settings(text: str) -> Limits:
    """Decode a queue's limits; cached, because every claim reads them and they rarely change."""
    return _decode_limits(text)


def limits_of(row: tuple[Any, ...]) -> LimitRow:
    """Return a queue's limits from their columns."""
    _, limits_json, grouped, *rest = row
    return LimitRow(_settings(limits_json), bool(grouped), *rest)


def limits_row(row: LimitRow) -> tuple[Any, ...]:
    """Return the columns of a queue's limits."""
    limits_json = _encode(row.limits).decode()
    kept = row.grouped, row.tokens, row.tokens_at, row.turn, row.changed_at, row.changed_by
    return (row.queue, limits_json, *kept, row.opens_at)


def _facts(job: Job) -> str | None:
    if job.trace_id is None and job.attributes is None and job.continues is None:
        return None
    said = {
        "trace_id": job.trace_id,
        "attributes": job.attributes,
        "continues": job.continues,
        "first": job.first,
    }
    return _encode({name: value for name, value in said.items() if value is not None}).decode()


def ends_at(job: Job) -> float | None:
    """Return when time ends the job or its wait while it has no lease; None is never."""
    if job.state in TERMINAL_JOB_STATES or job.lease is not None:
        return None
    ends = (job.ends_by, job.wait.deadline if job.wait is not None else None, job.wake_at)
    return min((end for end in ends if end is not None), default=None)
