"""Procrastinate on PostgreSQL: a queue of tasks. It has no steps, results or signals."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import procrastinate

from compare.peer import BULK, Peer

DELAY = timedelta(hours=6)


class Driver(Peer):
    """One app with a pool of up to 20 connections."""

    drain_slots = 32  # it takes jobs one by one: 8 and 128 were no different beyond the noise
    left_sql = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    async def set_up(self) -> None:
        """Apply the schema."""
        await self.open()
        await self.app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        """Connect."""
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        connector = procrastinate.PsycopgConnector(conninfo=self.place.url, min_size=4, max_size=20)
        self.app, tally = procrastinate.App(connector=connector), self.tally

        @self.app.task(name="noop")
        async def noop() -> None:
            tally.job_ended()

        @self.app.task(name="clock")
        async def clock() -> None:
            tally.mark()

        self.tasks = {"noop": noop, "clock": clock}
        await self.app.open_async()

    async def close(self) -> None:
        """Disconnect."""
        await self.app.close_async()

    async def start(self, job: str) -> int:
        """Defer a task."""
        return await self.tasks[job].defer_async()

    async def start_many(self, job: str, count: int) -> None:
        """Defer tasks in batches."""
        for first in range(0, count, BULK):
            await self.tasks[job].batch_defer_async(*({} for _ in range(min(BULK, count - first))))

    async def work(self, concurrency: int) -> None:
        """Be a worker that listens for new tasks."""
        await self.app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)

    async def park(self, count: int) -> bool:
        """Defer tasks that are due in some hours."""
        later = self.tasks["noop"].configure(schedule_at=datetime.now(UTC) + DELAY)
        for first in range(0, count, BULK):
            await later.batch_defer_async(*({} for _ in range(min(BULK, count - first))))
        return False
