"""A plan as data: nodes with ids, what each takes from others, and in what order. Pure; what may be in it is a schema.

A value in a plan is JSON. ``{"$ref": "extract.rows"}`` stands for a part of what the node `extract` gave,
``{"$ref": "input.day"}`` for an argument of the run, and inside a map ``{"$ref": "item"}`` and ``{"$ref": "index"}``
for the item at hand. ``{"$literal": …}`` stands for what is in it, references and all.

Reading a plan looks at its shape only: every node that is none is told at once, each with its place. Whether the plan
can run is for `holdfast.plans.checker` to say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.authoring.signature import EXTENDS
from holdfast.errors import InvalidPlan
from holdfast.plans import parser

__all__ = [
    "NODES_MAX",
    "CallNode",
    "Case",
    "ChoiceNode",
    "Extension",
    "Input",
    "JobNode",
    "MapNode",
    "Node",
    "Plan",
    "SleepNode",
    "WaitNode",
    "extend",
    "extension_of",
    "malformed",
    "plan_of",
    "references",
]

NODES_MAX = 10_000  # of one plan, with everything that it was extended by
LIMIT = 100  # nodes at once, unless the plan says otherwise
PROBLEMS_MAX = 100  # that are told; whoever has so many has made one mistake many times
MORE = "and more: mend these first"
REF, LITERAL, EXTEND = "$ref", "$literal", EXTENDS
SCALARS = frozenset({int, str, float, bool, type(None)})  # which hold no references

Time = float | int | str | None


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """What every node has: an id, what it comes after, and whether it needs all of what it depends on, or any."""

    id: str
    after: tuple[str, ...] = ()
    needs: Literal["all", "any"] = "all"


class CallNode(_Part, frozen=True, kw_only=True, tag="call"):
    """A step or a tool is called. What it says of retries, time, doubt and gate holds for this node only."""

    call: str
    args: dict[str, Any] = {}
    retries: int | None = None
    timeout: Time = None
    on_doubt: str | None = None
    gate: str | None = None


class WaitNode(_Part, frozen=True, kw_only=True, tag="wait"):
    """A signal is waited for; what was sent is what it gives. The key is the node's id unless it is said."""

    key: str | None = None
    timeout: Time = None
    type: Literal["signal", "human", "webhook"] = "signal"


class SleepNode(_Part, frozen=True, kw_only=True, tag="sleep"):
    """A time is waited for: seconds, "3d", or a reference to one of them."""

    duration: Any


class JobNode(_Part, frozen=True, kw_only=True, tag="job"):
    """Another job is started as a child; its result is what it gives."""

    job: str
    args: dict[str, Any] = {}


class MapNode(_Part, frozen=True, kw_only=True, tag="map"):
    """A step, a tool or a job is called for each item of a list, so many at once; the results are a list."""

    over: Any
    call: str | None = None
    job: str | None = None
    args: dict[str, Any] = {}
    limit: int | None = None
    retries: int | None = None
    timeout: Time = None
    on_doubt: str | None = None
    gate: str | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A case of a choice: which value it is for, by one of four tests, and the nodes that run then."""

    then: tuple[str, ...]
    equals: Any = msgspec.UNSET
    any_of: list[Any] | msgspec.UnsetType = msgspec.UNSET
    above: float | msgspec.UnsetType = msgspec.UNSET
    below: float | msgspec.UnsetType = msgspec.UNSET

    def tests(self) -> list[str]:
        """List the tests it has; it must have one."""
        return [
            name
            for name in ("equals", "any_of", "above", "below")
            if not isinstance(getattr(self, name), msgspec.UnsetType)
        ]

    def holds(self, value: Any) -> bool:
        """Whether this case is for the value."""
        if not isinstance(self.any_of, msgspec.UnsetType):
            return any(_same(value, one) for one in self.any_of)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not isinstance(self.above, msgspec.UnsetType):
            return number and value > self.above
        if not isinstance(self.below, msgspec.UnsetType):
            return number and value < self.below
        return _same(value, self.equals)


class ChoiceNode(_Part, frozen=True, kw_only=True, tag="choice", rename={"otherwise": "else"}):
    """The first case that holds says which of the nodes that its cases name run; the others are skipped."""

    value: Any
    cases: tuple[Case, ...]
    otherwise: tuple[str, ...] = ()

    def named(self) -> list[str]:
        """List the nodes that depend on the choice."""
        return list(dict.fromkeys([*(one for case in self.cases for one in case.then), *self.otherwise]))

    def chosen(self, value: Any) -> tuple[str, ...]:
        """Give the nodes that run for this value."""
        return next((case.then for case in self.cases if case.holds(value)), self.otherwise)


Node = CallNode | WaitNode | SleepNode | JobNode | MapNode | ChoiceNode
KINDS: dict[str, type[_Part]] = {
    str(one.__struct_config__.tag): one for one in (CallNode, WaitNode, SleepNode, JobNode, MapNode, ChoiceNode)
}


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An argument of the runs; one with a default need not be given."""

    default: Any = msgspec.UNSET


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as a graph.

    Attributes:
        nodes: what is to be done.
        name: what messages call it.
        version: of this form.
        input: the arguments of a run.
        output: what a run gives; unless said, the results of the nodes that nothing depends on, by id.
        limit: how many calls may be under way at once.
        policy: after a failure, finish what does not depend on it, or begin nothing more.
    """

    nodes: tuple[Node, ...]
    name: str = "plan"
    version: Literal[1] = 1
    input: dict[str, Input] = {}
    output: Any = msgspec.UNSET
    limit: int = LIMIT
    policy: Literal["finish", "fail_fast"] = "finish"

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read a plan from plain values.

        Raises:
            InvalidPlan: what is no node, each with its place.
        """
        if not isinstance(data, dict):
            raise InvalidPlan("plan", [f"a plan is an object with nodes, got {parser.json_kind(data)}"])
        name = str(data.get("name", "plan"))
        listed = data.get("nodes")
        if not isinstance(listed, (list, tuple)):
            said = parser.json_kind(listed) if "nodes" in data else "none"
            raise InvalidPlan(name, [f"nodes: they are a list, got {said}"])
        if len(listed) > NODES_MAX:
            raise InvalidPlan(name, [f"nodes: {len(listed):,}, and a plan may have {NODES_MAX:,}"])
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            return msgspec.convert(data, cls)  # at once, and fast; if that does not do, see what is wrong, node by node
        wrong = list(islice(parser.field_problems("plan", {**data, "nodes": ()}, cls, "a plan"), PROBLEMS_MAX))
        for place, one in enumerate(listed):
            if len(wrong) >= PROBLEMS_MAX:
                break
            wrong += _wrong(place, one)
        if len(wrong) >= PROBLEMS_MAX:
            wrong[PROBLEMS_MAX:] = [MORE]
        raise InvalidPlan(name, wrong)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan from JSON."""
        return cls.from_dict(parser.from_json(text))

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Plan:
        """Read a plan from YAML; needs the extra ``holdfast[yaml]``."""
        return cls.from_dict(parser.from_yaml(text))

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Read a plan from a file, YAML if it is called ``.yaml`` or ``.yml``, else JSON."""
        text = Path(path).read_bytes()
        return cls.from_yaml(text) if str(path).endswith((".yaml", ".yml")) else cls.from_json(text)

    @staticmethod
    def schema() -> dict[str, Any]:
        """Give the JSON Schema of plans."""
        made = msgspec.json.schema(Plan)
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Holdfast plan", **made}

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain values."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made

    def node(self, name: str) -> Node | None:
        """Find a node by its id."""
        return next((node for node in self.nodes if node.id == name), None)

    def not_given(self, given: Container[str]) -> list[str]:
        """List the inputs that a run needs and that are not among those given."""
        return [name for name, one in self.input.items() if one.default is msgspec.UNSET and name not in given]

    def extended(self, more: Plan, by: str) -> Plan:
        """Give this plan with the nodes of another, which come after the node that adds them."""
        added = tuple(msgspec.structs.replace(node, after=(*node.after, by)) for node in more.nodes)
        output = self.output if isinstance(more.output, msgspec.UnsetType) else more.output
        return msgspec.structs.replace(self, nodes=(*self.nodes, *added), output=output)


