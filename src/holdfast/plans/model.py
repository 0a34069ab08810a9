"""A plan as data: nodes with ids, their arguments, and their dependencies. Pure; the format has a JSON Schema.

Every value in a plan is JSON. ``{"$ref": "extract.rows"}`` stands for a part of the result of the node `extract`, and
``{"$ref": "input.day"}`` for an argument of the run. In a map, ``{"$ref": "item"}`` and ``{"$ref": "index"}`` stand for
the current item. ``{"$literal": …}`` stands for its content unchanged, even if that looks like a reference.

Reading a plan checks its shape only, and reports every invalid node with its place. `holdfast.plans.checker` decides
whether the plan can run.
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

NODES_MAX = 10_000  # in one plan, with all its extensions
LIMIT = 100  # concurrent calls by default
PROBLEMS_MAX = 100  # problems listed in one error: more of them repeat one mistake
MORE = "and more: fix these first"
REF, LITERAL, EXTEND = "$ref", "$literal", EXTENDS
SCALARS = frozenset({int, str, float, bool, type(None)})  # types that contain no references

Time = float | int | str | None


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """The fields of every node: its id, the nodes it comes after, and whether it needs all dependencies or any."""

    id: str
    after: tuple[str, ...] = ()
    needs: Literal["all", "any"] = "all"


class CallNode(_Part, frozen=True, kw_only=True, tag="call"):
    """A call of a step or tool. The options for retries, timeout, doubt and gate apply to this node only."""

    call: str
    args: dict[str, Any] = {}
    retries: int | None = None
    timeout: Time = None
    on_doubt: str | None = None
    gate: str | None = None


class WaitNode(_Part, frozen=True, kw_only=True, tag="wait"):
    """A wait for a signal, whose payload is the result. The key is the node's id by default."""

    key: str | None = None
    timeout: Time = None
    type: Literal["signal", "human", "webhook"] = "signal"


class SleepNode(_Part, frozen=True, kw_only=True, tag="sleep"):
    """A wait for a duration: seconds, text such as "3d", or a reference to one of them."""

    duration: Any


class JobNode(_Part, frozen=True, kw_only=True, tag="job"):
    """Another job, started as a child. Its result is the node's result."""

    job: str
    args: dict[str, Any] = {}


class MapNode(_Part, frozen=True, kw_only=True, tag="map"):
    """A step, tool or job called for each item of a list, up to `limit` at a time. The result is a list."""

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
    """One case of a choice: a test of the value, and the nodes that run if it holds."""

    then: tuple[str, ...]
    equals: Any = msgspec.UNSET
    any_of: list[Any] | msgspec.UnsetType = msgspec.UNSET
    above: float | msgspec.UnsetType = msgspec.UNSET
    below: float | msgspec.UnsetType = msgspec.UNSET

    def tests(self) -> list[str]:
        """Return the tests of this case; a valid case has exactly one."""
        return [
            name
            for name in ("equals", "any_of", "above", "below")
            if not isinstance(getattr(self, name), msgspec.UnsetType)
        ]

    def holds(self, value: Any) -> bool:
        """Return whether the value passes this case's test."""
        if not isinstance(self.any_of, msgspec.UnsetType):
            return any(_same(value, other) for other in self.any_of)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not isinstance(self.above, msgspec.UnsetType):
            return number and value > self.above
        if not isinstance(self.below, msgspec.UnsetType):
            return number and value < self.below
        return _same(value, self.equals)


class ChoiceNode(_Part, frozen=True, kw_only=True, tag="choice", rename={"otherwise": "else"}):
    """A choice. Of the nodes that its cases name, those of the first matching case run; the others are skipped."""

    value: Any
    cases: tuple[Case, ...]
    otherwise: tuple[str, ...] = ()

    def named(self) -> list[str]:
        """Return the nodes that depend on the choice."""
        return list(dict.fromkeys([*(node for case in self.cases for node in case.then), *self.otherwise]))

    def chosen(self, value: Any) -> tuple[str, ...]:
        """Return the nodes that run for this value."""
        return next((case.then for case in self.cases if case.holds(value)), self.otherwise)


