"""Plans written in Python. Each method of a `Draft` adds a node and returns a reference to its result.

``a = draft.call(extract, day=draft.input.day)``, then ``draft.call(clean, rows=a.rows)``: attributes and indexes of a
reference name parts of the result. Nothing runs while a plan is written, and nothing is checked before `Draft.plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.authoring.functions import Call, JobFunction
from holdfast.errors import InvalidArguments
from holdfast.plans.model import (
    LIMIT,
    REF,
    CallNode,
    Case,
    ChoiceNode,
    Input,
    JobNode,
    MapNode,
    Node,
    Plan,
    SleepNode,
    WaitNode,
    references,
)

_CURE = "let a step return that part"


class Ref:
    """A reference to the result of a node, or to a part of it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("_"):
            raise AttributeError(name)
        return Ref(f"{self._path}.{name}")

    def __getitem__(self, key: str | int) -> Ref:
        part: object = key  # users may pass any type
        if isinstance(part, str) and "." in part:
            raise InvalidArguments(
                self._path, f"a name in a reference must not contain a dot, got {part!r:.60}: {_CURE}"
            )
        if not isinstance(part, (str, int)) or isinstance(part, bool) or part == "":
            raise InvalidArguments(self._path, f"a part must be a name or a number, got {part!r:.60}: {_CURE}")
        return Ref(f"{self._path}.{key}")

    def __iter__(self) -> Any:
        raise TypeError(f"{self._path} is known only when the plan runs: use map to call a step for each item")

    def __repr__(self) -> str:
        return f"<{self._path}>"


