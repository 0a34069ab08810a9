"""Waits for news of a run without asking again and again: a commit here or elsewhere, or the store's own floor."""

from __future__ import annotations

import asyncio
import contextlib
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
            record = await app.aget(run_id)
            if record != last:
                yield record
                last = record
            if record.status in TERMINAL_RUN_STATUSES:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(store.floor_seconds):
                    await woken.wait()
    finally:
        end()
