"""Strict and lenient readers of a job's stream (SPEC J5).

`Fold` reads events one by one. It reports whether each is legal, and why not. It always moves on, leniently: the last
state event wins. The other readers use it:

- `fold(events)` is strict: it raises at the first illegal event, with its index, and otherwise returns a `Snapshot`.
- `check(events)` lists every violation with its index and rule number. An empty list means a legal stream.
- `derive(events)` is the lenient reading alone. It returns a state for any stream. It does not use `Fold`, so that the
  tests can compare the two.

Events are records or bare names. A bare name can break the rules of the table. The rules about payloads and
attempts need a record. Names of a newer release are kept and never move the machine.

On every legal stream the three agree, and agree with `JOB`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import InvalidTransition
from holdfast.machines import chain, rules
from holdfast.machines.event import Event, HistoryEvent
from holdfast.machines.job_table import TARGETS, JobEvent, JobState
from holdfast.machines.snapshot import CancelRequest, OpenStep, OpenWait, Snapshot, WaitPlace

# Reasons to requeue that do not count as an attempt.
ORDERLY = frozenset({"worker_shutdown", "step_retry", "effects_unavailable", "store_outage", "deploy"})

_BARE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: its index in the stream, its number, the problem in words, the event and the state."""

    index: int
    rule: str
    message: str
    event: str = ""
    state: JobState | None = None

    def __str__(self) -> str:
        state = self.state or "(initial)"
        return f"event {self.index}, {self.event} in {state}, breaks {self.rule}: {self.message}"


def derive(events: Iterable[object]) -> JobState:
    """Read a stream leniently: the last state event wins; nothing raises; an empty stream is queued.

    Use it for streams that may be damaged or imported. `check` tells whether a stream is legal.
    """
    state = JobState.QUEUED
    for event in _stream(events):
        name = event.type if isinstance(event, Event) else event
        if isinstance(name, str):
            state = TARGETS.get(str.__str__(name), state)
    return state


def check(events: Iterable[object], *, head: str | None = None) -> list[Violation]:
    """List every violation in a stream, first event first; an empty list means that it is legal.

    Args:
        events: records or bare names, oldest first. Records are also checked for edits, gaps and reordering.
        head: hash of the last event from another source; finds a tail that was cut off or rewritten.
    """
    stream = list(_stream(events))
    reader = Fold()
    states: list[JobState | None] = []
    violations: list[Violation] = []
    for event in stream:
        states.append(reader.state)
        violation = reader.push(event)
        if violation is not None:
            violations.append(violation)
    for index, problem in chain.breaks(stream, head):
        event, state = (stream[index], states[index]) if index < len(stream) else ("the end", reader.state)
        violations.append(Violation(index, chain.RULE, problem, _name(event), state))
    # Where one event breaks both, the chain comes first: what was tampered with explains the rest.
    return sorted(violations, key=lambda violation: (violation.index, violation.rule != chain.RULE))


def fold(events: Iterable[object]) -> Snapshot:
    """Read a stream strictly and return what is known at its end.

    Raises:
        InvalidTransition: at the first illegal event, with `index`, `rule`, state and event.
    """
    reader = Fold()
    for event in _stream(events):
        reader.take(event)
    return reader.snapshot()


class Fold:
    """Reads one stream, event by event. `take` is strict, `push` reports; on legal streams they do the same.

    With ``calls=False`` it does not follow single calls. A reader that begins at a store's row knows the state, the
    attempt and the wait. It does not know which steps were committed before.
    """

    __slots__ = (
        "attempt",
        "attempts",
        "calls",
        "cancel",
        "committed",
        "failed",
        "length",
        "not_before",
        "open_steps",
        "planned",
        "purpose",
        "run",
        "started",
        "state",
        "wait",
    )

    def __init__(self, *, calls: bool = True) -> None:
        self.calls = calls
        self.length = 0
        self.state: JobState | None = None
        self.attempt = 0
        self.attempts = 0
        self.run = 1
        self.started = False
        self.purpose: str | None = None
        self.wait: OpenWait | None = None
        self.not_before: float | None = None
        self.cancel: CancelRequest | None = None
        self.committed: set[str] = set()
        self.failed: set[str] = set()  # nodes whose last try ended in a failure and was not begun again
        self.open_steps: dict[str, OpenStep] = {}
        self.planned = False

    def take(self, event: object) -> None:
        """Read one event; refuse an illegal one before anything is changed."""
        broken = rules.broken(self, event)
        if broken is not None:
            rule, message = broken
            raise InvalidTransition(self.state, _name(event), rule=rule, detail=message, index=self.length)
        self._apply(event)

    def push(self, event: object) -> Violation | None:
        """Read any event and return the rule it breaks, or None."""
        broken = rules.broken(self, event)
        violation = Violation(self.length, *broken, _name(event), self.state) if broken is not None else None
        self._apply(event)
        return violation

    def snapshot(self) -> Snapshot:
        """Return what is known now, as a value that later events do not change."""
        return Snapshot(
            length=self.length,
            state=self.state or JobState.QUEUED,
            attempt=self.attempt,
            attempts=self.attempts,
            run=self.run,
            started=self.started,
            purpose=self.purpose,
            wait=self.wait,
            not_before=self.not_before,
            cancel=self.cancel,
            committed=frozenset(self.committed),
            open_steps=dict(self.open_steps),
        )

    def _apply(self, event: object) -> None:
        self.length += 1
        payload: Mapping[str, Any]
        if isinstance(event, Event):
            name, payload, attempt, at = event.type, event.payload, event.attempt, event.at
        elif isinstance(event, str):
            name, payload, attempt, at = str.__str__(event), _BARE, None, 0.0
        else:
            return
        apply_history = _HISTORY.get(name)
        if apply_history is not None and (self.calls or name == HistoryEvent.CANCEL_REQUESTED):
            apply_history(self, payload, attempt, at)
        elif name in TARGETS:
            self._move(name, payload, attempt)

    def _move(self, name: str, payload: Mapping[str, Any], attempt: int | None) -> None:
        before, self.state = self.state, TARGETS[name]
        ran_user_code = before is JobState.RUNNING and self.purpose is None
        self.purpose = self.wait = self.not_before = None
        match name:
            case JobEvent.RUNNING:
                self.failed.clear()  # a failed try binds the attempt it was made in (L8); the next may commit
                self.attempt = attempt or self.attempt + 1
                self.attempts += 1
                self.started = True
            case JobEvent.LEASED:
                self.attempt = attempt or self.attempt + 1
                self.purpose = _text(payload, "purpose") or "unknown"
            case JobEvent.WAITING:
                self.wait = _open_wait(payload)
                self.attempts -= ran_user_code  # a wait is an orderly end: it is no failed attempt (J14)
            case JobEvent.REQUEUED:
                self._requeue(before, payload, ran_user_code=ran_user_code)
            case _:
                pass

    def _requeue(self, before: JobState | None, payload: Mapping[str, Any], *, ran_user_code: bool) -> None:
        self.not_before = _number(payload, "not_before")
        if payload.get("reason") in ORDERLY:
            self.attempts -= ran_user_code  # neither a failure nor a crash (L6)
        if before is JobState.FAILED:  # an operator's retry: a new run, with its own count and no cancel (R4)
            self.run += 1
            self.attempts = 0
            self.started = False
            self.cancel = None


