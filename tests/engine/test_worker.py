"""How a worker notices that there is something to do."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import App, attempt
from holdfast.store import Bury, Reclaim
from holdfast.store.sqlite import SqliteStore
from support.stories import play, quick, until


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
        assert [record.status for record in await here.alist()] == ["succeeded"]
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


def test_a_worker_that_gets_back_a_job_it_has_lost_ends_the_old_attempt_and_keeps_the_new_one(app: App) -> None:
    begun: list[int] = []
    ended: list[int] = []

    @app.step
    async def long() -> None:
        number = attempt()
        begun.append(number)
        try:
            await asyncio.sleep(60 if number == 1 else 0.3)
        finally:
            ended.append(number)

    @app.job
    async def work() -> str:
        await long()
        return "done"

    async def story() -> None:
        handle = await app.astart(work)
        worker = app.worker(name="w1")
        working = asyncio.create_task(worker.arun())
        await until(lambda: _is(begun == [1]))
        await app.store().commit([Bury("w1"), Reclaim()])  # as after a night in standby: nobody was told of anything
        await until(lambda: _is(begun == [1, 2]))
        await until(lambda: _is(ended == [1]))
        assert await handle.aresult() == "done"
        worker.stop()
        await working

    play(story())
    assert ended == [1, 2]


async def _is(so: bool) -> bool:
    return so


def test_a_worker_that_was_stopped_before_it_began_does_not_begin(tmp_path: Path) -> None:
    async def story() -> None:
        app = App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}"))
        worker = app.worker()
        worker.stop()
        async with asyncio.timeout(10):
            await worker.arun()
        assert await app.aworkers() == [], "it has not even reported"
        await app.aclose()

    play(story())


CTRL_C = """
import asyncio, sys
from holdfast import App, Config

app = App("shop", config=Config(url=sys.argv[1], shutdown_seconds=0.05, grace_seconds=0.2))

@app.step
async def hang() -> None:
    print("hanging", flush=True)
    await asyncio.sleep(3600)

@app.job
async def work() -> None:
    await hang()

work.start()
app.worker().run()
"""


def test_ctrl_c_hands_jobs_back_before_it_is_raised(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with subprocess.Popen(
        [sys.executable, "-c", CTRL_C, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "hanging\n"
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
    assert "KeyboardInterrupt" in said
    app = App("shop", url)
    (record,) = app.list()
    last = app.block(app.store().events(record.run_id))[-1]
    assert (last.type, last.payload["reason"]) == ("job_requeued", "worker_shutdown")
    app.close()
