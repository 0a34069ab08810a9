"""A history without its texts, for a corpus that may be read by everyone who reads the code.

Every letter becomes ``a`` or ``A``, and every digit of a text becomes ``1``. So lengths, separators, dates, numbers in
texts and joined texts keep their form, and structure, numbers, names and keys stay. The identity of a call follows from
its arguments, so it is computed again.

What can go wrong: code that compares a text with a constant, or a type that allows only some texts, takes another way
with the replaced text. So does code that joins a text with a constant for a call. A recorded value, such as `now()`,
after calls in branches is not found again. `holdfast export --redact --target` replays both histories and says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from holdfast.authoring.secrets import FIELD, is_kept
from holdfast.authoring.signature import fingerprint
from holdfast.errors import InvalidArguments
from holdfast.machines import Event
from holdfast.machines.event import seal
from holdfast.machines.keys import CHILD_KEY, DOUBT_KEY, ENDED, ID

Arguments = Callable[[str], dict[str, Any] | None]

# Fields of payloads that are names, keys and numbers of the engine.
_KEPT = frozenset({
    "also", "asked", "attempt", "budget", "build", "code", "continued_as", "continues", "correlation_key", "deadline",
    "due_at", "entry", "final", "fingerprint", "first", "form", "gate", "kind", "max_attempts", "name", "native_labels",
    "natives", "node", "nodes", "not_before", "outcome", "parent", "parent_key", "park", "plugin", "postponed",
    "priority", "purpose", "queue", "result_refs", "result_type", "retry_at", "reused", "run", "signal", "state", "try",
    "wait_type", "worker",
})  # fmt: skip
_REASONS = frozenset({"job_requeued", "job_failed", "job_leased"})  # whose reason is the engine's word
_ENGINES = frozenset({"answer", "kind", "outcome", "state"})  # fields of payloads that the engine has made
_STARTED = frozenset({"node_started", "tool_invocation_started"})


def redact_text(text: str) -> str:
    """Return a text of the same form."""
    return "".join(map(_letter, text))


def _letter(character: str) -> str:
    if character.isdigit():
        return "1"
    if not character.isalpha():
        return character
    return "A" if character.isupper() else "a"


def redact_value(value: Any) -> Any:
    """Return a JSON value with every text replaced. Names of fields stay."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        if is_kept(value):
            inside = value[FIELD]
            return value if "env" in inside else {FIELD: {"box": "", "id": inside["id"]}}
        return {name: redact_value(item) for name, item in value.items()}
    return [redact_value(item) for item in value] if isinstance(value, list) else value


def redact_history(events: Sequence[Event], arguments_of: Arguments = lambda _: None) -> list[Event]:
    """Return a history without its texts.

    Args:
        events: the history, with its large results.
        arguments_of: returns the arguments of another run, from its id: a history has no arguments of children.

    Raises:
        InvalidArguments: the run has a plan, whose texts are part of its structure.
    """
    if any(event.type == "plan_generated" for event in events):
        raise InvalidArguments("redact", "a run with a plan cannot be redacted: its texts are part of the plan")
    names = _NodeNames(events, arguments_of)
    redacted: list[Event] = []
    for event in events:
        payload = {name: _field(event, name, value, names) for name, value in event.payload.items()}
        last = redacted[-1] if redacted else None
        redacted.append(seal(last, event.type, payload, at=event.at, attempt=event.attempt, job=event.job))
    return redacted


def _field(event: Event, name: str, value: Any, names: _NodeNames) -> Any:
    if name in _KEPT or (name == "reason" and event.type in _REASONS):
        return names.replaced(value)
    if name == "value" and event.type == "value_recorded":
        node = str(event.payload.get("node"))
        return (
            value
            if node.endswith(ID) or ID + "." in node
            else _of_engine(value)
            if node.endswith(ENDED)
            else redact_value(value)
        )
    if name == "payload" and str(event.payload.get("correlation_key")).startswith((CHILD_KEY, DOUBT_KEY)):
        return _of_engine(value)
    return redact_value(value)


def _of_engine(value: Any) -> Any:
    """Redact a payload that the engine has made: some of its fields are words of the engine."""
    if not isinstance(value, dict):
        return redact_value(value)
    nested = {"payload"}
    return {
        name: item if name in _ENGINES else _of_engine(item) if name in nested else redact_value(item)
        for name, item in value.items()
    }


class _NodeNames:
    """The new identities of calls whose arguments have changed, and of the values that follow them."""

    def __init__(self, events: Sequence[Event], arguments_of: Arguments) -> None:
        self._new: dict[str, str] = {}
        numbers: defaultdict[str, int] = defaultdict(int)
        old_trail = new_trail = 0
        for node, name, arguments in _calls(events, arguments_of):
            label = re.sub(r"(?<!#)#\d+\Z", "", node)
            new_label = label
            if arguments is not None and label == f"{name}:{fingerprint(arguments)[:12]}":
                new_label = f"{name}:{fingerprint(redact_value(arguments))[:12]}"
                numbers[new_label] += 1
                self._new[node] = new_label if numbers[new_label] == 1 else f"{new_label}#{numbers[new_label]}"
            # A recorded value is known by the calls of its branch before it: here, by all calls before it.
            old_trail, new_trail = crc32(label.encode(), old_trail), crc32(new_label.encode(), new_trail)
            for kind in ("now", "random", "uuid4"):
                self._new[f"{kind}:{old_trail:08x}"] = f"{kind}:{new_trail:08x}"
        found = sorted(self._new, key=len, reverse=True)
        self._pattern = re.compile("|".join(f"{re.escape(node)}(?![0-9#])" for node in found)) if found else None

    def replaced(self, value: Any) -> Any:
        """Return a name, a key, or a list of places, with the new identities."""
        if isinstance(value, str) and self._pattern is not None:
            return self._pattern.sub(lambda match: self._new[match[0]], value)
        if isinstance(value, list):
            return [self.replaced(item) for item in value]
        return {name: self.replaced(item) for name, item in value.items()} if isinstance(value, dict) else value


def _calls(events: Sequence[Event], arguments_of: Arguments) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Return the calls of a history in order, each once: node, name, and arguments if they are known."""
    calls: dict[str, tuple[str, str, dict[str, Any] | None]] = {}
    for event in events:
        payload = event.payload
        node = str(payload.get("node") or "")
        if event.type in _STARTED:
            name = str(payload.get("name"))
            name = name if node.startswith(f"{name}:") else node.partition(":")[0]  # of a renamed function
            calls.setdefault(node, (node, name, payload.get("args")))
        elif event.type == "value_recorded" and (node.endswith(ID) or f"{ID}." in node):
            call = node.rpartition(ID)[0]
            calls.setdefault(call, (call, call.partition(":")[0], arguments_of(str(payload.get("value")))))
        elif event.type == "job_waiting":
            for place in [payload, *(payload.get("also") or ())]:
                waiting = str(place.get("node") or "")
                if waiting.startswith(("wait:", "sleep:")):
                    calls.setdefault(waiting, (waiting, "wait", None))
    return list(calls.values())
