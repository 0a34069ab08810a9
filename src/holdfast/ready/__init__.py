"""Gates: limits on how much runs at once, as a state machine with a checked contract (SPEC section 5)."""

from holdfast.errors import EmptyWakeSet, InvalidTransition, InvalidWake, MissingWake, WakeOutsidePending
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
from holdfast.ready.all_of import all_of
from holdfast.ready.backoff import BackoffGate
from holdfast.ready.budget import BudgetGate, Ledger, MemoryLedger
from holdfast.ready.concurrency import ConcurrencyGate
from holdfast.ready.gate import Gate, GateCounts, OnViolation, Share, log_violation, raise_violation
from holdfast.ready.monitor import Interval, Poll, ReadyMonitor, Waker
from holdfast.ready.rate import RateGate

__all__ = [
    "READY", "BackoffGate", "BudgetExhausted", "BudgetGate", "Busy", "ConcurrencyGate", "EmptyWakeSet", "Gate",
    "GateCounts", "Interval", "InvalidTransition", "InvalidWake", "Ledger", "MemoryLedger", "MissingWake",
    "OnViolation", "Pending", "Poll", "RateGate", "Reading", "Ready", "ReadyMonitor", "ReadyState", "RetryAfter",
    "Share", "WakeOutsidePending", "WakeSource", "Waker", "all_of", "log_violation", "raise_violation",
]  # fmt: skip
