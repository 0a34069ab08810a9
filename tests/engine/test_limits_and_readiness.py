"""What limits of a queue do to a worker's readiness, by the real store and the real loop."""

from __future__ import annotations

import asyncio

from holdfast import App, Limits
from holdfast.engine.worker import Worker
from holdfast.ready import raise_violation
from support.stories import play, until


async def _is(so: bool) -> bool:
    return so


def working(app: App) -> tuple[Worker, asyncio.Task[None]]:
    worker = Worker(app.store(), app.entries, app.config, children=app.submission, on_violation=raise_violation)
    return worker, asyncio.create_task(worker.run())


def test_a_paused_queue_is_busy_and_a_resume_wakes_the_worker(app: App) -> None:
    async def story() -> None:
        @app.job
        async def work() -> str:
            return "done"

        await app.apause_queue("default")
        worker, task = working(app)
        handle = await work.astart()
        await until(lambda: _is("paused" in (worker.gate.why() or "")))
        await until(lambda: _is(worker.gate.counts().state == "pending"))
        assert worker.gate.counts().polls["busy"] > 0
        await app.aresume_queue("default")
        assert await handle.aresult() == "done"
        assert worker.gate.counts().wakes["config_reload"] > 0
        worker.stop()
        await task
        assert worker.gate.counts().violations == 0

    play(story())


def test_a_used_up_rate_is_told_and_the_next_token_brings_the_next_job(app: App) -> None:
    async def story() -> None:
        ran: list[int] = []

        @app.job
        async def work(number: int) -> None:
            ran.append(number)

        await app.aset_limits(Limits(queue="default", rate=5.0, burst=1))
        await app.astart_many(work, [{"number": number} for number in range(4)])
        worker, task = working(app)
        await until(lambda: _is(len(ran) == 4))
        found = worker.gate.counts()
        assert found.polls["budget_exhausted"] > 0
        assert found.wakes["timer"] > 0
        worker.stop()
        await task
        assert worker.gate.counts().violations == 0

    play(story())


def test_a_job_that_ends_makes_room_in_a_queue_that_runs_so_many(app: App) -> None:
    async def story() -> None:
        ran: list[int] = []

        @app.job
        async def work(number: int) -> None:
            ran.append(number)

        await app.aset_limits(Limits(queue="default", concurrency=1))
        worker, task = working(app)
        for number in range(20):
            await work.astart(number)
        async with asyncio.timeout(20):  # each waits for the one before, and none for a floor
            await until(lambda: _is(len(ran) == 20))
        worker.stop()
        await task

    play(story())
