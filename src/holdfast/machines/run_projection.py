"""What users see of a job: its runs, projected from its events (SPEC section 4).

`runs(events)` is a pure function from a stream to the list of its run records; a store that lost its run records makes
them anew with this. `RunProjection` is the same, event by event. How a run's status follows its job, `course` says; an
operator's retry of a failed job opens a new run, and the old record is never touched again (R4, R5).

Progress, stage texts and metrics that a running job reports cost no event (R9) and are not in the stream; a projection
leaves them at their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.machines.event import Event
from holdfast.machines.fold import Fold
from holdfast.machines.run import RUN, TERMINAL_RUN_STATUSES, RunStatus
from holdfast.machines.run_fields import Course, RunError, follow

__all__ = ["RunProjection", "RunRecord", "record_of", "run_name", "run_paths", "runs"]

_NOTHING: Mapping[str, Any] = {}


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


def run_name(job: str, number: int) -> str:
    """Name a run: the first as its job, later ones ``job.2`` and on."""
    return job if number == 1 else f"{job}.{number}"


def record_of(
    course: Course, *, job: str, number: int, created_at: float, updated_at: float, **fixed: Any
) -> RunRecord:
    """Put a run's record together from its course and what was fixed when its job was created."""
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
        raise TypeError(f"a stream is a list of events, got one {type(events).__name__}")
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
        self._course = Course()
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
        self._course = Course(opened_at=None if first else at)
        self.paths.append([RUN.advance(None, RunStatus.QUEUED)])


def fixed_by(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a job's first event fixes of all its runs' records."""
    attributes = payload.get("attributes")
    return {
        "plugin_id": _string(payload.get("plugin")) or "",
        "entry_id": _string(payload.get("entry")) or "",
        "trace_id": _string(payload.get("trace_id")),
        "idempotency_key": _string(payload.get("idempotency_key")),
        "attributes": attributes if isinstance(attributes, dict) else {},
        "continues": _string(payload.get("continues")),
    }


def _parts(event: object) -> tuple[str, Mapping[str, Any], float]:
    if isinstance(event, Event):
        return event.type, event.payload, event.at
    return str.__str__(event) if isinstance(event, str) else "", _NOTHING, 0.0


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
