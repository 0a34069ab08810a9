"""What extends a plan that runs: whether it may, and in which order. A replay decides nothing again.

Two nodes that know nothing of each other may both extend their plan. Whoever is taken first has the ids that both use,
and may be referred to by the other; whoever is taken last says what the plan returns. So what was decided of an
extension is recorded under the name of its node, and the order of these records is the order that counts: on replay,
where results come in any order, an extension is held back until those that were taken before it have been taken.

Nothing that follows from an extension is seen before its record is on disk, for it is recorded behind it. An extension
whose record was lost has had no consequence, and comes after those that have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Any

from holdfast.authoring.conductor import EXTENSION, Conductor
from holdfast.errors import InvalidPlan
from holdfast.plans.checker import Names, problems
from holdfast.plans.model import MORE, ChoiceNode, Plan

__all__ = ["ExtensionQueue", "refusal", "refusal_text", "with_extension"]

QueuedExtension = tuple[str, dict[str, Any]]  # the id of a node, and the plan by which it extends its own


class ExtensionQueue:
    """The extensions of a run, each in its turn."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._due: deque[str] | None = None  # nodes whose extensions come next; looked for when the first has come
        self._waiting: dict[str, dict[str, Any]] = {}  # extensions that are held back

    @property
    def waiting(self) -> bool:
        """Whether extensions have come that were not taken yet."""
        return bool(self._waiting)

    def add(self, name: str, more: dict[str, Any]) -> None:
        """A node extends the plan: keep that until it is its turn."""
        if self._due is None:
            self._due = deque(one.removeprefix(EXTENSION) for one in self._conductor.known_names(EXTENSION))
        self._waiting[name] = more

    def take(self, comes: Callable[[str], bool]) -> QueuedExtension | None:
        """Give the extension that is to be taken now, if there is one; those of nodes that do not come are passed."""
        while self._due:
            if self._due[0] in self._waiting:
                break
            if comes(self._due[0]):
                return None
            self._due.popleft()
        name = self._due.popleft() if self._due else next(iter(self._waiting), None)
        return (name, self._waiting.pop(name)) if name is not None else None

    def drop_missing(self) -> None:
        """Hold back none any more: what they were held back for does not come."""
        self._due = deque(name for name in self._due or () if name in self._waiting)


def refusal(plan: Plan, more: dict[str, Any], by: str, names: Names) -> str | None:
    """Say why a plan cannot be extended so by this node; None if it can."""
    try:
        added = Plan.from_dict(more)
    except InvalidPlan as error:
        return refusal_text(error)
    there = {node.id for node in plan.nodes}
    wrong = problems(plan.extended(added, by), names)
    wrong += [f"{one.id}: it may choose among new nodes only" for one in added.nodes if _meddles(one, there)]
    if wrong:  # what was wrong before is not its fault: the plan has begun under other code, perhaps
        before = set(problems(plan, names))
        wrong = [one for one in wrong if one not in before or MORE in before]
    return refusal_text(InvalidPlan(added.name, wrong)) if wrong else None


def refusal_text(error: InvalidPlan) -> str:
    """Say what is wrong with an extension: its plan goes on without it."""
    count = f"{len(error.problems)} problems" if len(error.problems) > 1 else "a problem"
    return "\n".join([f"what would extend the plan has {count}, and nothing of it was added:", *error.problems])


def _meddles(node: Any, there: Container[str]) -> bool:
    return isinstance(node, ChoiceNode) and any(other in there for other in node.named())


def with_extension(plan: Plan, added: Plan, by: str, there: Container[str]) -> Plan:
    """Give the plan with the nodes that this node adds, as it was allowed to; those that are there are not changed.

    Raises:
        InvalidPlan: there are nodes with these ids: an older release has taken the same extensions in another order.
    """
    twice = [f"{node.id}: another node has this id; each needs its own" for node in added.nodes if node.id in there]
    if twice:
        raise InvalidPlan(added.name, twice)
    return plan.extended(added, by)
