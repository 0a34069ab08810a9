"""Jobs that go on in a new run: each run has one successor, and signals, cancels and results find their way."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, InvalidArguments, continue_as, sleep, wait_for
from scenarios.parts import acting, echoing
from support.scenarios import START, Cancel, Canceled, Fails, Gives, Outside, Pause, Resume, Retry, Signal, scenario


def _signals(count: int, at: str | None = None) -> list[Signal]:
    return [Signal("k", number, at=at) for number in range(count)]


@scenario(
    Gives([0, 1, 2]), args=[[]], acts=[("act", n) for n in range(3)], moves=_signals(3), in_order=True,
    others={"work": ["succeeded"] * 4},
)  # fmt: skip
def a_loop_that_waits_once_in_each_run(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work(seen: list[int]) -> Any:
        if len(seen) == 3:
            return seen
        number = await wait_for("k")
        await act(number)
        return continue_as([*seen, number])

    return work


@scenario(
    Gives([0, 1, 2]), args=[[]], acts=[("act", n) for n in range(3)], moves=_signals(3, START), in_order=True,
    others={"work": ["succeeded"] * 4},
)  # fmt: skip
def signals_that_came_before_move_along(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work(seen: list[int]) -> Any:
        if len(seen) == 3:
            return seen
        number = await wait_for("k")
        await act(number)
        return continue_as(seen=[*seen, number])

    return work


@scenario(Gives(3), args=[0], acts=[("act", n) for n in range(3)], in_order=True, others={"work": ["succeeded"] * 4})
def a_plain_job_goes_on(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work(n: int) -> int:
        if n == 3:
            return n
        act(n)
        return continue_as(n + 1)

    return work


@scenario(
    Gives([2, 102]), acts=[("act", n) for n in range(2)], moves=[Signal("k", "go", to="child")],
    others={"child": ["succeeded"] * 6, "work": ["succeeded"]},
)  # fmt: skip
def a_parent_gets_the_result_of_the_last_run(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child(n: int, base: int) -> int:
        if n == 2:
            return base + n
        if base == 0:
            await act(n)
        return continue_as(n + 1, base)

    @app.job
    async def work() -> Any:
        return list(await asyncio.gather(child(0, 0), child(0, 100)))

    return work


@scenario(Canceled(), args=[0], moves=[Signal("k"), Cancel("enough")], others={"work": ["succeeded", "canceled"]})
def a_cancel_of_the_first_run_ends_the_chain(app: App, _: Outside) -> Any:
    @app.job
    async def work(n: int) -> Any:
        await wait_for("k")
        return continue_as(n + 1)

    return work


@scenario(Gives(2), args=[0], moves=[Pause(), Signal("k"), Resume(), Signal("k")], others={"work": ["succeeded"] * 3})
def a_pause_of_the_first_run_pauses_the_chain(app: App, _: Outside) -> Any:
    @app.job
    async def work(n: int) -> int:
        if n == 2:
            return n
        await wait_for("k")
        return continue_as(n + 1)

    return work


@scenario(
    Gives("mended"), args=[0], moves=[Retry()], acts=[("act", 0)], others={"work": ["succeeded", "failed", "succeeded"]}
)
def a_run_that_fails_is_retried_by_the_name_of_the_first(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work(n: int) -> str:
        if n == 0:
            await act(n)
            return continue_as(1)
        if not outside.retries():
            raise ValueError("down")
        return "mended"

    return work


@scenario(
    Gives("done"), args=[0], acts=[("act", "closing 0"), ("act", "closing 1")], others={"work": ["succeeded"] * 3}
)
def cleaning_up_comes_before_the_end(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work(n: int) -> str:
        if n == 2:
            return "done"
        try:
            return continue_as(n + 1)
        finally:
            await act(f"closing {n}")

    return work


@scenario(Gives(2), args=[0], others={"work": ["succeeded"] * 3})
def tasks_that_were_left_are_cancelled(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work(n: int) -> int:
        if n == 2:
            return n
        left = asyncio.create_task(wait_for("never"))
        async with asyncio.TaskGroup() as group:
            group.create_task(sleep("1h"))
            on = await echo(n) + 1
            _ = continue_as(on) if on else left
        return int(on)

    return work


@scenario(Gives(["refused", "refused", 1]), args=[0, []], others={"work": ["succeeded"] * 2})
def arguments_that_do_not_fit_end_nothing(app: App, _: Outside) -> Any:
    @app.job
    async def work(n: int, said: list[str]) -> Any:
        if n:
            return [*said, n]
        said = []
        for wrong in (("one", said), ()):
            try:
                continue_as(*wrong)
            except InvalidArguments:
                said.append("refused")
        return continue_as(1, said)

    return work


@scenario(Fails("InvalidArguments", "continue_as", "not in a task"), args=[0], others={"work": ["failed"]})
def a_task_cannot_end_the_run(app: App, _: Outside) -> Any:
    @app.job
    async def work(n: int) -> None:
        async def branch() -> None:
            continue_as(n + 1)

        await asyncio.create_task(branch())

    return work


@scenario(Fails("caught the exception of continue_as", "let it through"), args=[0], others={"work": ["failed"]})
def code_that_catches_the_end_fails(app: App, _: Outside) -> Any:
    @app.job
    async def work(n: int) -> int:
        try:
            return continue_as(n + 1)
        except BaseException:  # noqa: BLE001 - what must not be done
            return n

    return work