Node = CallNode | WaitNode | SleepNode | JobNode | MapNode | ChoiceNode
KINDS: dict[str, type[_Part]] = {
    str(kind.__struct_config__.tag): kind for kind in (CallNode, WaitNode, SleepNode, JobNode, MapNode, ChoiceNode)
}


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An argument of the plan's runs. An input with a default is optional."""

    default: Any = msgspec.UNSET


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as a graph of nodes.

    Attributes:
        nodes: the nodes.
        name: the name of the plan in messages.
        version: the version of this format.
        input: the arguments of a run.
        output: the result of a run. By default, the results of all nodes without dependents, by id.
        limit: the number of calls that may run at the same time.
        policy: after a failure, ``finish`` runs the nodes that do not depend on it; ``fail_fast`` starts no more nodes.
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
            InvalidPlan: the shape is wrong. The error lists each problem with its place.
        """
        if not isinstance(data, dict):
            raise InvalidPlan("plan", [f"a plan must be an object with nodes, got {parser.json_kind(data)}"])
        name = str(data.get("name", "plan"))
        listed = data.get("nodes")
        if not isinstance(listed, (list, tuple)):
            kind = parser.json_kind(listed) if "nodes" in data else "none"
            raise InvalidPlan(name, [f"nodes: must be a list, got {kind}"])
        if len(listed) > NODES_MAX:
            raise InvalidPlan(name, [f"nodes: {len(listed):,}, and a plan may have {NODES_MAX:,}"])
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            return msgspec.convert(data, cls)  # the fast path; if it fails, find the problems node by node
        wrong = list(islice(parser.field_problems("plan", {**data, "nodes": ()}, cls, "a plan"), PROBLEMS_MAX))
        for place, node in enumerate(listed):
            if len(wrong) >= PROBLEMS_MAX:
                break
            wrong += _wrong(place, node)
        if len(wrong) >= PROBLEMS_MAX:
            wrong[PROBLEMS_MAX:] = [MORE]
        raise InvalidPlan(name, wrong)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan from JSON text.

        Raises:
            InvalidPlan: the text is not JSON, or not a plan.
        """
        return cls.from_dict(parser.from_json(text))

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Plan:
        """Read a plan from YAML text. Needs the extra ``holdfast-jobs[yaml]``.

        Raises:
            InvalidPlan: the text is not YAML, or not a plan; or PyYAML is not installed.
        """
        return cls.from_dict(parser.from_yaml(text))

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Read a plan from a file: YAML if its name ends in ``.yaml`` or ``.yml``, else JSON.

        Raises:
            InvalidPlan: the file holds no plan.
            OSError: the file cannot be read.
        """
        text = Path(path).read_bytes()
        return cls.from_yaml(text) if str(path).endswith((".yaml", ".yml")) else cls.from_json(text)

    @staticmethod
    def schema() -> dict[str, Any]:
        """Return the JSON Schema of plans."""
        schema = msgspec.json.schema(Plan)
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Holdfast plan", **schema}

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data

    def node(self, name: str) -> Node | None:
        """Return the node with this id; None if there is none."""
        return next((node for node in self.nodes if node.id == name), None)

    def not_given(self, names: Container[str]) -> list[str]:
        """Return the required inputs that are missing from `given`."""
        return [name for name, field in self.input.items() if field.default is msgspec.UNSET and name not in names]

    def extended(self, more: Plan, by: str) -> Plan:
        """Return this plan with the nodes of `more`, each of which comes after the node `by`."""
        added = tuple(msgspec.structs.replace(node, after=(*node.after, by)) for node in more.nodes)
        output = self.output if isinstance(more.output, msgspec.UnsetType) else more.output
        return msgspec.structs.replace(self, nodes=(*self.nodes, *added), output=output)


class Extension(msgspec.Struct, frozen=True, rename={"plan": EXTEND}):
    """The result of a step that adds nodes to its plan; see `extend`."""

    plan: dict[str, Any]


def plan_of(source: Any) -> Plan:
    """Return a `Plan` from a plan, a draft, or plain values.

    Raises:
        InvalidPlan: it is none of them.
    """
    if isinstance(source, Plan):
        return source
    if isinstance(source, dict):
        return Plan.from_dict(source)
    drafted = source.plan() if callable(getattr(type(source), "plan", None)) else None
    if not isinstance(drafted, Plan):
        kind = type(source).__name__
        raise InvalidPlan("plan", [f"must be a Plan, a Draft, or an object with nodes, got {kind}"])
    return drafted


def extend(plan: Plan | Any) -> Extension:
    """Return a result that adds the nodes of `plan` to the running plan. Use it in a step or tool of a plan.

    The result is recorded, so a replay adds the same nodes and does not plan again. The new nodes come after the step.
    They may refer to every existing node, and change none of them.

    Args:
        plan: a `Plan`, a `Draft`, or a dict in the JSON format of plans.

    Raises:
        InvalidPlan: it is none of them.
    """
    return Extension(plan_of(plan).to_dict())


def extension_of(result: Any) -> dict[str, Any] | None:
    """Return the plan with which a node's result extends its own plan; None for an ordinary result."""
    if isinstance(result, dict) and result.keys() == {EXTEND} and isinstance(result[EXTEND], dict):
        plan: dict[str, Any] = result[EXTEND]
        return plan
    return None


def references(value: Any) -> list[str]:
    """Return every reference in a value, in order."""
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
    refs: list[str] = []
    for item in value:
        if type(item) not in SCALARS:
            refs += references(item)
    return refs


def malformed(value: Any) -> Iterator[str]:
    """Yield a problem for each object that looks like a reference or a literal but is not valid."""
    if isinstance(value, dict):
        if LITERAL in value and len(value) == 1:
            return
        odd = next((name for name in (REF, LITERAL) if name in value), None)
        if odd is not None and (len(value) > 1 or not isinstance(value[odd], str)):
            must = "must name a node, without other keys" if odd == REF else "must have no other keys"
            cure = 'write a value that only looks like a reference as {"$literal": …}'
            yield f"{odd} {must}, got {value!r:.100}; {cure}"
            return
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        if type(item) not in SCALARS:
            yield from malformed(item)


def _wrong(place: int, data: Any) -> list[str]:
    """Return the reasons why this value is not a node; an empty list if it is one."""
    with contextlib.suppress(msgspec.ValidationError, TypeError):
        msgspec.convert(data, Node)
        return []
    named = data.get("id") if isinstance(data, dict) else None
    at = f"nodes[{place}]" + (f" ({named:.100})" if isinstance(named, str) else "")
    return list(parser.node_problems(at, data, KINDS))


def _same(left: Any, right: Any) -> bool:
    """Return whether two values are equal as JSON. At every depth, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
