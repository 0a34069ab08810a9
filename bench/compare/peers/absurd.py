"""Absurd on PostgreSQL: its async client, or its plain client for one job at a time.

A client has one connection, and its tasks share it. A worker process therefore runs several clients of up to eight
tasks each, which was faster than one or four clients. All clients of a process together poll every 5 ms.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from absurd_sdk import Absurd, AsyncAbsurd, AsyncTaskContext, TaskContext
from psycopg import AsyncConnection

from compare.peer import BULK, STEPS, Peer

QUEUE, POLL_SECONDS, CLIENTS_MAX, CLAIM_SECONDS = "compare", 0.005, 8, 3600


class Driver(Peer):
    """Clients of one queue."""

    drain_slots = 128
    left_sql = f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state IN ('pending', 'running', 'sleeping')"

    async def set_up(self) -> None:
        """Apply the schema with the command that comes with it, and create a queue."""
        command = [str(Path(sys.executable).with_name("absurdctl")), "init"]
        environment = {**os.environ, "ABSURD_DATABASE_URL": self.place.url, "PGDATABASE": self.place.url}
        program = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL,
                                                       stderr=subprocess.PIPE)  # fmt: skip
        _, errors = await program.communicate()
        if program.returncode:
            raise RuntimeError(errors.decode(errors="replace").strip())
        await self.open()
        await self.client.create_queue()

    async def open(self) -> None:
        """Connect."""
        self.client = self._client()

    async def close(self) -> None:
        """Disconnect."""
        await self.client.close()

    async def start(self, job: str) -> dict[str, str]:
        """Spawn a task. Its event has its name, as events reach all tasks of a queue."""
        spawned = await self.client.spawn(job, {}, queue=QUEUE)
        return {"task": str(spawned["task_id"])}

    async def start_many(self, job: str, count: int) -> None:
        """Spawn tasks in transactions of many, as there is no bulk call."""
        async with await AsyncConnection.connect(self.place.url) as connection:
            client = AsyncAbsurd(connection, queue_name=QUEUE)
            for first in range(0, count, BULK):
                async with connection.transaction():
                    for _ in range(min(BULK, count - first)):
                        await client.spawn(job, {}, queue=QUEUE)

    async def work(self, concurrency: int) -> None:
        """Poll with several clients, or with one plain client."""
        if concurrency == 1:
            worker = self._plain_client().start_worker
            await asyncio.to_thread(worker, poll_interval=POLL_SECONDS, claim_timeout=CLAIM_SECONDS)
        clients = min(CLIENTS_MAX, concurrency)
        each = -(-concurrency // clients)
        await asyncio.gather(*(
            self._client().start_worker(
                concurrency=each, poll_interval=POLL_SECONDS * clients, claim_timeout=CLAIM_SECONDS
            )
            for _ in range(clients)
        ))  # fmt: skip

    async def result(self, handle: Any) -> Any:
        """Wait for a task's result; the client polls, every 50 ms at first."""
        return (await self.client.await_task_result(handle["task"])).result

    async def signal(self, handle: Any) -> None:
        """Emit the event of a task."""
        await self.client.emit_event(f"go-{handle['task']}", payload="go")

    async def park(self, count: int) -> bool:
        """Spawn tasks that wait for an event."""
        await self.start_many("waiter", count)
        return True

    def _plain_client(self) -> Absurd:
        client, tally = Absurd(self.place.url, queue_name=QUEUE), self.tally

        @client.register_task("steps")
        def steps(params: Any, context: TaskContext) -> int:
            del params
            total = sum([context.step(f"step-{number}", lambda number=number: number) for number in range(STEPS)])
            tally.job_ended()
            return total

        return client

    def _client(self) -> AsyncAbsurd:
        client, tally = AsyncAbsurd(self.place.url, queue_name=QUEUE), self.tally

        @client.register_task("steps")
        async def steps(params: Any, context: AsyncTaskContext) -> int:
            del params

            async def step(number: int) -> int:
                async def call() -> int:
                    return number

                return int(await context.step(f"step-{number}", call))

            total = sum([await step(number) for number in range(STEPS)])
            tally.job_ended()
            return total

        @client.register_task("noop")
        async def noop(params: Any, context: AsyncTaskContext) -> None:
            del params, context
            tally.job_ended()

        @client.register_task("clock")
        async def clock(params: Any, context: AsyncTaskContext) -> bool:
            del params, context
            tally.mark()
            return True

        @client.register_task("waiter")
        async def waiter(params: Any, context: AsyncTaskContext) -> bool:
            del params
            tally.job_waits()
            await context.await_event(f"go-{context.task_id}")
            tally.mark()
            return True

        return client
