"""Branches: gather, TaskGroup, failing siblings, depth, fan-out, equal calls."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, Permanent, StepFailed, WaitTimeout, gather, wait_for
from holdfast import map as map_steps
from scenarios.parts import acting, echoing, failing, held, seats
from support.scenarios import Fails, Gives, Outside, Signal, scenario


@scenario(Gives(["a", "b"]), moves=[Signal("go")])
def task_group_of_steps(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        async with asyncio.TaskGroup() as group:
            a, b = group.create_task(echo("a")), group.create_task(echo("b"))
        await wait_for("go")
        return [a.result(), b.result()]

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def task_group_cuts_off_a_wait(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(wait_for("never"))
                group.create_task(fail("boom"))
        except* StepFailed:
            pass
        await wait_for("go")
        return await act("after")

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def task_group_cuts_off_a_step(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.step
    async def hangs() -> None:
        outside.mark("hangs")
        await asyncio.Event().wait()

    async def fails() -> None:
        await hold("hangs")
        raise ValueError("boom")

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(hangs())
                group.create_task(fails())
        except* ValueError:
            pass
        await wait_for("go")
        return await act("after")

    return work


@scenario(Gives(["boom", "while it was cancelled"]), acts=[("act", "after")], moves=[Signal("go")])
def task_group_with_two_failures(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    async def stubborn() -> None:
        try:
            await wait_for("never")
        except asyncio.CancelledError:
            raise ValueError("while it was cancelled") from None

    @app.job
    async def work() -> Any:
        said: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(stubborn())
                group.create_task(fail("boom"))
        except* StepFailed as failures:
            said += [failure.reason for failure in failures.exceptions if isinstance(failure, StepFailed)]
        except* ValueError as errors:
            said += map(str, errors.exceptions)
        await wait_for("go")
        await act("after")
        return said

    return work


@scenario(Fails("ExceptionGroup"), acts=[("act", "first")])
def task_group_whose_failure_nobody_catches(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    async def work() -> Any:
        await act("first")
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for("never"))
            group.create_task(fail("boom"))

    return work


@scenario(
    Gives(["a", ["StepFailed", "boom"], ["WaitTimeout", None], "act(b)"]), acts=[("act", "b")], moves=[Signal("go")]
)
def gather_with_exceptions_as_results(app: App, outside: Outside) -> Any:
    act, echo, fail = acting(app, outside), echoing(app), failing(app)

    @app.job
    async def work() -> Any:
        calls = [echo("a"), fail("boom"), wait_for("never", timeout=0.02), act("b")]
        found = await asyncio.gather(*calls, return_exceptions=True)
        said = [
            [type(one).__name__, getattr(one, "reason", None)] if isinstance(one, (StepFailed, WaitTimeout)) else one
            for one in found
        ]
        await echo(said)
        await wait_for("go")
        return said

    return work


@scenario(Gives(["b", "a"]), acts=[("act", "a"), ("act", "b")], moves=[Signal("a", "a"), Signal("b", "b")])
def nested_sixty_deep(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def deep(levels: int, key: str) -> Any:
        if levels:
            return (await asyncio.gather(deep(levels - 1, key)))[0]
        said = await wait_for(key)
        await act(said)
        return said

    @app.job
    async def work() -> Any:
        return await asyncio.gather(deep(60, "b"), deep(59, "a"))

    return work


@scenario(Gives(["bottom", ["boom"] * 20]), moves=[Signal("go")])
def task_groups_nested_twenty_deep(app: App, _: Outside) -> Any:
    echo, fail = echoing(app), failing(app)
    seen: list[str] = []

    async def deep(levels: int) -> Any:
        if not levels:
            return await echo("bottom")
        try:
            async with asyncio.TaskGroup() as group:
                inner = group.create_task(deep(levels - 1))
                await inner
                group.create_task(fail("boom"))
        except* StepFailed as failures:
            seen.extend(one.reason for one in failures.exceptions if isinstance(one, StepFailed))
        return inner.result()

    @app.job
    async def work() -> Any:
        seen.clear()
        found = await deep(20)
        reasons = list(seen)
        await wait_for("go")
        return [found, reasons]

    return work


@scenario(Gives(1225), moves=[Signal("go")])
def fifty_steps_at_once(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(*(echo(n) for n in range(50)))
        await wait_for("go")
        return sum(found)

    return work


@scenario(Gives([0, 2, 4, 6, 8, 10, 12]), acts=[("double", n) for n in range(7)], moves=[Signal("go")])
def map_with_a_limit(app: App, outside: Outside) -> Any:
    @app.tool(reconcile=outside.reconcile)
    async def double(n: int) -> Any:
        outside.act("double", n)
        return outside.remember(2 * n)

    @app.job
    async def work() -> Any:
        found = await map_steps(double, range(7), limit=3)
        await wait_for("go")
        return found

    return work


@scenario(Gives("boom"), acts=[("act", "a")], moves=[Signal("go")])
def holdfast_gather_raises_when_all_have_ended(app: App, outside: Outside) -> Any:
    fail = failing(app)

    @app.tool(reconcile=outside.reconcile)
    async def slow(what: str) -> str:
        await asyncio.sleep(0.02)
        return outside.act("act", what)

    @app.job
    async def work() -> Any:
        try:
            await gather(fail("boom"), slow("a"))
        except StepFailed as failure:
            await wait_for("go")
            return failure.reason

    return work


@scenario(Gives(2), acts=[("act", n) for n in range(5)], moves=[Signal("go")])
def a_semaphore_bounds_tools(app: App, outside: Outside) -> Any:
    under_way: list[int] = []
    most: list[int] = [0]

    @app.tool(reconcile=outside.reconcile)
    async def act(n: int) -> str:
        under_way.append(n)
        most[0] = max(most[0], len(under_way))
        await asyncio.sleep(0.005)
        under_way.remove(n)
        return outside.act("act", n)

    @app.step
    async def highest() -> int:
        return max(most[0], 2)

    @app.job
    async def work() -> Any:
        slots = asyncio.Semaphore(2)

        async def one(n: int) -> None:
            async with slots:
                await act(n)

        await asyncio.gather(*(one(n) for n in range(5)))
        found = await highest()
        await wait_for("go")
        return found

    return work


@scenario(Gives("done"), acts=[("act", "first")])
def tasks_that_are_left_when_the_job_returns(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        left = [asyncio.create_task(hold("never")), asyncio.create_task(wait_for("never"))]
        await act("first")
        del left
        return "done"

    return work


@scenario(Gives([[1, 2, 3], [4, 5, 6]]), acts=[("seat",)] * 6, moves=[Signal("go")])
def equal_calls_one_branch_after_the_other(app: App, outside: Outside) -> Any:
    seat, hold = seats(app, outside), held(app, outside)

    async def second() -> Any:
        await hold("first ended")
        return [await seat() for _ in range(3)]

    async def first() -> Any:
        found = [await seat() for _ in range(3)]
        outside.mark("first ended")
        return found

    @app.job
    async def work() -> Any:
        late, early = await asyncio.gather(second(), first())
        await wait_for("go")
        return [early, late]

    return work


@scenario(Gives([2, 1]), acts=[("seat",), ("seat",)], moves=[Signal("b"), Signal("a"), Signal("go")])
def equal_calls_in_the_order_of_signals(app: App, outside: Outside) -> Any:
    seat = seats(app, outside)

    async def one(key: str) -> Any:
        await wait_for(key)
        return await seat()

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(one("a"), one("b"))
        await wait_for("go")
        return found

    return work


@scenario(Gives(["one", "two"]), acts=[("seat",), ("seat",)], moves=[Signal("go")])
def equal_calls_with_keys_of_their_own(app: App, outside: Outside) -> Any:
    seat = seats(app, outside)

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(seat.options(key="one")(), seat.options(key="two")())
        await wait_for("go")
        return ["one", "two"] if sorted(found) == [1, 2] else found

    return work


@scenario(Gives(["StepFailed", "boom", 0]), acts=[("act", "a")], moves=[Signal("go")])
def a_failure_in_a_branch_is_seen_where_it_is_awaited(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(fail("boom"))
        await act("a")
        await wait_for("go")
        try:
            await task
        except StepFailed as failure:
            return [type(failure).__name__, failure.reason, 0]

    return work


@scenario(Fails("StepFailed", "hopeless"), acts=[("act", "a")])
def a_permanent_failure_in_a_branch_fails_the_job(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step(retries=5)
    async def hopeless() -> None:
        await outside.reached("acted")
        raise Permanent("hopeless")

    async def acts() -> None:
        await act("a")
        outside.mark("acted")

    @app.job
    async def work() -> Any:
        await gather(acts(), hopeless())

    return work


@scenario(Gives("done"), acts=[("act", n) for n in range(4)], in_order=True, moves=[Signal("go")])
def a_pipeline_of_tasks(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        async def stage(before: asyncio.Task[Any] | None, n: int) -> int:
            if before is not None:
                await before
            await echo(n)
            await act(n)
            return n

        last: asyncio.Task[Any] | None = None
        for n in range(4):
            last = asyncio.create_task(stage(last, n))
        assert last is not None
        await last
        await wait_for("go")
        return "done"

    return work


@scenario(Gives([["b", "a"], "went"]), acts=[("act", "b"), ("act", "a")], in_order=True, moves=[Signal("go", "went")])
def done_callbacks_run_in_order(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        order: list[str] = []
        a, b = asyncio.create_task(hold("b")), asyncio.create_task(hold("start"))
        a.add_done_callback(lambda _: order.append("a"))
        b.add_done_callback(lambda _: order.append("b"))
        outside.mark("start")
        await b
        await act("b")
        outside.mark("b")
        await a
        await act("a")
        await asyncio.sleep(0)
        seen = list(order)
        return [seen, await wait_for("go")]

    return work
