"""What comes first decides, and stays decided: asyncio.wait, as_completed, calls against time, waits against waits."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, StepFailed, WaitTimeout, sleep, wait_for
from scenarios.parts import acting, echoing, held
from support.scenarios import Gives, Outside, Signal, scenario

FIRST = asyncio.FIRST_COMPLETED


@scenario(Gives([["a", "b"], 0]), moves=[Signal("go")])
def wait_for_all_steps(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        tasks = [asyncio.create_task(echo(name)) for name in ("a", "b")]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.ALL_COMPLETED)
        await wait_for("go")
        return [sorted(task.result() for task in done), len(pending)]

    return work


@scenario(Gives(["boom", "held"]), acts=[("act", "boom")], moves=[Signal("go")])
def wait_for_the_first_exception(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.step
    async def fails() -> None:
        raise ValueError("boom")

    @app.job
    async def work() -> Any:
        tasks = [asyncio.create_task(hold("decided")), asyncio.create_task(fails())]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        (reason,) = [task.exception().reason for task in done]  # type: ignore[union-attr]
        await act(reason)
        outside.mark("decided")
        (rest,) = await asyncio.gather(*pending)
        await wait_for("go")
        return [reason, rest]

    return work


@scenario(Gives([0, 2, "held"]), acts=[("act", "late")], moves=[Signal("go")])
def wait_with_a_timeout(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        tasks = [asyncio.create_task(hold("decided")), asyncio.create_task(hold("decided"))]
        done, pending = await asyncio.wait(tasks, timeout=0.02)
        counts = [len(done), len(pending)]
        await act("late")
        outside.mark("decided")
        results = await asyncio.gather(*tasks)
        await wait_for("go")
        return [*counts, results[0]]

    return work


@scenario(
    Gives(["c", "b", "a"]), acts=[("act", "c"), ("act", "b"), ("act", "a")], in_order=True, moves=[Signal("go")],
    refusable=True,
)  # fmt: skip
def as_completed_with_coroutines(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    async def one(name: str, before: str) -> str:
        await hold(before)
        return name

    @app.job
    async def work() -> Any:
        outside.mark("start")
        order = []
        calls = [one("a", "b"), one("b", "c"), one("c", "start")]
        try:
            ends = list(asyncio.as_completed(calls))
        except (TypeError, RuntimeError, ValueError) as error:
            for call in calls:
                call.close()
            await wait_for("go")
            return {"refused": str(error)}
        for ended in ends:
            name = await ended
            await act(name)
            outside.mark(name)
            order.append(name)
        await wait_for("go")
        return order

    return work


@scenario(Gives(["quick", "too late"]), acts=[("act", "quick"), ("act", "too late")], moves=[Signal("go")])
def as_completed_with_a_timeout(app: App, outside: Outside) -> Any:
    act, echo, hold = acting(app, outside), echoing(app), held(app, outside)

    @app.job
    async def work() -> Any:
        found = []
        tasks = [asyncio.create_task(hold("never")), asyncio.create_task(echo("quick"))]
        try:
            for ended in asyncio.as_completed(tasks, timeout=0.25):
                found.append(await ended)
                await act(found[-1])
        except TimeoutError:
            found.append("too late")
            await act("too late")
        tasks[0].cancel()
        await asyncio.wait(tasks)
        await wait_for("go")
        return found

    return work


@scenario(Gives("short"), acts=[("act", "short")], moves=[Signal("go")])
def two_sleeps_race(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        long, short = asyncio.create_task(sleep("1h")), asyncio.create_task(sleep(0.02))
        done, _ = await asyncio.wait([long, short], return_when=FIRST)
        winner = "long" if long in done else "short"
        await act(winner)
        long.cancel()
        await asyncio.wait([long])
        await wait_for("go")
        return winner

    return work


@scenario(Gives("timer"), acts=[("act", "timer")], moves=[Signal("answer"), Signal("go")])
def timer_wins_over_a_signal(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        answer, timer = asyncio.create_task(wait_for("answer")), asyncio.create_task(sleep(0.02))
        done, _ = await asyncio.wait([answer, timer], return_when=FIRST)
        winner = "answer" if answer in done else "timer"
        await act(winner)
        await answer
        await wait_for("go")
        return winner

    return work


@scenario(Gives("answer: yes"), acts=[("act", "answer: yes")], moves=[Signal("answer", "yes"), Signal("go")])
def signal_wins_over_a_long_sleep(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        answer, timer = asyncio.create_task(wait_for("answer")), asyncio.create_task(sleep("3d"))
        done, _ = await asyncio.wait([timer, answer], return_when=FIRST)
        winner = f"answer: {answer.result()}" if answer in done else "timer"
        timer.cancel()
        await act(winner)
        await wait_for("go")
        return winner

    return work


@scenario(Gives(["failed", "second"]), acts=[("act", "second")], moves=[Signal("go")])
def first_success_of_several(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.step
    async def fails() -> None:
        raise ValueError("failed")

    async def second() -> str:
        await hold("failed")
        return "second"

    async def third() -> str:
        await hold("decided")
        return "third"

    @app.job
    async def work() -> Any:
        seen: list[Any] = []
        tasks = [asyncio.create_task(one()) for one in (third, second, fails)]
        for ended in asyncio.as_completed(tasks):
            try:
                seen.append(await ended)
            except StepFailed as failure:
                seen.append(failure.reason)
                outside.mark("failed")
            else:
                break
        await act(seen[-1])
        outside.mark("decided")
        await asyncio.wait(tasks)
        await wait_for("go")
        return seen

    return work


@scenario(Gives("boom"), acts=[("slow", 1)], moves=[Signal("go", after=("slow", 1))])
def a_failure_leaves_other_branches_running(app: App, outside: Outside) -> Any:
    @app.tool(reconcile=outside.reconcile)
    async def slow(n: int) -> str:
        await outside.reached("caught")
        return outside.act("slow", n)

    @app.step
    async def fails() -> None:
        raise ValueError("boom")

    @app.job
    async def work() -> Any:
        try:
            await asyncio.gather(slow(1), fails())
        except StepFailed as failure:
            outside.mark("caught")
            await wait_for("go")
            return failure.reason

    return work


@scenario(
    Gives("second"), acts=[("act", "second")], moves=[Signal("finish", to="first"), Signal("go")],
    others={"first": ["succeeded"], "second": ["succeeded"]},
)  # fmt: skip
def race_of_two_children(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def first() -> str:
        await wait_for("finish")
        return "first"

    @app.job
    async def second() -> str:
        return "second"

    @app.job
    async def work() -> Any:
        tasks = [asyncio.create_task(first()), asyncio.create_task(second())]
        done, _ = await asyncio.wait(tasks, return_when=FIRST)
        (winner,) = [task.result() for task in done]
        await act(winner)
        await tasks[0]
        await wait_for("go")
        return winner

    return work


@scenario(
    Gives(["b", "c", "a"]),
    acts=[("act", "b"), ("act", "c"), ("act", "a")],
    in_order=True,
    moves=[Signal("b"), Signal("c"), Signal("a"), Signal("go")],
)
def three_waits_in_the_order_of_their_signals(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def one(key: str) -> str:
        await wait_for(key)
        return key

    @app.job
    async def work() -> Any:
        order = []
        for ended in asyncio.as_completed([asyncio.create_task(one(key)) for key in "abc"]):
            order.append(await ended)
            await act(order[-1])
        await wait_for("go")
        return order

    return work


@scenario(Gives("x timed out"), acts=[("act", "x timed out")], moves=[Signal("y"), Signal("x"), Signal("go")])
def a_wait_that_times_out_wins(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        y, x = asyncio.create_task(wait_for("y")), asyncio.create_task(wait_for("x", timeout=0.02))
        done, _ = await asyncio.wait([y, x], return_when=FIRST)
        said = "y" if y in done else "x timed out" if isinstance(x.exception(), WaitTimeout) else "x"
        await act(said)
        await y
        await wait_for("go")
        return said

    return work


@scenario(Gives("inner b"), acts=[("act", "inner b")], moves=[Signal("b"), Signal("a"), Signal("c"), Signal("go")])
def a_race_inside_a_race(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def inner() -> str:
        a, b = asyncio.create_task(wait_for("a")), asyncio.create_task(wait_for("b"))
        done, _ = await asyncio.wait([a, b], return_when=FIRST)
        return "inner a" if a in done else "inner b"

    @app.job
    async def work() -> Any:
        left, right = asyncio.create_task(inner()), asyncio.create_task(wait_for("c"))
        done, _ = await asyncio.wait([right, left], return_when=FIRST)
        said = "c" if right in done else left.result()
        await act(said)
        await right
        await wait_for("go")
        return said

    return work


@scenario(
    Gives(["one", "two", "stopped"]),
    acts=[("act", "one"), ("act", "two"), ("act", "stopped")],
    in_order=True,
    moves=[Signal("next", "one"), Signal("next", "two"), Signal("stop", "stopped"), Signal("next", "three")],
)
def a_race_in_each_round_of_a_loop(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        seen = []
        stop = asyncio.create_task(wait_for("stop"))
        while not stop.done():
            following = asyncio.create_task(wait_for("next"))
            done, _ = await asyncio.wait([stop, following], return_when=FIRST)
            seen.append(stop.result() if stop in done else following.result())
            await act(seen[-1])
        return seen

    return work


@scenario(Gives("the same"), acts=[("seat",)] * 5, moves=[Signal("go"), Signal("on")])
def the_order_of_a_set_of_tasks_is_kept(app: App, outside: Outside) -> Any:
    echo = echoing(app)

    @app.tool(reconcile=outside.reconcile)
    async def seat() -> int:
        return outside.act_numbered("seat")

    @app.job
    async def work() -> Any:
        tasks = [asyncio.create_task(echo(name)) for name in "abcde"]
        done, _ = await asyncio.wait(tasks)
        seats = {task.result(): await seat() for task in done}
        first = await echo(sorted(seats.items()))
        await wait_for("go")
        await echo("between")
        await wait_for("on")
        return "the same" if [list(pair) for pair in sorted(seats.items())] == first else "another order"

    return work


@scenario(Gives("the same"), moves=[Signal("go"), Signal("on")])
def a_task_group_cancels_in_the_same_order(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.step
    async def fails() -> None:
        raise ValueError("boom")

    @app.job
    async def work() -> Any:
        order: list[int] = []

        async def one(number: int) -> None:
            try:
                await wait_for(f"never {number}")
            except asyncio.CancelledError:
                order.append(number)
                raise

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    group.create_task(one(number))
                group.create_task(fails())
        except* StepFailed:
            pass
        first = await echo(order)
        await wait_for("go")
        await wait_for("on")
        return "the same" if order == first and len(order) == 6 else f"first {first}, then {order}"

    return work


@scenario(Gives(["b", "a"]), acts=[("act", "b"), ("act", "a")], in_order=True, moves=[Signal("go")])
def steps_that_end_while_the_code_is_elsewhere(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        order: list[str] = []

        async def one(name: str, mark: str) -> None:
            await hold(mark)
            order.append(name)

        a, b = asyncio.create_task(one("a", "b ended")), asyncio.create_task(one("b", "start"))
        outside.mark("start")
        await b
        await act("b")
        outside.mark("b ended")
        await a
        await act("a")
        await wait_for("go")
        return order

    return work


@scenario(Gives(["timer", "step"]), acts=[("act", "timer"), ("act", "step")], in_order=True, moves=[Signal("go")])
def a_reminder_while_a_step_runs(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        said = []
        step = asyncio.create_task(hold("reminded"))
        while not step.done():
            timer = asyncio.create_task(sleep(0.02))
            await asyncio.wait([step, timer], return_when=FIRST)
            said.append("step" if step.done() else "timer")
            await act(said[-1])
            outside.mark("reminded")
            if not step.done():
                await step
                said.append("step")
                await act("step")
        await wait_for("go")
        return said

    return work


@scenario(Gives("neither"), acts=[("act", "neither")], moves=[Signal("go")])
def a_race_that_the_code_gives_up(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        tasks = [asyncio.create_task(wait_for(key)) for key in ("a", "b")]
        done, pending = await asyncio.wait(tasks, timeout=0.02, return_when=FIRST)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        said = "neither" if not done and all(task.cancelled() for task in tasks) else "one"
        await act(said)
        await wait_for("go")
        return said

    return work
