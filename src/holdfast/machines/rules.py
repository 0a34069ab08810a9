"""The rules that each event must satisfy, given the events before it.

`broken` decides and changes nothing. It checks the table first (J3). Records must also keep the rules that a table
cannot hold: who may write (L1, L3), why a claim was taken (J8), which wait is completed (J12), and the order of
declaration, effect and commit of a call (E2, E4, E7, L8). Each result carries the rule's number in the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import InvalidTransition
from holdfast.machines.event import Event, HistoryEvent
from holdfast.machines.job_table import JOB, TARGETS, TERMINAL_JOB_STATES, JobEvent, JobState

if TYPE_CHECKING:
    from holdfast.machines.fold import Fold

WAIT_TYPES = frozenset({"signal", "timer", "human", "webhook", "child", "deploy"})
FAILURES = frozenset({"retryable_failure", "permanent_failure"})

# Why an administrative claim may be taken, and the one event that ends it, in the same transaction (J8, J10, J13, J14).
PURPOSES: Mapping[str, str] = {
    "cancel": JobEvent.CANCELLED.value,
    "pause": JobEvent.WAITING.value,
    "fail": JobEvent.FAILED.value,
}

_CLAIMS = frozenset({JobEvent.RUNNING.value, JobEvent.LEASED.value})
_HISTORY_NAMES = frozenset(event.value for event in HistoryEvent)

# Only the holder of the lease writes these (L3). A cancel is fenced only while the job is held.
_FENCED = frozenset(
    event.value
    for event in (
        JobEvent.WAITING,
        JobEvent.COMPLETED,
        JobEvent.FAILED,
        HistoryEvent.NODE_STARTED,
        HistoryEvent.NODE_FINISHED,
        HistoryEvent.COMMAND_COMMITTED,
        HistoryEvent.TOOL_STARTED,
        HistoryEvent.TOOL_FINISHED,
    )
)


class Broken(NamedTuple):
    """A rule's number, and how an event breaks it, in words."""

    rule: str
    message: str


def broken(reader: Fold, event: object) -> Broken | None:
    """Return the first rule that `event` would break as the reader's next event, or None if it is legal."""
    if isinstance(event, Event):
        return _name_rules(reader, event.type) or _record_rules(reader, event)
    if isinstance(event, str):
        return _name_rules(reader, event)
    return Broken("J2", f"{type(event).__name__} is not an event: pass records or names")


def is_failure(payload: Mapping[str, Any]) -> bool:
    """Return whether a finished call reports a failure (E10)."""
    result_type = payload.get("result_type")
    return isinstance(result_type, str) and result_type in FAILURES


def _name_rules(reader: Fold, name: str) -> Broken | None:
    if name in TARGETS:
        try:
            JOB.advance(reader.state, name)
        except InvalidTransition as refusal:
            return Broken("J3", refusal.detail)
    elif name in _HISTORY_NAMES:
        return _history_rules(reader, name)
    return None  # unknown names pass: only the release that wrote them knows their rules


def _history_rules(reader: Fold, name: str) -> Broken | None:
    if reader.state is None:
        return Broken("J9", f"{name} comes before the job is created")
    if reader.state in TERMINAL_JOB_STATES:
        return Broken("J7.1", f"{name} follows the end of the job, which is {reader.state}")
    if name == HistoryEvent.PLAN_GENERATED and reader.planned:
        return Broken("E11", "a plan is recorded once; what follows it follows the recorded one")
    return None


def _record_rules(reader: Fold, event: Event) -> Broken | None:
    problem = _fence(reader, event) or _administrative_claim(reader, event)
    if problem is None and event.type in _PAYLOAD_RULES and (reader.calls or event.type not in _HISTORY_NAMES):
        return _PAYLOAD_RULES[event.type](reader, event)
    return problem


def _fence(reader: Fold, event: Event) -> Broken | None:
    if event.type in _CLAIMS:
        if event.attempt is None or event.attempt <= reader.attempt:
            return Broken("L1", f"a claim needs an attempt above {reader.attempt}, this one has {event.attempt}")
        return None
    if not _is_known(event.type):
        return None
    held = reader.state is JobState.RUNNING
    if event.attempt is None:
        if event.type in _FENCED or (held and event.type == JobEvent.CANCELLED):
            return Broken("L3", f"{event.type} must be written under an attempt, and this one has none")
        return None
    if not held or event.attempt != reader.attempt:
        holder = f"attempt {reader.attempt} holds the job" if held else "no attempt holds the job"
        return Broken("L3", f"attempt {event.attempt} is stale: {holder}")
    return None


