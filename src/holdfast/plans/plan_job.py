"""Plans as jobs: what ``app.plan`` and ``@app.planner`` declare. Each is an entry like a job function.

What a run follows is the plan that was recorded with it, plan_generated: the one it was created with, or what its
planner gave the first time. It is never planned again, whatever the code says by then.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.authoring.conductor import current
from holdfast.authoring.functions import JobFunction
from holdfast.authoring.secrets import Secret, is_kept
from holdfast.authoring.signature import Signature, checked_payload
from holdfast.errors import InvalidArguments, InvalidPlan
from holdfast.plans.builder import Draft, Ref
from holdfast.plans.checker import Names, check_plan
from holdfast.plans.executor import run
from holdfast.plans.model import REF, CallNode, Input, JobNode, MapNode, Plan, plan_of

__all__ = ["PlanJob", "planner"]


class _Inputs(Signature):
    """The arguments of a plan: checked against what its nodes take when a run is started, kept as JSON."""

    def decode(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Give stored arguments as they are: they fit the plan that was recorded with them, if not that of the app."""
        return plain

    def decode_result(self, plain: Any) -> Any:
        """Give a stored result as it is."""
        return plain


class PlanJob(Draft, JobFunction[..., Any]):
    """A plan with a name: add nodes to it, and start runs of it."""

    def __init__(self, draft: Mapping[str, Any], given: Plan | None, names: Callable[[], Names], **entry: Any) -> None:
        Draft.__init__(self, entry["name"], **draft)
        self._of_app = names
        self._whole = given
        self._checked: tuple[int, Plan, _Inputs] | None = None
        self.open = False  # whether others may give its runs plans of theirs
        self.replaced = False  # whether its runs follow another plan than that of the app
        JobFunction.__init__(self, self._run, **entry)

    @property
    def signature(self) -> Signature:
        """How runs are started: by the plan's inputs."""
        return self._ready()[1]

    @signature.setter
    def signature(self, made: Signature) -> None:
        """There is one for every state of the draft."""

    def recorded_plan(self) -> dict[str, Any]:
        """Give the plan that is recorded with a new run.

        Raises:
            InvalidPlan: it cannot run.
        """
        return self._ready()[0].to_dict()

    def plan(self) -> Plan:
        """Give the plan as it stands."""
        return self._whole if self._whole is not None else Draft.plan(self)

    def returns(self, value: Any) -> None:
        """Say what a run gives; unless said, what the nodes give that nothing depends on, by id."""
        self._be_written()
        super().returns(value)

    def _add(self, kind: Any, name: str, after: Any, needs: str, **fields: Any) -> Ref:
        self._be_written()
        return super()._add(kind, name, after, needs, **fields)

    def _be_written(self) -> None:
        if self._whole is not None:
            cure = "add to that plan before it is given, or write this one here, without it"
            raise InvalidArguments(self.name, f"it follows a plan that was given whole: {cure}")

    def given(self, plan: Plan | Draft | dict[str, Any]) -> PlanJob:
        """Give this entry with another plan for the runs that are started from the result."""
        other: PlanJob = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._whole = plan_of(plan)
        other._checked, other.replaced = None, True
        return other

    def _ready(self) -> tuple[Plan, _Inputs]:
        if self._checked is None or self._checked[0] != self._changes:
            names, plan = self._of_app(), self.plan()
            self._checked = (
                self._changes,
                plan,
                _Inputs(_anything, self.name, self._starter.vault),
            )  # should it start itself as a child
            try:
                check_plan(plan, names)
                self._checked = self._changes, plan, _Inputs(_function(plan, names), self.name, self._starter.vault)
            except InvalidPlan:
                self._checked = None
                raise
        return self._checked[1], self._checked[2]

    async def _run(self, **given: Any) -> Any:
        recorded = current().plan()
        if recorded is None:
            recorded = current().plan(self.recorded_plan())
        vault = self._starter.vault
        trusted = {name: vault.read(Secret, one) if is_kept(one) else one for name, one in given.items()}
        return await run(Plan.from_dict(recorded), trusted, self._of_app())


def planner(function: Callable[..., Any], name: str, names: Callable[[], Names]) -> Callable[..., Any]:
    """Make a job of a function that gives a plan: it is asked once, and what it gave is recorded and run."""
    usual = {
        key: one.default for key, one in inspect.signature(function).parameters.items() if one.default is not one.empty
    }

    def keep(made: Any, given: dict[str, Any]) -> None:
        plan = made.plan() if isinstance(made, Draft) else made
        if not isinstance(plan, Plan):
            raise InvalidPlan(name, [f"a planner gives a Plan, got {type(plan).__name__}"])
        defaults = checked_payload(
            name, {key: one for key, one in usual.items() if key in plan.input and key not in given}
        )
        inputs = {**plan.input, **{key: Input(default=one) for key, one in defaults.items()}}
        plan = msgspec.structs.replace(check_plan(plan, names()), input=inputs)
        if missing := plan.not_given(given):
            raise InvalidPlan(plan.name, [f"input.{key}: {name} takes no such argument" for key in missing])
        current().plan(plan.to_dict())

    async def planned(given: dict[str, Any]) -> Any:
        recorded = current().plan()
        assert recorded is not None, "it was planned, now or before"
        plan = Plan.from_dict(recorded)
        inputs = {key: one for key, one in given.items() if key in plan.input}
        secrets = {key: one for key, one in inputs.items() if isinstance(one, Secret)}
        plain = checked_payload(name, {key: one for key, one in inputs.items() if key not in secrets})
        return await run(plan, {**plain, **secrets}, names())

    async def awaited(**given: Any) -> Any:
        if current().plan() is None:
            keep(await function(**given), given)
        return await planned(given)

    def plain(**given: Any) -> Any:
        conductor = current()
        if conductor.plan() is None:
            made = function(**given)
            conductor.from_thread(_later(keep, made, given))
        return conductor.from_thread(planned(given))

    made = awaited if inspect.iscoroutinefunction(function) else plain
    functools.update_wrapper(made, function)
    hints = dict(inspect.get_annotations(function))
    hints.pop("return", None)
    made.__annotations__ = hints
    return made


def _anything(**given: Any) -> Any:
    return given


async def _later(function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)


def _function(plan: Plan, names: Names) -> Callable[..., Any]:
    """Make a function whose parameters are the plan's inputs, typed as the nodes that they go to want them."""
    hints = {name: _hint(plan, names, name) for name in plan.input}

    def inputs(**given: Any) -> Any:
        return given

    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if isinstance(one.default, msgspec.UnsetType) else one.default,
            annotation=hints[name],
        )
        for name, one in plan.input.items()
    ]
    inputs.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # - what inspect looks for
    inputs.__annotations__ = hints
    return inputs


def _hint(plan: Plan, names: Names, name: str) -> Any:
    """Give the one type that all nodes want of an input; Any if they differ."""
    found = []
    for node in plan.nodes:
        if isinstance(node, (CallNode, JobNode, MapNode)):
            job = None if isinstance(node, CallNode) else node.job
            called = names.jobs.get(job) if job is not None else names.calls.get(getattr(node, "call", None) or "")
            wanted = [argument for argument, value in node.args.items() if value == {REF: f"input.{name}"}]
            found += [called.signature.hint(argument) for argument in wanted] if called is not None else []
    return found[0] if found and all(one == found[0] for one in found) else Any
