"""Drains of short jobs from a store with many others, over drains from an empty store.

    python bench/drain.py [--postgres] [--rows 200000] [--kinds queued finished]

A worker runs 20,000 jobs that do nothing: the first of so many that are queued, or new ones in a store where so many
have finished. Drains from an empty store and from the full one take turns. Fails if the median of the full store
is below 0.9 of the median of the empty one.

The rows are made by the store's own rules, and written in bulk. `holdfast verify` accepts them, and some are checked.
PostgreSQL is vacuumed then: autovacuum does so soon after so many new rows, and the first drains would share the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import psycopg

from holdfast import App, Config
from holdfast.gc_settings import tune_gc
from holdfast.ids import new_id
from holdfast.machines.event import freeze
from holdfast.store import Claim, Submit, decide, plain_moves
from holdfast.store.rows import Job
from holdfast.store.sql.columns import JOB_WRITTEN, job_row
from holdfast.store.sql.event_rows import EVENT_COLUMNS, EventRow, Sealed, event_rows, event_values
from holdfast.store.sqlite.bulk import inserts
from postgres_server import Measured, measured

FLOOR = 0.9
RUNS = 5
JOBS = 20_000
SLOTS = 512  # jobs at once
PORTION = 10_000  # rows written with one commit
VERIFIED = 20  # runs that are checked of those made in bulk
KINDS = ("queued", "finished")
HELD_SECONDS = 30.0  # of the leases of jobs made in bulk, which have ended since
RESULT = freeze({"result": None})[0]
AGE_SECONDS = 3600.0  # of the jobs made in bulk

Rows = tuple[list[Job], list[Sealed]]


def app_on(url: str, ran: Callable[[], object] = lambda: None) -> App:
    """Return an app with a job that does nothing but report that it has run."""
    app = App("bench", config=Config(url=url))

    @app.job
    async def noop() -> None:
        ran()

    return app


def made(kind: str, count: int, now: float) -> Rows:
    """Return rows and events of jobs that are queued, or that have finished."""
    claim = Claim(
        worker="worker", entries=frozenset({("bench", "noop")}), queues=None, limit=1, lease_seconds=HELD_SECONDS
    )
    jobs: list[Job] = []
    sealed: list[Sealed] = []
    for _ in range(count):
        submit = Submit(job=new_id(), plugin="bench", entry="noop", args={})
        decisions = [decide.submit(submit, now, None)]
        if kind == "finished":
            decisions.append(decide.claim(decisions[-1].job, claim, now + 1))
            ended = plain_moves.completed(decisions[-1].job, RESULT, 1, now + 2)
            assert ended is not None, "nothing is unusual about it"
            decisions.append(ended)
        jobs.append(decisions[-1].job)
        for decision in decisions:
            sealed += zip(decision.events, decision.payloads, strict=True)
    return jobs, sealed


def fill(url: str, kind: str, count: int) -> None:
    """Write so many jobs to a store that has its tables."""
    write = into_postgres(url) if url.startswith("postgres") else into_sqlite(url)
    began, now = time.perf_counter(), time.time() - AGE_SECONDS
    for first in range(0, count, PORTION):
        write(made(kind, min(PORTION, count - first), now), now)
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")
    print(f"  {count:,} {kind} jobs made in {time.perf_counter() - began:.0f} s", flush=True)


def into_postgres(url: str) -> Callable[[Rows, float], None]:
    """Return what writes rows to PostgreSQL."""

    def write(rows: Rows, now: float) -> None:
        jobs, sealed = rows
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            with cursor.copy(f"COPY holdfast.jobs ({', '.join(JOB_WRITTEN)}) FROM STDIN".encode()) as copy:
                for job in jobs:
                    copy.write_row(job_row(job, now))
            with cursor.copy(f"COPY holdfast.events ({EVENT_COLUMNS}) FROM STDIN".encode()) as copy:
                for row in event_rows_of(sealed):
                    copy.write_row(event_values(row))

    return write


def into_sqlite(url: str) -> Callable[[Rows, float], None]:
    """Return what writes rows to SQLite."""
    put_jobs, put_events = inserts("jobs", JOB_WRITTEN), inserts("events", EVENT_COLUMNS.split(", "))

    def write(rows: Rows, now: float) -> None:
        jobs, sealed = rows
        with contextlib.closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection, connection:
            put_jobs.run(connection, [job_row(job, now) for job in jobs])
            put_events.run(connection, [event_values(row) for row in event_rows_of(sealed)])

    return write


def event_rows_of(sealed: list[Sealed]) -> Iterator[EventRow]:
    """Yield rows of events, one for each: in a store, a job's three come with three transactions."""
    for one in sealed:
        yield from event_rows([one])


