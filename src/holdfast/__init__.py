"""Holdfast: durable jobs for Python. Kill the process at any moment; the job goes on, and nothing is done twice."""

from holdfast.errors import (
    EmptyWakeSet,
    HoldfastError,
    InvalidEvent,
    InvalidRunTransition,
    InvalidTable,
    InvalidTransition,
    InvalidWake,
    MissingWake,
    TransitionRefused,
    WakeOutsidePending,
    WakeRefused,
)

__all__ = [
    "EmptyWakeSet",
    "HoldfastError",
    "InvalidEvent",
    "InvalidRunTransition",
    "InvalidTable",
    "InvalidTransition",
    "InvalidWake",
    "MissingWake",
    "TransitionRefused",
    "WakeOutsidePending",
    "WakeRefused",
    "__version__",
]

__version__ = "0.1.0"
