"""The state of each node of a plan, from the history of its run and the dependencies of the nodes. Pure."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidPlan
from holdfast.machines.keys import EXTENSION
from holdfast.plans.checker import check_plan
from holdfast.plans.extensions import with_extension
from holdfast.plans.graph import Graph, Missing, fill_references, get_path
from holdfast.plans.model import CallNode, ChoiceNode, MapNode, Node, Plan, extension_of
from holdfast.plans.node_history import AGAIN, NodeEnd, NodeHistory, label

STATES = ("pending", "ready", "running", "waiting", "in doubt", "done", "failed", "stopped", "skipped")
SETTLED = frozenset({"done", "skipped"})
UNDECIDED = float("inf")  # after every event

_ITEM = re.compile(r"(.*)\[(\d{1,9})\]", re.ASCII)  # an item of a map


class _MapTally(NamedTuple):
    """The results of a map's items, and how many items are in each state."""

    results: list[Any]
    states: Counter[str]


class _Index:
    """Finds nodes of a graph by their names in events. `rank` is the place of a node after its dependencies."""

    def __init__(self, graph: Graph) -> None:
        self.rank = {name: place for place, name in enumerate(graph.order())}
        self._ids = {label(node): name for name, node in graph.nodes.items()}

    def find(self, name: str) -> tuple[str, int | None] | None:
        """Return the id of a node, and the number of a map's item, or None for the name of something else."""
        again = AGAIN.fullmatch(name)
        name = again[1] if again is not None else name
        if name in self._ids:
            return self._ids[name], None
        item = _ITEM.fullmatch(name)
        return (self._ids[item[1]], int(item[2])) if item is not None and item[1] in self._ids else None


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
        self._first = plan
        self._past = past
        self.results: dict[str, Any] = {}
        self.states: dict[str, str] = {}
        self.items: dict[str, list[str]] = {}
        self._index: _Index | None = None  # made when it is needed
        self._restart()

    def _restart(self) -> dict[str, str]:
        """Compute everything from the history. Return all states."""
        self.plan = self._first
        self.added: dict[str, Plan] = {}
        self._refused: set[str] = set()  # nodes whose extension is invalid
        while self._follow():
            pass
        return self.states

    def update(self, names: Iterable[str]) -> Collection[str]:
        """Follow the history after a `push` that returned these names. Return the ids of nodes that may have changed.

        Only these nodes and the nodes that depend on them are computed. The result is that of a new object.
        """
        if self._index is None:
            self._index = _Index(self.graph)
        due: dict[str, set[int] | None] = {}  # id → items of a map that changed; None if all of the node may have
        for name in names:
            if name.startswith(EXTENSION):
                if not self._is_applied(name.removeprefix(EXTENSION)):
                    return self._restart()
                continue
            found = self._index.find(name)
            if found is None:
                continue
            node, item = found
            if node in self.added or node in self._refused:
                return self._restart()  # it was called again
            items = due.setdefault(node, set())
            if item is None:
                due[node] = None
            elif items is not None:
                items.add(item)
        return self._propagate(due, self._index)

    def _propagate(self, due: dict[str, set[int] | None], index: _Index) -> Collection[str]:
        """Compute these nodes and those that depend on them, each after its dependencies."""
        heap = [(index.rank[name], name) for name in due if name in index.rank]
        heapq.heapify(heap)
        changed: list[str] = []
        last = ""
        while heap:
            _, name = heapq.heappop(heap)
            if name == last:
                continue
            last, node = name, self.graph.nodes[name]
            state, result = self.states[name], self.results.pop(name, None)
            items = due.get(name)
            if items is not None and isinstance(node, MapNode) and name in self.items:
                self.states[name] = self._map_items(node, items)
                changed.append(name)
            else:
                self.states[name] = self._state(node)
            if self.states[name] == state and self.results.get(name) is result:
                continue
            changed.append(name)
            if self._is_news(name) and extension_of(self.results.get(name)) is not None:
                return self._extended(name)
            for other in self.graph.feeds[name]:
                due[other] = None
                heapq.heappush(heap, (index.rank[other], other))
        return changed

    def _extended(self, name: str) -> Collection[str]:
        """Apply a new extension. It comes last, unless another one is undecided or was decided later."""
        others = [self._decided(other)[0] for other in (*self.added, *self._refused)]
        if max(others, default=0.0) >= self._decided(name)[0]:
            return self._restart()
        while self._follow():
            pass
        return self.states

    def _is_applied(self, name: str) -> bool:
        """Return whether an extension that was decided now is applied as it was decided."""
        seq, refused = self._decided(name)
        if refused is not None:
            return name in self._refused
        others = [self._decided(other)[0] for other in (*self.added, *self._refused) if other != name]
        return name in self.added and next(reversed(self.added)) == name and max(others, default=0.0) < seq

    def _follow(self) -> bool:
        """Compute the states once. Return whether an extension changed the plan, so that they are out of date."""
        self.graph = Graph(self.plan.nodes)
        self._index = None
        self.items = {}
        self._tallies: dict[str, _MapTally] = {}
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
        self.items.pop(node.id, None)
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
        self.items[node.id] = [""] * len(over)
        self._tallies[node.id] = _MapTally([None] * len(over), Counter({"": len(over)}))
        return self._map_items(node, range(len(over)))

    def _map_items(self, node: MapNode, items: Iterable[int]) -> str:
        """Compute these items of a map. Return the state of the map."""
        states, tally = self.items[node.id], self._tallies[node.id]
        for item in items:
            if item >= len(states):
                continue
            state, tally.results[item] = self._item(node, item)
            tally.states[states[item]] -= 1
            tally.states[state] += 1
            states[item] = state
        if tally.states["done"] == len(states):
            self.results[node.id] = tally.results
            return "done"
        return next((state for state in ("in doubt", "running", "waiting", "ready") if tally.states[state]), "failed")

    def name_of(self, name: str) -> str:
        """Return the name of a node in events: the newest, if it was called again."""
        return self._past.newest(label(self.graph.nodes[name]))

    def count_items(self, name: str) -> dict[str, int]:
        """Count the items of a map that has started, by their states."""
        return {state: count for state, count in self._tallies[name].states.items() if count}

    def _item(self, node: MapNode, index: int) -> tuple[str, Any]:
        """Return the state and the result of a map's item."""
        name = self._past.newest(label(node, index))
        ended = self._past.ended.get(name)
        if ended is not None:
            extends = node.call is not None and extension_of(ended.result) is not None  # which an item must not
            return "failed" if ended.failure is not None or extends else "done", ended.result
        if node.job is not None:
            return "waiting", None
        return "in doubt" if name in self._past.doubtful else "running" if name in self._past.open else "ready", None

    def _look_up(self, ref: str) -> Any:
        name, _, path = ref.partition(".")
        return None if self.states.get(name) == "skipped" else get_path(self.results.get(name), path)
