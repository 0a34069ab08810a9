"""Waits for news of a run without asking again and again: a commit here or elsewhere, or the store's own floor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from holdfast.machines import TERMINAL_RUN_STATUSES, RunRecord

if TYPE_CHECKING:
    from holdfast.client.app import App

__all__ = ["watch"]


async def watch(app: App, run_id: str) -> AsyncIterator[RunRecord]:
    """Give a run's record now and at each change, until it has ended."""
    store = app.store()
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def notice(change: int) -> None:
        del change
        loop.call_soon_threadsafe(woken.set)

    end = store.subscribe(notice)
    last: RunRecord | None = None
    try:
        while True:
            woken.clear()
            seen = store.changes()
            record = await app.aget(run_id)
            if record != last:
                yield record
                last = record
            if record.status in TERMINAL_RUN_STATUSES:
                return
            await _something_new(app, woken, seen)
    finally:
        end()


async def _something_new(app: App, woken: asyncio.Event, seen: int) -> None:
    store = app.store()
    end = time.monotonic() + store.floor_seconds if store.floor_seconds is not None else float("inf")
    while not woken.is_set() and store.changes() == seen and time.monotonic() < end:
        try:
            async with asyncio.timeout(app.config.poll_seconds):
                await woken.wait()
        except TimeoutError:
            continue
