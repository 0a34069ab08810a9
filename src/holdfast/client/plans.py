"""What an app can do with plans: declare them, and their planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, cast, overload

from holdfast.authoring.decorators import Registry
from holdfast.authoring.functions import Backoff, JobFunction, Starter
from holdfast.authoring.secrets import Codec
from holdfast.durations import Duration, seconds
from holdfast.plans.builder import Draft
from holdfast.plans.checker import Names
from holdfast.plans.model import LIMIT, Plan, plan_of
from holdfast.plans.plan_job import PlanJob, planner

if TYPE_CHECKING:
    from holdfast.ready import Gate

__all__ = ["Planning"]

P = ParamSpec("P")


class Planning(Registry):
    """The plans of one app."""

    def __init__(self, name: str, max_attempts: int, codec: Codec | None = None) -> None:
        super().__init__(name, max_attempts, codec)
        self._gates: dict[str, Gate] = {}

    def shared_gates(self) -> list[Gate]:
        """List the gates that steps, tools and nodes of plans share, each once."""
        return list({id(gate): gate for gate in [*super().shared_gates(), *self._gates.values()]}.values())

    def names(self) -> Names:
        """Give what plans of this app may name."""
        jobs = {f"{plugin}.{name}": job for (plugin, name), job in self.entries.items() if plugin != self.name}
        jobs |= {name: job for (plugin, name), job in self.entries.items() if plugin == self.name}
        return Names(self.calls, jobs, self._gates)

    def plan(
        self,
        name: str,
        plan: Plan | Draft | dict[str, Any] | str | Path | None = None,
        *,
        input: Mapping[str, Any] | None = None,
        limit: int = LIMIT,
        policy: str = "finish",
        gates: Mapping[str, Gate] | None = None,
        open: bool = False,
        **entry: Any,
    ) -> PlanJob:
        """Declare a plan: write its nodes with the methods of the result, or give it whole, as a `Plan` or a file.

        Args:
            name: the entry's name.
            plan: the plan, if it is not written here.
            input: defaults of inputs.
            limit: calls at once.
            policy: after a failure ``finish`` what does not depend on it, or ``fail_fast``.
            gates: gates by the names that nodes use.
            open: whether whoever may start it from outside, over HTTP, may give a run a plan of its own, and so call
                every step, tool and job of the app with any arguments.
            entry: as of ``@app.job``: `retries`, `backoff`, `queue`, `deadline`, `max_attempts`.
        """
        whole = Plan.read(plan) if isinstance(plan, (str, Path)) else plan_of(plan) if plan is not None else None
        self._gates.update(gates or {})
        draft = {"input": input, "limit": limit, "policy": policy}
        made = PlanJob(draft, whole, self.names, name=name, plugin=self.name, **self._as_entry(entry))
        made.open = open
        return self.declared(made)

    @overload
    def planner(self, function: Callable[P, Any], /) -> JobFunction[P, Any]: ...
    @overload
    def planner(
        self, *, name: str | None = None, gates: Mapping[str, Gate] | None = None, **entry: Any
    ) -> Callable[[Callable[P, Any]], JobFunction[P, Any]]: ...

    def planner(
        self, function: Any = None, *, name: str | None = None, gates: Mapping[str, Gate] | None = None, **entry: Any
    ) -> Any:
        """Declare a planner: a function that gives a `Plan`, which is recorded once and then run.

        It may call steps and tools to find out what to plan. Its arguments are the plan's inputs, too.
        """
        self._gates.update(gates or {})
        if function is None:
            return partial(self._planner, name=name, **entry)
        return self._planner(function, name=name, **entry)

    def _planner(self, function: Callable[..., Any], *, name: str | None, **entry: Any) -> JobFunction[..., Any]:
        named = name or function.__name__
        made: JobFunction[..., Any] = JobFunction(
            planner(function, named, self.names), name=named, plugin=self.name, **self._as_entry(entry)
        )
        return self.declared(made)

    def _as_entry(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        unknown = set(chosen) - {"retries", "backoff", "queue", "deadline", "max_attempts"}
        if unknown:
            raise TypeError(f"unknown options {', '.join(sorted(unknown))}")
        deadline: Duration | None = chosen.get("deadline")
        return {
            "starter": cast(Starter[Any], self),
            "backoff": chosen.get("backoff") or Backoff(retries=chosen.get("retries", 0)),
            "max_attempts": chosen.get("max_attempts") or self._max_attempts,
            "queue": chosen.get("queue", "default"),
            "deadline_seconds": seconds(deadline) if deadline is not None else None,
        }
