"""The peers that `postgres.py` measures beside us: no-op jobs queued, then drained by one process.

Each is used as its documentation advises for throughput: jobs are queued in bulk, many run at once, jobs are fetched in
batches where there are batches, and all tables are as durable as ours.
"""

from __future__ import annotations

import asyncio
import logging
import time
from urllib.parse import quote

import asyncpg
import procrastinate
import psycopg
from pgqueuer import PgQueuer
from pgqueuer.core.logconfig import logger as pgqueuer_logger
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

CONCURRENCY = 32  # of procrastinate, which takes jobs one by one: 8 and 128 were no different beyond the noise
BULK = 5_000  # jobs queued with one call


def own_schema(url: str, schema: str) -> str:
    """Make a schema, and give a URL under which nobody needs to name it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"{url}?options={quote(f'-c search_path={schema}')}"


def drain_procrastinate(url: str, schema: str, jobs: int) -> float:
    """Give the seconds in which procrastinate drains so many jobs."""
    logging.getLogger("procrastinate").setLevel(logging.ERROR)

    async def run() -> float:
        connector = procrastinate.PsycopgConnector(conninfo=own_schema(url, schema), min_size=4, max_size=20)
        app = procrastinate.App(connector=connector)

        @app.task(name="noop")
        async def noop() -> None:
            pass

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for first in range(0, jobs, BULK):
                await noop.batch_defer_async(*({} for _ in range(min(BULK, jobs - first))))
            started = time.perf_counter()
            await app.run_worker_async(
                wait=False, concurrency=CONCURRENCY, listen_notify=False, install_signal_handlers=False
            )
            return time.perf_counter() - started

    return asyncio.run(run())


def drain_pgqueuer(url: str, schema: str, jobs: int, fetched: int) -> float:
    """Give the seconds in which pgqueuer drains so many jobs, so many of which it takes with one statement."""
    pgqueuer_logger.setLevel(logging.ERROR)

    async def run() -> float:
        async with asyncpg.create_pool(own_schema(url, schema), min_size=4, max_size=20) as pool:
            queue = PgQueuer.from_asyncpg_pool(pool)
            queries = Queries.from_asyncpg_pool(pool)
            await queries.install()
            for first in range(0, jobs, BULK):
                count = min(BULK, jobs - first)
                await queries.enqueue(["noop"] * count, [None] * count, [0] * count)

            @queue.entrypoint("noop")
            async def noop(job: Job) -> None:
                pass

            started = time.perf_counter()
            await queue.run(mode=QueueExecutionMode.drain, batch_size=fetched, max_concurrent_tasks=2 * fetched)
            taken = time.perf_counter() - started
            assert not await queries.queue_size(), "the queue is empty"
            return taken

    return asyncio.run(run())
