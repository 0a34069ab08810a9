"""How a worker notices that there is something to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import App
from holdfast.store.sqlite import SqliteStore
from support.stories import play, quick


def test_what_another_process_writes_just_after_a_turn_is_not_slept_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        settings = quick(f"sqlite:///{tmp_path / 'jobs.db'}", lease_seconds=3600)
        here, there = (App("shop", config=settings) for _ in range(2))
        ran = asyncio.Event()

        async def greet() -> None:
            ran.set()

        for app in (here, there):
            app.job(greet)
        next_due = SqliteStore.next_due

        async def another_writes_now(store: SqliteStore, after: float | None = None) -> float | None:
            monkeypatch.undo()
            due = await next_due(store, after)
            await there.astart("greet")
            return due

        monkeypatch.setattr(SqliteStore, "next_due", another_writes_now)
        worker = here.worker()
        working = asyncio.create_task(worker.arun())
        async with asyncio.timeout(10):
            await ran.wait()
        worker.stop()
        await working
        await here.aclose()
        await there.aclose()

    play(story())


def test_a_job_that_becomes_due_during_a_turn_is_not_slept_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of a turn comes too early for it, and the look for what is due next too late."""

    async def story() -> None:
        app = App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}", lease_seconds=3600))
        ran = asyncio.Event()

        @app.job
        async def greet() -> None:
            ran.set()

        next_due = SqliteStore.next_due
        handle = await greet.options(delay=0.2).astart()
        row = await app.store().get(handle.id)
        assert row is not None

        async def late(store: SqliteStore, after: float | None = None) -> float | None:
            monkeypatch.undo()
            while await store.now() <= row.due_at:  # noqa: ASYNC110 - only the clock can tell
                await asyncio.sleep(0.01)
            return await next_due(store, after)

        monkeypatch.setattr(SqliteStore, "next_due", late)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        async with asyncio.timeout(10):
            await ran.wait()
        worker.stop()
        await working
        await app.aclose()

    play(story())
