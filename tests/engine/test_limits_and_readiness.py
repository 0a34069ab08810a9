"""What limits of a queue do to a worker's readiness, by the real store and the real loop."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from holdfast import App, Limits, RunHandle
from holdfast.engine.worker import Worker
from holdfast.errors import InvalidSetting
from holdfast.machines import JobEvent
from holdfast.ready import ReadyState, raise_violation
from holdfast.store.commands import WORK
from support.stories import drain, play, until


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


def test_a_worker_that_does_not_know_the_time_yet_handles_a_used_up_rate(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first question for the time takes long, and it hears of work before the answer."""

    async def story() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

        @app.job
        async def work() -> None:
            pass

        await app.aset_limits(Limits(queue="default", rate=1, rate_seconds=3600, burst=1))
        await work.astart()
        await drain(app)
        store, asked, answered = app.store(), asyncio.Event(), asyncio.Event()
        now = store.now

        async def slow() -> float:
            asked.set()
            await answered.wait()
            return await now()

        monkeypatch.setattr(store, "now", slow)
        worker, task = working(app)
        await asked.wait()
        await work.astart()
        worker._heard(WORK)  # as the notice of the start says, which may be late
        await worker._claims_answered()
        answered.set()
        await until(lambda: _is("rate" in (worker.gate.why() or "")))
        worker.stop()
        await task
        assert errors == []

    play(story())


def test_a_job_that_ends_makes_room_in_a_queue_that_runs_so_many(app: App) -> None:
    """Each begins in the transaction that ends the one before: the place is never empty, and nobody is waited for."""

    async def story() -> None:
        @app.job
        async def work() -> None:
            await asyncio.sleep(0)

        await app.aset_limits(Limits(queue="default", concurrency=1))
        runs = await app.astart_many(work, [{} for _ in range(20)])
        worker, task = working(app)
        for run in runs:
            await RunHandle(app, run).aresult(timeout=60)
        worker.stop()
        await task
        moves = [[(event.type, event.at) for event in await app.store().events(run)] for run in runs]
        kinds = {tuple(kind for kind, _ in stream) for stream in moves}
        assert kinds == {(JobEvent.CREATED, JobEvent.RUNNING, JobEvent.COMPLETED)}
        began, ended = [[stream[place][1] for stream in moves] for place in (1, 2)]
        assert began[1:] == ended[:-1]

    play(story())


def test_a_place_that_one_worker_leaves_is_taken_by_another_that_has_jobs_for_it(app: App) -> None:
    """The one that ends a job has no other to put there: the other is told, and does not wait for its next look."""

    async def story() -> None:
        go = asyncio.Event()

        @app.step
        async def occupy() -> None:
            await go.wait()

        @app.job
        async def first() -> None:
            await occupy()

        @app.job
        async def then() -> str:
            return "done"

        await app.aset_limits(Limits(queue="default", concurrency=1))
        names = [("shop", "first"), ("shop", "then")]
        both = [
            Worker(app.store(), {name: app.entries[name]}, app.config, children=app.submission, name=f"w{number}")
            for number, name in enumerate(names)
        ]
        tasks = [asyncio.create_task(one.run()) for one in both]
        await first.astart()
        await until(lambda: _is(bool(both[0].running)))
        handle = await then.astart()
        # Only a worker that has gone to sleep is woken: one that has the answer of its claim may not be so far.
        await until(lambda: _is("concurrency limit is reached" in (both[1].gate.why() or "")))
        await until(lambda: _is(both[1].gate.counts().state is ReadyState.PENDING))
        polls = both[1].gate.counts().wakes["io_ready"]
        go.set()
        assert await handle.aresult(timeout=60) == "done"
        assert both[1].gate.counts().wakes["io_ready"] > polls
        for one in both:
            one.stop()
        await asyncio.gather(*tasks)

    play(story())


WRONG: list[dict[str, Any]] = [
    {"concurrency": 4.0},
    {"concurrency": True},
    {"group_concurrency": "3"},
    {"depth": 1.5},
    {"rate": 5, "burst": 2.0},
    {"rate": Decimal(5)},
    {"rate": True},
    {"rate_seconds": None},
    {"weights": {"acme": True}},
    {"weights": {1: 2}},
    {"weights": ["acme"]},
    {"queue": 7},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_limits_that_nobody_could_read_back_are_refused_before_they_are_kept(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        Limits(**{"queue": "mail", **wrong})