async def drained(url: str) -> float:
    """Start so many jobs, and run as many: those that were queued before come first. Return how many a second."""
    count, began, ended = 0, 0.0, 0.0
    all_ran = asyncio.Event()

    def ran() -> None:
        nonlocal count, began, ended
        count += 1
        if count == 1:
            began = time.perf_counter()
        elif count == JOBS:
            ended = time.perf_counter()
            all_ran.set()

    app = app_on(url, ran)
    await app.astart_many("noop", [{}] * JOBS)
    worker = app.worker(concurrency=SLOTS)
    working = asyncio.create_task(worker.arun())
    await all_ran.wait()
    worker.stop()
    await working
    await app.aclose()
    return JOBS / (ended - began)


async def prepared(url: str) -> None:
    """Create the tables."""
    app = app_on(url)
    await app.store().now()
    await app.aclose()


async def verified(url: str) -> None:
    """Check some of the runs that were made in bulk."""
    app = app_on(url)
    for job in await app.store().jobs(limit=VERIFIED):
        violations = await app.averify(job.id)
        assert not violations, violations
    await app.aclose()


def measure(name: str, kind: str, count: int, place: Callable[[], str]) -> list[str]:
    """Measure one store with so many rows of a kind; return what was missed."""
    full = place()
    asyncio.run(prepared(full))
    fill(full, kind, count)
    asyncio.run(verified(full))
    rates: dict[str, list[float]] = {"empty": [], "full": []}
    for _ in range(RUNS):
        empty = place()
        rates["empty"].append(asyncio.run(drained(empty)))
        rates["full"].append(asyncio.run(drained(full)))
    medians = {which: statistics.median(found) for which, found in rates.items()}
    ratio = medians["full"] / medians["empty"]
    shown = ", ".join(f"{after / before:.2f}" for before, after in zip(rates["empty"], rates["full"], strict=True))
    print(
        f"{name:10} {count:9,} {kind:8}  {medians['full']:7,.0f} jobs/s over {medians['empty']:7,.0f} in an empty"
        f" store: {ratio:.2f} ({shown})",
        flush=True,
    )
    if ratio < FLOOR:
        return [f"{name}: a drain with {count:,} {kind} jobs is {ratio:.2f} of one without, {FLOOR} is due"]
    return []


def places_in(folder: Path) -> Callable[[], str]:
    """Return what gives the URL of a new file."""
    numbers = iter(range(1000))
    return lambda: f"sqlite:///{folder}/{next(numbers)}.db"


def places_on(server: Measured) -> Callable[[], str]:
    """Return what creates a database and gives its URL."""
    numbers = iter(range(1000))

    def place() -> str:
        name = f"drain_{next(numbers)}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return server.url.rpartition("/")[0] + f"/{name}"

    return place


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="Measure drains from stores with many jobs.")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    chosen = parser.parse_args()
    missed = []
    tune_gc()  # as `holdfast worker` does
    for kind in chosen.kinds:
        if chosen.postgres:
            with measured() as server:
                missed += measure("PostgreSQL", kind, chosen.rows, places_on(server))
        else:
            with tempfile.TemporaryDirectory() as folder:
                missed += measure("SQLite", kind, chosen.rows, places_in(Path(folder)))
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
