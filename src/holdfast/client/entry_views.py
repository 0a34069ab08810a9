"""The jobs of an app as clients see and start them: names, a JSON Schema of the arguments, options."""

from __future__ import annotations

from typing import Any

from holdfast.authoring.functions import JobFunction
from holdfast.client.views import CREATION_OPTIONS, Creation, Entry
from holdfast.errors import InvalidArguments
from holdfast.plans.model import Plan
from holdfast.plans.plan_job import PlanJob

_NO_OPTIONS = Creation(plugin_id="", entry_id="")
CLOSED = "its runs follow the plan of the app, and no other: an entry declared with open=True takes others"


def describe_entry(job: JobFunction[..., Any]) -> Entry:
    """Return the description of a job that clients see."""
    lines = (job.__doc__ or "").strip().splitlines()
    return Entry(
        plugin_id=job.plugin,
        entry_id=job.name,
        description=lines[0] if lines else "",
        queue=job.queue,
        deadline_seconds=job.deadline_seconds or None,
        parameters=job.signature.schema(),
        open=isinstance(job, PlanJob) and job.open,
    )


def with_plan(job: JobFunction[..., Any], plan: dict[str, Any]) -> JobFunction[..., Any]:
    """Return the job with the caller's plan, if the entry is open to plans.

    Raises:
        InvalidArguments: The entry is not open.
        InvalidPlan: The plan has problems. The error lists all of them.
    """
    if not isinstance(job, PlanJob) or not job.open:
        raise InvalidArguments(f"{job.plugin}.{job.name}", CLOSED)
    plan_job = job.given(Plan.from_dict(plan))
    plan_job.recorded_plan()
    return plan_job


def apply_options(function: JobFunction[..., Any], creation: Creation) -> JobFunction[..., Any]:
    """Return the job with the options of a creation."""
    options = {
        option: value
        for option, field in CREATION_OPTIONS.items()
        if (value := getattr(creation, field)) != getattr(_NO_OPTIONS, field)
    }
    try:
        return function.options(**options) if options else function
    except ValueError as error:  # an invalid duration
        raise InvalidArguments(function.name, str(error)) from error
