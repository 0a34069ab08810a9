"""The part of an app that declares plans and planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, cast, overload

from holdfast.authoring.decorators import Registry
from holdfast.authoring.functions import Backoff, JobFunction, Starter, check_options
from holdfast.authoring.secrets import Codec
from holdfast.durations import Duration, seconds
from holdfast.plans.builder import Draft
from holdfast.plans.checker import Names
from holdfast.plans.model import LIMIT, Plan, plan_of
from holdfast.plans.plan_job import PlanJob, planner

if TYPE_CHECKING:
    from holdfast.ready import Gate

P = ParamSpec("P")


class Planning(Registry):
    """The plans of one app."""

    def __init__(self, name: str, max_attempts: int, codec: Codec | None = None) -> None:
        super().__init__(name, max_attempts, codec)
        self._gates: dict[str, Gate] = {}

    def shared_gates(self) -> list[Gate]:
        """Return the gates of steps, tools and plan nodes, each once."""
        return list({id(gate): gate for gate in [*super().shared_gates(), *self._gates.values()]}.values())

    def names(self) -> Names:
        """Return the steps, tools, jobs and gates that plans of this app may name."""
        jobs = {f"{plugin}.{name}": job for (plugin, name), job in self.entries.items() if plugin != self.name}
        jobs |= {name: job for (plugin, name), job in self.entries.items() if plugin == self.name}
        return Names(self.calls_by_name(), jobs, self._gates)

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
        """Declare a job that follows a plan.

        Write the nodes with the methods of the result, or pass a complete plan.

        Args:
            name: The name of the job.
            plan: A complete plan: a `Plan`, a draft, a dict, or the path of a YAML or JSON file.
            input: Default values of inputs.
            limit: Maximum number of concurrent calls.
            policy: After a failure, ``finish`` the nodes that do not depend on it, or ``fail_fast``.
            gates: Gates by the names that nodes use.
            open: Allow every client that may start the job over HTTP to send its own plan for a run. Such a client can
                call every step, tool and job of the app with any arguments.
            entry: Options as for ``@app.job``: `retries`, `backoff`, `queue`, `deadline`, `max_attempts`.
        """
        whole = Plan.read(plan) if isinstance(plan, (str, Path)) else plan_of(plan) if plan is not None else None
        self._gates.update(gates or {})
        draft = {"input": input, "limit": limit, "policy": policy}
        job = PlanJob(draft, whole, self.names, name=name, plugin=self.name, **self._as_entry(entry))
        job.open = open
        return self.declared(job)

    @overload
    def planner(self, function: Callable[P, Any], /) -> JobFunction[P, Any]: ...
    @overload
    def planner(
        self, *, name: str | None = None, gates: Mapping[str, Gate] | None = None, **entry: Any
    ) -> Callable[[Callable[P, Any]], JobFunction[P, Any]]: ...

    def planner(
        self, function: Any = None, *, name: str | None = None, gates: Mapping[str, Gate] | None = None, **entry: Any
    ) -> Any:
        """Declare a planner: a function that returns a `Plan`. The engine records the plan once and then runs it.

        A planner may call steps and tools. Its arguments are also the inputs of the plan.

        Args:
            function: The planner, if the decorator is used without parentheses.
            name: The name of the job. Default: the name of the function.
            gates: Gates by the names that nodes use.
            entry: Options as for ``@app.job``: `retries`, `backoff`, `queue`, `deadline`, `max_attempts`.
        """
        self._gates.update(gates or {})
        if function is None:
            return partial(self._planner, name=name, **entry)
        return self._planner(function, name=name, **entry)

    def _planner(self, function: Callable[..., Any], *, name: str | None, **entry: Any) -> JobFunction[..., Any]:
        job_name = name or function.__name__
        job: JobFunction[..., Any] = JobFunction(
            planner(function, job_name, self.names), name=job_name, plugin=self.name, **self._as_entry(entry)
        )
        return self.declared(job)

    def _as_entry(self, options: Mapping[str, Any]) -> dict[str, Any]:
        check_options(options, {"retries", "backoff", "queue", "deadline", "max_attempts"})
        deadline: Duration | None = options.get("deadline")
        return {
            "starter": cast(Starter[Any], self),
            "backoff": options.get("backoff") or Backoff(retries=options.get("retries", 0)),
            "max_attempts": options.get("max_attempts") or self._max_attempts,
            "queue": options.get("queue", "default"),
            "deadline_seconds": seconds(deadline) if deadline is not None else None,
        }
