"""What clients are told and may ask for: the same values in a program, over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidArguments
from holdfast.machines import RunRecord, RunStatus
from holdfast.store.run_queries import Attribute, RunFilter

__all__ = [
    "PAGE",
    "Attribute",
    "Created",
    "Creation",
    "Entry",
    "Explanation",
    "Export",
    "RunFilter",
    "Stats",
    "run_filter",
]

PAGE = 100  # how many a listing gives unless asked for another number


class Creation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run to be created, by name: what a program in another process or language asks for.

    Attributes:
        plugin_id: the app.
        entry_id: its job.
        args: the job's arguments, by name.
        idempotency_key: the same key and arguments give the same run (R8).
        deadline: how long the run may take, from now, as seconds or text such as "3d"; 0 is no limit (R7).
        priority: higher first.
        delay: how long to wait before it may start.
        queue: the queue, if not the job's own.
        group: whose it is among those that share the queue: a tenant, a customer.
        attributes: what it is to be found by.
        budget: what it may spend of each unit before it is parked, as {"tokens": 100000, "usd": 2}.
        plan: a plan of its own, if the entry is open to them; see the page on plans.
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


class Created(msgspec.Struct, frozen=True):
    """The run, and whether it was there before."""

    record: RunRecord
    existing: bool


def run_filter(given: Mapping[str, Any]) -> RunFilter:
    """Make a filter from names and values; `status` may be one word.

    Raises:
        InvalidArguments: a filter that there is not, or of another type.
    """
    names = RunFilter.__struct_fields__
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidArguments("list", f"no filter {', '.join(unknown)}; there are {', '.join(names)}")
    status = given.get("status") or ()
    try:
        made = msgspec.convert({**given, "status": (status,) if isinstance(status, str) else tuple(status)}, RunFilter)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidArguments("list", str(error)) from error
    wrong = sorted(set(made.status) - set(RunStatus))
    if wrong:
        raise InvalidArguments("list", f"no status {', '.join(wrong)}; there are {', '.join(RunStatus)}")
    return made


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a run has produced (R10).

    Attributes:
        run_id: the run.
        number: its place among the run's exports, from 1: the cursor of a listing.
        name: what the job calls it.
        kind: text, json, url or binary.
        media_type: what its bytes are.
        size: how many bytes.
        at: when it was recorded.
        provisional: the run has not ended well yet; what it produced may still be in vain.
        value: the thing itself, if it is small and no bytes; else None: read it as content.
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
    """A job that can be started by name.

    Attributes:
        plugin_id: its app.
        entry_id: its name.
        description: the first line of its docstring.
        queue: where its runs go unless told otherwise.
        deadline_seconds: how long a run may take; None is no limit.
        parameters: a JSON Schema of its arguments.
        open: whether whoever may start it may give its runs a plan of their own.
    """

    plugin_id: str
    entry_id: str
    description: str
    queue: str
    deadline_seconds: float | None
    parameters: dict[str, Any]
    open: bool = False


class Explanation(msgspec.Struct, frozen=True):
    """Where a run is, who holds it, what will wake it and when, in plain words."""

    run_id: str
    job: str
    state: str
    explanation: str


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The store in numbers.

    Attributes:
        now: the store's time.
        runs: how many jobs' newest runs have each status.
        queues: by queue, how many jobs are queued and due, queued for later, running, and waiting.
        oldest_due_seconds: for how long the job that waits longest for a worker has been due; None if none does.
        workers: how many workers were heard of lately.
    """

    now: float
    runs: dict[str, int]
    queues: dict[str, dict[str, int]]
    oldest_due_seconds: float | None
    workers: int
