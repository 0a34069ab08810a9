"""What users see of a job: its runs, projected from its events (SPEC section 4).

`runs(events)` is a pure function from a stream to the list of its run records; a store that lost its run table makes it
anew with this. `RunProjection` is the same, event by event, for a writer that keeps the records beside the stream.

Every status change goes through `RUN.advance`, so an illegal path cannot be projected. How the two machines meet (R3):

- a run is queued until user code first starts, then running until the end, whatever its job does between; where the job
  is meanwhile stands in `stage`;
- a started job that is cancelled passes through cancel_requested, in the same event if need be;
- a job that fails before its first start passes through running, in the same event;
- a deadline ends a run as timeout, or as canceled (with ``details.deadline``) if a cancel was under way (R6);
- an operator's retry of a failed job opens a new run; the old record is never touched again (R4, R5).

Progress, stage texts and metrics that a running job reports cost no event (R9) and are not in the stream; a projection
leaves them at their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.machines.event import Event
from holdfast.machines.fold import Fold
from holdfast.machines.job import JobEvent, JobState
from holdfast.machines.run import RUN, TERMINAL_RUN_STATUSES, RunStatus

__all__ = ["RunError", "RunProjection", "RunRecord", "opened", "run_paths", "runs"]

DEADLINE = "deadline"  # the reason in job_failed, and the flag in job_cancelled, that a run's deadline leaves (R7)

_NOTHING: Mapping[str, Any] = {}


class RunError(msgspec.Struct, frozen=True):
    """Why a run ended without success."""

    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)


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


def runs(events: Iterable[object]) -> list[RunRecord]:
    """Project a job's stream to its runs, oldest first; an empty stream has none.

    Raises:
        InvalidTransition: the stream is not legal; the error names the first illegal event.
    """
    return _projected(events).runs


def opened(job: str, plugin: str, entry: str, key: str | None, at: float) -> RunRecord:
    """Give the first run of a job that was just created: what its first event alone projects to."""
    return RunRecord(
        run_id=job,
        plugin_id=plugin,
        entry_id=entry,
        task_id=job,
        idempotency_key=key,
        status=RUN.advance(None, RunStatus.QUEUED),
        created_at=at,
        updated_at=at,
        stage="queued",
    )


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

    __slots__ = ("_job", "paths", "runs")

    def __init__(self) -> None:
        self._job = Fold()
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
        self._follow(name, payload, at)

    def _open(self, event: object, payload: Mapping[str, Any], at: float) -> None:
        job = event.job if isinstance(event, Event) else ""
        number = len(self.runs) + 1
        first = self.runs[0] if self.runs else None
        self.paths.append([RUN.advance(None, RunStatus.QUEUED)])
        self.runs.append(
            RunRecord(
                run_id=job if number == 1 else f"{job}.{number}",
                plugin_id=first.plugin_id if first else _string(payload.get("plugin")) or "",
                entry_id=first.entry_id if first else _string(payload.get("entry")) or "",
                trace_id=first.trace_id if first else _string(payload.get("trace_id")),
                idempotency_key=first.idempotency_key if first else _string(payload.get("idempotency_key")),
                task_id=job,
                status=RunStatus.QUEUED,
                created_at=at,
                updated_at=at,
            )
        )

    def _follow(self, name: str, payload: Mapping[str, Any], at: float) -> None:
        if self.runs[-1].status in TERMINAL_RUN_STATUSES:
            return
        self._note_cancel(name, payload, at)
        match self._job.state:
            case JobState.COMPLETED:
                self._pass_through_running()
                self._pass_to(RunStatus.SUCCEEDED, progress=1.0, result_refs=_refs(payload))
            case JobState.FAILED:
                self._fail(payload)
            case JobState.CANCELLED:
                self._cancel(payload)
            case _:
                self._go_on(name, at)
        self._finish(at)

    def _note_cancel(self, name: str, payload: Mapping[str, Any], at: float) -> None:
        request = self._job.cancel
        if request is not None:
            self._set(cancel_requested=True, cancel_reason=request.reason, cancel_requested_at=request.at)
        elif name == JobEvent.CANCELLED:
            self._set(cancel_requested=True, cancel_reason=_string(payload.get("reason")), cancel_requested_at=at)

    def _go_on(self, name: str, at: float) -> None:
        if name == JobEvent.RUNNING and self.runs[-1].status is RunStatus.QUEUED:
            self._set(started_at=at)
            self._pass_to(RunStatus.RUNNING)
        if self._job.cancel is not None and self.runs[-1].status is RunStatus.RUNNING:
            self._pass_to(RunStatus.CANCEL_REQUESTED)
        self._set(stage=self._stage())

    def _fail(self, payload: Mapping[str, Any]) -> None:
        self._pass_through_running()
        late = payload.get("reason") == DEADLINE
        if late and self._job.cancel is not None:
            self._cancel({DEADLINE: True})
            return
        code = _string(payload.get("code")) or ("TIMEOUT" if late else "FAILED")
        message = _string(payload.get("message")) or _string(payload.get("reason")) or "the job failed"
        details = payload.get("details")
        error = RunError(code, message, details if isinstance(details, dict) else {})
        self._pass_to(RunStatus.TIMEOUT if late else RunStatus.FAILED, error=error)

    def _cancel(self, payload: Mapping[str, Any]) -> None:
        if self.runs[-1].status is RunStatus.RUNNING:
            self._pass_to(RunStatus.CANCEL_REQUESTED)
        reason = self.runs[-1].cancel_reason
        details = {DEADLINE: True} if payload.get(DEADLINE) is True else {}
        error = RunError("CANCELED", f"canceled: {reason}" if reason else "canceled", details)
        self._pass_to(RunStatus.CANCELED, error=error)

    def _pass_through_running(self) -> None:
        """No run ends well or badly from queued; one whose job was never started passes through running (R3)."""
        if self.runs[-1].status is RunStatus.QUEUED:
            self._pass_to(RunStatus.RUNNING)

    def _finish(self, at: float) -> None:
        ended = self.runs[-1].status in TERMINAL_RUN_STATUSES
        self._set(updated_at=at, **({"finished_at": at, "stage": None} if ended else {}))

    def _pass_to(self, status: RunStatus, **fields: object) -> None:
        """Change the status through the table; nobody else does."""
        status = RUN.advance(self.runs[-1].status, status)
        self.paths[-1].append(status)
        self._set(status=status, **fields)

    def _set(self, **fields: object) -> None:
        self.runs[-1] = msgspec.structs.replace(self.runs[-1], **fields)

    def _stage(self) -> str:
        job = self._job
        if not job.started:
            return "paused" if job.state is JobState.WAITING else "queued"
        if job.wait is not None:
            return "parked" if job.wait.park else "waiting"
        if job.state is JobState.QUEUED:
            return "retrying" if job.not_before is not None else "requeued"
        return "running"


def _parts(event: object) -> tuple[str, Mapping[str, Any], float]:
    if isinstance(event, Event):
        return event.type, event.payload, event.at
    return str.__str__(event) if isinstance(event, str) else "", _NOTHING, 0.0


def _refs(payload: Mapping[str, Any]) -> list[str]:
    refs = payload.get("result_refs")
    return [str(ref) for ref in refs] if isinstance(refs, list) else []


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None
