"""Series for charts: what happened to runs in each minute of the last hour or day.

The counts come from the rows of runs. Nothing is sampled, and nothing is estimated. The cost is bounded: one read looks
at the newest `RUNS_MAX` jobs that were created up to a day before the window, and at as many older jobs that are still
queued. If there are more, `complete` is false, and what depends on the others is null.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import InvalidArguments
from holdfast.machines import RunStatus
from holdfast.store import Store
from holdfast.store.run_queries import WaitCount, Window, WindowCounts

MINUTES = 60
MINUTES_MAX = 24 * 60
BUCKETS_MAX = 240
RUNS_MAX = 50_000  # jobs that one read looks at
EARLIER_SECONDS = 86_400.0  # how long before the window a run may have been created
FAILURES = {RunStatus.FAILED.value, RunStatus.TIMEOUT.value}


class Series(msgspec.Struct, frozen=True, rename={"start": "from"}):
    """What happened to runs, by time. Each list has a value for each bucket, oldest first.

    Attributes:
        start: When the first bucket begins, in UTC epoch seconds. In JSON its name is ``from``.
        now: The store's time. The last bucket is not over yet.
        bucket_seconds: Length of a bucket.
        queue: The queue, or None for all.
        since: The runs that were created before this time, and have started, are not counted.
        complete: Whether all runs created since then were counted. If not, `depth` and `oldest_seconds` are null.
        starts: Runs that started.
        ends: Runs that ended.
        failures: Those of them that failed or passed their deadline.
        depth: Runs that were due and had not started, at the end of the bucket.
        oldest_seconds: How long the first of them had waited then. 0 if no run waited.
    """

    start: float
    now: float
    bucket_seconds: float
    queue: str | None
    since: float
    complete: bool
    starts: list[int]
    ends: list[int]
    failures: list[int]
    depth: list[int | None]
    oldest_seconds: list[float | None]


async def read_series(store: Store, minutes: int, queue: str | None) -> Series:
    """Count the runs of the last minutes.

    Raises:
        InvalidArguments: The number of minutes is out of bounds.
    """
    if not 1 <= minutes <= MINUTES_MAX:
        raise InvalidArguments("minutes", f"must be from 1 to {MINUTES_MAX}, got {minutes}")
    now = await store.now()
    seconds = 60.0 * -(-minutes // BUCKETS_MAX)
    count = -(-minutes * 60 // int(seconds))
    start = (now // seconds) * seconds - (count - 1) * seconds
    since = start - EARLIER_SECONDS
    window = Window(start=start, end=now, seconds=seconds, oldest=_first_id(since), limit=RUNS_MAX, queue=queue)
    return _series(window, await store.window_counts(window), since, count)


def _first_id(at: float) -> str:
    """Return a text that sorts before all ids that were made at this time or later."""
    digits = f"{max(0, int(at * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _series(window: Window, counts: WindowCounts, since: float, count: int) -> Series:
    complete = counts.seen < window.limit
    starts, ends, failures = [0] * count, [0] * count, [0] * count
    for wait in counts.waits:
        if wait.started and wait.left is not None and wait.left < count:
            starts[wait.left] += wait.number
    for (bucket, status), number in counts.ends.items():
        if bucket < count:
            ends[bucket] += number
            failures[bucket] += number if status in FAILURES else 0
    open_waits = [_open_at(counts.waits, bucket) for bucket in range(count)]
    depth: list[int | None] = [sum(wait.number for wait in waits) for waits in open_waits]
    ages: list[float | None] = [_age(waits, min(window.start + (bucket + 1) * window.seconds, window.end))
            for bucket, waits in enumerate(open_waits)]  # fmt: skip
    if counts.since is not None and not complete:
        since = max(since, counts.since)
    return Series(
        start=window.start,
        now=window.end,
        bucket_seconds=window.seconds,
        queue=window.queue,
        since=since,
        complete=complete,
        starts=starts,
        ends=ends,
        failures=failures,
        depth=depth if complete else [None] * count,
        oldest_seconds=ages if complete else [None] * count,
    )


def _open_at(waits: list[WaitCount], bucket: int) -> list[WaitCount]:
    """Return the runs that waited at the end of a bucket."""
    return [wait for wait in waits if wait.due <= bucket and (wait.left is None or wait.left > bucket)]


def _age(waits: list[WaitCount], at: float) -> float:
    return max(0.0, at - min(wait.oldest for wait in waits)) if waits else 0.0
