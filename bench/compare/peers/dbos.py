"""DBOS on PostgreSQL: async workflows and steps, a queue that is polled every 10 ms.

A worker runs workflows with steps directly, without the queue, which is the faster way. Jobs of other processes go
through the queue, because there is no other way.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

from compare.peer import BULK, STEPS, Peer

QUEUE, POLL_SECONDS, FOREVER_SECONDS = "compare", 0.01, 1e6


class Driver(Peer):
    """A client in the caller, a launched DBOS in a worker."""

    steps_by = "worker"
    drain_slots = 128
    waits_hold_slots = True
    left_sql = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"

    async def set_up(self) -> None:
        """Migrate the database."""
        await asyncio.to_thread(self._launch, None)
        await asyncio.to_thread(DBOS.destroy)
        self.client = DBOSClient(system_database_url=self._url())
        self.engine = sqlalchemy.create_engine(self._url())

    async def close(self) -> None:
        """Disconnect."""
        self.client.destroy()
        self.engine.dispose()

    async def start(self, job: str) -> str:
        """Queue a workflow."""
        handle = await self.client.enqueue_async({"queue_name": QUEUE, "workflow_name": job})
        return str(handle.workflow_id)

    async def start_singly(self, job: str, count: int) -> None:
        """Queue workflows from plain code, without a thread for each."""

        def start_all() -> None:
            for _ in range(count):
                self.client.enqueue({"queue_name": QUEUE, "workflow_name": job})

        await asyncio.to_thread(start_all)

    async def start_many(self, job: str, count: int) -> None:
        """Queue workflows in transactions of many, as there is no bulk call."""

        def start_all() -> None:
            for first in range(0, count, BULK):
                with self.engine.begin() as connection:
                    for _ in range(min(BULK, count - first)):
                        self.client.enqueue_in_transaction(connection, {"queue_name": QUEUE, "workflow_name": job})

        await asyncio.to_thread(start_all)

    async def work(self, concurrency: int) -> None:
        """Serve the queue."""
        await asyncio.to_thread(self._launch, concurrency)
        await asyncio.Event().wait()

    async def ready_for_steps(self) -> None:
        """Launch without the queue."""
        await asyncio.to_thread(self._launch, None)

    async def run_jobs(self, job: str, count: int, concurrency: int) -> None:
        """Run workflows directly."""
        workflow, left = self.workflows[job], iter(range(count))

        async def run() -> None:
            for _ in left:
                await workflow()

        await asyncio.gather(*(run() for _ in range(concurrency)))

    async def result(self, handle: Any) -> Any:
        """Wait for a workflow's result."""
        found: Any = await self.client.retrieve_workflow_async(handle)
        return await found.get_result(polling_interval_sec=POLL_SECONDS)

    async def signal(self, handle: Any) -> None:
        """Send a message."""
        await self.client.send_async(handle, "go", "go")

    async def park(self, count: int) -> bool:
        """Queue workflows that wait for a message."""
        await self.start_many("waiter", count)
        return True

    def _url(self) -> str:
        return self.place.url.replace("postgresql://", "postgresql+psycopg://")

    def _launch(self, concurrency: int | None) -> None:
        """Launch with a queue, if there is a number of workflows that it may run."""
        DBOS(config={"name": "compare", "system_database_url": self._url(), "log_level": "ERROR",
                     "executor_id": f"process-{os.getpid()}", "application_version": "1"})  # fmt: skip
        self._declare()
        DBOS.listen_queues([] if concurrency is None else [QUEUE])
        DBOS.launch()
        if concurrency is not None:
            DBOS.register_queue(
                QUEUE, worker_concurrency=concurrency, polling_interval_sec=POLL_SECONDS, on_conflict="always_update"
            )

    def _declare(self) -> None:
        tally = self.tally

        @DBOS.step()
        async def step(number: int) -> int:
            return number

        @DBOS.workflow(name="steps")
        async def steps() -> int:
            total = sum([await step(number) for number in range(STEPS)])
            tally.job_ended()
            return total

        @DBOS.workflow(name="noop")
        async def noop() -> None:
            tally.job_ended()

        @DBOS.workflow(name="clock")
        async def clock() -> bool:
            tally.mark()
            return True

        @DBOS.workflow(name="waiter")
        async def waiter() -> bool:
            tally.job_waits()
            await DBOS.recv_async("go", timeout_seconds=FOREVER_SECONDS)
            tally.mark()
            return True

        self.workflows = {"steps": steps, "noop": noop}
