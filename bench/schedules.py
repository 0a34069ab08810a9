"""What schedules cost: an idle worker with many of them, and many ticks that are due at once.

    python bench/schedules.py [--count 10000] [--seconds 5] [--rounds 2] [--postgres]

Prints the share of a core that an idle worker takes with and without schedules. Then a worker has a backlog of jobs:
how many runs begin without ticks, and while ticks are due that are not fired yet, in the first seconds. Rates are per
second of CPU of the worker and the server, because other programs do not change it, and per second. Fails if the second
rate per second of CPU is under 0.8 of the first, or if an idle worker takes over 0.5 % of a core. The rates are the
best of some rounds that alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast import App, Config
from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate
from holdfast.store.schedule_commands import Declaration, DeclareSchedules
from postgres_server import measured

SHARE_MAX = 0.005
RATE_MIN = 0.8
BATCH = 1000
BACKLOG = 3  # times as many jobs as ticks
WINDOW_SECONDS = 8.0  # in which runs are counted, unless the backlog or the ticks end before
DUE_SECONDS = 15.0  # in which all schedules can be created


def app_on(url: str) -> tuple[App, list[float]]:
    """Return an app with a job, and the times at which its runs have begun."""
    app = App("bench", config=Config(url=url, concurrency=100, idle_seconds=0.2))
    began: list[float] = []

    @app.job
    async def work() -> None:
        began.append(time.perf_counter())

    return app, began


async def create(app: App, count: int, **times: str) -> None:
    """Create schedules in few transactions."""
    definition, template = define(**times), JobTemplate(plugin="bench", entry="work")
    declarations = tuple(Declaration(name=f"s{n}", definition=definition, template=template) for n in range(BATCH))
    for number in range(count // BATCH):
        (answer,) = await app.store().commit([DeclareSchedules(f"many{number}", None, declarations)])
        assert len(answer.created) == BATCH, answer


async def idle_share(url: str, count: int, seconds: float) -> float:
    """Return the share of a core that an idle worker takes."""
    app, _ = app_on(url)
    if count:
        await create(app, count, cron="0 0 1 1 *")
    worker = app.worker()
    task = asyncio.create_task(worker.arun())
    await asyncio.sleep(1.0)
    before, begun = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (time.process_time() - before) / (time.perf_counter() - begun)
    worker.stop()
    await task
    await app.aclose()
    return share


class Rate(NamedTuple):
    """How many runs begin per second of CPU and per second, and after how many seconds the last tick is fired."""

    per_cpu: float
    per_second: float
    last: float


async def claim_rate(url: str, backlog: int, ticks: int, server: Callable[[], float]) -> Rate:
    """Measure while jobs wait and ticks are due."""
    app, began = app_on(url)
    store = app.store()
    await app.astart_many("work", [{}] * backlog)
    if ticks:
        due_at = await store.now() + DUE_SECONDS
        await create(app, ticks, every="1d", phase=f"{due_at % 86400:.3f}s")
        left = due_at - await store.now()
        assert left > 0, "the ticks became due while the schedules were created: raise DUE_SECONDS"
        await asyncio.sleep(left)
    begun, before = time.perf_counter(), time.process_time() + server()
    worker = app.worker()
    task = asyncio.create_task(worker.arun())
    rate: tuple[float, float] | None = None
    last = 0.0
    while rate is None or (ticks and not last):
        await asyncio.sleep(0.02)
        seconds = time.perf_counter() - begun
        if ticks and not last and began and (await store.next_due() or 0.0) > await store.now():
            last = seconds
        if rate is None and (last or seconds > WINDOW_SECONDS or len(began) >= backlog):
            rate = len(began) / (time.process_time() + server() - before), len(began) / seconds
    worker.stop()
    await task
    await app.aclose()
    return Rate(*rate, last)


@contextlib.contextmanager
def places(*, postgres: bool) -> Iterator[tuple[Callable[[], str], Callable[[], float]]]:
    """Give a function that returns the URL of an empty store, and one that returns the CPU seconds of its server."""
    numbers = iter(range(1000))
    if postgres:
        with measured() as server:
            yield lambda: f"{server.url}?schema=bench_{next(numbers)}", server.cpu_seconds
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield lambda: f"sqlite:///{folder}/{next(numbers)}.db", lambda: 0.0


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--postgres", action="store_true")
    chosen = parser.parse_args()
    with places(postgres=chosen.postgres) as (place, server):
        missed = measure(chosen, place, server)
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


def measure(chosen: argparse.Namespace, place: Callable[[], str], server: Callable[[], float]) -> list[str]:
    """Measure on one store; return what was missed."""
    store, count = "postgres" if chosen.postgres else "sqlite", chosen.count
    none = asyncio.run(idle_share(place(), 0, chosen.seconds))
    many = asyncio.run(idle_share(place(), count, chosen.seconds))
    print(f"{store:9} idle worker: {none:.2%} of a core without schedules, {many:.2%} with {count:,}", flush=True)
    alone = firing = Rate(0.0, 0.0, 0.0)
    for _ in range(chosen.rounds):
        alone = max(alone, asyncio.run(claim_rate(place(), BACKLOG * count, 0, server)))
        firing = max(firing, asyncio.run(claim_rate(place(), BACKLOG * count, count, server)))
    ratio = firing.per_cpu / alone.per_cpu
    print(
        f"{store:9} {alone.per_cpu:,.0f} runs begin per second of CPU without ticks, {firing.per_cpu:,.0f} while"
        f" {count:,} ticks are due: ratio {ratio:.2f}. Per second: {alone.per_second:,.0f} and"
        f" {firing.per_second:,.0f}. The last is fired after {firing.last:.1f} s",
        flush=True,
    )
    missed = []
    if many > SHARE_MAX:
        missed.append(f"{store}: an idle worker takes {many:.2%} of a core, at most {SHARE_MAX:.2%} are due")
    if ratio < RATE_MIN:
        missed.append(f"{store}: ratio {ratio:.2f}, at least {RATE_MIN} is due")
    return missed


if __name__ == "__main__":
    sys.exit(main())
