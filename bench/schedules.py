"""What schedules cost: an idle worker with many of them, and many ticks that are due at once.

    python bench/schedules.py [--count 10000] [--seconds 10] [--postgres]

Prints the share of a core that an idle worker takes with and without schedules, and how fast a worker claims queued
jobs alone and while as many ticks are due. Fails if the second is under 0.8 of the first, or an idle worker takes over
0.5 % of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from holdfast import App, Config
from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate
from holdfast.store.schedule_commands import CreateSchedule

SHARE_MAX = 0.005
RATE_MIN = 0.8
BATCH = 500
DUE_SECONDS = 20.0  # in which all schedules can be created


def app_on(url: str) -> tuple[App, list[float]]:
    """Return an app with a job, and the times at which its runs have begun."""
    app = App("bench", config=Config(url=url, concurrency=100, idle_seconds=0.2))
    began: list[float] = []

    @app.job
    async def work() -> None:
        began.append(time.perf_counter())

    return app, began


async def create(app: App, count: int, times: dict[str, str]) -> None:
    """Create schedules in few transactions."""
    definition = define(**times)
    template = JobTemplate(plugin="bench", entry="work")
    for first in range(0, count, BATCH):
        names = [f"s{number}" for number in range(first, min(first + BATCH, count))]
        answers = await app.store().commit(
            [CreateSchedule(plugin="bench", name=name, definition=definition, template=template) for name in names]
        )
        assert not any(isinstance(answer, Exception) for answer in answers), answers[0]


async def idle_share(url: str, count: int, seconds: float) -> float:
    """Return the share of a core that an idle worker takes."""
    app, _ = app_on(url)
    if count:
        await create(app, count, {"cron": "0 0 1 1 *"})
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


async def claim_rate(url: str, count: int, *, ticks: bool) -> float:
    """Return how many runs begin in a second: of queued jobs, or of half as many and as many ticks that are due."""
    app, began = app_on(url)
    await app.astart_many("work", [{}] * (count // 2 if ticks else count))
    if ticks:
        due_at = await app.store().now() + DUE_SECONDS
        await create(app, count // 2, {"every": "1d", "phase": f"{due_at % 86400:.3f}s"})
        left = due_at - await app.store().now()
        assert left > 0, "the ticks became due while the schedules were created: raise DUE_SECONDS"
        await asyncio.sleep(left)
    begun = time.perf_counter()
    worker = app.worker()
    task = asyncio.create_task(worker.arun())
    while len(began) < count:  # noqa: ASYNC110 - a bench looks
        await asyncio.sleep(0.01)
    rate = count / (max(began) - begun)
    worker.stop()
    await task
    await app.aclose()
    return rate


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--postgres", action="store_true")
    chosen = parser.parse_args()
    return 0 if measure(chosen) else 1


def measure(chosen: argparse.Namespace) -> bool:
    """Measure on one store."""
    with tempfile.TemporaryDirectory() as folder:
        places = iter(range(100))

        def url() -> str:
            if chosen.postgres:
                sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
                from support.postgres import fresh_url  # noqa: PLC0415 - of the folder that was added above

                return fresh_url()
            return f"sqlite:///{folder}/{next(places)}.db"

        none = asyncio.run(idle_share(url(), 0, chosen.seconds))
        many = asyncio.run(idle_share(url(), chosen.count, chosen.seconds))
        print(f"idle worker: {none:.2%} of a core without schedules, {many:.2%} with {chosen.count:,}")
        alone = asyncio.run(claim_rate(url(), 2 * chosen.count, ticks=False))
        firing = asyncio.run(claim_rate(url(), 2 * chosen.count, ticks=True))
        print(f"runs begun: {alone:,.0f}/s of queued jobs, {firing:,.0f}/s while {chosen.count:,} ticks are due")
        print(f"ratio {firing / alone:.2f} (at least {RATE_MIN})")
    return firing / alone >= RATE_MIN and many <= SHARE_MAX


if __name__ == "__main__":
    sys.exit(main())
