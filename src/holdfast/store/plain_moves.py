"""The two moves that nearly every job makes, decided without a reader: its claim, and the end of code that returned.

They are for rows with nothing unusual: no cancel, no pause, no parent to tell. From the state that is asked for here,
these moves are always legal. `StreamWriter` decides all others. It would decide these the same way, which a test
compares; but it takes three times as long, and half of what a short job costs is its claim and its end.
"""

from __future__ import annotations

import msgspec

from holdfast.machines import JobEvent, JobState
from holdfast.machines.event import Frozen, seal_frozen
from holdfast.machines.run_projection import HANDED_OVER, RunFields
from holdfast.machines.run_table import RunStatus
from holdfast.store.commands import EVENTS
from holdfast.store.rows import Job, Lease
from holdfast.store.stream_writer import Decision

_RUNNING, _COMPLETED = JobEvent.RUNNING.value, JobEvent.COMPLETED.value
# Parts of a result that name something else: the job that goes on, and what the run has produced.
_CONTINUED, _PRODUCED = b'"continued_as"', b'"result_refs"'


def claimed(
    job: Job, payload: Frozen, build: str | None, lease: Lease, kept_for: str | None, now: float
) -> Decision | None:
    """Return the claim of a queued job, or None if it needs a `StreamWriter`."""
    course = job.course
    if job.state is not JobState.QUEUED or not job.version or _is_unusual(job):
        return None
    if course.status is RunStatus.QUEUED:
        started_at: float | None = now
    elif course.status is RunStatus.RUNNING:
        started_at = course.started_at
    else:
        return None
    seq, attempt = job.version + 1, job.attempt + 1
    event = seal_frozen(job.id, seq, job.head, _RUNNING, payload, at=now, attempt=attempt)
    row = msgspec.structs.replace(
        job,
        version=seq,
        head=event.hash,
        state=JobState.RUNNING,
        attempt=attempt,
        attempts=job.attempts + 1,
        started=True,
        updated_at=now,
        course=RunFields(RunStatus.RUNNING, "running", started_at, opened_at=course.opened_at, build=build),
        lease=lease,
        kept_for=kept_for,
    )
    return Decision(row, [event], [payload.text], change=EVENTS)


def completed(job: Job, payload: Frozen, attempt: int, now: float) -> Decision | None:
    """Return the end of a job that its holder has run, or None if it needs a `StreamWriter`."""
    course = job.course
    if job.state is not JobState.RUNNING or course.status is not RunStatus.RUNNING or _is_unusual(job):
        return None
    # `find` is faster than `in`, which tries a number first.
    if job.parent is not None or payload.text.find(_CONTINUED) >= 0 or payload.text.find(_PRODUCED) >= 0:
        return None
    seq = job.version + 1
    event = seal_frozen(job.id, seq, job.head, _COMPLETED, payload, at=now, attempt=attempt)
    ended = RunFields(RunStatus.SUCCEEDED, None, course.started_at, opened_at=course.opened_at, build=course.build)
    row = msgspec.structs.replace(
        job,
        version=seq,
        head=event.hash,
        state=JobState.COMPLETED,
        updated_at=now,
        course=ended,
        lease=None,
    )
    return Decision(row, [event], [payload.text], change=EVENTS)


def _is_unusual(job: Job) -> bool:
    """Return whether a row has anything that these moves would have to look at."""
    return (
        job.cancel is not None
        or job.pause
        or job.wait is not None
        or job.wake_at is not None
        or job.course.stage == HANDED_OVER
        or job.course.cancel is not None
    )
