"""A job's events as a person follows them: what began, what ended and how long it took, what it waits for.

Pure: events in, lines out. Steps that have begun and not ended are in `open`, for whoever shows them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli.text_table import ago, lasted

if TYPE_CHECKING:
    from holdfast.machines import Event

__all__ = ["BEGAN", "Line", "Story"]

BEGAN = "…"  # the mark of what has only begun

RESULT_CHARACTERS = 60

Told = tuple[str, str, str]  # mark, text, style
Teller = Callable[["Event", dict[str, Any]], Told]


class Line(NamedTuple):
    """One thing that happened, with its mark and since when the story goes on."""

    mark: str
    text: str
    style: str
    seconds: float
    node: str | None = None


class Story:
    """Tells a stream, event by event."""

    def __init__(self) -> None:
        self.open: dict[str, float] = {}  # steps that have begun, with when
        self._first: float | None = None
        self._results: dict[str, Any] = {}
        self._called: dict[str, str] = {}

    def called(self, node: str) -> str:
        """Give a step as its code calls it."""
        return self._called.get(node, node)

    def tell(self, event: Event) -> Line | None:
        """Tell an event; None for what only the engine cares about."""
        if self._first is None:
            self._first = event.at
        told = self._told(event)
        if told is None:
            return None
        mark, text, style = told
        return Line(mark, text, style, event.at - self._first, event.payload.get("node"))

    def _told(self, event: Event) -> Told | None:
        said, node = event.payload, event.payload.get("node") or ""
        if event.type in _UNWINDS:
            self.open.clear()
        match event.type:
            case "node_started" | "tool_invocation_started":
                self.open[node] = event.at
                self._called[node] = f"{said.get('name')}({_arguments(said)})"
                again = f", try {said['try']}" if (said.get("try") or 1) > 1 else ""
                return BEGAN, f"{self._called[node]} began{again}", "dim"
            case "command_committed" | "tool_invocation_finished":
                self._results[node] = said.get("result")
                return None
            case "node_finished":
                return self._finished(event, node)
            case kind:
                return _MOVES[kind](event, said) if kind in _MOVES else None

    def _finished(self, event: Event, node: str) -> Told:
        said = event.payload
        begun = self.open.pop(node, None)
        took = f" in {lasted(event.at - begun)}" if begun is not None else ""
        if said.get("result_type") == "success":
            result = self._results.pop(node, None)
            return "✓", f"{self.called(node)}{took}" + (f" → {_short(result)}" if result is not None else ""), "green"
        due = said.get("retry_at")
        later = f"; again {ago(due, event.at)}" if due is not None else ""
        return "✗", f"{self.called(node)} failed{took}: {said.get('kind')}: {said.get('reason')}{later}", "red"


def _created(event: Event, said: dict[str, Any]) -> Told:
    del event
    return "·", f"{said.get('plugin')}.{said.get('entry')}({_arguments(said)})", "dim"


def _requeued(event: Event, said: dict[str, Any]) -> Told:
    due = said.get("not_before")
    later = f", again {ago(due, event.at)}" if due is not None else ""
    reason = _REASONS.get(str(said.get("reason")), said.get("reason"))
    return "↻", f"queued again: {reason}{later}", "yellow"


def _ended(mark: str, text: str, style: str) -> Teller:
    def told(event: Event, said: dict[str, Any]) -> Told:
        del event
        reason = said.get("message") or said.get("reason")
        return mark, f"{text}: {reason}" if reason else text, style

    return told


_REASONS = {
    "lease_expired": "its worker is gone",
    "worker_shutdown": "its worker stops",
    "store_outage": "the store was away",
    "retry": "it failed, and is tried again",
    "step_retry": "a step failed, and is tried again",
    "moved": "it was moved to another store",
}
_UNWINDS = frozenset({"job_waiting", "job_requeued", "job_completed", "job_failed", "job_cancelled"})
_OUTCOMES = {"signal": "came", "expired": "did not come in time"}
_MOVES: dict[str, Teller] = {
    "job_created": _created,
    "job_running": lambda event, said: ("▸", f"attempt {event.attempt}, worker {said.get('worker')}", "dim"),
    "job_waiting": lambda _, said: ("⏸", _wait(said), "yellow"),
    "wait_completed": lambda _, said: ("▸", f"{_key(said)} {_OUTCOMES.get(str(said.get('outcome')), 'ended')}", ""),
    "cancel_requested": lambda _, said: ("!", f"asked to cancel: {said.get('reason') or 'no reason given'}", "yellow"),
    "job_requeued": _requeued,
    "job_completed": _ended("✓", "completed", "bold green"),
    "job_failed": _ended("✗", "failed", "bold red"),
    "job_cancelled": _ended("✗", "cancelled", "bold yellow"),
}


def _wait(said: dict[str, Any]) -> str:
    if said.get("correlation_key") == "holdfast:pause":
        return "paused until somebody resumes it"
    return f"waits for {_key(said)}"


def _key(said: dict[str, Any]) -> str:
    key = str(said.get("correlation_key") or "")
    kind, _, node = key.removeprefix("holdfast:").partition(":")
    names = {
        "doubt": f"an answer: did {node} act?",
        "child": f"the end of {node}",
        "timer": "its time",
        "pause": "pause",
    }
    return (names.get(kind) or f"the retry of {node}") if key.startswith("holdfast:") else f"the signal {key!r}"


def _arguments(said: dict[str, Any]) -> str:
    return _cut(", ".join(f"{name}={_short(value)}" for name, value in (said.get("args") or {}).items()))


def _short(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= RESULT_CHARACTERS else f"{text[: RESULT_CHARACTERS - 1]}…"
