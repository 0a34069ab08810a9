"""The values that clients send and receive. They are the same in Python, over HTTP and on the command line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from holdfast.errors import InvalidArguments
from holdfast.machines import RunRecord, RunStatus
from holdfast.store.limits import Limits
from holdfast.store.run_queries import Attribute, RunFilter

__all__ = [
    "CREATION_OPTIONS",
    "PAGE",
    "Attribute",
    "Created",
    "Creation",
    "Entry",
    "Explanation",
    "Export",
    "RunFilter",
    "Stats",
    "limits_tag",
    "run_filter",
]

PAGE = 100  # default length of a listing


class Creation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to create a run by name, from another process or language.

    Attributes:
        plugin_id: The app.
        entry_id: The job.
        args: The arguments of the job, by name.
        idempotency_key: The same key with the same arguments returns the same run (R8).
        deadline: Maximum duration of the run, from now, as seconds or text such as "3d". 0 means no limit (R7).
        priority: Higher runs first.
        delay: Time to wait before the run may start.
        queue: The queue. Default: the queue of the job.
        group: The tenant or customer among those that share the queue.
        attributes: Values to find the run by.
        budget: Maximum spending per unit before the run is parked, such as {"tokens": 100000, "usd": 2}.
        plan: A plan for this run, if the entry is open to plans. See the page on plans.
        trace_id: The id of the trace that the run belongs to. Over HTTP, the header `traceparent` sets it.
    """

    plugin_id: str
    entry_id: str
    args: dict[str, Any] = {}
    idempotency_key: str | None = None
    deadline: float | str | None = None
    priority: int = 0
    delay: float | str | None = None
    queue: str | None = None
    group: str | None = None
    attributes: dict[str, Attribute] = {}
    budget: dict[str, float] | None = None
    plan: dict[str, Any] | None = None
    trace_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None


# The fields of a `Creation` that are options of a job, by the name of the option.
CREATION_OPTIONS = {
    {"idempotency_key": "key"}.get(name, name): name
    for name in Creation.__struct_fields__
    if name not in {"plugin_id", "entry_id", "args", "plan", "trace_id"}
}


class Created(msgspec.Struct, frozen=True):
    """A created run, and whether it existed before."""

    record: RunRecord
    existing: bool


def run_filter(where: Mapping[str, Any]) -> RunFilter:
    """Return a filter made from names and values. `status` may be one word or several.

    Raises:
        InvalidArguments: A filter does not exist, or its value has the wrong type.
    """
    names = RunFilter.__struct_fields__
    unknown = sorted(set(where) - set(names))
    if unknown:
        raise InvalidArguments("list", f"unknown filter {', '.join(unknown)}; use {', '.join(names)}")
    status = where.get("status") or ()
    statuses = (status,) if isinstance(status, str) else tuple(status)
    try:
        chosen = msgspec.convert({**where, "status": statuses}, RunFilter)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidArguments("list", str(error)) from error
    wrong = sorted(set(chosen.status) - set(RunStatus))
    if wrong:
        raise InvalidArguments("list", f"unknown status {', '.join(wrong)}; use {', '.join(RunStatus)}")
    return chosen


def limits_tag(limits: Limits) -> str:
    """Return the entity tag of a queue's limits, for If-Match."""
    return f'"{hashlib.sha256(msgspec.json.encode(limits)).hexdigest()[:32]}"'


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """An export: one product of a run (R10).

    Attributes:
        run_id: The run.
        number: Its position among the run's exports, from 1. It is the cursor of a listing.
        name: The name that the job gave it.
        kind: text, json, url or binary.
        media_type: The media type of its bytes.
        size: Number of bytes.
        at: When it was recorded.
        provisional: Whether the run has not succeeded yet. The run may still fail.
        value: The value, if it is small and not binary. Otherwise None: read the content.
    """

    run_id: str
    number: int
    name: str
    kind: str
    media_type: str
    size: int
    at: float
    provisional: bool
    value: Any = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a client can start by name.

    Attributes:
        plugin_id: The app.
        entry_id: The name of the job.
        description: The first line of its docstring.
        queue: The default queue of its runs.
        deadline_seconds: Maximum duration of a run. None means no limit.
        parameters: A JSON Schema of its arguments.
        open: Whether a client that starts it may send its own plan.
    """

    plugin_id: str
    entry_id: str
    description: str
    queue: str
    deadline_seconds: float | None
    parameters: dict[str, Any]
    open: bool = False


class Explanation(msgspec.Struct, frozen=True):
    """An explanation in words: where a run is, which worker holds it, what will wake it, and when."""

    run_id: str
    job: str
    state: str
    explanation: str


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a store.

    Attributes:
        now: The store's time.
        runs: Number of jobs by the status of their newest run.
        queues: Number of jobs in each queue that are queued and due, queued for later, running, and waiting.
        oldest_due_seconds: How long the oldest due job has waited for a worker. None if no job waits.
        workers: Number of live workers.
        asks: Number of runs with a call in doubt, which wait for an operator's answer. Counted up to 1000.
        schedule_lag_seconds: How long the oldest due tick of a schedule has waited for a worker. None if no tick waits.
    """

    now: float
    runs: dict[str, int]
    queues: dict[str, dict[str, int]]
    oldest_due_seconds: float | None
    workers: int
    asks: int = 0
    schedule_lag_seconds: float | None = None
