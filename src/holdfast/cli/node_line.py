"""How far the nodes of a run's plan are, as one line, while it is followed. Pure: events in, a line out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.machines import Event

__all__ = ["Nodes"]

NAMED_MAX = 5  # nodes of a state that are named one by one
_NAMED = ("running", "waiting", "in doubt", "failed", "stopped", "skipped")


class Nodes:
    """The nodes of one run; nothing, if it has no plan."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._has_plan = False

    def take(self, news: list[Event]) -> str | None:
        """Say how far the nodes are after these events; None of a run without a plan."""
        self._events += news
        self._has_plan = self._has_plan or any(one.type == "plan_generated" for one in news)
        return self._line() if self._has_plan else None

    def _line(self) -> str:
        from holdfast.plans.model import Plan
        from holdfast.plans.node_history import NodeHistory, NodeStates

        past = NodeHistory(self._events)
        states = NodeStates(Plan.from_dict(past.plan), past).states
        counts = Counter(states.values())
        parts = [f"{counts['done']} of {len(states)} nodes done"]
        for state in _NAMED:
            names = [name for name, its in states.items() if its == state]
            more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
            parts += [f"{state}: {', '.join(names[:NAMED_MAX])}{more}"] if names else []
        return " · ".join(parts)
