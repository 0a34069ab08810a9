"""What a job has done, by its events, as its plan's nodes ended: read once, for showing it and for reusing it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.rules import is_failure

__all__ = ["Begun", "Ended", "Past"]

_AGAIN = re.compile(r"(.*:([^:#]+))#\d+")  # a node of a plan that is called again, for its plan refused what it gave
_OF_ENGINE = re.compile(r":(until|ended|id(\.\d+)?)$")  # values that belong to a wait or a child


class Begun(NamedTuple):
    """A call that was begun: where in the stream first, whether it is a tool, its name and arguments."""

    seq: int
    tool: bool
    name: str
    args: Any


class Ended(NamedTuple):
    """How a call or a wait ended last, and where in the stream: what it gave, or the failure that was final."""

    seq: int
    result: Any
    failure: dict[str, Any] | None = None
    wait: dict[str, Any] | None = None  # how it was completed, of a wait


class Past:
    """A stream, read for its calls and waits; each is known by its node."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.created: dict[str, Any] = {}
        self.plan: dict[str, Any] | None = None
        self.begun: dict[str, Begun] = {}
        self.ended: dict[str, Ended] = {}
        self.open: set[str] = set()  # calls under way
        self.doubtful: set[str] = set()  # tools about which somebody is asked
        self.values: dict[str, tuple[int, Any]] = {}
        self._newest: dict[str, str] = {}  # nodes that were called again, and under which name
        for event in events:
            self._read(event, event.payload, event.payload.get("node") or "")

    def newest(self, node: str) -> str:
        """Give the name under which a node of the plan was called last."""
        return self._newest.get(node, node)

    def _read(self, event: Event, said: dict[str, Any], node: str) -> None:
        match event.type:
            case JobEvent.CREATED:
                self.created = said
            case HistoryEvent.PLAN_GENERATED:
                self.plan = said.get("plan")
            case HistoryEvent.NODE_STARTED | HistoryEvent.TOOL_STARTED:
                tool = event.type == HistoryEvent.TOOL_STARTED
                self.begun.setdefault(node, Begun(event.seq, tool, said.get("name") or "", said.get("args")))
                self.open.add(node)
                self.ended.pop(node, None)
                if self.plan is not None and (again := _AGAIN.fullmatch(node)):
                    self._newest[again[1]] = node
                    self.values.pop(f"extension:{again[2]}", None)  # of what it gave before
            case HistoryEvent.COMMAND_COMMITTED | HistoryEvent.TOOL_FINISHED:
                self.ended |= {} if is_failure(said) else {node: Ended(event.seq, said.get("result"))}
            case HistoryEvent.NODE_FINISHED:
                self.open.discard(node)
                final = is_failure(said) and said.get("final")
                self.ended |= {node: Ended(event.seq, None, said)} if final else {}
            case HistoryEvent.VALUE_RECORDED:
                self._value(event.seq, node, said.get("value"))
            case JobEvent.WAITING | JobEvent.WAIT_COMPLETED:
                self._waited(event, said, node)
            case _:
                pass

    def _waited(self, event: Event, said: dict[str, Any], node: str) -> None:
        if event.type == JobEvent.WAITING:
            places = [said, *(said.get("also") or [])]
            doubts = [one for one in places if str(one.get("correlation_key", "")).startswith("holdfast:doubt:")]
            self.doubtful = {str(one.get("node")) for one in doubts}
            return
        self.doubtful.discard(node)
        if said.get("node") is not None and said.get("outcome") != "resolved":
            self._wait(event.seq, node, said)

    def _value(self, seq: int, node: str, value: Any) -> None:
        if node.endswith(":ended") and isinstance(value, dict):
            self._wait(seq, node.removesuffix(":ended"), value)
        elif not _OF_ENGINE.search(node):
            self.values[node] = (seq, value)

    def _wait(self, seq: int, node: str, said: dict[str, Any]) -> None:
        how = {name: said.get(name) for name in ("outcome", "payload")}
        told = how["payload"]
        failure = None
        if node.startswith("job."):
            told = told if isinstance(told, dict) else {}
            failure = None if told.get("state") == "completed" else {"reason": told.get("reason"), **told}
            told = told.get("result")
        elif how["outcome"] == "expired" and node.startswith("wait:"):
            failure = {"kind": "WaitTimeout", "reason": "no signal came in time"}
        self.ended[node] = Ended(seq, told, failure, how)
