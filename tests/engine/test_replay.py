"""What a job's past hands to its code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, Backoff, StepFailed, now, wait_for
from holdfast.client.verify import check_replay
from holdfast.engine.replay import Replay, Success
from holdfast.machines import Event, seal
from support.stories import drain, play

CHARGE = {"node": "charge:1", "name": "charge", "args": {}}


def stream(*events: tuple[str, dict[str, Any], int | None]) -> list[Event]:
    made = [seal(None, "job_created", {}, job="j", at=1.0)]
    for kind, payload, attempt in events:
        made.append(seal(made[-1], kind, payload, at=1.0, attempt=attempt))
    return made


def answered(answer: str) -> tuple[str, dict[str, Any], int | None]:
    said = {"node": "charge:1", "correlation_key": "holdfast:doubt:charge:1", "outcome": "resolved"}
    return "wait_completed", {**said, "payload": {"answer": answer}}, None


def test_an_answer_is_about_the_try_it_was_asked_for_and_not_about_the_next() -> None:
    asked = [("tool_invocation_started", CHARGE, 1), answered("not_done")]
    assert Replay(stream(*asked)).answers == {"charge:1": {"answer": "not_done"}}
    again = Replay(stream(*asked, ("tool_invocation_started", CHARGE, 2)))
    assert "charge:1" in again.in_doubt
    assert again.answers == {}, "the second try is in doubt, too, and nobody has answered for it"


def test_a_call_that_was_cut_off_and_made_again_by_a_retry_has_one_outcome() -> None:
    cut = {"node": "charge:1", "result_type": "permanent_failure", "reason": "cut off", "kind": "cut_off"}
    made = {"node": "charge:1", "name": "charge", "result": "r"}
    replay = Replay(stream(("node_started", CHARGE, 1), ("node_finished", cut, 1), ("command_committed", made, 2)))
    outcomes = [item.outcome for item in replay.order if item.outcome is not None]
    assert outcomes == [Success("r")], "the worker would wait without end for the code to cut the call off again"
    assert replay.take("charge:1") == Success("r")


def test_a_job_that_a_retry_lets_finish_what_it_had_cut_off_is_replayed(app: App) -> None:
    tries: list[str] = []

    @app.step
    async def long(name: str) -> str:
        if len(tries) == 1:
            await asyncio.Event().wait()  # until it is cut off
        return name

    @app.job(backoff=Backoff(retries=1, first_seconds=0.001))
    async def work() -> str:
        task = asyncio.create_task(long("a"))
        await asyncio.sleep(0.01)  # the call begins
        tries.append("a try")
        if len(tries) == 1:
            raise ConnectionError("down")
        result = await task
        await wait_for("go on")
        return result

    async def story() -> None:
        run = await app.astart(work)
        await drain(app)
        await run.asignal("go on")
        await drain(app)
        assert await run.aresult() == "a"
        assert await app.averify() == {}

    play(story())


def _as_it_is(error: Exception) -> Exception:
    return error


def _as_the_cause(error: Exception) -> Exception:
    made = RuntimeError("the order is stuck")
    made.__cause__ = error
    return made


def _in_a_group(error: Exception) -> Exception:
    return ExceptionGroup("several", [error])


@pytest.mark.parametrize("wrap", [_as_it_is, _as_the_cause, _in_a_group])
def test_an_operators_retry_makes_the_call_again_that_the_job_failed_of_and_no_other(
    app: App, wrap: Callable[[Exception], Exception]
) -> None:
    called: list[str] = []

    @app.step(backoff=Backoff(retries=1, first_seconds=0.001))
    async def flaky(name: str) -> str:
        called.append(name)
        if called.count(name) <= 2:
            raise ConnectionError("down")
        return name

    @app.step
    async def steady() -> str:
        called.append("steady")
        return "steady"

    @app.job
    async def work() -> str:
        await steady()
        try:
            await flaky("optional")
        except StepFailed:
            called.append("went on without")
        try:
            return await flaky("needed")
        except StepFailed as error:
            wrapped = wrap(error)
            raise wrapped from wrapped.__cause__

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        again = await app.aretry(handle.id, actor="ana", reason="it is up again")
        await drain(app)
        assert (await app.aget(again.run_id)).status == "succeeded"
        assert await app.averify() == {}

    play(story())
    assert [called.count(name) for name in ("steady", "optional", "needed")] == [1, 2, 3]


def test_an_operators_retry_does_not_repeat_a_tool_that_was_in_doubt(app: App) -> None:
    acted: list[int] = []

    @app.tool(timeout=0.02, on_doubt="fail")
    async def charge() -> None:
        acted.append(1)
        await asyncio.sleep(60)

    @app.job
    async def work() -> None:
        await charge()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        again = await app.aretry(handle.id, actor="ana", reason="try")
        await drain(app)
        assert (await app.aget(again.run_id)).status == "failed"

    play(story())
    assert acted == [1]


def test_an_operators_retry_starts_a_child_again_that_has_failed(app: App) -> None:
    mended: list[bool] = []

    @app.job
    async def child() -> str:
        if not mended:
            raise ConnectionError("down")
        return "up"

    @app.job
    async def work() -> str:
        return await child()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        mended.append(True)
        again = await app.aretry(handle.id, actor="ana", reason="it is up again")
        await drain(app)
        assert (await app.aget(again.run_id)).status == "succeeded"
        assert await app.averify() == {}

    play(story())


def test_no_two_calls_have_one_identity_whatever_their_keys_are() -> None:
    replay = Replay([])
    keys = ["x", "x", "x#2", "x#2", "x#", "x#", "x##2", "x#2#2", "x"]
    assert len({replay.node("f", {}, key) for key in keys}) == len(keys)


def test_code_that_stands_still_for_a_while_is_rehearsed_to_its_end(app: App) -> None:
    @app.step
    async def price(sku: str) -> int:
        return len(sku)

    @app.job
    async def work() -> int:
        time.sleep(0.2)  # noqa: ASYNC251 - it stands still
        await asyncio.sleep(0.2)
        await asyncio.to_thread(time.sleep, 0.2)
        for _ in range(3):
            await asyncio.sleep(0)
        return await price("A1")

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        found = await check_replay(app, await handle.aevents())
        assert (found.fits, found.reasons, found.answered) == (True, [], 1)

    play(story())


def test_recorded_values_do_not_depend_on_calls_of_the_context_that_runs_the_code(app: App) -> None:
    @app.job
    async def work() -> float:
        return now()

    async def story() -> None:
        handle = await app.astart(work)
        Replay([]).node("other", {}, None)  # as code of another job in this context has made
        await drain(app)
        names = [e.payload["node"] for e in await handle.aevents() if e.type == "value_recorded"]
        assert names == ["now:value"]
        assert (await check_replay(app, await handle.aevents())).fits

    play(story())
