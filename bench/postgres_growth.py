"""What must not grow, on PostgreSQL: each cost beside the same cost where there is little, in the same run.

- A worker's turn with a million queued and a million finished jobs, beside one with a thousand of each.
- Tables and indexes over two hundred thousand jobs that come, run and are purged when they have ended.
- What streams that grow and leases that are renewed leave behind: nothing in any index (HOT updates).

Tables are filled by SQL from the rows of a few jobs that were really decided, with other ids; what is measured goes
through the store and the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from typing import Any

import psycopg

from growth import FEW, Life, Times, claiming, judged, queued_and_finished, turn
from holdfast import App, Config
from holdfast.machines.event import freeze_plain
from holdfast.store import Append, Renew, Submit
from holdfast.store.postgres.schema import migrate
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sql.columns import JOB_WRITTEN, job_row
from holdfast.store.sql.event_rows import EVENT_COLUMNS, event_row
from postgres_server import Measured, measured

SCHEMAS = 4  # small ones, one after the other: each is claimed from while it still has about as many as it should
ROUNDS = {10: 12, 100: 6}  # turns on each small schema, by the size of the claim
FLAT_MAX = 1.5  # size after the last round, of that after the second
WAVE = 10_000  # jobs between two deletions
HOT_MIN = 0.9  # of updates that grow a stream or renew a lease


def fill(url: str, schema: str, lives: list[Life], jobs: int, now: float) -> None:
    """Make a schema of so many jobs, with such lives in turn."""
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, schema)
        connection.execute("SET synchronous_commit = off")
        job_lines: list[tuple[Any, ...]] = [(str(n), *job_row(job, now)[1:]) for n, (job, _) in enumerate(lives)]
        event_lines: list[tuple[Any, ...]] = [
            (str(n), *event_row(event, freeze_plain(event.payload).text)[1:])
            for n, (_, events) in enumerate(lives)
            for event in events
        ]
        tables = (("jobs", JOB_WRITTEN, "id", job_lines), ("events", EVENT_COLUMNS.split(", "), "job", event_lines))
        for table, columns, key, lines in tables:
            listed = ", ".join(columns)
            connection.execute(f"CREATE TEMP TABLE life AS SELECT {listed} FROM {schema}.{table} LIMIT 0".encode())
            with connection.cursor() as cursor, cursor.copy(f"COPY life ({listed}) FROM STDIN".encode()) as copy:
                for line in lines:
                    copy.write_row(line)
            connection.execute(
                f"INSERT INTO {schema}.{table} ({listed}) SELECT 'job-' || lpad(n::text, 8, '0'),"
                f" {', '.join(columns[1:])} FROM generate_series(0, %s) AS n JOIN life ON {key} ="
                " (n %% %s)::text".encode(),
                (jobs - 1, len(lives)),
            )
            connection.execute("DROP TABLE life")
            connection.execute(f"VACUUM ANALYZE {schema}.{table}".encode())


async def turns(url: str, jobs: int) -> list[str]:
    """Compare turns on a full schema with turns on small ones."""
    few: Times = defaultdict(list)
    many: Times = defaultdict(list)
    now, started = time.time(), time.perf_counter()
    fill(url, "many", queued_and_finished(now), 2 * jobs, now)
    print(f"a schema of {jobs:,} queued and {jobs:,} finished jobs: {size(url, 'many') / 1e6:,.0f} MB, "
          f"filled in {time.perf_counter() - started:.0f} s", flush=True)  # fmt: skip
    full = PostgresStore(url, "many")
    for number in range(SCHEMAS):
        fill(url, f"few_{number}", queued_and_finished(now), 2 * FEW, now)
        small = PostgresStore(url, f"few_{number}")
        for limit, rounds in ROUNDS.items():
            for again in range(rounds):
                await turn(small, few, limit, number * rounds + again)
                await turn(full, many, limit, number * rounds + again)
        await small.close()
    await full.close()
    return judged(few, many, jobs)


def size(url: str, schema: str) -> int:
    """Bytes of all tables and indexes of a schema."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'",
            (schema,),
        ).fetchone()
    assert found is not None, "a sum has a row"
    return int(found[0])


async def retention(url: str, jobs: int) -> list[str]:
    """Let jobs come, run and be purged in waves; look at the size after each. Nothing but autovacuum cleans up."""
    app = App("b", config=Config(url=f"{url}?schema=waves"))

    @app.job
    async def noop() -> None:
        pass

    sizes = []
    for _ in range(max(jobs // WAVE, 4)):
        await app.astart_many(noop, [{} for _ in range(WAVE)])
        await app.worker(concurrency=512).arun(until_idle=True)
        assert await app.apurge(older_than=0) == WAVE, "all have ended"
        sizes.append(size(url, "waves"))
    await app.aclose()
    growth = sizes[-1] / sizes[1]
    first, second, last, most = [each / 1e6 for each in (sizes[0], sizes[1], sizes[-1], max(sizes))]
    print(f"{len(sizes)} waves of {WAVE:,} jobs, purged when they have ended: {first:.0f} MB after the first, "
          f"{second:.0f} after the second, {last:.0f} after the last, at most {most:.0f}   growth {growth:4.2f}",
          flush=True)  # fmt: skip
    return [f"tables grow {growth:.2f} times over {jobs:,} jobs, {FLAT_MAX} is due"] if growth > FLAT_MAX else []


async def updates(url: str, rounds: int = 100) -> list[str]:
    """Let a hundred held jobs grow, and have their leases renewed; count the updates that touched an index."""
    store = PostgresStore(url, "hot")
    names = [f"job-{n:04}" for n in range(100)]
    await store.commit([Submit(job=name, plugin="b", entry="e", args={}) for name in names])
    await store.commit([claiming(100)])
    held, before = tuple((name, 1) for name in names), counted(url, "hot")
    started = {"node": "s:0", "name": "s", "try": 1, "args": {}}
    for _ in range(rounds):
        await store.commit([Append(name, 1, (("node_started", started),)) for name in names])
        await store.commit([Renew("w", held, 3600)])
    await store.close()
    after = counted(url, "hot")
    updated, hot = (a - b for a, b in zip(after, before, strict=True))
    print(f"{updated:,} updates by streams that grow and leases that are renewed: {hot / updated:.1%} touch no index",
          flush=True)  # fmt: skip
    assert updated >= 2 * rounds * len(names), "each row was updated by each"
    return [f"{hot / updated:.1%} of updates are HOT, {HOT_MIN:.0%} are due"] if hot / updated < HOT_MIN else []


def counted(url: str, schema: str) -> tuple[int, int]:
    """Updates of job rows, and those of them that touched no index. A session's counts come with its end."""
    time.sleep(1.0)
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'jobs'",
            (schema,),
        ).fetchone()
    return (found[0], found[1]) if found is not None else (0, 0)


def measure(server: Measured, jobs: int, waves: int) -> list[str]:
    """Measure everything."""
    missed = asyncio.run(updates(server.url))
    missed += asyncio.run(retention(server.url, waves))
    return missed + asyncio.run(turns(server.url, jobs))


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="What must not grow on PostgreSQL.")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="queued jobs, and as many finished ones")
    parser.add_argument("--retained", type=int, default=200_000, help="jobs that come, run and are deleted")
    chosen = parser.parse_args()
    with measured(autovacuum_naptime="1s") as server:
        missed = measure(server, chosen.jobs, chosen.retained)
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