class Draft:
    """A plan under construction.

    Args:
        name: the name of the plan in messages.
        input: default values for inputs of the plan. Inputs without a default need no entry here.
        limit: the number of calls that may run at the same time.
        policy: after a failure, ``finish`` the nodes that do not depend on it, or ``fail_fast``.
    """

    def __init__(
        self, name: str = "plan", *, input: Mapping[str, Any] | None = None, limit: int = LIMIT, policy: str = "finish"
    ) -> None:
        self._title = name
        self._defaults = {name: Input(default=value) for name, value in (input or {}).items()}
        self._limit = limit
        self._policy = policy
        self._nodes: list[Node] = []
        self._ids: set[str] = set()
        self._returns: Any = msgspec.UNSET
        self._changes = 0  # number of changes so far

    input = Ref("input")
    item = Ref("item")
    index = Ref("index")

    def call(
        self,
        call: Call[..., Any] | str,
        *,
        id: str | None = None,
        after: Any = (),
        needs: str = "all",
        args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Ref:
        """Add a call of a step or tool.

        Args:
            call: the step or tool, or its name.
            id: the id of the node; made from the name of the call if not given.
            after: nodes that must end first, in addition to those that the arguments refer to.
            needs: ``all`` skips the node if any dependency is skipped; ``any`` only if all are.
            args: arguments whose names are also options of this method.
            arguments: the arguments of the call. ``retries``, ``timeout``, ``on_doubt`` and ``gate`` are options of
                this node. If the function has parameters with these names, pass them in `args`.
        """
        name = call if isinstance(call, str) else call.name
        options = _options(arguments)
        return self._add(
            CallNode, id or name, after, needs, call=name, args=_plain({**(args or {}), **arguments}), **options
        )

    def wait(
        self,
        key: str,
        *,
        id: str | None = None,
        after: Any = (),
        needs: str = "all",
        timeout: Any = None,
        type: str = "signal",
    ) -> Ref:
        """Add a wait for a signal with this key. The result is the payload of the signal."""
        return self._add(WaitNode, id or key, after, needs, key=key, timeout=timeout, type=type)

    def sleep(self, duration: Any, *, id: str = "sleep", after: Any = (), needs: str = "all") -> Ref:
        """Add a wait for a time."""
        return self._add(SleepNode, id, after, needs, duration=_plain(duration))

    def job(
        self,
        job: JobFunction[..., Any] | str,
        *,
        id: str | None = None,
        after: Any = (),
        needs: str = "all",
        args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Ref:
        """Add another job, which runs as a child. The result is that of the child."""
        name = job if isinstance(job, str) else job.name
        return self._add(JobNode, id or name, after, needs, job=name, args=_plain({**(args or {}), **arguments}))

    def map(
        self,
        function: Call[..., Any] | JobFunction[..., Any] | str,
        over: Any,
        *,
        id: str | None = None,
        after: Any = (),
        needs: str = "all",
        args: Mapping[str, Any] | None = None,
        limit: int | None = None,
        **arguments: Any,
    ) -> Ref:
        """Add a call, or a job, for each item of `over`. In the arguments, use the draft's `item` and `index`."""
        name = function if isinstance(function, str) else function.name
        kind = {"job" if isinstance(function, JobFunction) else "call": name}
        options = _options(arguments)
        plain = _plain({**(args or {}), **arguments})
        return self._add(
            MapNode, id or name, after, needs, over=_plain(over), args=plain, limit=limit, **kind, **options
        )

    def choice(
        self,
        value: Any,
        cases: Mapping[Any, Any] | Iterable[Mapping[str, Any]],
        *,
        otherwise: Any = (),
        id: str = "choice",
        after: Any = (),
        needs: str = "all",
    ) -> Ref:
        """Add a choice between nodes.

        Args:
            value: the value to compare, usually a reference.
            cases: for each value the nodes that run then; or objects with one test each, and `then`.
            otherwise: the nodes that run if no case matches.
            id: the id of the node.
            after: nodes that must end first.
            needs: as for `call`.
        """
        listed = (
            [{"equals": equals, "then": then} for equals, then in cases.items()]
            if isinstance(cases, Mapping)
            else cases
        )
        built = tuple(Case(**{**case, "then": _ids(case["then"])}) for case in listed)
        return self._add(ChoiceNode, id, after, needs, value=_plain(value), cases=built, otherwise=_ids(otherwise))

    def returns(self, value: Any) -> None:
        """Set the output of the plan. By default it is the results of all nodes without dependents, by id."""
        self._returns = _plain(value)
        self._changes += 1

    def plan(self) -> Plan:
        """Return the plan as written so far."""
        values: list[Any] = [msgspec.to_builtins(node) for node in self._nodes]
        used = [ref.split(".")[1] for ref in references([*values, self._returns]) if ref.startswith("input.")]
        return Plan(
            name=self._title,
            input={**{name: Input() for name in used}, **self._defaults},
            nodes=tuple(self._nodes),
            output=self._returns,
            limit=self._limit,
            policy=self._policy,  # type: ignore[arg-type]  # - the checker reports other values
        )

    def _add(self, kind: Any, name: str, after: Any, needs: str, **fields: Any) -> Ref:
        free, number = name, 1
        while free in self._ids:
            number += 1
            free = f"{name}_{number}"
        self._ids.add(free)
        self._changes += 1
        self._nodes.append(kind(id=free, after=_ids(after), needs=needs, **fields))
        return Ref(free)


def _path(ref: Ref) -> str:
    return str(vars(ref)["_path"])  # every public attribute of a Ref is itself a Ref


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove a node's options from its arguments, and return them."""
    return {key: arguments.pop(key) for key in ("retries", "timeout", "on_doubt", "gate") if key in arguments}


def _ids(nodes: Any) -> tuple[str, ...]:
    """Return the ids of one node or several."""
    if isinstance(nodes, (Ref, str)):
        return (_id(nodes),)
    return tuple(map(_id, nodes))


def _id(node: Ref | str) -> str:
    return node if isinstance(node, str) else _path(node).partition(".")[0]


def _plain(value: Any) -> Any:
    """Return a value as a plan holds it, with references as JSON."""
    if isinstance(value, Ref):
        return {REF: _path(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else msgspec.to_builtins(value)
