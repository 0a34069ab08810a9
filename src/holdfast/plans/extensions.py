"""Extensions of a running plan: whether each is valid, and the order in which they apply.

Two independent nodes may both extend their plan. The first extension applied gets the ids that both use, and the second
may refer to its nodes. The last one applied decides what the plan returns. So the decision about each extension is
recorded under the name of its node, and the order of these records is the order of the extensions. In a replay, results
come in any order. The queue then holds an extension back until all earlier ones have been applied.

The record of an extension is durable before any consequence of it. So an extension whose record was lost had no
consequence, and a replay applies it after those that have a record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Any

from holdfast.authoring.conductor import Conductor
from holdfast.errors import InvalidPlan
from holdfast.machines.keys import EXTENSION
from holdfast.plans.checker import Names, problems
from holdfast.plans.model import MORE, ChoiceNode, Plan

QueuedExtension = tuple[str, dict[str, Any]]  # the id of a node, and the plan that it adds


class ExtensionQueue:
    """The extensions of a run, in the order in which they apply."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._due: deque[str] | None = None  # nodes whose extensions apply next; read when the first one arrives
        self._waiting: dict[str, dict[str, Any]] = {}  # extensions not yet applied, by node

    @property
    def waiting(self) -> bool:
        """Whether nodes have returned extensions that were not applied yet."""
        return bool(self._waiting)

    def add(self, name: str, more: dict[str, Any]) -> None:
        """Queue the extension that a node has returned."""
        if self._due is None:
            self._due = deque(name.removeprefix(EXTENSION) for name in self._conductor.known_names(EXTENSION))
        self._waiting[name] = more

    def take(self, comes: Callable[[str], bool]) -> QueuedExtension | None:
        """Return the extension that applies now, or None. Skip recorded extensions whose node will not return one."""
        while self._due:
            if self._due[0] in self._waiting:
                break
            if comes(self._due[0]):
                return None
            self._due.popleft()
        name = self._due.popleft() if self._due else next(iter(self._waiting), None)
        return (name, self._waiting.pop(name)) if name is not None else None

    def drop_missing(self) -> None:
        """Stop waiting for recorded extensions whose nodes have not returned: they will not."""
        self._due = deque(name for name in self._due or () if name in self._waiting)


def refusal(plan: Plan, more: dict[str, Any], by: str, names: Names) -> str | None:
    """Return why this node cannot extend the plan this way; None if it can."""
    try:
        added = Plan.from_dict(more)
    except InvalidPlan as error:
        return refusal_text(error)
    there = {node.id for node in plan.nodes}
    wrong = problems(plan.extended(added, by), names)
    wrong += [f"{node.id}: it can only choose among new nodes" for node in added.nodes if _guards_existing(node, there)]
    if wrong:  # problems the plan had before do not count: it may have started under other code
        before = set(problems(plan, names))
        wrong = [problem for problem in wrong if problem not in before or MORE in before]
    return refusal_text(InvalidPlan(added.name, wrong)) if wrong else None


def refusal_text(error: InvalidPlan) -> str:
    """Return the problems of a refused extension as text. The plan goes on without it."""
    count = f"{len(error.problems)} problems" if len(error.problems) > 1 else "a problem"
    return "\n".join([f"the extension of the plan has {count}, and nothing of it was added:", *error.problems])


def _guards_existing(node: Any, there: Container[str]) -> bool:
    return isinstance(node, ChoiceNode) and any(other in there for other in node.named())


def with_extension(plan: Plan, added: Plan, by: str, there: Container[str]) -> Plan:
    """Return the plan with the nodes of an extension that was accepted. Existing nodes do not change.

    Raises:
        InvalidPlan: nodes with these ids exist. An older release has applied the same extensions in another order.
    """
    twice = [f"{node.id}: another node has this id; each needs its own" for node in added.nodes if node.id in there]
    if twice:
        raise InvalidPlan(added.name, twice)
    return plan.extended(added, by)
