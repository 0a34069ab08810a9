"""Code that does not want to end: what it still does while, and after, its attempt is over changes nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import App, Backoff, InvalidArguments, NotDone, RunFailed, StepFailed, gather, now, wait_for
from holdfast import map as map_calls
from holdfast.engine.thread_pool import ThreadPool
from holdfast.store import Resolve
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
        assert await handle.aresult(timeout=60) == "done, with 2 left over"
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


def test_a_plain_job_does_not_take_its_cancel_for_the_failure_of_a_step(app: App) -> None:
    begun = threading.Event()

    @app.step
    def slow(number: int) -> int:
        begun.set()
        time.sleep(0.05)
        return number

    @app.job
    def work() -> list[int]:
        done = []
        for number in range(1000):
            try:
                done.append(slow(number))
            except Exception:  # noqa: BLE001 - as people write it
                done.append(-1)
        return done

    async def story() -> None:
        handle = await app.astart(work)
        working = asyncio.create_task(drain(app))
        await asyncio.to_thread(begun.wait)
        await handle.acancel("changed my mind")
        await working
        assert (await handle.arecord()).status == "canceled"

    play(story())


def test_a_call_that_goes_on_after_its_time_has_not_succeeded(app: App) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
        return "too late"

    step, tool = app.step(name="step", timeout=0.02)(stubborn), app.tool(name="tool", timeout=0.02)(stubborn)

    @app.job
    async def work() -> str:
        try:
            await step()
        except StepFailed as failure:
            assert failure.reason == "step timeout"
        return await tool()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert (await handle.aevents())[-1].payload["wait_type"] == "human", "the tool is in doubt"
        assert [kept.result for kept in await app.aevidence(handle.id)] == ["too late"]
        assert await app.averify() == {}

    play(story())


@pytest.mark.parametrize("policy", [{"on_doubt": "retry"}, {"reconcile": lambda **_: NotDone()}])
def test_a_tool_that_is_never_in_time_is_tried_as_often_as_its_policy_says(app: App, policy: dict[str, Any]) -> None:
    called: list[int] = []

    @app.tool(timeout=0.01, backoff=Backoff(retries=2, first_seconds=0.001), **policy)
    async def hang() -> None:
        called.append(1)
        await asyncio.sleep(60)

    @app.job(deadline=50)  # it is in nobody's way, but for a call that is tried for ever
    async def work() -> str:
        try:
            await hang()
        except StepFailed as failure:
            return failure.reason
        return "in time"

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await handle.aresult(timeout=60) == "step timeout"
        assert await app.averify() == {}

    play(story())
    assert len(called) == 3


def test_a_plain_job_maps_and_is_told_that_it_cannot_gather(app: App) -> None:
    @app.step
    def double(number: int) -> int:
        return 2 * number

    @app.job
    def maps() -> list[int]:
        return [number + 1 for number in map_calls(double, [3, 4])]

    @app.job
    def gathers() -> list[Any]:
        calls: list[Any] = [double(1), double(2)]
        gathered: Any = gather(*calls)
        return list(gathered)

    async def story() -> None:
        good, bad = await app.astart(maps), await app.astart(gathers)
        await drain(app)
        assert await good.aresult(timeout=60) == [7, 9]
        with pytest.raises(RunFailed, match="gather is for async jobs"):
            await bad.aresult(timeout=60)

    play(story())


def test_an_answer_that_cannot_be_the_tools_result_is_refused_or_asked_for_again(app: App) -> None:
    @app.tool(timeout=0.01)
    async def charge() -> int:
        await asyncio.sleep(60)
        return 1

    @app.job
    async def work() -> int:
        return await charge()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        node = (await handle.aevents())[-1].payload["node"]
        with pytest.raises(InvalidArguments, match="the result of charge: Expected `int`, got `str`"):
            await app.aresolve(handle.id, node, done="seven")
        assert "could not be used" not in (await app.aexplain(handle.id)).explanation
        await app.store().commit([Resolve(handle.id, node, "done", "seven")])  # from a client without the tool
        await drain(app)
        assert (await handle.arecord()).stage == "in_doubt", "it asks again"
        why = "The last answer could not be used: the result of charge cannot be stored: Expected `int`, got `str`."
        assert why in (await app.aexplain(handle.id)).explanation
        await app.aresolve(handle.id, node, done=7)
        await drain(app)
        assert await handle.aresult(timeout=60) == 7
        assert await app.averify() == {}

    play(story())


def test_plain_tools_of_plain_jobs_do_not_wait_for_each_others_threads(app: App) -> None:
    all_are_inside = threading.Barrier(16)

    @app.tool
    def slow(number: int) -> int:
        all_are_inside.wait(60)
        return number

    @app.job
    def work(number: int) -> int:
        return slow(number)

    async def story() -> None:
        handles = [await app.astart(work, number) for number in range(16)]
        async with asyncio.timeout(60):
            await app.worker(concurrency=16).arun(until_idle=True)
        assert [await handle.aresult(timeout=60) for handle in handles] == list(range(16))

    play(story())


def test_a_tool_that_no_thread_was_free_for_is_not_in_doubt(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[int] = []

    @app.tool(timeout=0.05)
    def charge() -> Any:
        acted.append(1)

    @app.job
    async def work() -> str:
        try:
            await charge()
        except StepFailed as failure:
            return failure.reason
        return "charged"

    async def story() -> None:
        handle = await app.astart(work)
        monkeypatch.setattr(ThreadPool, "_wake_next", lambda _: None)  # no thread is ever free
        await drain(app)
        assert await handle.aresult(timeout=60) == "step timeout", "it has failed, and nobody is asked"
        assert await app.averify() == {}

    play(story())
    assert acted == []
