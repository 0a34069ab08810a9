"""Whole programs as people write them: approvals, polling, pauses, deadlines, forgotten awaits."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, WaitTimeout, sleep, wait_for
from scenarios.parts import acting, echoing, held
from support.scenarios import Advance, Fails, Gives, Outside, Pause, Resume, Signal, TimedOut, scenario


@scenario(
    Gives("receipt"), acts=[("act", "charge"), ("act", "ship")], in_order=True, moves=[Signal("paid"), Signal("packed")]
)
def an_order(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        await wait_for("paid", timeout="3d")
        await act("charge")
        await wait_for("packed", timeout="3d")
        await act("ship")
        return "receipt"

    return work


@scenario(Gives(["pending", "pending", "ready"]))
def polling_until_it_is_ready(app: App, outside: Outside) -> Any:
    @app.step
    async def look(number: int) -> str:
        return "ready" if number == 2 else "pending"

    @app.job
    async def work() -> Any:
        seen = []
        for number in range(10):
            seen.append(await look(number))
            if seen[-1] == "ready":
                break
            await sleep(0.01)
        return seen

    del outside
    return work


@scenario(Gives(3), acts=[("act", n) for n in range(3)], in_order=True, moves=[Advance(86400 + 60)] * 3)
def a_day_of_sleep_three_times(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        for day in range(3):
            await sleep("1d")
            await act(day)
        return 3

    return work


@scenario(
    Gives(["reminded", "reminded", "answered"]),
    acts=[("act", "remind 0"), ("act", "remind 1")],
    moves=[Advance(3700), Advance(3700), Signal("answer")],
)
def reminders_until_there_is_an_answer(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        said: list[str] = []
        for number in range(5):
            try:
                await wait_for("answer", timeout="1h")
            except WaitTimeout:
                await act(f"remind {number}")
                said.append("reminded")
            else:
                break
        return [*said, "answered"]

    return work


@scenario(TimedOut(), deadline=3600, moves=[Advance(4000)])
def a_deadline_while_it_waits(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        await wait_for("never")
        await act("never")

    return work


@scenario(TimedOut(), deadline=0.2, crashes=False)
def a_deadline_while_a_step_runs(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        await hold("never")
        await act("never")

    return work


@scenario(TimedOut(), deadline=0.2, crashes=False)
def a_deadline_while_native_code_runs(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        await asyncio.sleep(60)
        await act("never")

    return work


@scenario(Gives("in time"), deadline=3600, moves=[Signal("go")])
def a_deadline_that_is_kept(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        await wait_for("go")
        return "in time"

    return work


@scenario(
    Gives(["act(a)", "act(b)"]),
    acts=[("act", "a"), ("act", "b")],
    moves=[Pause(at="in the step"), Resume()],
    crashes=False,
)
def a_pause_while_a_step_runs(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def busy() -> None:
        outside.mark("in the step")
        await asyncio.sleep(0.05)

    @app.job
    async def work() -> Any:
        first = await act("a")
        await busy()
        return [first, await act("b")]

    return work


@scenario(
    Gives(["b", "act(a)", "act(c)"]),
    acts=[("act", "a"), ("act", "c")],
    moves=[Pause(at="waiting"), Resume(), Signal("b", "b")],
    crashes=False,
)
def a_pause_among_branches(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def busy() -> None:
        outside.mark("waiting")
        await asyncio.sleep(0.05)

    async def branch() -> Any:
        await busy()
        return await act("c")

    @app.job
    async def work() -> Any:
        a = await act("a")
        b, c = await asyncio.gather(wait_for("b"), branch())
        return [b, a, c]

    return work


@scenario(
    Gives(["planned", "act(search)", "act(answer)"]),
    acts=[("act", "search"), ("act", "answer")],
    in_order=True,
    moves=[Signal("approved")],
)
def an_agent_with_tools(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def think(history: list[str]) -> str:
        return ["search", "answer", "stop"][len(history) - 1]

    @app.job
    async def work() -> Any:
        history = ["planned"]
        while (tool := await think(history)) != "stop":
            if tool == "answer":
                await wait_for("approved", type="human")
            history.append(await act(tool))
        return history

    return work


@scenario(Fails("await"))
def a_tool_that_nobody_awaits(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        act("forgotten")  # noqa: RUF100 - the mistake is the point
        await echo("a")
        return "done"

    return work


@scenario(Fails("await"))
def a_step_that_is_returned_instead_of_awaited(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        return echo("a")

    return work


@scenario(Fails("await"))
def a_wait_that_nobody_awaits(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        wait_for("go")
        return "done"

    return work


@scenario(Gives([0, 1, 2, 3, 4, 5]), acts=[("act", n) for n in range(6)], moves=[Signal("go")])
def a_worker_pool_of_the_jobs_own(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue()
        found: list[int] = []
        for number in range(6):
            queue.put_nowait(number)

        async def takes() -> None:
            while not queue.empty():
                number = queue.get_nowait()
                await echo(number)
                await act(number)
                found.append(number)

        await asyncio.gather(*(takes() for _ in range(3)))
        await wait_for("go")
        return sorted(found)

    return work


@scenario(
    Gives(["act(a)", "act(b)", "act(c)"]),
    acts=[("act", "a"), ("act", "b"), ("act", "c")],
    in_order=True,
    moves=[Signal("next")] * 2,
)
def a_state_machine_in_a_loop(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        said, state = [], "a"
        following = {"a": "b", "b": "c"}
        while True:
            said.append(await act(state))
            if state not in following:
                return said
            await wait_for("next")
            state = following[state]

    return work


@scenario(
    Gives([1, 2, 3, 4]),
    acts=[("act", n) for n in (1, 2, 3, 4)],
    in_order=True,
    moves=[Signal("batch", [1, 2]), Signal("batch", [3, 4])],
)
def batches_as_they_come(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        seen = []
        for _ in range(2):
            for item in await wait_for("batch"):
                await act(item)
                seen.append(item)
        return seen

    return work
