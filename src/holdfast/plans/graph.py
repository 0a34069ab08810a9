"""What depends on what in a plan, and how a value with references is filled in. Pure."""

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

__all__ = ["INDEX", "LISTS", "RESERVED", "Graph", "Missing", "fill_references", "get_path", "values_of"]

INDEX = re.compile(r"-?[0-9]{1,9}")  # of a part of a list
RESERVED = ("input", "item", "index")  # what a reference may begin with besides an id
LISTS = (list, tuple)  # what is a list in JSON: what a function gave is a tuple still, until it is read from a store


class Missing(LookupError):
    """A reference leads nowhere in what a node gave."""


class Graph:
    """A plan's arrows, both ways. References to what is not there are left out: the check tells of them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: dict[str, Node] = {}
        self.needs: dict[str, dict[str, None]] = {}  # id → ids of what it depends on, in order
        self.feeds: defaultdict[str, list[str]] = defaultdict(list)  # id → ids of what depends on it
        self.guards: defaultdict[str, list[str]] = defaultdict(list)  # id → choices that decide whether it runs
        self.add(nodes)

    def add(self, nodes: Iterable[Node]) -> None:
        """Add nodes, which may depend on those that are there."""
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

    def _arrow(self, before: str, behind: str) -> None:
        if before in self.nodes and behind in self.nodes:
            needs = self.needs.setdefault(behind, {})
            if before not in needs:
                needs[before] = None
                self.feeds[before].append(behind)

    def descendants(self, names: Iterable[str]) -> set[str]:
        """Give these nodes and all that depends on them."""
        found: set[str] = set()
        look = [name for name in names if name in self.nodes]
        while look:
            name = look.pop()
            if name not in found:
                found.add(name)
                look += self.feeds[name]
        return found

    def order(self) -> list[str]:
        """List the nodes so that each comes behind what it depends on; those of a circle are left out."""
        left = {name: len(needs) for name, needs in self.needs.items()}
        ordered = [name for name in self.nodes if not left[name]]
        for name in ordered:
            for other in self.feeds[name]:
                left[other] -= 1
                if not left[other]:
                    ordered.append(other)
        return ordered

    def find_cycle(self) -> list[str]:
        """Give a circle, its first node again at its end; an empty list if there is none."""
        inside = set(self.nodes) - set(self.order())
        if not inside:
            return []
        last = next(name for name in self.nodes if name in inside)
        places = {last: 0}
        while True:  # every node left depends on another that is left: going back, one is met twice
            last = next(name for name in self.needs[last] if name in inside)
            if last in places:
                return [last, *reversed(list(places)[places[last] :])]
            places[last] = len(places)


def values_of(node: Node) -> Any:
    """Give everything of a node that may hold references."""
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
    """Give a value with every reference in it replaced by what it stands for."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((name, inner),) = value.items()
            if name == REF and isinstance(inner, str):
                return look_up(inner)
            if name == LITERAL:
                return inner
        return {name: one if type(one) in SCALARS else fill_references(one, look_up) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [one if type(one) in SCALARS else fill_references(one, look_up) for one in value]
    return value


def get_path(value: Any, path: str) -> Any:
    """Give the part of a value that a path of names and numbers leads to.

    Raises:
        Missing: it leads nowhere.
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
