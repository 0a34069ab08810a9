"""What a job's events say about its nodes: how calls and waits ended, and the state of each node of its plan. Pure.

`NodeHistory` reads the stream. `NodeStates` combines it with the plan's dependencies. Both serve the display of a run,
and forks that reuse its results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidPlan
from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.keys import DOUBT_KEY, ENDED, EXTENSION
from holdfast.machines.rules import is_failure
from holdfast.plans.checker import check_plan
from holdfast.plans.extensions import with_extension
from holdfast.plans.graph import Graph, Missing, fill_references, get_path
from holdfast.plans.model import CallNode, ChoiceNode, JobNode, MapNode, Node, Plan, SleepNode, extension_of

STATES = ("pending", "ready", "running", "waiting", "in doubt", "done", "failed", "stopped", "skipped")
SETTLED = frozenset({"done", "skipped"})
UNDECIDED = float("inf")  # after every event

_AGAIN = re.compile(r"(.*:([^:#]+))#\d+")  # a node called again because the plan refused its result
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
        self._newest: dict[str, str] = {}  # nodes that were called again, with the newest name
        for event in events:
            self._read(event, event.payload, event.payload.get("node") or "")

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
                if self.plan is not None and (again := _AGAIN.fullmatch(node)):
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
        self.doubtful.discard(node)
        if payload.get("node") is not None and payload.get("outcome") != "resolved":
            self._wait(event.seq, node, payload)

    def _value(self, seq: int, node: str, value: Any) -> None:
        if node.endswith(ENDED) and isinstance(value, dict):
            self._wait(seq, node.removesuffix(ENDED), value)
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


class NodeStates:
    """The progress of one run of a plan.

    Attributes:
        plan: the plan with all its extensions.
        states: the state of each node.
        results: the results of nodes that are done.
        items: the state of each item, for each map that has started.
        added: the nodes that extended the plan, in the order applied, and the plan that each added.
    """

    def __init__(self, plan: Plan, past: NodeHistory) -> None:
        self.plan = plan
        self._past = past
        self.added: dict[str, Plan] = {}
        self._refused: set[str] = set()  # nodes whose extension is invalid
        self.results: dict[str, Any] = {}
        self.states: dict[str, str] = {}
        self.items: dict[str, list[str]] = {}
        while self._follow():
            pass

    def _follow(self) -> bool:
        """Compute the states once. Return whether an extension changed the plan, so that they are out of date."""
        self.graph = Graph(self.plan.nodes)
        args = self._past.created.get("args") or {}
        defaults = {
            name: field.default for name, field in self.plan.input.items() if field.default is not msgspec.UNSET
        }
        self.results = {"input": {**defaults, **args}}
        self.states = dict.fromkeys(self.graph.nodes, "pending")
        for name in self.graph.order():
            self.states[name] = self._state(self.graph.nodes[name])
        return self._extend()

    def _extend(self) -> bool:
        """Apply the next extension; return whether there was one."""
        extensions = {name: extension_of(result) for name, result in self.results.items() if self._is_news(name)}
        new = [name for name, more in extensions.items() if more is not None]
        if not new:
            return False
        name = min(new, key=lambda node: self._decided(node)[0])
        seq, refused = self._decided(name)
        try:
            added = Plan.from_dict(extensions[name]) if refused is None else None
            wider = with_extension(self.plan, added, name, self.graph.nodes) if added is not None else self.plan
            self.plan = wider if seq < UNDECIDED else check_plan(wider, None)
        except InvalidPlan:
            added = None
        if added is not None:
            self.added[name] = added
        else:
            self._refused.add(name)
        return True

    def _is_news(self, name: str) -> bool:
        return name not in self.added and name not in self._refused and isinstance(self.graph.nodes.get(name), CallNode)

    def _decided(self, name: str) -> tuple[float, str | None]:
        """Return the extension's position in the stream and its refusal, if any. Undecided extensions sort last."""
        return self._past.values.get(f"{EXTENSION}{name}", (UNDECIDED, None))

    def _state(self, node: Node) -> str:
        before = [self.states[other] for other in self.graph.needs[node.id]]
        if "failed" in before or "stopped" in before:
            return "stopped"
        if not SETTLED.issuperset(before):
            return "pending"
        if self._skipped(node, before):
            return "skipped"
        if isinstance(node, MapNode):
            return self._map(node)
        if isinstance(node, ChoiceNode):
            seq_value = self._past.values.get(label(node))
            return self._keep(node, NodeEnd(*seq_value)) if seq_value is not None else "ready"
        return self._one(node, self._past.newest(label(node)))

    def _skipped(self, node: Node, before: list[str]) -> bool:
        chosen = [self.results.get(choice) or [] for choice in self.graph.guards.get(node.id, ())]
        if any(node.id not in ids for ids in chosen):
            return True
        return "skipped" in before and (node.needs == "all" or "done" not in before)

    def _one(self, node: Node, name: str) -> str:
        ended = self._past.ended.get(name)
        if ended is not None:
            return self._keep(node, ended)
        if name in self._past.doubtful:
            return "in doubt"
        if isinstance(node, CallNode):
            return "running" if name in self._past.open else "ready"
        return "waiting"

    def _keep(self, node: Node, ended: NodeEnd) -> str:
        if ended.failure is not None or node.id in self._refused:
            return "failed"
        self.results[node.id] = ended.result
        return "done"

    def _map(self, node: MapNode) -> str:
        try:
            over = fill_references(node.over, self._look_up)
        except Missing:
            return "failed"
        if not isinstance(over, list):
            return "failed"
        results: list[Any] = []
        states = self.items[node.id] = []
        for index in range(len(over)):
            name = self._past.newest(label(node, index))
            ended = self._past.ended.get(name)
            results.append(ended.result if ended is not None else None)
            done = None if ended is None else "done" if ended.failure is None else "failed"
            if ended is not None and node.call is not None and extension_of(ended.result) is not None:
                done = "failed"  # an item must not extend the plan
            busy = "in doubt" if name in self._past.doubtful else "running" if name in self._past.open else "ready"
            states.append(done or ("waiting" if node.job is not None else busy))
        if all(state == "done" for state in states):
            self.results[node.id] = results
            return "done"
        return next((state for state in ("in doubt", "running", "waiting", "ready") if state in states), "failed")

    def _look_up(self, ref: str) -> Any:
        name, _, path = ref.partition(".")
        return None if self.states.get(name) == "skipped" else get_path(self.results.get(name), path)