class Extension(msgspec.Struct, frozen=True, rename={"plan": EXTEND}):
    """What a step returns that adds nodes to the plan it is in."""

    plan: dict[str, Any]


def plan_of(given: Any) -> Plan:
    """Give a plan that is given as one, as a draft, or as plain values.

    Raises:
        InvalidPlan: it is none of them.
    """
    if isinstance(given, Plan):
        return given
    if isinstance(given, dict):
        return Plan.from_dict(given)
    drafted = given.plan() if callable(getattr(type(given), "plan", None)) else None
    if not isinstance(drafted, Plan):
        said = type(given).__name__
        raise InvalidPlan("plan", [f"it is a Plan, a Draft, or an object with nodes, got {said}"])
    return drafted


def extend(plan: Plan | Any) -> Extension:
    """Inside a step or tool of a plan: return this to add the nodes of `plan` to the plan that runs.

    It is a `Plan`, a `Draft`, or an object as in JSON.

    The step's result is what is recorded, so a replay adds the same nodes and plans nothing again. The new nodes come
    after the step, may refer to every node that is there, and change none of them.
    """
    return Extension(plan_of(plan).to_dict())


def extension_of(result: Any) -> dict[str, Any] | None:
    """Give the plan by which a node's result extends its own; None if it is an ordinary result."""
    if isinstance(result, dict) and result.keys() == {EXTEND} and isinstance(result[EXTEND], dict):
        found: dict[str, Any] = result[EXTEND]
        return found
    return None


def references(value: Any) -> list[str]:
    """List every reference in a value, in order."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((name, inner),) = value.items()
            if name == REF and isinstance(inner, str):
                return [inner]
            if name == LITERAL:
                return []
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    found: list[str] = []
    for item in value:
        if type(item) not in SCALARS:
            found += references(item)
    return found


def malformed(value: Any) -> Iterator[str]:
    """Tell of each object that looks like a reference, or like a literal, and is none."""
    if isinstance(value, dict):
        if LITERAL in value and len(value) == 1:
            return
        odd = next((name for name in (REF, LITERAL) if name in value), None)
        if odd is not None and (len(value) > 1 or not isinstance(value[odd], str)):
            must = "names a node, and stands alone" if odd == REF else "stands alone"
            cure = 'what only looks like a reference is written as {"$literal": …}'
            yield f"{odd} {must}, got {value!r:.100}; {cure}"
            return
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        if type(item) not in SCALARS:
            yield from malformed(item)


def _wrong(place: int, data: Any) -> list[str]:
    """List what keeps this from being a node; nothing, if it is one."""
    with contextlib.suppress(msgspec.ValidationError, TypeError):
        msgspec.convert(data, Node)
        return []
    named = data.get("id") if isinstance(data, dict) else None
    at = f"nodes[{place}]" + (f" ({named:.100})" if isinstance(named, str) else "")
    return list(parser.node_problems(at, data, KINDS))


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, however deep."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
