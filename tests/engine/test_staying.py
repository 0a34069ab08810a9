"""A job that is resumed quickly stays in memory at its next waits, as long as nothing else needs its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import pytest

from holdfast import App, Limits, RunHandle, sleep, wait_for
from holdfast.engine.worker import Worker
from holdfast.machines import JobState
from support.stories import play, until

AGES = 1e9


@pytest.fixture(autouse=True)
def _for_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was suspended once stays for ages at its next waits: no test depends on the machine's speed."""
    monkeypatch.setattr("holdfast.engine.worker.STAY_FACTOR", AGES)
    monkeypatch.setattr("holdfast.engine.worker.STAY_SECONDS_MAX", AGES * AGES)


class Waiter:
    """A job that waits for one signal after another, and how often its code came to each wait."""

    def __init__(self, app: App, waits: int = 5, **options: Any) -> None:
        self.reached = [0] * waits
        self.ended: BaseException | None = None

        @app.job(**options)
        async def waiter() -> list[Any]:
            found = []
            try:
                for number in range(waits):
                    self.reached[number] += 1
                    found.append(await wait_for("go"))
                    await sleep(0.001)
            except BaseException as error:
                self.ended = error
                raise
            return found

        self.job = waiter

    async def stays(self, app: App) -> RunHandle:
        """Start the job, and bring it to its second wait, where it stays."""
        run: RunHandle = await self.job.astart()
        await until_state(app, run, JobState.WAITING)
        await run.asignal("go", 0)
        await self.reaches(1)
        return run

    async def reaches(self, number: int) -> None:
        await until(lambda: _is(self.reached[number] > 0))


async def _is(so: bool) -> bool:
    return so


async def until_state(app: App, run: RunHandle, state: JobState) -> None:
    async def there() -> bool:
        row = await app.store().get(run.id)
        return row is not None and row.state is state

    await until(there)


async def types(run: RunHandle) -> list[str]:
    return [event.type for event in await run.aevents()]


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Any]:
    worker = app.worker(**options)
    task = asyncio.create_task(worker.arun())
    try:
        yield worker
    finally:
        worker.stop()
        await task


def test_quick_signals_and_short_sleeps_need_no_replay(app: App) -> None:
    waiter = Waiter(app)

    async def story() -> None:
        async with working(app):
            run = await waiter.stays(app)
            for number in range(1, 5):
                await waiter.reaches(number)
                await run.asignal("go", number)
            assert await run.aresult() == [0, 1, 2, 3, 4]
            assert waiter.reached == [2, 1, 1, 1, 1], "only the first wait was replayed"
            assert (await types(run)).count("job_waiting") == 1

    play(story())


def test_a_job_that_gets_no_signal_is_suspended_after_a_while(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "_stay_seconds", lambda *_: 0.02)
    waiter = Waiter(app)

    async def story() -> None:
        async with working(app):
            run = await waiter.stays(app)
            await until_state(app, run, JobState.WAITING)

    play(story())


def test_a_job_that_only_waits_gives_its_slot_to_others(app: App) -> None:
    waiter, begun, over = Waiter(app), [0], asyncio.Event()

    @app.step
    async def hold() -> None:
        begun[0] += 1
        await over.wait()

    @app.job
    async def holder() -> None:
        await hold()

    async def story() -> None:
        async with working(app, concurrency=2):
            run = await waiter.stays(app)
            await app.astart_many("holder", [{}, {}])
            await until(lambda: _is(begun[0] == 2))
            await until_state(app, run, JobState.WAITING)
            over.set()

    play(story())


def test_a_job_does_not_stay_in_the_last_slot(app: App) -> None:
    waiter = Waiter(app)

    async def story() -> None:
        async with working(app, concurrency=1):
            run = await waiter.stays(app)
            await until_state(app, run, JobState.WAITING)

    play(story())


def test_a_job_that_only_waits_gives_its_place_in_a_limited_queue_to_others(app: App) -> None:
    waiter, begun = Waiter(app, queue="narrow"), []

    @app.job(queue="narrow")
    async def other() -> None:
        begun.append(1)

    async def story() -> None:
        await app.aset_limits(Limits(queue="narrow", concurrency=1))
        async with working(app):
            run = await waiter.stays(app)
            await (await other.astart()).aresult()
            await until_state(app, run, JobState.WAITING)

    play(story())
    assert begun == [1]


def test_a_worker_that_stops_suspends_the_job_at_its_wait(app: App) -> None:
    waiter = Waiter(app)

    async def story() -> None:
        async with working(app):
            run = await waiter.stays(app)
        assert (await types(run))[-1] == "job_waiting"
        async with working(app):
            for number in range(1, 5):
                await run.asignal("go", number)
            assert await run.aresult() == [0, 1, 2, 3, 4]

    play(story())


def test_a_pause_and_a_cancel_reach_a_job_that_stays(app: App) -> None:
    waiter = Waiter(app)

    async def story() -> None:
        async with working(app):
            paused = await waiter.stays(app)
            await app.apause(paused.id)
            await until_state(app, paused, JobState.WAITING)
            waiter.reached = [0] * 5
            canceled = await waiter.stays(app)
            await canceled.acancel("enough")
            await until_state(app, canceled, JobState.CANCELLED)
            assert isinstance(waiter.ended, asyncio.CancelledError), "it was in memory"

    play(story())


class Approval(TypedDict):
    approved: bool


def test_a_question_to_a_person_is_stored_at_once(app: App) -> None:
    @app.job
    async def asks() -> Any:
        await wait_for("go")
        return await wait_for("ok", form=Approval)

    async def story() -> None:
        async with working(app):
            run = await asks.astart()
            await until_state(app, run, JobState.WAITING)
            await run.asignal("go")

            async def asked() -> bool:
                return [question.run_id for question in await app.ainbox()] == [run.id]

            await until(asked)
            await run.asignal("ok", {"approved": True})
            assert await run.aresult() == {"approved": True}

    play(story())
