"""`explain` in every state a run can be in: who holds it, what wakes it and when, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import App, Backoff, sleep, wait_for
from holdfast.store import PutWorker, RemoveWorker, WorkerCard
from support.postgres import fresh_url
from support.stories import quick


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if request.param == "sqlite" else fresh_url()
    app = App("shop", config=quick(url, grace_seconds=60.0))

    @app.step(backoff=Backoff(retries=3, first_seconds=3600, cap_seconds=3600))
    async def flaky() -> None:
        raise OSError("the bank is closed")

    @app.job
    async def nothing() -> None: ...

    @app.job(backoff=Backoff(retries=1, first_seconds=3600, cap_seconds=3600))
    async def again() -> None:
        raise OSError("no luck")

    @app.job
    async def stepping() -> None:
        await flaky()

    @app.job
    async def child() -> None:
        await wait_for("born")

    @app.job
    async def parent() -> None:
        await child()

    @app.job
    async def sleeping() -> None:
        await sleep("2h")

    @app.job
    async def fail() -> None:
        raise ValueError("broken for good")

    return app


def told(app: App, story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await story()
        finally:
            await app.aclose()

    asyncio.run(whole())


async def said(app: App, run: str) -> str:
    return (await app.aexplain(run)).explanation


@asynccontextmanager
async def alive(app: App, *entries: str, queues: tuple[str, ...] | None = None) -> AsyncIterator[None]:
    """A worker that reports and does nothing."""
    card = WorkerCard("w", "host", 1, 1, queues, entries, 60.0)
    await app.store().commit([PutWorker(card)])
    yield
    await app.store().commit([RemoveWorker("w")])


def test_a_queued_run_says_who_could_take_it_or_that_nobody_can(app: App) -> None:
    async def story() -> None:
        run = (await app.astart("nothing")).id
        assert "No worker is alive: start one" in await said(app, run)
        async with alive(app, "other.job"):
            assert "No worker that has this job is alive." in await said(app, run)
        async with alive(app, "shop.nothing", queues=("fast",)):
            assert "No live worker that has it serves the queue 'default'." in await said(app, run)
        async with alive(app, "shop.nothing"):
            assert "A worker that has this job is alive and will take it when a slot is free." in await said(app, run)
        late = (await app.entry("nothing").options(delay="2h", deadline="1d").astart()).id
        delayed = await said(app, late)
        assert "It is queued and due" in delayed
        assert "(in 2 h); it has not started yet." in delayed
        assert "Its deadline is" in delayed
        await app.apause(late)
        assert (await said(app, late)).startswith("It is paused until an operator resumes it.")

    told(app, story)


def test_a_retry_says_why_and_when(app: App) -> None:
    async def story() -> None:
        whole, step = await app.astart("again"), await app.astart("stepping")
        await app.worker().arun(until_idle=True)
        assert "It is tried again" in await said(app, whole.id)
        assert "(no luck); 1 of 5 attempts are used." in await said(app, whole.id)
        node = next(one.payload["node"] for one in await app.aevents(step.id) if one.type == "node_started")
        assert (await said(app, step.id)).startswith(f"It tries {node} again ")
        assert "; 0 of 5 attempts are used." in await said(app, step.id), "a retry of a step is no crash of the job"

    told(app, story)


def test_a_wait_says_for_what_and_names_the_child(app: App) -> None:
    async def story() -> None:
        run, dream = await app.astart("parent"), await app.astart("sleeping")
        await app.worker().arun(until_idle=True)
        (born,) = [one.run_id for one in await app.alist(entry_id="child")]
        assert f"It waits for its child job child, run {born}." in await said(app, run.id)
        assert await said(app, born) == "It waits for the signal 'born', without a time limit."
        assert "It sleeps until" in await said(app, dream.id)
        assert "(in 2 h)" in await said(app, dream.id)

    told(app, story)


def test_an_end_says_how_and_an_old_run_names_the_newest(app: App) -> None:
    async def story() -> None:
        run, well = await app.astart("fail"), await app.astart("nothing")
        await app.worker().arun(until_idle=True)
        ended = "It has failed (broken for good). An operator may retry it."
        assert await said(app, run.id) == ended
        assert await said(app, well.id) == "It has ended: completed."
        await app.aretry(run.id, actor="ana", reason="mended")
        old = await said(app, run.id)
        assert old.startswith(
            f"This run has ended. Its job was retried, and the newest run is {run.id}.2. It is queued"
        )
        assert (await said(app, f"{run.id}.2")).startswith("It is queued")

    told(app, story)


def test_a_running_job_says_who_holds_it_and_what_was_asked_of_it(app: App) -> None:
    async def story() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        @app.job
        async def long() -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await go.wait()
                raise

        run = await app.astart("long")
        worker = app.worker(name="w1")
        working = asyncio.create_task(worker.arun(until_idle=True))
        await begun.wait()
        assert await said(app, run.id) == "It runs: worker w1 holds it, attempt 1."
        await app.apause(run.id)
        assert "It will pause at its next step." in await said(app, run.id)
        await app.acancel(run.id, "enough")
        assert "Its cancellation was requested (enough). It may still clean up." in await said(app, run.id)
        go.set()
        await working
        assert await said(app, run.id) == "It has ended: cancelled."

    told(app, story)
