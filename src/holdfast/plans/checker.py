"""The check of a plan before it runs. It finds every problem at once, each with its place, and runs nothing.

Problems are: invalid or repeated ids, unknown names, arguments that are missing, unknown or of another type, references
to nothing, cycles, invalid options, and too many nodes. Without an app (`names`), only the plan itself is checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from holdfast.authoring.functions import Call, JobFunction, near
from holdfast.authoring.signature import Signature
from holdfast.durations import seconds
from holdfast.errors import InvalidPlan
from holdfast.plans import type_compat
from holdfast.plans.graph import RESERVED, Graph, Missing, get_path
from holdfast.plans.model import (
    LITERAL,
    MORE,
    NODES_MAX,
    PROBLEMS_MAX,
    REF,
    CallNode,
    ChoiceNode,
    JobNode,
    MapNode,
    Node,
    Plan,
    SleepNode,
    WaitNode,
    malformed,
    references,
)

ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
ON_DOUBT = ("ask", "fail", "retry")
CYCLE_MAX = 12  # nodes of a cycle that a message names
PROBLEM_MAX = 2000  # characters of one message


class Names(NamedTuple):
    """The names that a plan may use: the steps, tools, jobs and gates of an app."""

    calls: Mapping[str, Call[..., Any]]
    jobs: Mapping[str, JobFunction[..., Any]]
    gates: Mapping[str, Any]


def check_plan(plan: Plan, names: Names | None) -> Plan:
    """Return the plan if it can run.

    Raises:
        InvalidPlan: the plan cannot run. The error lists every problem.
    """
    Plan.from_dict(plan.to_dict())  # a plan written in Python may hold values that no file could
    wrong = problems(plan, names)
    if wrong:
        raise InvalidPlan(plan.name, wrong)
    return plan


def problems(plan: Plan, names: Names | None) -> list[str]:
    """Return every problem of a plan; an empty list means that it can run."""
    wrong = [_cut(problem) for problem in islice(_Check(plan, names).all(), PROBLEMS_MAX + 1)]
    return [*wrong[:PROBLEMS_MAX], MORE] if len(wrong) > PROBLEMS_MAX else wrong


class _Check:
    def __init__(self, plan: Plan, names: Names | None) -> None:
        self._plan = plan
        self._names = names
        self._nodes = {node.id: node for node in plan.nodes}
        self._kinds: dict[str, inspect.Type] = {}  # the result type of each step, tool or job

    def all(self) -> Iterator[str]:
        if len(self._plan.nodes) > NODES_MAX:
            yield f"nodes: {len(self._plan.nodes):,}, and a plan may have {NODES_MAX:,}"
            return
        if self._plan.limit < 1:
            yield f"limit: must be at least 1, got {self._plan.limit}"
        yield from self._ids()
        for node in self._plan.nodes:
            for place, problem in self._node(node):
                yield f"{node.id}{'.' if place else ''}{place}: {problem}"
        if not isinstance(self._plan.output, msgspec.UnsetType):
            yield from (f"output: {problem}" for problem in self._references(self._plan.output))
        cycle = Graph(self._plan.nodes).find_cycle()
        if cycle:
            named = cycle if len(cycle) <= CYCLE_MAX else [*cycle[: CYCLE_MAX - 2], "…", cycle[-1]]
            more = f" ({len(cycle) - 1:,} nodes)" if len(cycle) > CYCLE_MAX else ""
            yield f"{cycle[0]}: it depends on itself: {' → '.join(named)}{more}"

    def _ids(self) -> Iterator[str]:
        for name, count in Counter(node.id for node in self._plan.nodes).items():
            if count > 1:
                yield f"{name}: {count} nodes have this id; each needs its own"
            if not ID.fullmatch(name):
                rule = "an id must start with a letter or _, then letters, digits, - and _, 100 at most"
                yield f"{name!r:.110}: {rule}{self._id_hint(name)}"
            elif name in RESERVED:
                yield f"{name}: references to {name} mean something else; give the node another id"
        for name in self._plan.input:
            if not ID.fullmatch(name):
                yield f"input.{name!r:.110}: a name must start with a letter or _, then letters, digits, - and _"

    def _id_hint(self, name: str) -> str:
        """Return a hint for an invalid id that a draft made from the name of the node's function."""
        node = self._nodes[name]
        called = [getattr(node, field, None) for field in ("call", "job", "key")]
        return "; it was made from a name: pass id=" if any(base and name.startswith(base) for base in called) else ""

    def _node(self, node: Node) -> Iterator[tuple[str, str]]:
        for other in node.after:
            if other not in self._nodes:
                yield "after", self._unknown("node", other, self._nodes)
        match node:
            case CallNode():
                yield from self._options(node)
                yield from self._called(node, node.call, "call")
            case JobNode():
                yield from self._called(node, node.job, "job")
            case MapNode():
                yield from self._options(node)
                yield from self._map(node)
            case WaitNode():
                yield from _duration("timeout", node.timeout)
                key = node.key if node.key is not None else node.id
                if not key or key.startswith("holdfast:"):
                    yield "key", f"a key must be text and must not begin with holdfast:, got {key!r}"
            case SleepNode():
                refs = list(references(node.duration))
                yield from (("duration", problem) for problem in self._references(node.duration))
                yield from [] if refs else _duration("duration", node.duration, needed=True)
            case ChoiceNode():
                yield from self._choice(node)

    def _map(self, node: MapNode) -> Iterator[tuple[str, str]]:
        yield from (("over", problem) for problem in self._references(node.over))
        if not isinstance(node.over, list) and not list(references(node.over)):
            yield "over", f"must be a list, or a reference to one, got {node.over!r:.60}"
        elif self._item(node) is None:
            kind = type_compat.type_name(self._given(node.over))
            yield "over", f"must be a list, and {self._sources(node.over)} has type {kind}"
        yield from (("over", problem) for problem in self._default(node.over, list))
        if node.limit is not None and node.limit < 1:
            yield "limit", f"must be at least 1, got {node.limit}"
        if (node.call is None) == (node.job is None):
            yield "", "a map must have either a call or a job"
        elif node.call is not None:
            yield from self._called(node, node.call, "call")
        elif node.job is not None:
            yield from self._called(node, node.job, "job")

    def _choice(self, node: ChoiceNode) -> Iterator[tuple[str, str]]:
        yield from (("value", problem) for problem in self._references(node.value))
        for place, case in enumerate(node.cases):
            if len(case.tests()) != 1:
                yield f"cases[{place}]", "a case must have exactly one of equals, any_of, above and below"
            for test in case.tests():
                if list(references(getattr(case, test))):
                    yield (
                        f"cases[{place}].{test}",
                        "a case compares with a literal value, and cannot contain a reference",
                    )
        for other in node.named():
            if other not in self._nodes:
                yield "cases", self._unknown("node", other, self._nodes)

    def _options(self, node: CallNode | MapNode) -> Iterator[tuple[str, str]]:
        if node.retries is not None and node.retries < 0:
            yield "retries", f"must be an integer, 0 or more, got {node.retries}"
        yield from _duration("timeout", node.timeout)
        if node.on_doubt is not None and node.on_doubt not in ON_DOUBT:
            yield "on_doubt", f"must be one of {', '.join(ON_DOUBT)}, got {node.on_doubt!r}"
        if self._names is not None and node.gate is not None and node.gate not in self._names.gates:
            yield "gate", self._unknown("gate", node.gate, self._names.gates)
        function = self._names.calls.get(node.call or "") if self._names is not None else None
        if function is not None and node.on_doubt is not None and not function.tool:
            yield "on_doubt", f"{function.name} is a step, which may run again: only tools are in doubt"

    def _called(self, node: CallNode | JobNode | MapNode, name: str, kind: str) -> Iterator[tuple[str, str]]:
        within = node if isinstance(node, MapNode) else None
        for argument, value in node.args.items():
            yield from ((f"args.{argument}", problem) for problem in self._references(value, within))
        if self._names is None:
            return
        known: Mapping[str, Call[..., Any] | JobFunction[..., Any]]
        known = self._names.calls if kind == "call" else self._names.jobs
        if name not in known:
            yield kind, self._unknown("step or tool" if kind == "call" else "job", name, known)
            return
        signature = known[name].signature
        wants = signature.parameters()
        for argument in wants:
            if wants[argument] and argument not in node.args:
                yield f"args.{argument}", f"{name} requires it, and it is missing"
        for argument, value in node.args.items():
            if argument not in wants and not signature.is_open:
                yield f"args.{argument}", f"{name} takes no such argument{near(argument, wants)}"
            elif argument in wants:
                yield from self._typed(node, signature, argument, value)

    def _typed(
        self, node: CallNode | JobNode | MapNode, signature: Signature, argument: str, value: Any
    ) -> Iterator[tuple[str, str]]:
        hint = signature.hint(argument)
        if list(malformed(value)):
            return  # already reported
        if not list(references(value)):
            literal = value[LITERAL] if isinstance(value, dict) and value.keys() == {LITERAL} else value
            wrong = type_compat.value_problem(literal, hint)
            if wrong is not None:
                yield f"args.{argument}", wrong
            return
        yield from ((f"args.{argument}", problem) for problem in self._default(value, hint))
        if isinstance(node, MapNode) and value == {REF: "item"} and isinstance(node.over, list):
            literals = (item for item in node.over if not list(references(item)) and not list(malformed(item)))
            misfits = (problem for item in literals if (problem := type_compat.value_problem(item, hint)) is not None)
            yield from ((f"args.{argument}", f"an item does not fit: {problem}") for problem in islice(misfits, 1))
        gives = self._given(value, node if isinstance(node, MapNode) else None)
        takes = type_compat.type_of(hint)
        if not type_compat.fits(gives, takes):
            given_type, wanted_type = type_compat.type_name(gives), type_compat.type_name(takes)
            problem = f"{self._sources(value)} has type {given_type}, and {wanted_type} is required"
            yield f"args.{argument}", problem

    def _default(self, value: Any, hint: Any) -> Iterator[str]:
        """Yield a problem if an argument is an input whose default has the wrong type."""
        if not (isinstance(value, dict) and value.keys() == {REF}):
            return
        source, _, path = value[REF].partition(".")
        name, _, path = path.partition(".")
        field = self._plan.input.get(name) if source == "input" else None
        if field is None or isinstance(field.default, msgspec.UnsetType):
            return
        try:
            wrong = type_compat.value_problem(get_path(field.default, path), hint)
        except Missing as error:
            wrong = str(error)
        if wrong is not None:
            yield f"the default of input.{name} does not fit: {wrong}"

    def _references(self, value: Any, within: MapNode | None = None) -> Iterator[str]:
        yield from malformed(value)
        for ref in dict.fromkeys(references(value)):
            name, _, path = ref.partition(".")
            if name == "input":
                argument = path.partition(".")[0]
                if argument not in self._plan.input:
                    yield f"{ref} refers to an input that does not exist{near(argument, self._plan.input)}"
            elif name in {"item", "index"}:
                item_type = inspect.IntType() if name == "index" else self._item(within) if within is not None else None
                if within is None:
                    yield f"{ref} is valid only in the arguments of a map"
                elif type_compat.part_type(kind := item_type or type_compat.ANY, path) is None:
                    yield f"{ref} refers to a part that {type_compat.type_name(kind)} does not have"
            elif name not in self._nodes:
                yield f"{ref} refers to a node that does not exist{near(name, self._nodes)}"
            elif type_compat.part_type(self._output(name), path) is None:
                yield f"{ref} refers to a part that {type_compat.type_name(self._output(name))} does not have"

    def _given(self, value: Any, node: MapNode | None = None) -> inspect.Type:
        """Return the type of the value that a reference stands for; ANY for any other value with references."""
        if not (isinstance(value, dict) and value.keys() == {REF} and isinstance(value[REF], str)):
            return type_compat.ANY
        name, _, path = value[REF].partition(".")
        if name == "index":
            return inspect.IntType()
        if name == "item" and node is not None:
            return type_compat.part_type(self._item(node) or type_compat.ANY, path) or type_compat.ANY
        skipped = name in self._nodes and isinstance(self._nodes[name], ChoiceNode)
        return type_compat.ANY if skipped else type_compat.part_type(self._output(name), path) or type_compat.ANY

    def _item(self, node: MapNode) -> inspect.Type | None:
        return type_compat.item_type(self._given(node.over))

    def _output(self, name: str) -> inspect.Type:
        """Return the type of a node's result, as far as it is known."""
        node = self._nodes.get(name)
        if isinstance(node, SleepNode):
            return inspect.NoneType()
        if self._names is None or not isinstance(node, (CallNode, JobNode, MapNode)):
            return type_compat.ANY
        job = None if isinstance(node, CallNode) else node.job
        function: Call[..., Any] | JobFunction[..., Any] | None
        if job is not None:
            function = self._names.jobs.get(job)
        else:
            function = None if isinstance(node, JobNode) else self._names.calls.get(node.call or "")
        if function is None:
            return type_compat.ANY
        called = f"{'call' if job is None else 'job'} {function.name}"
        result_type = self._kinds.get(called)
        if result_type is None:
            result_type = self._kinds[called] = type_compat.type_of(function.signature.result_hint)
        return inspect.ListType(item_type=result_type) if isinstance(node, MapNode) else result_type

    @staticmethod
    def _sources(value: Any) -> str:
        return ", ".join(references(value))

    @staticmethod
    def _unknown(what: str, name: str, known: Iterable[str]) -> str:
        return f"there is no {what} {name!r}{near(name, known)}"


def _cut(problem: str) -> str:
    """Return a problem shortened to `PROBLEM_MAX`: names may be long, and each occurs in many problems."""
    return problem if len(problem) <= PROBLEM_MAX else f"{problem[:PROBLEM_MAX]}…"


def _duration(place: str, duration: Any, *, needed: bool = False) -> Iterator[tuple[str, str]]:
    if duration is None and not needed:
        return
    try:
        seconds("" if duration is None else duration)
    except (TypeError, ValueError) as error:
        yield place, str(error)
