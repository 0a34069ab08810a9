"""Code that does not want to end: what it still does while, and after, its attempt is over changes nothing."""

from __future__ import annotations

import asyncio

from holdfast import App, now, wait_for
from support.stories import drain, play


def test_a_branch_that_is_left_over_cannot_keep_a_job_from_ending(app: App) -> None:
    cleaned: list[float] = []

    @app.step
    async def begin() -> None: ...

    @app.step
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "finished all the same"
        return "slept"

    @app.job
    async def work() -> str:
        async def tidy() -> None:
            try:
                await begin()
                await asyncio.sleep(60)
            finally:
                cleaned.append(now())

        left_over = [asyncio.create_task(tidy()), asyncio.create_task(stubborn())]
        await asyncio.sleep(0.02)
        return f"done, with {len(left_over)} left over"

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await handle.aresult(timeout=1) == "done, with 2 left over"
        assert await app.averify() == {}

    play(story())
    assert len(cleaned) == 1


def test_the_time_in_a_finally_is_not_taken_for_the_time_after_the_wait(app: App) -> None:
    @app.job
    async def work() -> float:
        begun = now()
        try:
            await wait_for("go")
            return now() - begun
        finally:
            now()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        await asyncio.sleep(0.2)
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() > 0.2

    play(story())


def test_the_time_in_a_finally_of_a_plain_job_does_not_undo_its_wait(app: App) -> None:
    @app.job
    def work() -> str:
        try:
            return str(wait_for("go"))
        finally:
            now()

    async def story() -> None:
        handles = [await app.astart(work) for _ in range(10)]
        await drain(app)
        for handle in handles:
            assert [event.type for event in await handle.aevents()][-1] == "job_waiting"

    play(story())
