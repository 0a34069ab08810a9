"""The Job machine (SPEC section 1).

Rule 1: every change of a job's state is a row of `JOB`. No other code compares or assigns states.
Rule 2: nothing here knows the time, the store or the settings. The caller decides that an event has happened.
Rule 3: the target of a row depends on its event alone. So "the last state event wins" and the table agree on every
legal stream, and a damaged one can still be shown.

`PARKED` and `RETRYING` are qualifiers (J4): a waiting job that is parked, a queued job that is not due yet. No row
enters them, and their rows are those of their base. They change what is shown and never what is allowed.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from holdfast.machines.table import Table


class JobState(StrEnum):
    """The state of a job. Members equal their wire names."""

    QUEUED = "queued"  # may be claimed
    RUNNING = "running"  # exactly one attempt holds the lease
    WAITING = "waiting"  # for a signal, a timer, a person, a child; no worker
    PARKED = "parked"  # a waiting job, shown as one that waits long
    RETRYING = "retrying"  # a queued job, shown as one that is not due yet
    COMPLETED = "completed"
    FAILED = "failed"  # given up; an operator's retry may reopen it
    CANCELLED = "cancelled"


class JobEvent(StrEnum):
    """The ten events that move the machine (J2). No other event does."""

    CREATED = "job_created"
    QUEUED = "job_queued"
    REQUEUED = "job_requeued"
    LEASED = "job_leased"
    RUNNING = "job_running"
    WAITING = "job_waiting"
    WAIT_COMPLETED = "wait_completed"
    COMPLETED = "job_completed"
    FAILED = "job_failed"
    CANCELLED = "job_cancelled"


_S, _E = JobState, JobEvent

# fmt: off
JOB: Table[JobState, JobEvent] = Table(
    "Job",
    states=JobState,
    events=JobEvent,
    qualifiers={_S.PARKED: _S.WAITING, _S.RETRYING: _S.QUEUED},
    lines=[
        # in state      on event            goes to
        (None,          _E.CREATED,         _S.QUEUED),
        (None,          _E.QUEUED,          _S.QUEUED),     # accepted on import only (J9)
        (None,          _E.REQUEUED,        _S.QUEUED),     # accepted on import only (J9)

        (_S.QUEUED,     _E.REQUEUED,        _S.QUEUED),
        (_S.QUEUED,     _E.LEASED,          _S.RUNNING),    # a claim that never starts user code (J8)
        (_S.QUEUED,     _E.RUNNING,         _S.RUNNING),
        (_S.QUEUED,     _E.WAIT_COMPLETED,  _S.QUEUED),     # a repeated signal; our writers store nothing

        (_S.RUNNING,    _E.REQUEUED,        _S.QUEUED),     # a retry, a lost lease, a worker that stops
        (_S.RUNNING,    _E.WAITING,         _S.WAITING),
        (_S.RUNNING,    _E.WAIT_COMPLETED,  _S.QUEUED),     # legal to read; our writers refuse it (J12)
        (_S.RUNNING,    _E.COMPLETED,       _S.COMPLETED),
        (_S.RUNNING,    _E.FAILED,          _S.FAILED),
        (_S.RUNNING,    _E.CANCELLED,       _S.CANCELLED),

        (_S.WAITING,    _E.WAIT_COMPLETED,  _S.QUEUED),
        (_S.WAITING,    _E.CANCELLED,       _S.CANCELLED),

        (_S.PARKED,     _E.WAIT_COMPLETED,  _S.QUEUED),
        (_S.PARKED,     _E.CANCELLED,       _S.CANCELLED),

        (_S.RETRYING,   _E.REQUEUED,        _S.QUEUED),
        (_S.RETRYING,   _E.LEASED,          _S.RUNNING),
        (_S.RETRYING,   _E.RUNNING,         _S.RUNNING),
        (_S.RETRYING,   _E.WAIT_COMPLETED,  _S.QUEUED),

        (_S.FAILED,     _E.REQUEUED,        _S.QUEUED),     # an operator's retry: a new run on the same job (R4)
    ],
)
# fmt: on

TERMINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})

# Rule 3 as a value: where each event leads, wherever it came from.
TARGETS: MappingProxyType[str, JobState] = MappingProxyType({row.event: row.target for row in JOB.rows()})
