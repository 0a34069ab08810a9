"""The columns of SQL rows, and their conversion to and from values. Payloads are JSON text, which people can read."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.machines import TERMINAL_JOB_STATES, CancelRequest, JobState, OpenWait
from holdfast.machines.run_projection import RunFields
from holdfast.schedules.schedule import Schedule
from holdfast.store.limits import LimitRow, Limits
from holdfast.store.rows import OUTDATED, Evidence, Job, JobSpec, Lease, Signal, WorkerCard

_FACTS = (
    "trace_id",
    "attributes",
    "continues",
    "first",
    "schedule",
    "tells_schedule",
)  # of a job's spec: together in one column, as JSON
# Columns that are fields of a job as they are. The first ones never change.
_FIXED = ("created_at", *(name for name in JobSpec.__struct_fields__ if name not in {*_FACTS, "group"}))
_CHANGING = ("version", "head", "attempt", "attempts", "run", "due_at", "updated_at", "exported", "wake_at", "newest")
_CONVERTED = ("state", "started", "pause", "wait", "cancel", "course", "lease_worker", "lease_until", "kept_for")
_JOB_NAMES = ["id", "facts", "group_name", *_FIXED, *_CHANGING, *_CONVERTED]
JOB_COLUMNS = ", ".join(_JOB_NAMES)
JOB_WRITTEN = [*_JOB_NAMES, "claimable", "ends_at", "status"]
JOB_CHANGING = JOB_WRITTEN[JOB_WRITTEN.index("version") :]  # the others are never written again
LIMIT_COLUMNS = "queue, settings, grouped, tokens, tokens_at, turn, changed_at, changed_by"
LIMIT_WRITTEN = f"{LIMIT_COLUMNS}, opens_at"  # the last is for people who read with SQL, and for the release before

_PLAIN, _END_OF_PLAIN = (*_FIXED, *_CHANGING), _JOB_NAMES.index("state")
_plain, _facts_of = attrgetter(*_PLAIN), attrgetter(*_FACTS)
_NO_FACTS = (None,) * len(_FACTS)
_STATES = {state.value: state for state in JobState}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_wait = msgspec.json.Decoder(OpenWait).decode
_decode_cancel = msgspec.json.Decoder(CancelRequest).decode
_decode_course = msgspec.json.Decoder(RunFields).decode
_decode_facts = msgspec.json.Decoder(dict[str, Any]).decode
_decode_limits = msgspec.json.Decoder(Limits).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_card = msgspec.json.Decoder(WorkerCard).decode


def job_row(job: Job, now: float) -> tuple[Any, ...]:
    """Return a job's columns, including those for indexes."""
    wait = _encode(job.wait).decode() if job.wait is not None else None
    cancel = _encode(job.cancel).decode() if job.cancel is not None else None
    worker, until = (job.lease.worker, job.lease.until) if job.lease is not None else (None, None)
    claimable = job.state is JobState.QUEUED and job.due_at <= now
    return (
        job.id,
        _facts(job),
        job.group or "",
        *_plain(job),
        job.state._value_,
        job.started,
        job.pause,
        wait,
        cancel,
        _encode(job.course).decode(),
        worker,
        until,
        job.kept_for or "",
        claimable,
        ends_at(job),
        job.course.status._value_,
    )


def job_of(row: tuple[Any, ...]) -> Job:
    """Return a job from its columns."""
    name, facts, group = row[:3]
    state, started, pause, wait, cancel, course, worker, until, kept_for = row[_END_OF_PLAIN:]
    plain = dict(zip(_PLAIN, row[3:_END_OF_PLAIN], strict=True))
    if facts is not None:
        plain |= _decode_facts(facts)
    return Job(
        id=name,
        group=group or None,
        **plain,
        state=_STATES[state],
        started=bool(started),
        pause=bool(pause),
        wait=_decode_wait(wait) if wait is not None else None,
        cancel=_decode_cancel(cancel) if cancel is not None else None,
        course=_decode_course(course) if course else OUTDATED,
        lease=Lease(worker, until) if worker is not None else None,
        kept_for=kept_for or None,
    )


def schedule_of(row: tuple[Any, ...]) -> Schedule:
    """Return a schedule from its column."""
    return _decode_schedule(row[0])


def schedule_row(schedule: Schedule) -> tuple[Any, ...]:
    """Return a schedule's columns: id, plugin, when it is due, and the row as JSON."""
    return schedule.id, schedule.plugin, schedule.due_at, _encode(schedule).decode()


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
    card, started_at, seen_at, build = row
    return msgspec.structs.replace(_decode_card(card), started_at=started_at, seen_at=seen_at, build=build)


def card_row(card: WorkerCard, now: float) -> tuple[Any, ...]:
    """Return a worker's columns."""
    return card.name, _encode(msgspec.structs.replace(card, build=None)).decode(), now, now, card.build


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
    values = _facts_of(job)
    if values == _NO_FACTS:
        return None
    return _encode({name: value for name, value in zip(_FACTS, values, strict=True) if value is not None}).decode()


def ends_at(job: Job) -> float | None:
    """Return when time ends the job or its wait while it has no lease; None is never."""
    if job.lease is not None or job.state in TERMINAL_JOB_STATES:
        return None
    ends = (job.ends_by, job.wait.deadline if job.wait is not None else None, job.wake_at)
    return min((end for end in ends if end is not None), default=None)
