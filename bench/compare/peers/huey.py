"""huey on SQLite, every commit flushed: a queue of tasks in threads, polled every 5 to 10 ms.

It has no steps or signals.
"""

from __future__ import annotations

import asyncio
from typing import Any

from huey import SqliteHuey
from huey.consumer import Consumer

from compare.peer import Peer

POLL_SECONDS, POLL_SECONDS_MAX, DELAY_SECONDS = 0.005, 0.01, 6 * 3600


class Driver(Peer):
    """A queue in a file; a worker is a consumer with threads."""

    drain_slots = 4
    left_sql = "SELECT count(*) FROM task"

    async def open(self) -> None:
        """Open the file; tables are created by the first process."""
        path = self.place.url.removeprefix("sqlite:///")
        self.huey, tally = SqliteHuey("compare", filename=path, fsync=True, timeout=30), self.tally

        @self.huey.task(name="noop")
        def noop() -> None:
            tally.job_ended()

        @self.huey.task(name="clock")
        def clock() -> bool:
            tally.mark()
            return True

        self.tasks = {"noop": noop, "clock": clock}

    async def set_up(self) -> None:
        """Create the tables."""
        await self.open()

    async def close(self) -> None:
        """Close the file."""
        self.huey.storage.close()

    async def start(self, job: str) -> str:
        """Enqueue a task."""
        return str(self.tasks[job]().id)

    async def start_many(self, job: str, count: int) -> None:
        """Enqueue tasks one by one, as there is no bulk call."""
        await self.start_singly(job, count)

    async def work(self, concurrency: int) -> None:
        """Start the threads of a consumer."""
        consumer = Consumer(
            self.huey, workers=concurrency, periodic=False, initial_delay=POLL_SECONDS, max_delay=POLL_SECONDS_MAX
        )
        for _, thread in consumer.worker_threads:
            thread.start()
        consumer.scheduler.start()
        await asyncio.Event().wait()

    async def result(self, handle: Any) -> Any:
        """Poll for the result."""
        while (found := self.huey.result(handle)) is None:  # noqa: ASYNC110 - the library has nothing to wait for
            await asyncio.sleep(POLL_SECONDS)
        return found

    async def park(self, count: int) -> bool:
        """Schedule tasks that are due in some hours."""
        for _ in range(count):
            self.tasks["noop"].schedule(delay=DELAY_SECONDS)
        return False
