"""Retention: remove whole jobs that ended long ago, oldest first, one batch per transaction.

A batch removes the jobs first, then their files in an external effect store. A crash between the two leaves unused
files, and never a job without its effects. What can fail: `StoreUnavailable`, if the store does not answer or the
database role may not delete. Earlier batches stay removed, and the next call continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.durations import Duration, seconds
from holdfast.errors import InvalidArguments
from holdfast.machines import TERMINAL_RUN_STATUSES, JobState
from holdfast.store import Command, Purge, Store
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.commands import PurgeAudit
from holdfast.store.effects import EffectStore
from holdfast.store.request_keys import Repeat

BATCH = 1000  # jobs in one transaction
_STATES = {"succeeded": JobState.COMPLETED, "failed": JobState.FAILED, "canceled": JobState.CANCELLED}
ENDED = tuple(_STATES)  # the final statuses of runs; a timeout counts as failed


Outside = Sequence[EffectStore | DirectoryBlobs]  # places outside the store that hold data of jobs


async def purge(
    store: Store,
    outside: Outside,
    older_than: Duration,
    statuses: Iterable[str],
    limit: int | None = None,
    *,
    wrap: Callable[[Purge], Command] = lambda command: command,
) -> int:
    """Remove ended jobs and return their number.

    Args:
        store: The store of the jobs.
        outside: Other places that hold data of the jobs.
        older_than: Minimum time since the end of a job, by the store's clock.
        statuses: The final statuses to remove.
        limit: Maximum number of jobs. None means no maximum.
        wrap: Returns the command to execute, such as one with an entry for the audit log.

    Raises:
        InvalidArguments: `older_than` is not a duration, or a status is not final.
    """
    states = states_of(statuses)
    before = await store.now() - age_of(older_than)
    removed = 0
    while limit is None or removed < limit:
        size = BATCH if limit is None else min(BATCH, limit - removed)
        batch = await remove_jobs(store, outside, wrap(Purge(before, size, states)))
        removed += len(batch)
        if not batch:
            break
    return removed


def states_of(statuses: Iterable[str]) -> frozenset[JobState]:
    """Return the final states of jobs whose runs end with these statuses.

    Raises:
        InvalidArguments: There is none, or one is not final.
    """
    wanted = set(statuses)
    if not wanted or wanted - set(_STATES):
        raise InvalidArguments("statuses", f"it must be one or more of {', '.join(_STATES)}, got {sorted(wanted)}")
    return frozenset(_STATES[status] for status in wanted)


def age_of(older_than: Duration) -> float:
    """Return the age of a purge in seconds.

    Raises:
        InvalidArguments: It is not a duration.
    """
    try:
        return seconds(older_than)
    except (TypeError, ValueError) as error:
        raise InvalidArguments("older_than", str(error)) from error


async def remove_jobs(store: Store, outside: Outside, command: Command) -> list[str]:
    """Execute a purge, remove the files of its jobs, and return the jobs."""
    (swept,) = await store.commit([command])
    if isinstance(swept, Exception):
        raise swept
    answer = swept.answer if isinstance(swept, Repeat) else swept
    removed: list[str] = answer["jobs"] if isinstance(answer, dict) else answer.jobs
    for place in outside:
        for job in removed:
            await place.remove(job)  # of a repeat too: the first one may have been cut off before this
    return removed


async def evict_audit(store: Store, keep_seconds: float) -> int:
    """Remove the rows of the audit log that are older than this, and return their number. 0 keeps all."""
    if not keep_seconds:
        return 0
    before = await store.now() - keep_seconds
    removed: int = 0
    while True:
        (batch,) = await store.commit([PurgeAudit(before, BATCH)])
        removed += batch
        if batch < BATCH:
            return removed


async def evict(store: Store, outside: Outside, keep_seconds: float, keep_runs: int) -> int:
    """Remove the jobs that the retention policy does not keep, and return their number (R10).

    First remove jobs that ended more than `keep_seconds` ago, then the oldest ones beyond `keep_runs`. A value of 0
    keeps everything.
    """
    removed = await purge(store, outside, keep_seconds, ENDED) if keep_seconds else 0
    if keep_runs:
        runs = (await store.counts()).runs
        excess = sum(count for status, count in runs.items() if status in TERMINAL_RUN_STATUSES) - keep_runs
        if excess > 0:
            removed += await purge(store, outside, 0, ENDED, excess)
    return removed
