"""The bytes on disk of a finished job of ten steps, with its whole history, on SQLite and PostgreSQL.

Jobs run 128 at a time. On PostgreSQL the figure is the size of the schema's tables and indexes after a plain VACUUM.

    python bench/disk.py
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import psycopg

from holdfast import App, Config
from postgres_server import measured

JOBS, SLOTS, STEPS = 3000, 128, 10
BYTES_MAX = {"sqlite": 5000, "postgres": 6000}


async def run_jobs(url: str) -> None:
    """Run the jobs to their end."""
    app = App("disk", config=Config(url=url))

    @app.step
    async def step(number: int) -> int:
        return number

    @app.job
    async def ten() -> int:
        return sum([await step(number) for number in range(STEPS)])

    await app.astart_many(ten, [{} for _ in range(JOBS)])
    await app.worker(concurrency=SLOTS).arun(until_idle=True)
    assert (await app.astats()).runs == {"succeeded": JOBS}
    await app.aclose()


def sqlite_bytes() -> float:
    """Return the bytes of the file for each job."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        asyncio.run(run_jobs(f"sqlite:///{path}"))
        return path.stat().st_size / JOBS


def postgres_bytes() -> float:
    """Return the bytes of the tables and indexes for each job."""
    with measured() as server:
        asyncio.run(run_jobs(f"{server.url}?schema=disk"))
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("VACUUM")
            rows = connection.execute(
                "SELECT relname, pg_total_relation_size(oid) FROM pg_class"
                " WHERE relnamespace = 'disk'::regnamespace AND relkind = 'r' ORDER BY 2 DESC"
            ).fetchall()
    for name, size in rows[:3]:
        print(f"  {name:12} {size / JOBS:8,.0f} bytes a job")
    return float(sum(size for _, size in rows)) / JOBS


def main() -> int:
    """Measure both stores."""
    missed = []
    for store, measure in (("sqlite", sqlite_bytes), ("postgres", postgres_bytes)):
        size = measure()
        print(f"{store:9} a finished job of {STEPS} steps takes {size:,.0f} bytes", flush=True)
        if size > BYTES_MAX[store]:
            missed.append(f"{store}: {size:,.0f} bytes a job, at most {BYTES_MAX[store]:,} are due")
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
