"""A run's record, projected from its job's events (SPEC section 4).

`runs(events)` is a pure function from a stream to the list of its run records. A store that lost its run records makes
them again with it. `RunProjection` does the same event by event. An operator's retry of a failed job opens a new run,
and the old record never changes again (R4, R5).

`follow(course, job, …)` returns a run's fields after one event. `job` is the reader that has just taken the event.
Every change of status goes through `RUN.advance`, so an illegal path is impossible. A run follows its job so (R3):

- A run is queued until user code first starts. Then it is running until the end, whatever its job does in between.
  `stage` says where the job is meanwhile.
- A started job that is cancelled passes through cancel_requested, in the same event if need be.
- A job that fails before its first start passes through running, in the same event.
- A deadline ends a run as timeout, or as canceled (with ``details.deadline``) if a cancel was under way (R6).
- A run that has ended never changes again (R5).

Progress, stage texts and metrics that a running job reports cost no event (R9) and are not in the stream. A projection
leaves them at their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.machines.event import Event
from holdfast.machines.fold import Fold
from holdfast.machines.job_table import JobEvent, JobState
from holdfast.machines.keys import DEPLOY
from holdfast.machines.run_table import RUN, TERMINAL_RUN_STATUSES, RunStatus
from holdfast.machines.snapshot import CancelRequest

HANDED_OVER = "handed_over"  # the stage of a job that waits for a worker of the build that recorded its history
DEADLINE = "deadline"  # the reason in job_failed, and the flag in job_cancelled, that a run's deadline leaves (R7)

_QUEUED, _RUNNING, _ASKED = RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.CANCEL_REQUESTED
_NOTHING: Mapping[str, Any] = {}


class RunError(msgspec.Struct, frozen=True):
    """Why a run ended without success."""

    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class RunFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a run that change while its job goes on; a new run has every default.

    Attributes:
        status: the run's status.
        stage: where its job is, until the end.
        started_at: when user code first started.
        cancel: the first request to cancel.
        error: why it ended without success.
        refs: references to its result, when it has succeeded.
        opened_at: when it was opened; None for the first run, which is opened with its job.
        continued_as: the job that goes on in its place, if it ended by `continue_as`.
        build: the build of the worker that started its newest attempt; None if it is unknown.
    """

    status: RunStatus = _QUEUED
    stage: str | None = "queued"
    started_at: float | None = None
    cancel: CancelRequest | None = None
    error: RunError | None = None
    refs: tuple[str, ...] = ()
    opened_at: float | None = None
    continued_as: str | None = None
    build: str | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as users see it (R2). Times are UTC epoch seconds; a terminal record never changes (R5)."""

    run_id: str
    plugin_id: str
    entry_id: str
    status: RunStatus
    created_at: float
    updated_at: float

    task_id: str | None = None
    trace_id: str | None = None
    idempotency_key: str | None = None

    started_at: float | None = None
    finished_at: float | None = None

    progress: float | None = None
    stage: str | None = None
    message: str | None = None
    step: int | None = None
    step_total: int | None = None
    eta_seconds: float | None = None
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)

    cancel_requested: bool = False
    cancel_reason: str | None = None
    cancel_requested_at: float | None = None

    error: RunError | None = None
    result_refs: list[str] = msgspec.field(default_factory=list)
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)

    continues: str | None = None
    continued_as: str | None = None
    build: str | None = None


def run_name(job: str, number: int) -> str:
    """Return a run's name: the job's id for the first, ``job.2`` and so on for later ones."""
    return job if number == 1 else f"{job}.{number}"


def record_of(
    course: RunFields, *, job: str, number: int, created_at: float, updated_at: float, **fixed: Any
) -> RunRecord:
    """Return a run's record, from its fields and those that were fixed when its job was created."""
    ended = course.status in TERMINAL_RUN_STATUSES
    cancel = course.cancel
    return RunRecord(
        run_id=run_name(job, number),
        task_id=job,
        status=course.status,
        created_at=created_at if course.opened_at is None else course.opened_at,
        updated_at=updated_at,
        started_at=course.started_at,
        finished_at=updated_at if ended else None,
        progress=1.0 if course.status is RunStatus.SUCCEEDED else None,
        stage=course.stage,
        cancel_requested=cancel is not None,
        cancel_reason=cancel.reason if cancel is not None else None,
        cancel_requested_at=cancel.at if cancel is not None else None,
        error=course.error,
        result_refs=list(course.refs),
        continued_as=course.continued_as,
        build=course.build,
        **fixed,
    )


def runs(events: Iterable[object]) -> list[RunRecord]:
    """Project a job's stream to its runs, oldest first; an empty stream has none.

    Raises:
        InvalidTransition: the stream is not legal; the error names the first illegal event.
    """
    return _projected(events).runs


