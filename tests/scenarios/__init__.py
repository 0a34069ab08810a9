"""What durable job code must do, as a user of Holdfast would write it. Each module registers its scenarios."""

from scenarios import (
    cancellation,
    changes,
    children,
    continued,
    exceptions,
    failures,
    groups,
    natives,
    patterns,
    plain,
    plans,
    races,
    reported,
    signals,
    timeouts,
    values,
)

__all__ = [
    "cancellation",
    "changes",
    "children",
    "continued",
    "exceptions",
    "failures",
    "groups",
    "natives",
    "patterns",
    "plain",
    "plans",
    "races",
    "reported",
    "signals",
    "timeouts",
    "values",
]
