"""What a job's events say about its nodes: how calls and waits began and ended. Pure.

`NodeStates` in the module `node_states` combines it with the plan's dependencies. Both serve the display of a run, and
forks that reuse its results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.keys import DOUBT_KEY, ENDED
from holdfast.machines.rules import is_failure
from holdfast.plans.model import CallNode, ChoiceNode, JobNode, MapNode, Node, SleepNode

AGAIN = re.compile(r"(.*:([^:#]+))#\d+")  # a node called again because the plan refused its result
_ID = re.compile(r"((?:job|start)\..*):id(?:\.\d+)?", re.DOTALL)  # the id of a child or of a run that was started
_OF_ENGINE = re.compile(r":(until|ended|id(\.\d+)?)$")  # values of waits and child jobs


class CallStart(NamedTuple):
    """The first start of a call: its position in the stream, whether it is a tool, its name and arguments."""

    seq: int
    tool: bool
    name: str
    args: Any


class NodeEnd(NamedTuple):
    """The latest end of a call or wait: its position in the stream, and its result or final failure."""

    seq: int
    result: Any
    failure: dict[str, Any] | None = None
    wait: dict[str, Any] | None = None  # for a wait: how it was completed
    blob: dict[str, Any] | None = None  # for a result that is too large for an event: the reference to it


class NodeHistory:
    """The calls, waits and values of one stream, keyed by node."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.created: dict[str, Any] = {}
        self.plan: dict[str, Any] | None = None
        self.begun: dict[str, CallStart] = {}
        self.ended: dict[str, NodeEnd] = {}
        self.open: set[str] = set()  # running calls
        self.doubtful: set[str] = set()  # tools in doubt, which an operator must resolve
        self.values: dict[str, tuple[int, Any]] = {}
        self.runs: dict[str, int] = {}  # children and starts, with the position of their id in the stream
        self._newest: dict[str, str] = {}  # nodes that were called again, with the newest name
        for event in events:
            self.push(event)

    def push(self, event: Event) -> Collection[str]:
        """Read the next event. Return the names of the calls, waits and values that it has changed."""
        doubtful, node = self.doubtful, event.payload.get("node")
        node = node if isinstance(node, str) else ""
        self._read(event, event.payload, node)
        if event.type == JobEvent.WAITING:
            return doubtful ^ self.doubtful
        return (node.removesuffix(ENDED),) if node else ()

    def newest(self, node: str) -> str:
        """Return the name under which a node of the plan was called last."""
        return self._newest.get(node, node)

    def _read(self, event: Event, payload: dict[str, Any], node: str) -> None:
        match event.type:
            case JobEvent.CREATED:
                self.created = payload
            case HistoryEvent.PLAN_GENERATED:
                self.plan = payload.get("plan")
            case HistoryEvent.NODE_STARTED | HistoryEvent.TOOL_STARTED:
                tool = event.type == HistoryEvent.TOOL_STARTED
                self.begun.setdefault(node, CallStart(event.seq, tool, payload.get("name") or "", payload.get("args")))
                self.open.add(node)
                self.ended.pop(node, None)
                if self.plan is not None and (again := AGAIN.fullmatch(node)):
                    self._newest[again[1]] = node
                    self.values.pop(f"extension:{again[2]}", None)  # it belongs to the earlier result
            case HistoryEvent.COMMAND_COMMITTED | HistoryEvent.TOOL_FINISHED:
                if not is_failure(payload):
                    self.ended[node] = NodeEnd(event.seq, payload.get("result"), blob=payload.get("result_blob"))
            case HistoryEvent.NODE_FINISHED:
                self.open.discard(node)
                final = is_failure(payload) and payload.get("final")
                self.ended |= {node: NodeEnd(event.seq, None, payload)} if final else {}
            case HistoryEvent.VALUE_RECORDED:
                self._value(event.seq, node, payload.get("value"))
            case JobEvent.WAITING | JobEvent.WAIT_COMPLETED:
                self._waited(event, payload, node)
            case _:
                pass

    def _waited(self, event: Event, payload: dict[str, Any], node: str) -> None:
        if event.type == JobEvent.WAITING:
            places = [payload, *(payload.get("also") or [])]
            doubts = [wait for wait in places if str(wait.get("correlation_key", "")).startswith(DOUBT_KEY)]
            self.doubtful = {str(wait.get("node")) for wait in doubts}
            return
        self.doubtful = self.doubtful - {node}
        if payload.get("node") is not None and payload.get("outcome") != "resolved":
            self._wait(event.seq, node, payload)

    def _value(self, seq: int, node: str, value: Any) -> None:
        if node.endswith(ENDED) and isinstance(value, dict):
            self._wait(seq, node.removesuffix(ENDED), value)
        elif (run := _ID.fullmatch(node)) is not None:
            self.runs[run[1]] = seq
        elif not _OF_ENGINE.search(node):
            self.values[node] = (seq, value)

    def _wait(self, seq: int, node: str, payload: dict[str, Any]) -> None:
        how = {name: payload.get(name) for name in ("outcome", "payload")}
        result = how["payload"]
        failure = None
        if node.startswith("job."):
            ended = result if isinstance(result, dict) else {}
            failure = None if ended.get("state") == "completed" else {"reason": ended.get("reason"), **ended}
            result = ended.get("result")
        elif how["outcome"] == "expired" and node.startswith("wait:"):
            failure = {"kind": "WaitTimeout", "reason": "no signal came in time"}
        self.ended[node] = NodeEnd(seq, result, failure, how)


def label(node: Node, index: int | None = None) -> str:
    """Return the name of a node, or of a map's item, in events."""
    at = node.id if index is None else f"{node.id}[{index}]"
    match node:
        case CallNode() | MapNode(call=str()):
            return f"{node.call}:{at}"
        case JobNode() | MapNode():
            return f"job.{node.job}:{at}"
        case ChoiceNode():
            return f"choice:{at}"
        case _:
            return f"{'sleep' if isinstance(node, SleepNode) else 'wait'}:{at}"
