"""Handler for forks: a fork is a new run that reuses results of another run.

A client may pass a plan only if the entry is open to plans.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from holdfast.client.entry_views import CLOSED
from holdfast.errors import InvalidArguments
from holdfast.http.request import Call
from holdfast.http.response import Answer, json
from holdfast.plans.model import Plan

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class Fork(msgspec.Struct, forbid_unknown_fields=True):
    """Where a fork starts.

    Attributes:
        from_node: a node of the plan; the new run repeats it and all nodes that depend on it.
        from_step: for a run without a plan, the step or tool of its code to start from.
        plan: another plan for the new run; it reuses the results of nodes that are the same in both.
        idempotency_key: a request with the same key and the same fields returns the same new run.
    """

    from_node: _Name | None = None
    from_step: _Name | None = None
    plan: dict[str, Any] | None = None
    idempotency_key: str | None = None


async def fork_run(call: Call) -> Answer:
    """Start a new run that reuses results of another run."""
    asked = await call.body(Fork)
    plan = None
    if asked.plan is not None:
        await _check_open(call)
        plan = Plan.from_dict(asked.plan)
    made = await call.client.afork(
        call.run_id,
        from_node=asked.from_node,
        from_step=asked.from_step,
        plan=plan,
        key=asked.idempotency_key or call.idempotency_key,
    )
    record = await call.client.aget(made.id)
    return json(record, 201, [(b"location", call.place(record.run_id))])


async def _check_open(call: Call) -> None:
    """Refuse a plan for an entry whose app does not accept plans from clients."""
    record = await call.client.aget(call.run_id)
    name = record.plugin_id, record.entry_id
    if not any(one.open for one in await call.client.aentries() if (one.plugin_id, one.entry_id) == name):
        raise InvalidArguments(".".join(name), CLOSED)
