"""How a run goes: what of its record follows its job's events, one event at a time (SPEC R3 to R6).

`follow(course, job, …)` gives the course after an event; `job` is the reader that has just taken it. Every change of
status goes through `RUN.advance`, so an illegal path cannot come out. How the two machines meet (R3):

- a run is queued until user code first starts, then running until the end, whatever its job does between; where the job
  is meanwhile stands in `stage`;
- a started job that is cancelled passes through cancel_requested, in the same event if need be;
- a job that fails before its first start passes through running, in the same event;
- a deadline ends a run as timeout, or as canceled (with ``details.deadline``) if a cancel was under way (R6);
- a run that has ended never changes again (R5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.machines.fold import Fold
from holdfast.machines.job import JobEvent, JobState
from holdfast.machines.run import RUN, TERMINAL_RUN_STATUSES, RunStatus
from holdfast.machines.snapshot import CancelRequest

__all__ = ["Course", "RunError", "follow"]

DEADLINE = "deadline"  # the reason in job_failed, and the flag in job_cancelled, that a run's deadline leaves (R7)

_QUEUED, _RUNNING, _ASKED = RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.CANCEL_REQUESTED


class RunError(msgspec.Struct, frozen=True):
    """Why a run ended without success."""

    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class Course(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a run changes while its job goes on; a new run's has every default.

    Attributes:
        status: the run's status.
        stage: where its job is, until the end.
        started_at: when user code first started.
        cancel: the request to cancel that counts.
        error: why it ended without success.
        refs: what it gives, when it has succeeded.
        opened_at: when it was opened; None is with its job, as the first run is.
        continued_as: the job that goes on in its place, if it ended by `continue_as`.
    """

    status: RunStatus = _QUEUED
    stage: str | None = "queued"
    started_at: float | None = None
    cancel: CancelRequest | None = None
    error: RunError | None = None
    refs: tuple[str, ...] = ()
    opened_at: float | None = None
    continued_as: str | None = None


def follow(
    course: Course, job: Fold, name: str, payload: Mapping[str, Any], at: float, path: list[RunStatus] | None = None
) -> Course:
    """Give a run's course after an event that its job's reader has taken; the statuses passed go onto `path`."""
    if course.status in TERMINAL_RUN_STATUSES:
        return course
    cancel = job.cancel
    if cancel is None and name == JobEvent.CANCELLED:
        cancel = CancelRequest(_string(payload.get("reason")), at)
    refs: tuple[str, ...] = ()
    error = None
    started_at, stage, continued_as = course.started_at, None, None
    match job.state:
        case JobState.COMPLETED:
            ways, refs = _through_running(course, RunStatus.SUCCEEDED), _refs(payload)
            continued_as = _string(payload.get("continued_as"))
        case JobState.FAILED:
            ways, error = _failed(course, payload, cancel)
        case JobState.CANCELLED:
            ways = _canceled(course.status)
            error = _cancellation(cancel, late=payload.get(DEADLINE) is True)
        case _:
            ways = ()
            if name == JobEvent.RUNNING and course.status is _QUEUED:
                started_at, ways = at, (_RUNNING,)
            if cancel is not None and (ways or course.status is _RUNNING):
                ways = (*ways, _ASKED)
            stage = _stage(job)
    status = course.status
    for way in ways:
        status = RUN.advance(status, way)
        if path is not None:
            path.append(status)
    return Course(status, stage, started_at, cancel, error, refs, course.opened_at, continued_as)


def _through_running(course: Course, end: RunStatus) -> tuple[RunStatus, ...]:
    """No run ends well or badly from queued; one whose job was never started passes through running (R3)."""
    return (_RUNNING, end) if course.status is _QUEUED else (end,)


def _failed(
    course: Course, payload: Mapping[str, Any], cancel: CancelRequest | None
) -> tuple[tuple[RunStatus, ...], RunError]:
    late = payload.get("reason") == DEADLINE
    if late and cancel is not None:
        begin = (_RUNNING,) if course.status is _QUEUED else ()
        return (*begin, *_canceled(_RUNNING if begin else course.status)), _cancellation(cancel, late=True)
    code = _string(payload.get("code")) or ("TIMEOUT" if late else "FAILED")
    message = _string(payload.get("message")) or _string(payload.get("reason")) or "the job failed"
    details = payload.get("details")
    error = RunError(code, message, details if isinstance(details, dict) else {})
    return _through_running(course, RunStatus.TIMEOUT if late else RunStatus.FAILED), error


def _canceled(status: RunStatus) -> tuple[RunStatus, ...]:
    return (_ASKED, RunStatus.CANCELED) if status is _RUNNING else (RunStatus.CANCELED,)


def _cancellation(cancel: CancelRequest | None, *, late: bool) -> RunError:
    reason = cancel.reason if cancel is not None else None
    return RunError("CANCELED", f"canceled: {reason}" if reason else "canceled", {DEADLINE: True} if late else {})


def _stage(job: Fold) -> str:
    if not job.started:
        return "paused" if job.state is JobState.WAITING else "queued"
    if job.wait is not None:
        return "parked" if job.wait.park else "waiting"
    if job.state is JobState.QUEUED:
        return "retrying" if job.not_before is not None else "requeued"
    return "running"


def _refs(payload: Mapping[str, Any]) -> tuple[str, ...]:
    refs = payload.get("result_refs")
    return tuple(str(ref) for ref in refs) if isinstance(refs, list) else ()


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
