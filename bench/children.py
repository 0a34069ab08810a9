"""What one child of a fan-out costs on each store, by the number of children; and how much that grows.

The parent is `await gather(*[child(n) for n in range(count)])`, run by one worker from an empty store. The time is that
from the start of the parent to its end; CPU is that of the worker and of the database server. PostgreSQL commits to
disk. The time for a child must not grow with the number of its siblings, and must be short where there are many. The
parent must run a few times only: each of its attempts replays its whole stream. Each figure is the best of three runs,
because other programs of the machine only add to it.

    python bench/children.py [--store postgres] [--children 100 1000 10000] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast import App, Config, gather
from holdfast.gc_settings import tune_gc
from holdfast.machines import JobEvent
from postgres_server import measured

STORES = ("memory", "sqlite", "postgres")
CHILDREN = (100, 1_000, 10_000)
TRIES = 3
GROWTH_MAX = 1.2  # of the time for a child, from the fewest children to the most
MILLISECONDS_MAX = {"sqlite": 0.5, "postgres": 1.0}  # for a child of many
MANY = 10_000
ATTEMPTS_MAX = 15


def app_at(url: str) -> App:
    """An app with a parent and its child."""
    app = App("bench", config=Config(url=url, idle_seconds=2.0))

    @app.job
    async def child(n: int) -> int:
        return n

    @app.job
    async def parent(count: int) -> int:
        return len(await gather(*[child(n) for n in range(count)]))

    return app


class Cost(NamedTuple):
    """What one fan-out took, the attempts of the parent and the events in its stream."""

    seconds: float
    cpu_seconds: float
    attempts: int
    events: int


async def fan_out(url: str, count: int, cpu_seconds: Callable[[], float]) -> Cost:
    """Run one fan-out."""
    app = app_at(url)
    worker = asyncio.create_task(app.worker().arun())
    try:
        begun, used = time.perf_counter(), cpu_seconds()
        handle = await app.entries["bench", "parent"].astart(count)
        if await handle.aresult(timeout=1800) != count:
            raise RuntimeError("a result is missing")
        took, used = time.perf_counter() - begun, cpu_seconds() - used
        stream = await app.store().events(handle.id)
    finally:
        worker.cancel()
        await asyncio.wait([worker])
        await app.aclose()
    return Cost(took, used, sum(event.type == JobEvent.RUNNING for event in stream), len(stream))


def fanned_out(store: str, count: int) -> Cost:
    """Run one fan-out on an empty store."""
    if store == "postgres":
        with measured() as server:
            return asyncio.run(fan_out(server.url, count, lambda: time.process_time() + server.cpu_seconds()))
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}" if store == "sqlite" else "memory:"
        return asyncio.run(fan_out(url, count, time.process_time))


def measure(store: str, children: list[int]) -> list[str]:
    """Print the costs on one store; what is out of bounds."""
    wrong, times = [], {}
    for count in children:
        cost = min((fanned_out(store, count) for _ in range(TRIES)), key=lambda cost: cost.seconds)
        times[count], cpu = 1000 * cost.seconds / count, 1000 * cost.cpu_seconds / count
        took = f"{cost.seconds:7.2f} s, {times[count]:5.2f} ms a child, CPU {cpu:5.2f} ms"
        print(f"{store:8} {count:6} children {took}, {cost.attempts:2} attempts, {cost.events} events", flush=True)
        if cost.attempts > ATTEMPTS_MAX:
            wrong.append(f"{store}: the parent of {count} ran {cost.attempts} times, at most {ATTEMPTS_MAX} are due")
        if count >= MANY and times[count] > MILLISECONDS_MAX.get(store, float("inf")):
            wrong.append(
                f"{store}: a child of {count} takes {times[count]:.2f} ms, {MILLISECONDS_MAX[store]} ms is due"
            )
    few, many = min(times), max(times)
    growth = f"{store}: a child of {many} takes {times[many] / times[few]:.2f} of one of {few} (at most {GROWTH_MAX})"
    print(growth)
    return [*wrong, growth] if times[many] > GROWTH_MAX * times[few] else wrong


def main() -> int:
    """Measure; 1 if something is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--children", type=int, nargs="+", default=list(CHILDREN))
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    tune_gc()  # as the command line does for a worker
    profile = cProfile.Profile()
    if chosen.profile:
        profile.enable()
    wrong = [line for store in chosen.store or STORES for line in measure(store, chosen.children)]
    if chosen.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
