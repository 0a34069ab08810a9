"""Holdfast itself, on SQLite or PostgreSQL, with its default settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from compare.peer import STEPS, Peer
from holdfast import App, Config, RunHandle, wait_for
from holdfast.gc_settings import tune_gc


class Driver(Peer):
    """One app; a worker is `app.worker(concurrency=…)`."""

    drain_slots = 512
    left_sql = "SELECT count(*) FROM {schema}jobs WHERE state IN ('queued', 'running', 'waiting')"

    async def set_up(self) -> None:
        """Let a store create its tables."""
        await self.open()

    async def open(self) -> None:
        """Open the store."""
        self.app = self._app()
        await self.app.store().now()

    async def close(self) -> None:
        """Close the store."""
        await self.app.aclose()

    async def start(self, job: str) -> str:
        """Start a run."""
        return (await self.app.astart(job)).id

    async def start_singly(self, job: str, count: int) -> None:
        """Start runs from plain code, as a web handler without a loop does."""

        def start_all() -> None:
            for _ in range(count):
                self.app.start(job)

        await asyncio.to_thread(start_all)

    async def start_many(self, job: str, count: int) -> None:
        """Start runs with one call."""
        await self.app.astart_many(job, [{} for _ in range(count)])

    async def work(self, concurrency: int) -> None:
        """Be a worker, as `holdfast worker` is one."""
        tune_gc()
        await self.app.worker(concurrency=concurrency).arun()

    async def result(self, handle: Any) -> Any:
        """Wait for the result of a run."""
        return await RunHandle(self.app, handle).aresult()

    async def signal(self, handle: Any) -> None:
        """Send a signal."""
        await self.app.asignal(handle, "go")

    async def park(self, count: int) -> bool:
        """Start runs that wait for a signal."""
        await self.start_many("waiter", count)
        return True

    def _app(self) -> App:
        app, tally = App("compare", config=Config(url=self.place.url)), self.tally

        @app.step
        async def step(number: int) -> int:
            return number

        @app.tool
        async def tool(number: int) -> int:
            return number

        async def ten(call: Callable[[int], Any]) -> int:
            total = sum([await call(number) for number in range(STEPS)])
            tally.job_ended()
            return total

        @app.job
        async def steps() -> int:
            return await ten(step)

        @app.job
        async def tools() -> int:
            return await ten(tool)

        @app.job
        async def noop() -> None:
            tally.job_ended()

        @app.job
        async def clock() -> bool:
            tally.mark()
            return True

        @app.job
        async def waiter() -> bool:
            tally.job_waits()
            await wait_for("go")
            tally.mark()
            return True

        return app
