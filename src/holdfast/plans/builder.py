"""Plans written in Python: each method adds a node and gives a reference to what the node will give.

``a = draft.call(extract, day=draft.input.day)`` and then ``draft.call(clean, rows=a.rows)``: parts of what a node gives
are named by attributes and indexes. Nothing is run, and nothing checked, before the plan is made of it.
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

__all__ = ["Draft", "Ref"]


_CURE = "have a step give what is there"


class Ref:
    """What a node will give, or a part of it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("_"):
            raise AttributeError(name)
        return Ref(f"{self._path}.{name}")

    def __getitem__(self, key: str | int) -> Ref:
        part: object = key  # whatever it is: nobody has checked it
        if isinstance(part, str) and "." in part:
            raise InvalidArguments(self._path, f"a dot parts the names of a reference, got {part!r:.60}: {_CURE}")
        if not isinstance(part, (str, int)) or isinstance(part, bool) or part == "":
            raise InvalidArguments(self._path, f"a part has a name or a number, got {part!r:.60}: {_CURE}")
        return Ref(f"{self._path}.{key}")

    def __iter__(self) -> Any:
        raise TypeError(f"{self._path} is only known when the plan runs: use map to do something for each of its items")

    def __repr__(self) -> str:
        return f"<{self._path}>"


class Draft:
    """A plan that is being written."""

    def __init__(
        self,
        name: str = "plan",
        *,
        input: Mapping[str, Any] | None = None,
        limit: int = LIMIT,
        policy: str = "finish",
    ) -> None:
        self._title = name
        self._defaults = {name: Input(default=value) for name, value in (input or {}).items()}
        self._limit = limit
        self._policy = policy
        self._nodes: list[Node] = []
        self._ids: set[str] = set()
        self._returns: Any = msgspec.UNSET
        self._changes = 0  # how often anything was added or said

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

        Among the arguments, ``retries``, ``timeout``, ``on_doubt`` and ``gate`` are options of this node; what the
        function itself calls so, or as another option here, goes into `args`.
        """
        name = call if isinstance(call, str) else call.name
        chosen = _options(arguments)
        return self._add(
            CallNode, id or name, after, needs, call=name, args=_plain({**(args or {}), **arguments}), **chosen
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
        """Add a wait for a signal; what was sent is what it gives."""
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
        """Add another job, as a child."""
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
        """Add a call, or a job, for each item of `over`; `item` and `index` of the draft stand for the one at hand."""
        name = function if isinstance(function, str) else function.name
        kind = {"job" if isinstance(function, JobFunction) else "call": name}
        options = _options(arguments)
        given = _plain({**(args or {}), **arguments})
        return self._add(
            MapNode, id or name, after, needs, over=_plain(over), args=given, limit=limit, **kind, **options
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
        """Add a choice: for each value the nodes that run then; or cases with a test each, and `then`."""
        listed = [{"equals": one, "then": then} for one, then in cases.items()] if isinstance(cases, Mapping) else cases
        made = tuple(Case(**{**case, "then": _ids(case["then"])}) for case in listed)
        return self._add(ChoiceNode, id, after, needs, value=_plain(value), cases=made, otherwise=_ids(otherwise))

    def returns(self, value: Any) -> None:
        """Say what a run gives; unless said, what the nodes give that nothing depends on, by id."""
        self._returns = _plain(value)
        self._changes += 1

    def plan(self) -> Plan:
        """Make the plan of what was written so far."""
        values: list[Any] = [msgspec.to_builtins(node) for node in self._nodes]
        used = [ref.split(".")[1] for ref in references([*values, self._returns]) if ref.startswith("input.")]
        return Plan(
            name=self._title,
            input={**{name: Input() for name in used}, **self._defaults},
            nodes=tuple(self._nodes),
            output=self._returns,
            limit=self._limit,
            policy=self._policy,  # type: ignore[arg-type]  # - the check of the plan looks at it
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


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take a node's options out of its arguments."""
    return {key: arguments.pop(key) for key in ("retries", "timeout", "on_doubt", "gate") if key in arguments}


def _ids(given: Any) -> tuple[str, ...]:
    """Give the ids of one node or several."""
    if isinstance(given, (Ref, str)):
        return (_id(given),)
    return tuple(map(_id, given))


def _id(given: Ref | str) -> str:
    return given if isinstance(given, str) else given._path.partition(".")[0]  # noqa: SLF001 - the two are written together


def _plain(value: Any) -> Any:
    """Give a value as a plan has it: references as JSON."""
    if isinstance(value, Ref):
        return {REF: value._path}  # noqa: SLF001 - as above
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else msgspec.to_builtins(value)
