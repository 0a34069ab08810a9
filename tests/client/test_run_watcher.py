"""Watchers of runs: woken soon after a change, also where the loop is busy."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from holdfast import App, RunCanceled
from holdfast.client.run_reads import FEW_WATCHED, RunWatcher
from holdfast.store import Cancel, Submit
from holdfast.store.memory import MemoryStore
from support.stories import play, until

LOOK_SECONDS = 0.05  # for which the loop is busy while the watcher looks


def test_a_busy_loop_delays_only_the_look_that_it_slows_down() -> None:
    assert asyncio.run(_second_look_seconds()) < 10 * LOOK_SECONDS


async def _second_look_seconds() -> float:
    """Return how long after a commit a watcher of many jobs looks again."""
    store = MemoryStore()
    looks = asyncio.Queue[None]()

    async def versions(jobs: Sequence[str]) -> dict[str, Any]:
        time.sleep(LOOK_SECONDS)  # noqa: ASYNC251 - blocks the loop, as a job's code may
        looks.put_nowait(None)
        return await store.versions(jobs)

    watcher = RunWatcher(store, versions)
    with ExitStack() as watched:
        for number in range(FEW_WATCHED + 1):
            watched.enter_context(watcher.watching(f"job {number}"))
        await store.commit([Submit(job="a", plugin="shop", entry="order", args={})])
        await looks.get()
        begun = time.monotonic()
        await store.commit([Submit(job="b", plugin="shop", entry="order", args={})])
        await looks.get()
        return time.monotonic() - begun


def test_a_look_that_fails_leaves_the_next_notice_to_wake_the_watchers() -> None:
    async def story() -> None:
        store = MemoryStore()
        failures = [RuntimeError("once")]
        failed = asyncio.Event()

        async def versions(jobs: Sequence[str]) -> dict[str, Any]:
            if failures:
                failed.set()
                raise failures.pop()
            return await store.versions(jobs)

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the error is reported there
        watcher = RunWatcher(store, versions)
        with watcher.watching("a") as woken, watcher.watching("b"):
            await store.commit([Submit(job="a", plugin="shop", entry="order", args={})])
            await failed.wait()
            await store.commit([Submit(job="b", plugin="shop", entry="order", args={})])
            async with asyncio.timeout(30):
                await woken.wait()

    asyncio.run(story())


def test_a_commit_in_the_context_of_job_code_wakes_watchers_on_another_loop() -> None:
    """The store in memory notifies in the context of the commit. Job code has a loop of its own there."""

    async def story() -> None:
        app = App("shop", "memory:")
        contexts: list[contextvars.Context] = []

        @app.job
        async def order() -> None:
            contexts.append(contextvars.copy_context())

        await app.astart(order)
        await app.worker().arun(until_idle=True)
        handles = [await app.astart(order) for _ in range(2)]  # a single one would be woken without a look
        watched = asyncio.gather(*(handle.aresult(timeout=30) for handle in handles), return_exceptions=True)
        await until(lambda: is_watched(app))
        cancels = [Cancel(handle.id.partition("/")[0], "x") for handle in handles]
        await asyncio.create_task(app.store().commit(cancels), context=contexts[0])
        assert [type(outcome) for outcome in await watched] == [RunCanceled, RunCanceled]

    async def is_watched(app: App) -> bool:
        return len(app.run_watcher()._watchers) == 2

    play(story())