def _cancel_requested(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float) -> None:
    del attempt
    if reader.cancel is None:  # repeating is harmless; the first reason is kept (R6)
        reader.cancel = CancelRequest(reason=_text(payload, "reason"), at=at)


def _node_started(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float) -> None:
    _open_step(reader, payload, attempt, at, tool=False)


def _tool_started(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float) -> None:
    _open_step(reader, payload, attempt, at, tool=True)


def _open_step(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float, *, tool: bool) -> None:
    node = _text(payload, "node")
    if node is not None:
        begun = reader.open_steps.get(node)
        tool = tool or (begun is not None and begun.tool)  # once declared as a tool, it is one until it is finished
        reader.failed.discard(node)
        reader.open_steps[node] = OpenStep(node=node, tool=tool, attempt=attempt or reader.attempt, since=at)


def _committed(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float) -> None:
    del attempt, at
    node = _text(payload, "node")
    if node is not None:
        reader.open_steps.pop(node, None)
        reader.committed.add(node)


def _tool_finished(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float) -> None:
    if rules.is_failure(payload):
        _failed(reader, payload)
    else:
        _committed(reader, payload, attempt, at)


def _node_finished(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float) -> None:
    del attempt, at
    step = reader.open_steps.get(_text(payload, "node") or "")
    if step is not None and step.tool:
        return  # a tool that timed out may have acted: only its own finish ends the doubt (E3)
    if rules.is_failure(payload):
        _failed(reader, payload)


def _failed(reader: Fold, payload: Mapping[str, Any]) -> None:
    node = _text(payload, "node")
    if node is not None:
        reader.open_steps.pop(node, None)
        reader.failed.add(node)


def _plan_generated(reader: Fold, payload: Mapping[str, Any], attempt: int | None, at: float) -> None:
    del payload, attempt, at
    reader.planned = True


_HISTORY = {
    HistoryEvent.CANCEL_REQUESTED.value: _cancel_requested,
    HistoryEvent.PLAN_GENERATED.value: _plan_generated,
    HistoryEvent.NODE_STARTED.value: _node_started,
    HistoryEvent.TOOL_STARTED.value: _tool_started,
    HistoryEvent.COMMAND_COMMITTED.value: _committed,
    HistoryEvent.TOOL_FINISHED.value: _tool_finished,
    HistoryEvent.NODE_FINISHED.value: _node_finished,
}


def _open_wait(payload: Mapping[str, Any]) -> OpenWait:
    return OpenWait(
        node=_text(payload, "node"),
        correlation_key=_text(payload, "correlation_key"),
        wait_type=_text(payload, "wait_type"),
        deadline=_number(payload, "deadline"),
        park=payload.get("park") is True,
        also=_also(payload.get("also")),
    )


def _also(others: object) -> tuple[WaitPlace, ...]:
    listed = others if isinstance(others, list) else []
    places = [other for other in listed if isinstance(other, dict)]
    return tuple(
        WaitPlace(_text(other, "node"), _text(other, "correlation_key"), _text(other, "wait_type")) for other in places
    )


def _stream(events: Iterable[object]) -> Iterable[object]:
    if isinstance(events, (str, bytes, Event)):
        raise TypeError(f"a stream must be a list of events, got one {type(events).__name__}")
    return events


def _name(event: object) -> str:
    if isinstance(event, Event):
        return event.type
    return str.__str__(event) if isinstance(event, str) else f"<{type(event).__name__}>"


def _text(payload: Mapping[str, Any], key: str) -> str | None:
    value = payload.get(key)
    return value if isinstance(value, str) else None


def _number(payload: Mapping[str, Any], key: str) -> float | None:
    value = payload.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer that no clock will reach
        return math.inf
