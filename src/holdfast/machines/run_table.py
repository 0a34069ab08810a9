"""The Run machine: the status of a job that users see (SPEC R1). Seven states, asked for by name.

Rule 1: `RUN.advance(current, target)` is the only way a run's status changes.
Rule 2: a run goes forward. After the first start it stays running until the end, also while its job is requeued,
waiting, parked or retrying. A terminal run is never reopened; a retry opens a new one.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import InvalidRunTransition
from holdfast.machines.table import Table


class RunStatus(StrEnum):
    """Status of a run. Members equal their wire names; note `canceled`, where a job says `cancelled`."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMEOUT = "timeout"


_S = RunStatus

_WAYS: dict[RunStatus | None, tuple[RunStatus, ...]] = {
    None: (_S.QUEUED,),
    _S.QUEUED: (_S.RUNNING, _S.CANCELED),
    _S.RUNNING: (_S.SUCCEEDED, _S.FAILED, _S.TIMEOUT, _S.CANCEL_REQUESTED),
    _S.CANCEL_REQUESTED: (_S.CANCELED, _S.SUCCEEDED, _S.FAILED),
}

RUN: Table[RunStatus, RunStatus] = Table(
    "Run",
    states=RunStatus,
    events=RunStatus,
    refusal=InvalidRunTransition,
    lines=[(current, target, target) for current, targets in _WAYS.items() for target in targets],
)

TERMINAL_RUN_STATUSES = RUN.final
