"""The events of a job as lines of text: starts, ends with durations, and waits; for a plan, the progress of its nodes.

Pure: events in, lines out. `Story.open` holds the steps that have started and not ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli.text_table import ago, lasted

if TYPE_CHECKING:
    from holdfast.machines import Event

BEGAN = "…"  # the mark of a step that has started

RESULT_CHARACTERS = 60
NAMED_MAX = 5  # nodes of a state that are listed by name
_NAMED = ("running", "waiting", "in doubt", "failed", "stopped", "skipped")

Parts = tuple[str, str, str]  # mark, text, style
Formatter = Callable[["Event", dict[str, Any]], Parts]


class Line(NamedTuple):
    """One event as text, with its mark, its style, and the seconds since the first event."""

    mark: str
    text: str
    style: str
    seconds: float
    node: str | None = None


class Story:
    """A formatter of a stream, event by event."""

    def __init__(self) -> None:
        self.open: dict[str, float] = {}  # start times of the steps in progress
        self._first: float | None = None
        self._results: dict[str, Any] = {}
        self._called: dict[str, str] = {}
        self._children: dict[str, str] = {}  # run ids of children, by the node that started them

    def called(self, node: str) -> str:
        """Return a step as its code calls it, with arguments."""
        return self._called.get(node, node)

    def tell(self, event: Event) -> Line | None:
        """Return the line of an event, or None if the event concerns only the engine."""
        if self._first is None:
            self._first = event.at
        parts = self._parts(event)
        if parts is None:
            return None
        mark, text, style = parts
        return Line(mark, text, style, event.at - self._first, event.payload.get("node"))

    def _parts(self, event: Event) -> Parts | None:
        payload, node = event.payload, event.payload.get("node") or ""
        if event.type in _UNWINDS:
            self.open.clear()
        match event.type:
            case "node_started" | "tool_invocation_started":
                self.open[node] = event.at
                self._called[node] = f"{payload.get('name')}({_arguments(payload)})"
                again = f", try {payload['try']}" if (payload.get("try") or 1) > 1 else ""
                return BEGAN, f"{self._called[node]} began{again}", "dim"
            case "value_recorded" if node.endswith(":id") and isinstance(payload.get("value"), str):
                child = node.removesuffix(":id")
                self._children[child] = payload["value"]
                is_child = child.startswith("job.")  # not a run that the code starts without waiting for it
                return ("▸", f"starts its child {child}, run {payload['value']}", "") if is_child else None
            case "command_committed" | "tool_invocation_finished":
                blob = payload.get("result_blob")
                self._results[node] = payload.get("result") if blob is None else f"{blob['size']:,} bytes of JSON"
                return None
            case "node_finished":
                return self._finished(event, node)
            case kind:
                return self._named(_MOVES[kind](event, payload), payload) if kind in _MOVES else None

    def _named(self, parts: Parts, payload: dict[str, Any]) -> Parts:
        """Return a line about a wait with the run id of the child that it waits for."""
        kind, node = _kind(payload)
        child = self._children.get(node) if kind == "child" else None
        return parts if child is None else (parts[0], f"{parts[1]}, run {child}", parts[2])

    def _finished(self, event: Event, node: str) -> Parts:
        payload = event.payload
        begun = self.open.pop(node, None)
        took = f" in {lasted(event.at - begun)}" if begun is not None else ""
        if payload.get("result_type") == "success":
            result = self._results.pop(node, None)
            return "✓", f"{self.called(node)}{took}" + (f" → {_short(result)}" if result is not None else ""), "green"
        due = payload.get("retry_at")
        later = f"; again {ago(due, event.at)}" if due is not None else ""
        return "✗", f"{self.called(node)} failed{took}: {payload.get('kind')}: {payload.get('reason')}{later}", "red"


class NodeProgress:
    """The progress of a plan's nodes as one line. A run without a plan has none."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._has_plan = False

    def take(self, events: list[Event]) -> str | None:
        """Return the progress of the nodes after these events, or None for a run without a plan."""
        self._events += events
        self._has_plan = self._has_plan or any(event.type == "plan_generated" for event in events)
        return self._line() if self._has_plan else None

    def _line(self) -> str:
        from holdfast.plans.model import Plan
        from holdfast.plans.node_history import NodeHistory
        from holdfast.plans.node_states import NodeStates

        past = NodeHistory(self._events)
        states = NodeStates(Plan.from_dict(past.plan), past).states
        counts = Counter(states.values())
        parts = [f"{counts['done']} of {len(states)} nodes done"]
        for state in _NAMED:
            names = [name for name, its in states.items() if its == state]
            more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
            parts += [f"{state}: {', '.join(names[:NAMED_MAX])}{more}"] if names else []
        return " · ".join(parts)


