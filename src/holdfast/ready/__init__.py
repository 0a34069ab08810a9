"""How much at once: readiness as a state machine that is watched while it runs (SPEC section 5)."""

from holdfast.errors import EmptyWakeSet, InvalidTransition, InvalidWake, MissingWake, WakeOutsidePending
from holdfast.machines.ready import (
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
from holdfast.ready.monitor import Interval, Poll, ReadyMonitor, Waker

__all__ = [
    "READY",
    "BudgetExhausted",
    "Busy",
    "EmptyWakeSet",
    "Interval",
    "InvalidTransition",
    "InvalidWake",
    "MissingWake",
    "Pending",
    "Poll",
    "Reading",
    "Ready",
    "ReadyMonitor",
    "ReadyState",
    "RetryAfter",
    "WakeOutsidePending",
    "WakeSource",
    "Waker",
]
