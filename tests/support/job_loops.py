"""A job loop without an engine: it is run until it rests, and native work is handed over as it completes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from holdfast import App
from holdfast.engine.job_loop import JobLoop, JobTask
from holdfast.engine.thread_pool import ThreadPool

__all__ = ["Bench", "on_bench", "served"]


class Bench:
    """A job loop on the running loop, and the least that drives it."""

    def __init__(self, salt: int = 0) -> None:
        self.host = asyncio.get_running_loop()
        self.threads = ThreadPool(4, self.host)
        self.loop = JobLoop(self.host, self.threads, self.turn, salt)
        self.order: list[int] = []  # of native work, as it was handed over

    def turn(self) -> None:
        """Run the code until it rests and nothing is left to hand over."""
        loop = self.loop
        if loop.turning or loop.is_closed():
            return
        loop.turning = True
        try:
            while loop.run_ready(1000) < 1000 and loop.hand_over():
                self.order += loop.handed
                loop.handed.clear()
        finally:
            loop.turning = False
        loop.arm()
        if loop.ready:
            self.host.call_soon(self.turn)

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> JobTask:
        """Start a task of the loop, and run it until it rests."""
        task = self.loop.create_task(coroutine)
        self.turn()
        return task

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the job loop to its end."""
        ended = asyncio.Event()
        task = self.begin(coroutine)
        task.add_done_callback(lambda _: ended.set())
        await ended.wait()
        return task.result()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so."""
        while not is_so():  # noqa: ASYNC110 - what is looked for happens on the host's loop
            await asyncio.sleep(0.001)


def on_bench(story: Callable[[Bench], Coroutine[Any, Any, Any]], seconds: float = 30) -> Any:
    """Tell a story with a job loop on a fresh host loop; it must end in time."""

    async def told() -> Any:
        bench = Bench()
        try:
            async with asyncio.timeout(seconds):
                return await story(bench)
        finally:
            bench.loop.close()
            bench.threads.shutdown()

    return asyncio.run(told())


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[None]:
    """Have a worker run meanwhile."""
    worker = app.worker()
    running = asyncio.create_task(worker.arun())
    try:
        yield
    finally:
        worker.stop()
        await running