def _administrative_claim(reader: Fold, event: Event) -> Broken | None:
    if event.type == JobEvent.LEASED:
        if not _is_text(event.payload.get("purpose")):
            return Broken("J8", f"job_leased needs a purpose ({', '.join(PURPOSES)})")
        return None
    due = PURPOSES.get(reader.purpose or "")
    if due is not None and event.type not in {due, JobEvent.REQUEUED} and _is_known(event.type):
        return Broken("J8", f"a claim to {reader.purpose} is followed by {due}, or by its reclaim, and nothing else")
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_known(name: str) -> bool:
    return name in TARGETS or name in _HISTORY_NAMES


def _requeued(reader: Fold, event: Event) -> Broken | None:
    who_and_why = event.payload.get("actor"), event.payload.get("reason")
    if reader.state is JobState.FAILED and not all(_is_text(part) for part in who_and_why):
        return Broken("J7.1", "a failed job is reopened by an operator, with actor and reason")
    return None


def _waiting(reader: Fold, event: Event) -> Broken | None:
    del reader
    key, wait_type = event.payload.get("correlation_key"), event.payload.get("wait_type")
    if not _is_text(key):
        return Broken("J12", "job_waiting needs a correlation_key")
    if not (isinstance(wait_type, str) and wait_type in WAIT_TYPES):
        return Broken("J12", f"job_waiting needs a wait_type ({', '.join(sorted(WAIT_TYPES))}), got {wait_type!r}")
    others = event.payload.get("also", [])
    if not (isinstance(others, list) and all(_is_place(other) for other in others)):
        return Broken("J12", "job_waiting lists under `also` the other places that wait, each with a correlation_key")
    return None


def _is_place(value: object) -> bool:
    return isinstance(value, dict) and _is_text(value.get("correlation_key"))


def _wait_completed(reader: Fold, event: Event) -> Broken | None:
    if reader.wait is None or reader.wait.correlation_key is None:
        return None
    key = event.payload.get("correlation_key")
    if reader.wait.place(key) is None:
        keys = " or ".join(repr(place.correlation_key) for place in reader.wait.places())
        return Broken("J12", f"the open wait is for {keys}, but this completes {key!r}")
    return None


def _node(check: Callable[[Fold, str, Event], Broken | None]) -> Callable[[Fold, Event], Broken | None]:
    """Hand a rule the node that the event is about; an event about no node has no identity (E8)."""

    def rule(reader: Fold, event: Event) -> Broken | None:
        node = event.payload.get("node")
        if not (isinstance(node, str) and node):  # not _is_text: the checker must see that it is text
            return Broken("E8", f"{event.type} names no node")
        return check(reader, node, event)

    return rule


def _begun(reader: Fold, node: str, event: Event) -> Broken | None:
    del event
    if node in reader.committed:
        return Broken("E1", f"{node} is committed; its recorded result is used, it is not called again")
    return None


def _command_committed(reader: Fold, node: str, event: Event) -> Broken | None:
    step = reader.open_steps.get(node)
    if step is not None and step.tool and event.type == HistoryEvent.COMMAND_COMMITTED:
        return Broken("E2", f"{node} is a tool: it is committed by tool_invocation_finished")
    if node in reader.committed:
        return Broken("E7", f"{node} is committed already; the first effect stays")
    if node in reader.failed:
        return Broken("L8", f"the last try of {node} ended in a failure; only a new try can commit")
    return None


def _tool_finished(reader: Fold, node: str, event: Event) -> Broken | None:
    step = reader.open_steps.get(node)
    if step is None or not step.tool:
        return Broken("E4", f"{node} finished without a declared start")
    return None if is_failure(event.payload) else _command_committed(reader, node, event)


def _node_finished(reader: Fold, node: str, event: Event) -> Broken | None:
    if is_failure(event.payload):
        if node in reader.committed:
            return Broken("L8", f"{node} is committed and cannot fail afterwards")
    elif node not in reader.committed:
        return Broken("E2", f"{node} finished well, but nothing was committed before")
    return None


_PAYLOAD_RULES: Mapping[str, Callable[[Fold, Event], Broken | None]] = {
    JobEvent.REQUEUED.value: _requeued,
    JobEvent.WAITING.value: _waiting,
    JobEvent.WAIT_COMPLETED.value: _wait_completed,
    HistoryEvent.NODE_STARTED.value: _node(_begun),
    HistoryEvent.TOOL_STARTED.value: _node(_begun),
    HistoryEvent.COMMAND_COMMITTED.value: _node(_command_committed),
    HistoryEvent.TOOL_FINISHED.value: _node(_tool_finished),
    HistoryEvent.NODE_FINISHED.value: _node(_node_finished),
}
