"""A check of many runs that have not ended: runs per second, and the memory of its processes.

The runs wait after three steps. Half of them are async jobs, some of which also have a timer of asyncio, and half are
plain ones. The memory must not grow with the number of runs: a tenth of them is checked first.

python bench/check.py [RUNS]
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from holdfast import App, Config, wait_for
from holdfast.deploys.store_check import check_store
from holdfast.machines import JobState
from postgres_server import measured

RUNS = 10_000
PER_SECOND_MIN = 330  # 100,000 runs in about five minutes, in all processes together
GROWTH_MAX = 1.25  # of the memory of all processes, for ten times as many runs
PROCESSES = os.cpu_count() or 1


def shop(url: str = "memory:") -> App:
    """Return the app, in any process of the check."""
    app = App("bench-check", config=Config(url=url))

    @app.step
    async def price(number: int) -> int:
        return 3 * number

    @app.job
    async def waits(number: int) -> int:
        total = 0
        for step in range(3):
            total += await price(number + step)
        if number % 10 == 0:
            await asyncio.sleep(0.001)  # the check does not wait for it
        return total + int(await wait_for("go"))

    plain_price: Any = price  # a plain job calls without await

    @app.job
    def plain(number: int) -> int:
        total: int = sum(plain_price(number + step) for step in range(3))
        return total + int(str(wait_for("go")))

    return app


class Shop:
    """Loads the app in a process of the check."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self) -> App:
        """Return the app."""
        return shop(self.url)


def fill(url: str, count: int) -> None:
    """Start so many runs, and let them run until all wait; in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=run_all, args=(url, count))
    process.start()
    process.join()
    assert process.exitcode == 0


def run_all(url: str, count: int) -> None:
    """Start so many runs, and let them run until all wait."""
    asyncio.run(_run_all(url, count))


async def _run_all(url: str, count: int) -> None:
    app = shop(url)
    for name in ("waits", "plain"):
        await app.astart_many(name, [{"number": number} for number in range(count // 2)])
    worker = app.worker(concurrency=500)
    running = asyncio.create_task(worker.arun())
    await wait_until_all_wait(app)
    worker.stop()
    await running
    await app.aclose()


async def wait_until_all_wait(app: App) -> None:
    """Poll the store until no run is queued or running."""
    store = app.store()
    while await store.jobs(state=JobState.QUEUED, limit=1) or await store.jobs(state=JobState.RUNNING, limit=1):  # noqa: ASYNC110 - the store has no event for it
        await asyncio.sleep(0.2)


class Memory(threading.Thread):
    """Watches the memory of this process and of those that it has started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Watch until the end."""
        while not self._ended.wait(0.05):
            self.most = max(self.most, sum(map(resident, [os.getpid(), *children(os.getpid())])))

    def end(self) -> int:
        """Return the most memory that was seen."""
        self._ended.set()
        self.join()
        return self.most


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(number) for numbers in listed for number in numbers]


def resident(process: int) -> int:
    """Return the memory of a process."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0  # it has ended
    return int(found[1]) * 1024 if found else 0


def checked(url: str, count: int, processes: int) -> tuple[float, int]:
    """Check the runs of a store; return the seconds and the most memory."""
    memory = Memory()
    memory.start()
    begun = time.perf_counter()
    findings = check_store(Shop(url), shop(url), processes=processes, sample=0)
    seconds = time.perf_counter() - begun
    assert (findings.checked, findings.failures, findings.runs) == (count, 0, []), findings
    return seconds, memory.end()


def measure(store: str, url: str, count: int) -> list[str]:
    """Measure one store; return what was missed."""
    missed = []
    fill(url, count // 10)
    _, few_bytes = checked(url, count // 10, PROCESSES)
    fill(url, count - count // 10)
    seconds, many_bytes = checked(url, count, PROCESSES)
    rate, growth = count / seconds, many_bytes / few_bytes
    print(
        f"{store:9} {count:,} runs checked in {seconds:.1f} s by {PROCESSES} processes: {rate:.0f} per second,"
        f" {many_bytes / 2**20:.0f} MB at most, {growth:.2f} times that of a tenth of them",
        flush=True,
    )
    if rate < PER_SECOND_MIN:
        missed.append(f"{store}: {rate:.0f} runs per second, at least {PER_SECOND_MIN} are due")
    if growth > GROWTH_MAX:
        missed.append(f"{store}: {growth:.2f} times the memory for ten times the runs, at most {GROWTH_MAX} are due")
    return missed


def main() -> int:
    """Measure both stores."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        missed = measure("sqlite", f"sqlite:///{folder}/jobs.db", count)
    with measured() as server:
        missed += measure("postgres", f"{server.url}?schema=checked", count)
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
