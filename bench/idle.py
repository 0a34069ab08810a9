"""What a worker with nothing to do costs, and how soon it hears of a job that another process has started.

    python bench/idle.py [--seconds 20] [--postgres]

Prints, for each store: the share of a core that an idle worker's process takes, how often it reads its
store in a second (counted by tracing its connections), and the time from the return of `start` in one process to the
first line of the job in another. Fails when a figure of the issue is missed: 0.5 % of a core, 2 reads a second.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import apsw

from holdfast import App, Config

SHARE_MAX = 0.005
READS_MAX = 2.0
READS = ("SELECT", "WITH", "PRAGMA")
WAKES = 200


def idle(url: str, seconds: float, told: Queue[Any]) -> None:
    """Work at nothing; tell what it cost."""
    counted = [0]
    if url.startswith("sqlite"):

        def count(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
            del cursor, bindings
            counted[0] += sql.lstrip().startswith(READS)
            return True

        apsw.connection_hooks.append(lambda connection: connection.set_exec_trace(count))
    else:
        import psycopg  # noqa: PLC0415 - only if it is measured

        execute: Any = psycopg.Cursor.execute

        def counting(self: Any, sql: Any, *args: Any, **more: Any) -> Any:
            counted[0] += str(sql).lstrip().startswith(READS)
            return execute(self, sql, *args, **more)

        setattr(psycopg.Cursor, "execute", counting)  # noqa: B010 - the bench counts, which the type does not foresee
    app = App("idle", config=Config(url=url))

    @app.job
    async def nothing() -> None:
        pass

    async def work() -> None:
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await asyncio.sleep(2)  # it has started
        counted[0] = 0
        cpu, began = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        told.put(((time.process_time() - cpu) / took, counted[0] / took))
        worker.stop()
        await working
        await app.aclose()

    asyncio.run(work())


def hear(url: str, told: Queue[Any]) -> None:
    """Run jobs that say when they began."""
    app = App("idle", config=Config(url=url))

    @app.job
    async def say() -> None:
        told.put(time.monotonic())

    @app.job
    async def end() -> None:
        worker.stop()

    worker = app.worker()
    told.put("here")
    worker.run()
    app.close()


def latency(url: str) -> list[float]:
    """Start jobs in this process, one by one, for a worker in another; how long each took to begin."""
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Any] = spawn.Queue()
    process = spawn.Process(target=hear, args=(url, told))
    process.start()
    assert told.get(timeout=30) == "here"
    app = App("idle", config=Config(url=url))

    @app.job
    async def say() -> None:
        pass

    @app.job
    async def end() -> None:
        pass

    waits = []
    for _ in range(WAKES):
        app.start(say)
        started = time.monotonic()
        waits.append(told.get(timeout=30) - started)
        time.sleep(0.05)
    app.start(end)
    process.join()
    app.close()
    return sorted(waits)


def measured(name: str, url: str, seconds: float) -> list[str]:
    """Measure one store; what was missed."""
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Any] = spawn.Queue()
    process = spawn.Process(target=idle, args=(url, seconds, told))
    process.start()
    share, reads = told.get()
    process.join()
    waits = latency(url)
    print(f"{name:10} idle {share:.2%} of a core   {reads:.2f} reads/s   start to code elsewhere p50 "
          f"{statistics.median(waits) * 1e3:.1f} ms   p99 {waits[-1 - len(waits) // 100] * 1e3:.1f} ms")  # fmt: skip
    missed = []
    if share > SHARE_MAX:
        missed.append(f"{name}: an idle worker takes {share:.2%} of a core, {SHARE_MAX:.1%} is due")
    if reads > READS_MAX:
        missed.append(f"{name}: an idle worker sends {reads:.1f} reads a second, {READS_MAX:g} are due")
    return missed


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--postgres", action="store_true")
    chosen = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        missed += measured("sqlite", f"sqlite:///{Path(folder) / 'jobs.db'}", chosen.seconds)
    if chosen.postgres:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from support.postgres import fresh_url  # noqa: PLC0415 - only if it is measured

        missed += measured("postgres", fresh_url(), chosen.seconds)
    for line in missed:
        print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
