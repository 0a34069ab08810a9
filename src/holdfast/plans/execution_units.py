"""What a plan that runs is made of: units that can be begun, and maps under way."""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast.errors import StepFailed, WaitTimeout
from holdfast.plans.model import JobNode, MapNode, Node, SleepNode, WaitNode

__all__ = ["Map", "Unit", "told", "waits"]


class Unit:
    """Something that can be begun: a node, or one item of a map."""

    __slots__ = ("index", "item", "left", "node")

    def __init__(self, node: Node, index: int | None = None, item: Any = None) -> None:
        self.left = False  # whether it has given its place to others
        self.node = node
        self.index = index
        self.item = item

    @property
    def name(self) -> str:
        """What it is known by."""
        return self.node.id if self.index is None else f"{self.node.id}[{self.index}]"


class Map:
    """A map under way: items that wait for their turn, results that are there, how many are open."""

    def __init__(self, node: MapNode, items: list[Any]) -> None:
        self.waiting = deque(Unit(node, index, item) for index, item in enumerate(items))
        self.results: list[Any] = [None] * len(items)
        self.open = len(items)
        self.failed = False


def waits(node: Node) -> bool:
    """Whether it takes no place among the calls."""
    return isinstance(node, (WaitNode, SleepNode, JobNode)) or (isinstance(node, MapNode) and node.job is not None)


def told(unit: Unit, error: Exception) -> Exception:
    """Give a node's failure as one that says which node it was: an operator's retry has it done again."""
    if isinstance(error, StepFailed):
        return error
    node = f"wait:{unit.name}" if isinstance(error, WaitTimeout) else ""
    return StepFailed(unit.name, type(error).__name__, str(error), node)
