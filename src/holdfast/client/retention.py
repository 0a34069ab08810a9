"""Forgets what has ended long ago: jobs whole, oldest first, a batch in a transaction, until nothing is left to take.

Jobs go first, then their files in an external effect store: a crash between the two leaves files that nobody asks for,
and never a job without its effects. What can go wrong: the store is away, or this role may not delete:
`StoreUnavailable`; the batches before are gone, and the next call goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.durations import Duration, seconds
from holdfast.errors import InvalidArguments
from holdfast.machines import TERMINAL_RUN_STATUSES, JobState
from holdfast.store import Purge, Store
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.effects import EffectStore

__all__ = ["ENDED", "evict", "purge"]

BATCH = 1000  # jobs in one transaction
_STATES = {"succeeded": JobState.COMPLETED, "failed": JobState.FAILED, "canceled": JobState.CANCELLED}
ENDED = tuple(_STATES)  # how a run may have ended; a timeout is a failure here


Outside = Sequence[EffectStore | DirectoryBlobs]  # where else something of a job is kept: effects, blobs


async def purge(
    store: Store, outside: Outside, older_than: Duration, statuses: Iterable[str], limit: int | None = None
) -> int:
    """Remove jobs that ended so long ago; how many.

    Args:
        store: where they are.
        outside: where else something of them is.
        older_than: how long ago they must have ended, by the store's clock.
        statuses: how they must have ended.
        limit: how many at most; None is all.

    Raises:
        InvalidArguments: no duration, or no status of a run that has ended.
    """
    wanted = set(statuses)
    if not wanted or wanted - set(_STATES):
        raise InvalidArguments("statuses", f"it is one or more of {', '.join(_STATES)}, got {sorted(wanted)}")
    try:
        before = await store.now() - seconds(older_than)
    except (TypeError, ValueError) as error:
        raise InvalidArguments("older_than", str(error)) from error
    states = frozenset(_STATES[status] for status in wanted)
    removed = 0
    while limit is None or removed < limit:
        size = BATCH if limit is None else min(BATCH, limit - removed)
        (swept,) = await store.commit([Purge(before, size, states)])
        for place in outside:
            for job in swept.jobs:
                await place.remove(job)
        removed += len(swept.jobs)
        if not swept.jobs:
            break
    return removed


async def evict(store: Store, outside: Outside, keep_seconds: float, keep_runs: int) -> int:
    """Remove what the policy does not keep (R10): what ended too long ago, then the oldest beyond the number; how many.

    A number or a time of 0 keeps everything.
    """
    removed = await purge(store, outside, keep_seconds, ENDED) if keep_seconds else 0
    if keep_runs:
        runs = (await store.counts()).runs
        excess = sum(count for status, count in runs.items() if status in TERMINAL_RUN_STATUSES) - keep_runs
        if excess > 0:
            removed += await purge(store, outside, 0, ENDED, excess)
    return removed
