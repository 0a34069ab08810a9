"""pgqueuer on PostgreSQL: a queue of jobs, with asyncpg, uvloop, and batches of 100.

It has no steps, results or signals, and deletes jobs that have ended.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.core.logconfig import logger
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from compare.peer import BULK, Peer

BATCH, DELAY = 100, timedelta(hours=6)


class Driver(Peer):
    """A pool of up to 20 connections; a worker fetches up to 100 jobs with one statement."""

    uvloop = True
    drain_slots = 2 * BATCH
    left_sql = "SELECT count(*) FROM pgqueuer"

    async def set_up(self) -> None:
        """Install the tables, all of them logged."""
        await self.open()
        await self.queries.install()

    async def open(self) -> None:
        """Connect."""
        logger.setLevel(logging.ERROR)
        self.pool = await asyncpg.create_pool(self.place.url, min_size=4, max_size=20)
        self.queries = Queries.from_asyncpg_pool(self.pool)
        self.watcher: CompletionWatcher | None = None

    async def close(self) -> None:
        """Disconnect."""
        await self.pool.close()

    async def start(self, job: str) -> int:
        """Enqueue a job."""
        (handle,) = await self.queries.enqueue(job, None, 0)
        return int(handle)

    async def start_many(self, job: str, count: int) -> None:
        """Enqueue jobs in bulk."""
        for first in range(0, count, BULK):
            many = min(BULK, count - first)
            await self.queries.enqueue([job] * many, [None] * many, [0] * many)

    async def work(self, concurrency: int) -> None:
        """Serve the queue."""
        queue, tally = PgQueuer.from_asyncpg_pool(self.pool), self.tally

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:
            del job
            tally.job_ended()

        @queue.entrypoint("clock")
        async def clock(job: Job) -> None:
            del job
            tally.mark()

        await queue.run(batch_size=min(BATCH, concurrency // 2), max_concurrent_tasks=concurrency)

    async def result(self, handle: Any) -> Any:
        """Wait for a job's end; there are no results."""
        if self.watcher is None:
            driver = AsyncpgPoolDriver(self.pool)
            self.watcher = CompletionWatcher(driver, queries=self.queries, debounce=timedelta(milliseconds=1))
            await self.watcher.__aenter__()
        return await self.watcher.wait_for(handle)

    async def park(self, count: int) -> bool:
        """Enqueue jobs that are due in some hours."""
        for first in range(0, count, BULK):
            many = min(BULK, count - first)
            await self.queries.enqueue(["noop"] * many, [None] * many, [0] * many, [DELAY] * many)
        return False
