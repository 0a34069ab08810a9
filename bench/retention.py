"""What retention costs on PostgreSQL: deletes in batches of 1,000, beside running jobs, and against a partition.

    python bench/retention.py [--runs 8000]

Runs jobs of three steps, and removes them as `holdfast.retention` does. Prints:

- the CPU of the worker and the server that running and removing a run takes;
- how many runs begin per second while another process removes runs, against alone;
- the size of the tables after a removal, a vacuum and as many new runs, against before;
- which share of a removal goes to events, and how long it takes to detach as many events as a partition.

Fails if removing a run takes over a third of the CPU of running it, or if the tables grow by over a quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import time
from typing import Any

import psycopg

from holdfast import App, Config
from holdfast.client.retention.removal import BATCH
from holdfast.store import Purge
from holdfast.store.postgres.statements import Statements
from postgres_server import Measured, measured

COST_MAX = 1 / 3
GROWTH_MAX = 1.25
WINDOW_SECONDS = 6.0
STEPS = 3


def app_on(url: str) -> tuple[App, list[float]]:
    """Return an app with a job, and the times at which its runs have begun."""
    app = App("bench", config=Config(url=url, concurrency=100, idle_seconds=0.2))
    began: list[float] = []

    @app.step
    async def price(number: int) -> int:
        return number

    @app.job
    async def work() -> int:
        began.append(time.perf_counter())
        return sum([await price(number) for number in range(STEPS)])

    return app, began


async def run_jobs(url: str, count: int) -> None:
    """Start so many runs, and run them all."""
    app, _ = app_on(url)
    await app.astart_many("work", [{}] * count)
    await app.worker().arun(until_idle=True)
    await app.aclose()


async def remove(url: str, most: int | None = None) -> int:
    """Remove ended runs in batches, as `holdfast.retention` does; return how many."""
    app, _ = app_on(url)
    store, removed, place = app.store(), 0, None
    while most is None or removed < most:
        now = await store.now()
        page = await store.ended_jobs(now, place, BATCH)
        if not page:
            break
        (done,) = await store.commit([Purge(now, BATCH, jobs=tuple(row.id for row in page))])
        removed, place = removed + len(done.jobs), (page[-1].created_at, page[-1].id)
    await app.aclose()
    return removed


def remove_meanwhile(url: str, removed: Any, begun: Any) -> None:
    """Remove runs, in a process of its own."""
    begun.set()
    removed.value = asyncio.run(remove(url))


async def begin_rate(url: str, backlog: int) -> float:
    """Return how many runs begin per second, of a backlog."""
    app, began = app_on(url)
    await app.astart_many("work", [{}] * backlog)
    begun = time.perf_counter()
    worker = app.worker()
    task = asyncio.create_task(worker.arun())
    while len(began) < backlog and time.perf_counter() - begun < WINDOW_SECONDS:  # noqa: ASYNC110 - a bench looks
        await asyncio.sleep(0.02)
    rate = len(began) / (time.perf_counter() - begun)
    worker.stop()
    await task
    await app.aclose()
    return rate


def cpu_of(server: Measured, work: Any) -> float:
    """Return the CPU seconds of this process and the server for some work."""
    before = time.process_time() + server.cpu_seconds()
    asyncio.run(work)
    return time.process_time() + server.cpu_seconds() - before


def size_of(connection: Any, schema: str) -> int:
    """Return the size of all tables, with their indexes, after a vacuum."""
    connection.execute(f"VACUUM {schema}.jobs".encode())
    connection.execute(f"VACUUM {schema}.events".encode())
    asked = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
    )
    return int(connection.execute(asked, (schema,)).fetchone()[0])


def shares(connection: Any, schema: str) -> tuple[float, float, float]:
    """Remove all runs table by table: return the seconds for events, for all, and to detach as many events."""
    connection.execute(f"CREATE TABLE {schema}.parts (LIKE {schema}.events) PARTITION BY RANGE (at)".encode())
    connection.execute(
        f"CREATE TABLE {schema}.month PARTITION OF {schema}.parts FOR VALUES FROM (0) TO (1e12)".encode()
    )
    connection.execute(f"INSERT INTO {schema}.parts SELECT * FROM {schema}.events".encode())
    names = [name for (name,) in connection.execute(f"SELECT id FROM {schema}.jobs".encode()).fetchall()]
    seconds: dict[str, float] = {}
    for first in range(0, len(names), BATCH):
        for statement in Statements(schema).remove:
            begun = time.perf_counter()
            connection.execute(statement.encode(), (names[first : first + BATCH],))
            seconds[statement] = seconds.get(statement, 0.0) + time.perf_counter() - begun
    begun = time.perf_counter()
    connection.execute(f"ALTER TABLE {schema}.parts DETACH PARTITION {schema}.month".encode())
    connection.execute(f"DROP TABLE {schema}.month".encode())
    detached = time.perf_counter() - begun
    events = sum(taken for statement, taken in seconds.items() if f"{schema}.events " in statement)
    return events, sum(seconds.values()), detached


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=8000)
    runs = parser.parse_args().runs
    with measured() as server, psycopg.connect(server.url, autocommit=True) as connection:
        missed = measure(server, connection, runs)
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


def measure(server: Measured, connection: Any, runs: int) -> list[str]:
    """Measure; return what was missed."""
    missed, url = [], f"{server.url}?schema=kept"
    ran = cpu_of(server, run_jobs(url, runs)) / runs
    before = size_of(connection, "kept")
    begun = time.perf_counter()
    removed = cpu_of(server, remove(url)) / runs
    rate = runs / (time.perf_counter() - begun)
    print(
        f"a run of {STEPS} steps takes {ran * 1e6:,.0f} µs of CPU, its removal {removed * 1e6:,.0f} µs:"
        f" {removed / ran:.2f}. {rate:,.0f} runs are removed per second",
        flush=True,
    )
    if removed > COST_MAX * ran:
        missed.append(f"the removal of a run takes {removed / ran:.2f} of its CPU, at most {COST_MAX:.2f} are due")
    size_of(connection, "kept")  # the vacuum
    asyncio.run(run_jobs(url, runs))
    growth = size_of(connection, "kept") / before
    print(f"after the removal, a vacuum and as many new runs the tables have {growth:.2f} of their size", flush=True)
    if growth > GROWTH_MAX:
        missed.append(f"the tables have {growth:.2f} of their size, at most {GROWTH_MAX} is due")
    alone = asyncio.run(begin_rate(f"{server.url}?schema=alone", runs))
    context = multiprocessing.get_context("spawn")
    count, started = context.Value("i", 0), context.Event()
    process = context.Process(target=remove_meanwhile, args=(url, count, started))
    process.start()
    started.wait()
    beside = asyncio.run(begin_rate(f"{server.url}?schema=beside", runs))
    process.join()
    print(
        f"{alone:,.0f} runs begin per second alone, {beside:,.0f} while another process removes {count.value:,}:"
        f" {beside / alone:.2f}",
        flush=True,
    )
    asyncio.run(run_jobs(url, runs))
    events, total, detached = shares(connection, "kept")
    print(
        f"{events / total:.0%} of the time of a removal goes to events. They take {events * 1e3:,.0f} ms of"
        f" {total * 1e3:,.0f} ms; to detach as many takes {detached * 1e3:,.0f} ms"
    )
    return missed


if __name__ == "__main__":
    sys.exit(main())
