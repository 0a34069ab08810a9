"""Watchers of runs: woken soon after a change, also where the loop is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from holdfast.client.run_reads import FEW_WATCHED, RunWatcher
from holdfast.store import Submit
from holdfast.store.memory import MemoryStore

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
