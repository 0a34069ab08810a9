"""The three state machines as values, and the readers built on them. Pure: no I/O, no clock, no settings.

- `JOB`, `RUN`, `READY`: the tables. ``JOB.advance(state, event)`` returns the next state or raises.
- `derive`, `check`, `fold`: read a job's stream leniently, list its violations, read it strictly.
- `runs`: the run records of a stream.
- `Event`, `seal`, `encode`, `decode`: one event, its bytes and its place in the hash chain.
"""

from holdfast.errors import InvalidEvent, InvalidRunTransition, InvalidTable, InvalidTransition
from holdfast.machines.event import GENESIS, Event, HistoryEvent, canonical, decode, digest, encode, seal
from holdfast.machines.fold import Fold, Violation, check, derive, fold
from holdfast.machines.job_table import JOB, TERMINAL_JOB_STATES, JobEvent, JobState
from holdfast.machines.ready_table import (
    READY,
    BudgetExhausted,
    Busy,
    Pending,
    Reading,
    Ready,
    ReadyState,
    RetryAfter,
    WakeSource,
)
from holdfast.machines.run_projection import RunError, RunProjection, RunRecord, run_paths, runs
from holdfast.machines.run_table import RUN, TERMINAL_RUN_STATUSES, RunStatus
from holdfast.machines.snapshot import CancelRequest, OpenStep, OpenWait, Snapshot, WaitPlace
from holdfast.machines.table import Row, Table

__all__ = [
    "GENESIS", "JOB", "READY", "RUN", "TERMINAL_JOB_STATES", "TERMINAL_RUN_STATUSES", "BudgetExhausted", "Busy",
    "CancelRequest", "Event", "Fold", "HistoryEvent", "InvalidEvent", "InvalidRunTransition", "InvalidTable",
    "InvalidTransition", "JobEvent", "JobState", "OpenStep", "OpenWait", "Pending", "Reading", "Ready", "ReadyState",
    "RetryAfter", "Row", "RunError", "RunProjection", "RunRecord", "RunStatus", "Snapshot", "Table", "Violation",
    "WaitPlace", "WakeSource", "advance", "canonical", "check", "decode", "derive", "digest", "encode", "fold",
    "run_paths", "runs", "seal",
]  # fmt: skip

advance = JOB.advance
"""The Job machine's `advance`, the one most people mean."""
