"""The dependencies of a plan's nodes, and the values that references in a plan stand for. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.plans.model import (
    LITERAL,
    REF,
    SCALARS,
    CallNode,
    ChoiceNode,
    JobNode,
    MapNode,
    Node,
    SleepNode,
    references,
)

INDEX = re.compile(r"-?[0-9]{1,9}")  # an index into a list
RESERVED = ("input", "item", "index")  # first parts of references that are not node ids
LISTS = (list, tuple)  # lists in JSON: a result is a tuple until it was read from a store


class Missing(LookupError):
    """A reference names a part that a node's result does not have."""


class Graph:
    """The dependencies of a plan, in both directions. Unknown references are left out; the checker reports them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: dict[str, Node] = {}
        self.needs: dict[str, dict[str, None]] = {}  # id → ids of what it depends on, in order
        self.feeds: defaultdict[str, list[str]] = defaultdict(list)  # id → ids of what depends on it
        self.guards: defaultdict[str, list[str]] = defaultdict(list)  # id → choices that decide whether it runs
        self.add(nodes)

    def add(self, nodes: Iterable[Node]) -> None:
        """Add nodes, which may depend on existing ones."""
        new = {node.id: node for node in nodes}
        self.nodes.update(new)
        for name, node in new.items():
            self.needs.setdefault(name, {})
            for other in node.after:
                self._arrow(other, name)
            for ref in references(values_of(node)):
                self._arrow(ref.partition(".")[0], name)
            if isinstance(node, ChoiceNode):
                for other in node.named():
                    self._arrow(name, other)
                    if name not in self.guards[other]:
                        self.guards[other].append(name)

    def _arrow(self, before: str, after: str) -> None:
        if before in self.nodes and after in self.nodes:
            needs = self.needs.setdefault(after, {})
            if before not in needs:
                needs[before] = None
                self.feeds[before].append(after)

    def descendants(self, names: Iterable[str]) -> set[str]:
        """Return these nodes and every node that depends on them, directly or not."""
        seen: set[str] = set()
        look = [name for name in names if name in self.nodes]
        while look:
            name = look.pop()
            if name not in seen:
                seen.add(name)
                look += self.feeds[name]
        return seen

    def order(self) -> list[str]:
        """Return the nodes in an order where each comes after its dependencies. Nodes of a cycle are left out."""
        left = {name: len(needs) for name, needs in self.needs.items()}
        ordered = [name for name in self.nodes if not left[name]]
        for name in ordered:
            for other in self.feeds[name]:
                left[other] -= 1
                if not left[other]:
                    ordered.append(other)
        return ordered

    def find_cycle(self) -> list[str]:
        """Return a cycle, with its first node repeated at the end; an empty list if there is none."""
        inside = set(self.nodes) - set(self.order())
        if not inside:
            return []
        last = next(name for name in self.nodes if name in inside)
        places = {last: 0}
        while True:  # each remaining node depends on another one, so walking back meets a node twice
            last = next(name for name in self.needs[last] if name in inside)
            if last in places:
                return [last, *reversed(list(places)[places[last] :])]
            places[last] = len(places)


def values_of(node: Node) -> Any:
    """Return every value of a node that may contain references."""
    if type(node) is CallNode:  # most are
        return node.args
    match node:
        case JobNode():
            return node.args
        case MapNode():
            return [node.over, {name: _without_item(value) for name, value in node.args.items()}]
        case SleepNode():
            return node.duration
        case ChoiceNode():
            return node.value
        case _:
            return None


def _without_item(value: Any) -> Any:
    kept = [ref for ref in references(value) if ref.partition(".")[0] not in {"item", "index"}]
    return [{REF: ref} for ref in kept]


def fill_references(value: Any, look_up: Callable[[str], Any]) -> Any:
    """Return a value with each reference replaced by the value it stands for."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((name, inner),) = value.items()
            if name == REF and isinstance(inner, str):
                return look_up(inner)
            if name == LITERAL:
                return inner
        return {name: item if type(item) in SCALARS else fill_references(item, look_up) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if type(item) in SCALARS else fill_references(item, look_up) for item in value]
    return value


def get_path(value: Any, path: str) -> Any:
    """Return the part of a value at a path of names and indexes.

    Raises:
        Missing: the value has no such part.
    """
    for part in path.split(".") if path else ():
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, LISTS) and INDEX.fullmatch(part) and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        else:
            raise Missing(f"there is no {part!r:.60} in {_shape(value)}")
    return value


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, list(value)[:10])) or 'nothing'}"
    return f"a list of {len(value)}" if isinstance(value, LISTS) else f"{value!r:.60}"
