"""Operations on all runs that match a filter: cancel, retry, signal and purge, a page at a time.

One call acts on at most `limit` runs, so its work is bounded. Its result has the cursor of the next page. A dry run
lists the runs and changes nothing. A run that refuses the operation is reported and stops no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.views import RunFilter
from holdfast.errors import HoldfastError, InvalidArguments, StoreUnavailable, code_of
from holdfast.machines import TERMINAL_RUN_STATUSES, RunStatus

if TYPE_CHECKING:
    from holdfast.client.interface import Client

BULK_MAX = 1000  # runs per call
NO_FILTER = "name at least one filter, such as status or entry_id"
AT_ONCE = 100  # operations that share group commits

CANCEL_STATUSES = tuple(str(status) for status in RunStatus if status not in TERMINAL_RUN_STATUSES)
RETRY_STATUSES = (str(RunStatus.FAILED), str(RunStatus.TIMEOUT))
PURGE_STATUSES = tuple(str(status) for status in RunStatus if status in TERMINAL_RUN_STATUSES)

ActOnRuns = Callable[[list[str]], Awaitable[list[Any]]]  # the outcome or the error of each run, in order


def one_by_one(act: Callable[[str], Awaitable[Any]]) -> ActOnRuns:
    """Return an operation on several runs, whose commands share group commits."""

    async def act_on_runs(run_ids: list[str]) -> list[Any]:
        return await asyncio.gather(*map(act, run_ids), return_exceptions=True)

    return act_on_runs


class Refused(msgspec.Struct, frozen=True):
    """A run that refused the operation, with the code of the error and its text."""

    run_id: str
    code: str
    detail: str


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one page of an operation on many runs.

    Attributes:
        run_ids: The runs that the operation was applied to; in a dry run, those that it would be applied to.
        refused: The runs that refused it.
        dry_run: Whether nothing was changed.
        next: Where the next page begins. None means that no more runs match.
    """

    run_ids: list[str]
    refused: list[Refused] = []
    dry_run: bool = False
    next: str | None = None


async def apply_to_runs(
    client: Client,
    where: RunFilter,
    allowed: tuple[str, ...],
    act: ActOnRuns,
    *,
    limit: int,
    before: str | None,
    dry_run: bool,
    remember: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None,
) -> BulkResult:
    """Apply an operation to one page of runs.

    Args:
        client: The client of the runs.
        where: The filter. At least one field must be set: an empty filter means a mistake more often than "all".
        allowed: The statuses that the operation applies to. A filter without a status means all of them.
        act: The operation on runs with these ids.
        limit: Maximum number of runs.
        before: The `next` of the previous page.
        dry_run: List the runs, and change nothing.
        remember: Returns the page that a repeated request was given first.

    Raises:
        InvalidArguments: The filter is empty, names another status, or the limit is out of range.
        StoreUnavailable: The store does not answer. Runs before the failure stay changed, and a repeat is harmless.
    """
    if msgspec.structs.replace(where, newest=False, oldest_first=False) == RunFilter():  # these two select no runs
        raise InvalidArguments("filter", NO_FILTER)
    wrong = sorted(set(where.status) - set(allowed))
    if wrong:
        raise InvalidArguments("status", f"runs that are {', '.join(wrong)} cannot match; use {', '.join(allowed)}")
    if not 1 <= limit <= BULK_MAX:
        raise InvalidArguments("limit", f"must be from 1 to {BULK_MAX}, got {limit}")
    matching = msgspec.structs.replace(where, status=where.status or allowed, newest=True)
    records = await client.apage(matching, limit + 1, before)
    page = records[:limit]
    run_ids = [record.run_id for record in page]
    following = page[-1].run_id if len(records) > limit else None
    if dry_run:
        return BulkResult(run_ids=run_ids, dry_run=True, next=following)
    if remember is not None:
        chosen = await remember({"run_ids": run_ids, "next": following})
        run_ids, following = chosen["run_ids"], chosen["next"]
    done: list[str] = []
    refused: list[Refused] = []
    for first in range(0, len(run_ids), AT_ONCE):
        group = run_ids[first : first + AT_ONCE]
        for run_id, outcome in zip(group, await act(group), strict=True):
            if isinstance(outcome, HoldfastError) and not isinstance(outcome, StoreUnavailable):
                refused.append(Refused(run_id, code_of(type(outcome)), str(outcome)))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                done.append(run_id)
    return BulkResult(run_ids=done, refused=refused, next=following)