def _created(event: Event, payload: dict[str, Any]) -> Parts:
    del event
    return "·", f"{payload.get('plugin')}.{payload.get('entry')}({_arguments(payload)})", "dim"


def _requeued(event: Event, payload: dict[str, Any]) -> Parts:
    due = payload.get("not_before")
    later = f", again {ago(due, event.at)}" if due is not None else ""
    reason = _REASONS.get(str(payload.get("reason")), payload.get("reason"))
    return "↻", f"queued again: {reason}{later}", "yellow"


def _ended(mark: str, text: str, style: str) -> Formatter:
    def parts(event: Event, payload: dict[str, Any]) -> Parts:
        del event
        reason = payload.get("message") or payload.get("reason")
        return mark, f"{text}: {reason}" if reason else text, style

    return parts


_REASONS = {
    "lease_expired": "its worker is gone",
    "worker_shutdown": "its worker stops",
    "store_outage": "the store was unavailable",
    "retry": "it failed and is retried",
    "step_retry": "a step failed, and is tried again",
    "moved": "it was moved to another store",
}
_UNWINDS = frozenset({"job_waiting", "job_requeued", "job_completed", "job_failed", "job_cancelled"})
_MOVES: dict[str, Formatter] = {
    "job_created": _created,
    "job_running": lambda event, payload: ("▸", f"attempt {event.attempt}, worker {payload.get('worker')}", "dim"),
    "job_waiting": lambda _, payload: ("⏸", _wait(payload), "yellow"),
    "wait_completed": lambda _, payload: ("▸", _wait_over(payload), ""),
    "cancel_requested": lambda _, payload: (
        "!",
        f"cancellation requested: {payload.get('reason') or 'no reason given'}",
        "yellow",
    ),
    "job_requeued": _requeued,
    "job_completed": _ended("✓", "completed", "bold green"),
    "job_failed": _ended("✗", "failed", "bold red"),
    "job_cancelled": _ended("✗", "cancelled", "bold yellow"),
}


def _wait(payload: dict[str, Any]) -> str:
    match _kind(payload):
        case "pause", _:
            return "paused until an operator resumes it"
        case "doubt", node:
            return f"{node} is in doubt: waits for an operator's answer"
        case "child", node:
            return f"waits for its child {node}"
        case "timer", _:
            return "sleeps"
        case "budget", _:
            over = payload.get("over_budget") or {}
            spent = ", ".join(f"{unit} {amount:g} of {limit:g}" for unit, (amount, limit) in sorted(over.items()))
            return f"over its budget{f' ({spent})' if spent else ''}: waits for a grant"
        case "retry", node:
            return f"waits before the next try of {node}"
    return f"waits for the signal {payload.get('correlation_key')!r}"


def _wait_over(payload: dict[str, Any]) -> str:
    match _kind(payload):
        case "pause", _:
            return "resumed"
        case "doubt", node:
            answer = (payload.get("payload") or {}).get("answer")
            return f"an operator answered for {node}{f': {answer}' if answer else ''}"
        case "child", node:
            return f"its child {node} has ended"
        case "timer", _:
            return "its sleep is over"
        case "budget", _:
            return "a grant arrived"
        case "retry", node:
            return f"the next try of {node} is due"
    key, outcome = payload.get("correlation_key"), payload.get("outcome")
    ends = {"signal": "arrived", "expired": "did not arrive in time", "overridden": "is no longer waited for"}
    return f"the signal {key!r} {ends.get(str(outcome), 'ended')}"


def _kind(payload: dict[str, Any]) -> tuple[str, str]:
    """Return the kind and the node of a reserved key; both are empty for a user's key."""
    key = str(payload.get("correlation_key") or "")
    kind, _, node = key.removeprefix("holdfast:").partition(":")
    return (kind, node) if key.startswith("holdfast:") else ("", "")


def _arguments(payload: dict[str, Any]) -> str:
    return _cut(", ".join(f"{name}={_short(value)}" for name, value in (payload.get("args") or {}).items()))


def _short(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= RESULT_CHARACTERS else f"{text[: RESULT_CHARACTERS - 1]}…"
