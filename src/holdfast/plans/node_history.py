"""What a job has done, by its events, as its plan's nodes ended: read once, for showing it and for reusing it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.authoring.conductor import EXTENSION
from holdfast.errors import InvalidPlan
from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.rules import is_failure
from holdfast.plans.checker import check_plan
from holdfast.plans.extensions import with_extension
from holdfast.plans.graph import Graph, Missing, fill_references, get_path
from holdfast.plans.model import CallNode, ChoiceNode, JobNode, MapNode, Node, Plan, SleepNode, extension_of

__all__ = ["SETTLED", "STATES", "CallStart", "NodeEnd", "NodeHistory", "NodeStates", "label"]

STATES = ("pending", "ready", "running", "waiting", "in doubt", "done", "failed", "stopped", "skipped")
SETTLED = frozenset({"done", "skipped"})
UNDECIDED = float("inf")  # behind every event

_AGAIN = re.compile(r"(.*:([^:#]+))#\d+")  # a node of a plan that is called again, for its plan refused what it gave
_OF_ENGINE = re.compile(r":(until|ended|id(\.\d+)?)$")  # values that belong to a wait or a child


class CallStart(NamedTuple):
    """A call that was begun: where in the stream first, whether it is a tool, its name and arguments."""

    seq: int
    tool: bool
    name: str
    args: Any


class NodeEnd(NamedTuple):
    """How a call or a wait ended last, and where in the stream: what it gave, or the failure that was final."""

    seq: int
    result: Any
    failure: dict[str, Any] | None = None
    wait: dict[str, Any] | None = None  # how it was completed, of a wait


class NodeHistory:
    """A stream, read for its calls and waits; each is known by its node."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.created: dict[str, Any] = {}
        self.plan: dict[str, Any] | None = None
        self.begun: dict[str, CallStart] = {}
        self.ended: dict[str, NodeEnd] = {}
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
                self.begun.setdefault(node, CallStart(event.seq, tool, said.get("name") or "", said.get("args")))
                self.open.add(node)
                self.ended.pop(node, None)
                if self.plan is not None and (again := _AGAIN.fullmatch(node)):
                    self._newest[again[1]] = node
                    self.values.pop(f"extension:{again[2]}", None)  # of what it gave before
            case HistoryEvent.COMMAND_COMMITTED | HistoryEvent.TOOL_FINISHED:
                self.ended |= {} if is_failure(said) else {node: NodeEnd(event.seq, said.get("result"))}
            case HistoryEvent.NODE_FINISHED:
                self.open.discard(node)
                final = is_failure(said) and said.get("final")
                self.ended |= {node: NodeEnd(event.seq, None, said)} if final else {}
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
        self.ended[node] = NodeEnd(seq, told, failure, how)


def label(node: Node, index: int | None = None) -> str:
    """Give the name by which the events know a node, or an item of a map."""
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
    """A run of a plan, as far as it has come.

    Attributes:
        plan: the plan, with everything that extended it.
        states: the state of each node.
        results: what those gave that are done.
        items: of each map that was begun, the state of each item.
        added: the nodes that have extended the plan, in the order that counts, and what each has added.
    """

    def __init__(self, plan: Plan, past: NodeHistory) -> None:
        self.plan = plan
        self._past = past
        self.added: dict[str, Plan] = {}
        self._refused: set[str] = set()  # nodes whose extension cannot be
        self.results: dict[str, Any] = {}
        self.states: dict[str, str] = {}
        self.items: dict[str, list[str]] = {}
        while self._follow():
            pass

    def _follow(self) -> bool:
        """Go through the plan once; whether a node extends it, so that it has to be gone through again."""
        self.graph = Graph(self.plan.nodes)
        args = self._past.created.get("args") or {}
        defaults = {name: one.default for name, one in self.plan.input.items() if one.default is not msgspec.UNSET}
        self.results = {"input": {**defaults, **args}}
        self.states = dict.fromkeys(self.graph.nodes, "pending")
        for name in self.graph.order():
            self.states[name] = self._state(self.graph.nodes[name])
        return self._extend()

    def _extend(self) -> bool:
        """Extend the plan by what comes next; whether anything did."""
        found = {name: extension_of(result) for name, result in self.results.items() if self._is_news(name)}
        new = [name for name, more in found.items() if more is not None]
        if not new:
            return False
        name = min(new, key=lambda one: self._decided(one)[0])
        seq, refused = self._decided(name)
        try:
            added = Plan.from_dict(found[name]) if refused is None else None
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
        """Say when it was decided of an extension, and why it was refused, if it was; those of which not come last."""
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
        if any(node.id not in one for one in chosen):
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
        gave: list[Any] = []
        states = self.items[node.id] = []
        for index in range(len(over)):
            name = self._past.newest(label(node, index))
            ended = self._past.ended.get(name)
            gave.append(ended.result if ended is not None else None)
            done = None if ended is None else "done" if ended.failure is None else "failed"
            if ended is not None and node.call is not None and extension_of(ended.result) is not None:
                done = "failed"  # an item extends nothing
            busy = "in doubt" if name in self._past.doubtful else "running" if name in self._past.open else "ready"
            states.append(done or ("waiting" if node.job is not None else busy))
        if all(state == "done" for state in states):
            self.results[node.id] = gave
            return "done"
        return next((one for one in ("in doubt", "running", "waiting", "ready") if one in states), "failed")

    def _look_up(self, ref: str) -> Any:
        name, _, path = ref.partition(".")
        return None if self.states.get(name) == "skipped" else get_path(self.results.get(name), path)
