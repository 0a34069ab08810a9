"""The jobs of an app as others see them and start them: names, a JSON Schema of the arguments, options."""

from __future__ import annotations

from typing import Any

from holdfast.authoring.functions import JobFunction
from holdfast.client.views import Creation, Entry
from holdfast.errors import InvalidArguments
from holdfast.plans.model import Plan
from holdfast.plans.plan_job import PlanJob

__all__ = ["CLOSED", "chosen", "described", "following"]

CLOSED = "its runs follow the plan of the app, and no other: an entry declared with open=True takes others"


def described(job: JobFunction[..., Any]) -> Entry:
    """Describe a job."""
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


def following(job: JobFunction[..., Any], plan: dict[str, Any]) -> JobFunction[..., Any]:
    """Give the job with a plan of the asker's own, if its app lets others give it one.

    Raises:
        InvalidArguments: it does not.
        InvalidPlan: what is wrong with the plan, all of it.
    """
    if not isinstance(job, PlanJob) or not job.open:
        raise InvalidArguments(f"{job.plugin}.{job.name}", CLOSED)
    made = job.given(Plan.from_dict(plan))
    made.recorded_plan()
    return made


def chosen(function: JobFunction[..., Any], creation: Creation) -> JobFunction[..., Any]:
    """Give the job with the options that a creation asks for; the everyday one asks for none."""
    if creation == Creation(plugin_id=creation.plugin_id, entry_id=creation.entry_id, args=creation.args):
        return function
    wanted = {
        "key": creation.idempotency_key,
        "priority": creation.priority or None,
        "queue": creation.queue,
        "deadline": creation.deadline,
        "delay": creation.delay,
        "attributes": creation.attributes or None,
        "group": creation.group,
        "budget": creation.budget,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    try:
        return function.options(**given) if given else function
    except ValueError as error:  # a duration that is none
        raise InvalidArguments(function.name, str(error)) from error
