"""What the build of a worker costs at a claim: one more place of an index per job, queue and build.

A worker without a build looks only at jobs that are kept for none. One with a build also looks at those that are kept
for it. Each case claims from the same store in turns, so that other work on the machine counts for both. A figure is
the time that a tenth of the claims stay below, in microseconds, with the transaction and its events: other work on the
machine only adds to it.

`python bench/build_claims.py [--postgres]`
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time

from holdfast.client.store_url import open_store
from holdfast.ids import new_id
from holdfast.store import Append, Claim, Job, Store, Submit
from postgres_server import measured

ENTRIES = 20  # jobs that the worker can run
OTHERS = 2000  # jobs that are kept for another build
CLAIMS = 300  # of each kind
AT_ONCE = (1, 20)
BUILDS = {"no build": None, "a build": "2"}


def claim(limit: int, build: str | None, pins: frozenset[tuple[str, str]] = frozenset()) -> Claim:
    """Return a claim of a worker that can run all jobs."""
    entries = frozenset(("shop", f"job{number}") for number in range(ENTRIES))
    return Claim(worker="w", entries=entries, queues=None, limit=limit, lease_seconds=600, build=build, pins=pins)


async def fill(store: Store, queues: int, count: int) -> None:
    """Create jobs in several queues, spread over the entries."""
    for first in range(0, count, 500):
        places = [(one % ENTRIES, one // ENTRIES % queues) for one in range(first, min(count, first + 500))]
        await store.commit([
            Submit(job=new_id(), plugin="shop", entry=f"job{entry}", queue=f"q{queue}", args={})
            for entry, queue in places
        ])  # fmt: skip


async def keep_others(store: Store, queues: int) -> None:
    """Leave queued jobs, older than all others, that only workers of another build may claim."""
    await fill(store, queues, OTHERS)
    held: list[Job] = []
    while len(held) < OTHERS:
        [claims] = await store.commit([claim(500, "1", claim(1, None).entries)])
        held += [claimed.job for claimed in claims.claimed]
    for first in range(0, OTHERS, 500):
        given_back = ("job_requeued", {"reason": "shutdown"})
        await store.commit([Append(job.id, job.attempt, (given_back,)) for job in held[first : first + 500]])


async def claimed(store: Store, limit: int) -> dict[str, list[float]]:
    """Claim in turns with and without a build, and end what was claimed."""
    times: dict[str, list[float]] = {name: [] for name in BUILDS}
    for number in range(CLAIMS):
        order = list(BUILDS.items())
        for name, build in order if number % 2 else reversed(order):
            began = time.perf_counter()
            [claims] = await store.commit([claim(limit, build)])
            times[name].append((time.perf_counter() - began) * 1e6)
            assert len(claims.claimed) == limit
            done = ("job_completed", {"result": None})
            await store.commit([Append(one.job.id, one.job.attempt, (done,)) for one in claims.claimed])
    return times


async def report(url: str) -> None:
    """Measure each case in a store of its own, and print a line for it."""
    for queues in (1, 20):
        for limit in AT_ONCE:
            store = open_store(url.format(f"q{queues}_{limit}"))
            try:
                await keep_others(store, queues)
                await fill(store, queues, 2 * CLAIMS * limit + 200)
                times = await claimed(store, limit)
            finally:
                await store.close()
            without, with_build = (statistics.quantiles(times[name], n=10)[0] for name in BUILDS)
            print(
                f"{queues:>2} queues, {limit:>2} at once: {without:7.0f} µs without a build,"
                f" {with_build:7.0f} µs with one ({with_build / without - 1:+.1%})"
            )


if __name__ == "__main__":
    if "--postgres" in sys.argv:
        with measured() as server:
            asyncio.run(report(f"{server.url}?schema={{}}"))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(report(f"sqlite:///{folder}/{{}}.db"))
