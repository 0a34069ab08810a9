"""Handlers for many runs at once: create a batch, and cancel, retry, signal or purge all runs that match a filter.

A request on a filter acts on one page of runs. So its work is bounded, and the client follows `next`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Annotated, Any

import msgspec

from holdfast.client.bulk import (
    BULK_MAX,
    CANCEL_STATUSES,
    NO_FILTER,
    PURGE_STATUSES,
    RETRY_STATUSES,
    ActOnRuns,
    BulkResult,
    apply_to_runs,
    one_by_one,
)
from holdfast.client.views import Created, Creation, RunFilter
from holdfast.errors import HoldfastError, IdempotencyConflict, InvalidArguments, StoreUnavailable
from holdfast.http.handlers.operations import LongText, Name, Text
from holdfast.http.handlers.reads import RUN_FILTERS, cursor_of, filter_of
from holdfast.http.problems import ProblemBody, problem_of
from holdfast.http.request import Call
from holdfast.http.response import Answer, json
from holdfast.machines import RunRecord

BATCH_MAX = 500  # runs of one batch, at a tenth of a millisecond of CPU each
CHANGED_MAX = 50  # runs that one request changes, at one to two milliseconds of CPU each
SIGNAL_BYTES_MAX = 8 * 1024 * 1024  # payloads of one request, all runs together
_MOST = f"Maximum number of runs of one request, by default {BULK_MAX:,} of a dry run and {CHANGED_MAX} of others."
BULK_FILTERS = tuple(
    msgspec.structs.replace(query, description=_MOST) if query.name == "limit" else query
    for query in RUN_FILTERS
    if query.name not in {"before", "newest", "order"}
)


class NewRuns(msgspec.Struct, forbid_unknown_fields=True):
    """A batch of runs to create."""

    runs: Annotated[list[Creation], msgspec.Meta(min_length=1, max_length=BATCH_MAX)]


class BatchItem(msgspec.Struct, omit_defaults=True):
    """The outcome of one run of a batch: the status, and the run or the problem.

    The status is 201 for a new run, 200 for a run that had the same key before, and the status of the problem else.
    """

    status: int
    run: RunRecord | None = None
    problem: ProblemBody | None = None


class BatchAnswer(msgspec.Struct):
    """The outcomes of a batch, in the order of the request."""

    items: list[BatchItem]


class CancelRuns(msgspec.Struct, forbid_unknown_fields=True):
    """The reason and the actor of the cancellations. With `dry_run` the server lists the runs and changes nothing."""

    reason: LongText | None = None
    actor: Name | None = None
    dry_run: bool = False


class RetryRuns(msgspec.Struct, forbid_unknown_fields=True):
    """The reason and the actor of the retries. With `dry_run` the server lists the runs and changes nothing."""

    reason: LongText
    actor: Name | None = None
    dry_run: bool = False


class SignalRuns(msgspec.Struct, forbid_unknown_fields=True):
    """A signal to many runs. Each run receives signals with the same id once."""

    key: Text
    payload: Any = None
    id: Name | None = None
    dry_run: bool = False


class PurgeRuns(msgspec.Struct, forbid_unknown_fields=True):
    """The actor of the removals. With `dry_run` the server lists the runs and changes nothing."""

    actor: Name | None = None
    dry_run: bool = False


async def create_runs(call: Call) -> Answer:
    """Create a batch of runs. All are checked before the first is created."""
    batch = await call.body(NewRuns)
    bound = call.principal.group is not None
    creations = [
        msgspec.structs.replace(creation, group=call.group(creation.group)) if bound else creation
        for creation in batch.runs
    ]
    if call.idempotency_key is not None:
        creations = [
            creation if creation.idempotency_key is not None else _with_key(creation, f"{call.idempotency_key}#{place}")
            for place, creation in enumerate(creations)
        ]
    outcomes = await call.client.acreate_many(creations)
    items = [await _item(call, creation, outcome) for creation, outcome in zip(creations, outcomes, strict=True)]
    return json(BatchAnswer(items))


def _with_key(creation: Creation, key: str) -> Creation:
    return msgspec.structs.replace(creation, idempotency_key=key)


async def _item(call: Call, creation: Creation, outcome: Created | HoldfastError) -> BatchItem:
    if isinstance(outcome, Created):
        hidden = call.principal.group is not None and outcome.existing and not await call.owns(outcome.record.run_id)
        if not hidden:
            return BatchItem(200 if outcome.existing else 201, run=outcome.record)
        outcome = IdempotencyConflict(creation.idempotency_key or "", "")
    problem = problem_of(outcome)
    if problem is None or isinstance(outcome, StoreUnavailable):
        raise outcome
    return BatchItem(problem.status, problem=problem.body())


async def cancel_runs(call: Call) -> Answer:
    """Cancel the runs that match a filter."""
    asked = await call.body(CancelRuns, CancelRuns())
    actor = call.actor(asked.actor)

    def cancel(run_id: str) -> Awaitable[RunRecord]:
        return call.client.acancel(run_id, asked.reason, actor=actor)

    return await _apply(call, CANCEL_STATUSES, one_by_one(cancel), dry_run=asked.dry_run)


async def retry_runs(call: Call) -> Answer:
    """Retry the failed runs that match a filter."""
    asked = await call.body(RetryRuns)
    actor = call.actor(asked.actor)

    def retry(run_id: str) -> Awaitable[RunRecord]:
        return call.client.aretry(run_id, actor=actor, reason=asked.reason)

    return await _apply(call, RETRY_STATUSES, one_by_one(retry), dry_run=asked.dry_run)


async def signal_runs(call: Call) -> Answer:
    """Send a signal to the runs that match a filter."""
    asked = await call.body(SignalRuns)

    def signal(run_id: str) -> Awaitable[str]:
        return call.client.asignal(run_id, asked.key, asked.payload, asked.id)

    most = max(1, SIGNAL_BYTES_MAX // len(msgspec.json.encode(asked.payload)))
    return await _apply(call, CANCEL_STATUSES, one_by_one(signal), dry_run=asked.dry_run, most=most)


async def purge_runs(call: Call) -> Answer:
    """Remove the ended runs that match a filter."""
    asked = await call.body(PurgeRuns, PurgeRuns())
    remove = partial(call.service.client.remove_runs, actor=call.actor(asked.actor))
    return await _apply(call, PURGE_STATUSES, remove, dry_run=asked.dry_run)


async def _remember(call: Call, page: dict[str, Any]) -> dict[str, Any]:
    """Return the page of runs that the first request with the same key was about."""
    if call.idempotency_key is None:
        return page
    chosen = await call.service.client.keep_answer(page)
    call.expect_many()
    return chosen


async def _apply(
    call: Call, allowed: tuple[str, ...], act: ActOnRuns, *, dry_run: bool, most: int = CHANGED_MAX
) -> Answer:
    where, limit, before = filter_of(call, BULK_FILTERS, BULK_MAX)
    if not dry_run:
        limit = min(limit, most, CHANGED_MAX)
    if "group" not in call.query(BULK_FILTERS) and msgspec.structs.replace(where, group=None) == RunFilter():
        raise InvalidArguments("filter", NO_FILTER)  # the group of the token is no choice of the client
    result: BulkResult = await apply_to_runs(
        call.client, where, allowed, act, limit=limit, before=before, dry_run=dry_run, remember=partial(_remember, call)
    )
    following = cursor_of(result.next) if result.next is not None else None
    return json(msgspec.structs.replace(result, next=following))
