"""Forgets what has ended long ago: jobs whole, oldest first, a batch in a transaction, until nothing is left to take.

Jobs go first, then their files in an external effect store: a crash between the two leaves files that nobody asks for,
and never a job without its effects. What can go wrong: the store is away, or this role may not delete:
`StoreUnavailable`; the batches before are gone, and the next call goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.durations import Duration, seconds
from holdfast.errors import InvalidArguments
from holdfast.machines import JobState
from holdfast.store import Purge, Store
from holdfast.store.effects import EffectStore

__all__ = ["ENDED", "purge"]

BATCH = 1000  # jobs in one transaction
_STATES = {"succeeded": JobState.COMPLETED, "failed": JobState.FAILED, "canceled": JobState.CANCELLED}
ENDED = tuple(_STATES)  # how a run may have ended; a timeout is a failure here


async def purge(
    store: Store, effects: EffectStore | None, older_than: Duration, statuses: Iterable[str], limit: int | None
) -> int:
    """Remove jobs that ended so long ago; how many.

    Args:
        store: where they are.
        effects: where their effects are, if outside.
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
        for job in swept.jobs if effects is not None else ():
            await effects.remove(job)  # type: ignore[union-attr]  # - looked at above
        removed += len(swept.jobs)
        if not swept.jobs:
            break
    return removed
