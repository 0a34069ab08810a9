"""Plans as jobs: the entries that ``app.plan`` and ``@app.planner`` declare.

A run follows the plan recorded with it in its ``plan_generated`` event. That is the plan it was created with, or the
one its planner returned first. A run is never planned again, even if the code changes.
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


class _Inputs(Signature):
    """The arguments of a plan. They are checked against the nodes when a run starts, and stay JSON values."""

    def decode(self, encoded: dict[str, Any]) -> dict[str, Any]:
        """Return stored arguments unchanged: they fit the recorded plan, which may differ from the app's."""
        return encoded

    def decode_result(self, encoded: Any) -> Any:
        """Return a stored result unchanged."""
        return encoded


class PlanJob(Draft, JobFunction[..., Any]):
    """A named plan: add nodes to it, and start runs of it."""

    def __init__(
        self, draft: Mapping[str, Any], whole_plan: Plan | None, names: Callable[[], Names], **entry: Any
    ) -> None:
        Draft.__init__(self, entry["name"], **draft)
        self._of_app = names
        self._whole = whole_plan
        self._checked: tuple[int, Plan, _Inputs] | None = None
        self.open = False  # whether clients may pass their own plans for its runs
        self.replaced = False  # whether its runs follow another plan than the app's
        JobFunction.__init__(self, self._run, **entry)

    @property
    def signature(self) -> Signature:
        """The signature by which runs start: the plan's inputs."""
        return self._ready()[1]

    @signature.setter
    def signature(self, signature: Signature) -> None:
        """Ignore the assignment: the signature follows from the draft."""

    def recorded_plan(self) -> dict[str, Any]:
        """Return the plan that is recorded with a new run.

        Raises:
            InvalidPlan: the plan cannot run.
        """
        return self._ready()[0].to_dict()

    def plan(self) -> Plan:
        """Return the plan as it is now."""
        return self._whole if self._whole is not None else Draft.plan(self)

    def returns(self, value: Any) -> None:
        """Set the output of the plan. By default it is the results of all nodes without dependents, by id."""
        self._refuse_whole_plan()
        super().returns(value)

    def _add(self, kind: Any, name: str, after: Any, needs: str, **fields: Any) -> Ref:
        self._refuse_whole_plan()
        return super()._add(kind, name, after, needs, **fields)

    def _refuse_whole_plan(self) -> None:
        if self._whole is not None:
            cure = "add the nodes to that plan before you pass it"
            raise InvalidArguments(self.name, f"it has a complete plan: {cure}")

    def given(self, plan: Plan | Draft | dict[str, Any]) -> PlanJob:
        """Return this entry with another plan, for the runs started from the returned entry."""
        other: PlanJob = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._whole = plan_of(plan)
        other._checked, other.replaced = None, True
        return other

    def _ready(self) -> tuple[Plan, _Inputs]:
        if self._checked is None or self._checked[0] != self._changes:
            names, plan = self._of_app(), self.plan()
            # Set before the check: the plan may start itself as a child job.
            self._checked = self._changes, plan, _Inputs(_anything, self.name, self._starter.vault)
            try:
                check_plan(plan, names)
                self._checked = self._changes, plan, _Inputs(_function(plan, names), self.name, self._starter.vault)
            except InvalidPlan:
                self._checked = None
                raise
        return self._checked[1], self._checked[2]

    async def _run(self, **arguments: Any) -> Any:
        recorded = current().plan()
        if recorded is None:
            recorded = current().plan(self.recorded_plan())
        vault = self._starter.vault
        trusted = {name: vault.read(Secret, value) if is_kept(value) else value for name, value in arguments.items()}
        return await run(Plan.from_dict(recorded), trusted, self._of_app())


def planner(function: Callable[..., Any], name: str, names: Callable[[], Names]) -> Callable[..., Any]:
    """Return a job function that calls the planner once, records the plan it returns, and runs that plan."""
    parameters = inspect.signature(function).parameters.values()
    argument_defaults = {each.name: each.default for each in parameters if each.default is not each.empty}

    def keep(result: Any, arguments: dict[str, Any]) -> None:
        plan = result.plan() if isinstance(result, Draft) else result
        if not isinstance(plan, Plan):
            raise InvalidPlan(name, [f"a planner must return a Plan, got {type(plan).__name__}"])
        defaults = checked_payload(
            name, {key: value for key, value in argument_defaults.items() if key in plan.input and key not in arguments}
        )
        inputs = {**plan.input, **{key: Input(default=value) for key, value in defaults.items()}}
        plan = msgspec.structs.replace(check_plan(plan, names()), input=inputs)
        if missing := plan.not_given(arguments):
            raise InvalidPlan(plan.name, [f"input.{key}: {name} takes no such argument" for key in missing])
        current().plan(plan.to_dict())

    async def planned(arguments: dict[str, Any]) -> Any:
        recorded = current().plan()
        assert recorded is not None, "it was planned, now or before"
        plan = Plan.from_dict(recorded)
        inputs = {key: value for key, value in arguments.items() if key in plan.input}
        secrets = {key: value for key, value in inputs.items() if isinstance(value, Secret)}
        encoded = checked_payload(name, {key: value for key, value in inputs.items() if key not in secrets})
        return await run(plan, {**encoded, **secrets}, names())

    async def awaited(**arguments: Any) -> Any:
        if current().plan() is None:
            keep(await function(**arguments), arguments)
        return await planned(arguments)

    def threaded(**arguments: Any) -> Any:
        conductor = current()
        if conductor.plan() is None:
            result = function(**arguments)
            conductor.from_thread(_later(keep, result, arguments))
        return conductor.from_thread(planned(arguments))

    job = awaited if inspect.iscoroutinefunction(function) else threaded
    functools.update_wrapper(job, function)
    hints = dict(inspect.get_annotations(function))
    hints.pop("return", None)
    job.__annotations__ = hints
    return job


def _anything(**arguments: Any) -> Any:
    return arguments


async def _later(function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)


def _function(plan: Plan, names: Names) -> Callable[..., Any]:
    """Return a function whose parameters are the plan's inputs, with the types that its nodes take."""
    hints = {name: _hint(plan, names, name) for name in plan.input}

    def inputs(**arguments: Any) -> Any:
        return arguments

    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if isinstance(field.default, msgspec.UnsetType) else field.default,
            annotation=hints[name],
        )
        for name, field in plan.input.items()
    ]
    inputs.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # - inspect reads it
    inputs.__annotations__ = hints
    return inputs


def _hint(plan: Plan, names: Names, name: str) -> Any:
    """Return the type that all nodes take for an input; Any if the types differ."""
    hints = []
    for node in plan.nodes:
        if isinstance(node, (CallNode, JobNode, MapNode)):
            job = None if isinstance(node, CallNode) else node.job
            called = names.jobs.get(job) if job is not None else names.calls.get(getattr(node, "call", None) or "")
            wanted = [argument for argument, value in node.args.items() if value == {REF: f"input.{name}"}]
            hints += [called.signature.hint(argument) for argument in wanted] if called is not None else []
    return hints[0] if hints and all(hint == hints[0] for hint in hints) else Any