def run_paths(events: Iterable[object]) -> list[list[RunStatus]]:
    """List the statuses each run passed through, oldest run first. Every path is legal by `RUN`."""
    return _projected(events).paths


def _projected(events: Iterable[object]) -> RunProjection:
    if isinstance(events, (str, bytes, Event)):
        raise TypeError(f"a stream must be a list of events, got one {type(events).__name__}")
    projection = RunProjection()
    for event in events:
        projection.push(event)
    return projection


class RunProjection:
    """Projects one job's events as they come. `runs` and `paths` are up to date after every `push`."""

    __slots__ = ("_course", "_created_at", "_fixed", "_id", "_job", "paths", "runs")

    def __init__(self) -> None:
        self._job = Fold()
        self._id = ""
        self._created_at = 0.0
        self._fixed: dict[str, Any] = {}
        self._course = RunFields()
        self.runs: list[RunRecord] = []
        self.paths: list[list[RunStatus]] = []

    def push(self, event: object) -> None:
        """Read the next event.

        Raises:
            InvalidTransition: the event is illegal here; nothing was changed.
        """
        run_before = self._job.run if self.runs else 0
        self._job.take(event)
        name, payload, at = _parts(event)
        if self._job.state is None:  # nothing was created yet
            return
        if self._job.run != run_before:
            self._open(event, payload, at)
        elif self.runs[-1].finished_at is not None:
            return
        self._course = follow(self._course, self._job, name, payload, at, self.paths[-1])
        number = len(self.paths)
        self.runs[number - 1 :] = [
            record_of(
                self._course, job=self._id, number=number, created_at=self._created_at, updated_at=at, **self._fixed
            )
        ]

    def _open(self, event: object, payload: Mapping[str, Any], at: float) -> None:
        first = not self.paths
        if first:
            self._id = event.job if isinstance(event, Event) else ""
            self._fixed = fixed_by(payload)
            self._created_at = at
        self._course = RunFields(opened_at=None if first else at)
        self.paths.append([RUN.advance(None, RunStatus.QUEUED)])


def fixed_by(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of all run records that a job's first event fixes."""
    attributes = payload.get("attributes")
    return {
        "plugin_id": _string(payload.get("plugin")) or "",
        "entry_id": _string(payload.get("entry")) or "",
        "trace_id": _string(payload.get("trace_id")),
        "idempotency_key": _string(payload.get("idempotency_key")),
        "attributes": attributes if isinstance(attributes, dict) else {},
        "continues": _string(payload.get("continues")),
    }


def follow(
    course: RunFields, job: Fold, name: str, payload: Mapping[str, Any], at: float, path: list[RunStatus] | None = None
) -> RunFields:
    """Return a run's fields after an event that its job's reader has taken; add the statuses passed to `path`."""
    if course.status in TERMINAL_RUN_STATUSES:
        return course
    cancel = job.cancel
    if cancel is None and name == JobEvent.CANCELLED:
        cancel = CancelRequest(_string(payload.get("reason")), at)
    refs: tuple[str, ...] = ()
    error = None
    started_at, stage, continued_as = course.started_at, None, None
    build = _string(payload.get("build")) if name == JobEvent.RUNNING else course.build
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
            handed_over = name == JobEvent.REQUEUED and payload.get("reason") == DEPLOY
            stage = HANDED_OVER if handed_over else _stage(job)
    status = course.status
    for way in ways:
        status = RUN.advance(status, way)
        if path is not None:
            path.append(status)
    return RunFields(status, stage, started_at, cancel, error, refs, course.opened_at, continued_as, build)


def _through_running(course: RunFields, end: RunStatus) -> tuple[RunStatus, ...]:
    """Return the statuses up to `end`: a run whose job never started passes through running (R3)."""
    return (_RUNNING, end) if course.status is _QUEUED else (end,)


def _failed(
    course: RunFields, payload: Mapping[str, Any], cancel: CancelRequest | None
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
    if job.wait is not None and job.wait.in_doubt:
        return "in_doubt"
    if job.wait is not None:
        return "parked" if job.wait.park else "waiting"
    if job.state is JobState.QUEUED:
        return "retrying" if job.not_before is not None else "requeued"
    return "running"


def _refs(payload: Mapping[str, Any]) -> tuple[str, ...]:
    refs = payload.get("result_refs")
    return tuple(str(ref) for ref in refs) if isinstance(refs, list) else ()


def _parts(event: object) -> tuple[str, Mapping[str, Any], float]:
    if isinstance(event, Event):
        return event.type, event.payload, event.at
    return str.__str__(event) if isinstance(event, str) else "", _NOTHING, 0.0


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
