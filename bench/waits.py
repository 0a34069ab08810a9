"""What a wait of a long job costs: the last ones of a loop beside the first, on each store.

A job waits for one signal after another, and each comes as soon as the job waits for it. Another job sleeps for a
millisecond, again and again. One worker runs each of them. A wait must not cost more because there were many before it.

    python bench/waits.py [--store sqlite] [--waits 2000]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

from holdfast import App, Config, sleep, wait_for
from holdfast.gc_settings import tune_gc
from postgres_server import measured

STORES = ("memory", "sqlite", "postgres")
WAITS = 2_000
GROWTH_MAX = 1.3  # of the last waits over the first
SHARE = 10  # the first and the last tenth are compared


class Loops:
    """An app with a job for each kind of wait, and when their code went on."""

    def __init__(self, url: str) -> None:
        self.app = app = App("bench", config=Config(url=url))
        self.times: dict[int, float] = {}  # of the first time: a replay comes here again
        self.reached = asyncio.Event()

        @app.job
        async def signals(count: int) -> int:
            for number in range(count):
                self.reach(number)
                await wait_for("go")
            return count

        @app.job
        async def sleeps(count: int) -> int:
            for number in range(count):
                self.reach(number)
                await sleep(0.001)
            return count

    def reach(self, number: int) -> None:
        """Note that the code is about to wait."""
        if number not in self.times:
            self.times[number] = time.perf_counter()
            self.reached.set()

    async def run(self, job: str, count: int) -> list[float]:
        """Run a job to its end. Return the seconds of each wait."""
        worker = asyncio.create_task(self.app.worker().arun())
        try:
            handle = await self.app.entries["bench", job].astart(count)
            for number in range(count if job == "signals" else 0):
                while number not in self.times:
                    self.reached.clear()
                    await self.reached.wait()
                await handle.asignal("go", number)
            await handle.aresult()
        finally:
            worker.cancel()
            await asyncio.wait([worker])
            await self.app.aclose()
        return [later - sooner for sooner, later in itertools.pairwise(self.times.values())]


async def run(url: str, job: str, count: int) -> list[float]:
    """Run one job in an app of its own."""
    return await Loops(url).run(job, count)


def waited(store: str, job: str, count: int) -> list[float]:
    """Run one job on an empty store."""
    if store == "postgres":
        with measured() as server:
            return asyncio.run(run(server.url, job, count))
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}" if store == "sqlite" else "memory:"
        return asyncio.run(run(url, job, count))


def quartile(taken: list[float]) -> float:
    """Return what a quarter of the waits were shorter than: other programs of the machine disturb it less."""
    return statistics.quantiles(taken, n=4)[0]


def main() -> int:
    """Measure; 1 if a wait has grown too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--waits", type=int, default=WAITS)
    chosen = parser.parse_args()
    tune_gc()  # as the command line does for a worker
    missed = []
    for store in chosen.store or STORES:
        for job in ("signals", "sleeps"):
            taken = waited(store, job, chosen.waits)
            part = max(1, len(taken) // SHARE)
            first, last = quartile(taken[:part]), quartile(taken[-part:])
            line = f"{store}: a wait of {job} takes {1e3 * first:.2f} ms at first and {1e3 * last:.2f} ms at last"
            print(f"{line}, growth {last / first:.2f} (at most {GROWTH_MAX})", flush=True)
            if last > GROWTH_MAX * first:
                missed.append(line)
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
