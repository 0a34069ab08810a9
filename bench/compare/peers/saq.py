"""SAQ on PostgreSQL: a queue of jobs, woken by NOTIFY. It has no steps or signals."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from saq import Job, Worker
from saq.queue.postgres import PostgresQueue

from compare.peer import Peer

DELAY_SECONDS, POLL_SECONDS = 6 * 3600, 0.005


class Driver(Peer):
    """A queue with a pool of up to 20 connections."""

    drain_slots = 100
    left_sql = "SELECT count(*) FROM saq_jobs WHERE status IN ('new', 'queued', 'active')"

    async def open(self) -> None:
        """Connect; the first process creates the tables."""
        logging.getLogger("saq").setLevel(logging.ERROR)
        self.queue = PostgresQueue.from_url(self.place.url)
        await self.queue.connect()

    async def set_up(self) -> None:
        """Create the tables."""
        await self.open()

    async def close(self) -> None:
        """Disconnect."""
        await self.queue.disconnect()

    async def start(self, job: str) -> str:
        """Enqueue a job."""
        made = await self.queue.enqueue(job)
        assert made is not None
        return str(made.key)

    async def start_many(self, job: str, count: int) -> None:
        """Enqueue jobs from 20 tasks, as there is no bulk call."""
        left = iter(range(count))

        async def start_some() -> None:
            for _ in left:
                await self.queue.enqueue(job)

        await asyncio.gather(*(start_some() for _ in range(20)))

    async def work(self, concurrency: int) -> None:
        """Be a worker."""
        tally = self.tally

        async def noop(context: Any) -> None:
            del context
            tally.job_ended()

        async def clock(context: Any) -> bool:
            del context
            tally.mark()
            return True

        worker: Any = Worker(self.queue, functions=[("noop", noop), ("clock", clock)], concurrency=concurrency)
        worker.SIGNALS = []
        await worker.start()

    async def start_and_wait(self, job: str) -> Any:
        """Enqueue a job and poll for its result."""
        return await self.queue.apply(job, poll_interval=POLL_SECONDS)

    async def park(self, count: int) -> bool:
        """Enqueue jobs that are due in some hours."""
        left, due = iter(range(count)), int(time.time()) + DELAY_SECONDS

        async def start_some() -> None:
            for _ in left:
                await self.queue.enqueue(Job("noop", scheduled=due))

        await asyncio.gather(*(start_some() for _ in range(20)))
        return False
