"""The scenarios that the first engine failed: races, native work beside waits, unrecorded tools, early signals."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast import App, Permanent, StepFailed, WaitTimeout, sleep, wait_for
from scenarios.parts import acting, describe, echoing
from support.scenarios import START, Fails, Gives, Outside, Signal, scenario


@scenario(Gives(["early", "slow"]), moves=[Signal("x", "early", at=START)])
def early_signal_beside_slow_step(app: App, _: Outside) -> Any:
    @app.step
    async def slow() -> str:
        await asyncio.sleep(0.1)
        return "slow"

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("x", timeout=0.02), slow())

    return work


@scenario(Gives("went"), moves=[Signal("go", "went")])
def suspension_is_not_seen_as_cancel(app: App, outside: Outside) -> Any:
    @app.job
    async def work() -> Any:
        try:
            return await wait_for("go")
        except asyncio.CancelledError:
            outside.act("the code saw a cancel")
            raise

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def task_group_that_cut_off_a_tool_goes_on_after_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.tool(reconcile=outside.reconcile)
    async def hangs() -> None:
        outside.mark("hangs")
        await asyncio.Event().wait()

    @app.step
    async def fails() -> None:
        await outside.reached("hangs")
        raise Permanent("no use")

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(hangs())
                group.create_task(fails())
        except* StepFailed:
            pass
        await wait_for("go")
        return await act("after")

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def timeout_over_a_tool_goes_on_after_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.tool(reconcile=outside.reconcile)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.timeout(0.02):
                await hangs()
        except TimeoutError:
            await wait_for("go")
            return await act("after")
        return "it ended"

    return work


@scenario(Gives("act(gave up)"), acts=[("act", "gave up")])
def timeout_around_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.timeout(0.03):
                return await wait_for("never")
        except TimeoutError:
            return await act("gave up")

    return work


@scenario(Gives("fast"), acts=[("act", "fast")], moves=[Signal("go")])
def race_of_steps(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def slow() -> str:
        await outside.reached("decided")
        return "slow"

    @app.step
    async def fast() -> str:
        return "fast"

    @app.job
    async def work() -> Any:
        tasks = [asyncio.create_task(slow()), asyncio.create_task(fast())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (winner,) = [task.result() for task in done]
        await act(winner)
        outside.mark("decided")
        await tasks[0]
        await wait_for("go")
        return winner

    return work


@scenario(Gives("late"), acts=[("act", "late")], moves=[Signal("go")])
def step_against_sleep(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def slow() -> str:
        await outside.reached("decided")
        return "in time"

    @app.job
    async def work() -> Any:
        step, timer = asyncio.create_task(slow()), asyncio.create_task(sleep(0.02))
        done, _ = await asyncio.wait([step, timer], return_when=asyncio.FIRST_COMPLETED)
        said = step.result() if step in done else "late"
        await act(said)
        outside.mark("decided")
        await step
        await wait_for("go")
        return said

    return work


@scenario(Gives(["c", "b", "a"]), acts=[("act", "c"), ("act", "b"), ("act", "a")], in_order=True, moves=[Signal("go")])
def as_completed_order(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def after(name: str, before: str) -> str:
        if before:
            await outside.reached(before)
        return name

    @app.job
    async def work() -> list[str]:
        order = []
        tasks = [asyncio.create_task(after(*pair)) for pair in (("a", "b"), ("b", "c"), ("c", ""))]
        for ended in asyncio.as_completed(tasks):
            name = await ended
            await act(name)
            outside.mark(name)
            order.append(name)
        await wait_for("go")
        return order

    return work


@scenario(Gives("reject"), acts=[("act", "reject")], moves=[Signal("reject"), Signal("approve"), Signal("audit")])
def race_of_waits(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> str:
        approve, reject = asyncio.create_task(wait_for("approve")), asyncio.create_task(wait_for("reject"))
        done, _ = await asyncio.wait([approve, reject], return_when=asyncio.FIRST_COMPLETED)
        decision = "approve" if approve in done else "reject"
        await act(decision)
        await wait_for("audit")
        return decision

    return work


def _two_seats(app: App, outside: Outside) -> Any:
    """Two branches that book an equal seat: the one that is written second books first."""

    @app.tool(reconcile=outside.reconcile)
    async def seat() -> int:
        return outside.act_numbered("seat")

    @app.step
    async def slow() -> None:
        await outside.reached("b has a seat")

    async def a() -> int:
        await slow()
        return int(await seat())

    async def b() -> int:
        number = int(await seat())
        outside.mark("b has a seat")
        return number

    return a, b


@scenario(Gives([2, 1]), acts=[("seat",), ("seat",)], moves=[Signal("go")])
def equal_calls_in_branches(app: App, outside: Outside) -> Any:
    a, b = _two_seats(app, outside)

    @app.job
    async def work() -> Any:
        seats = await asyncio.gather(a(), b())
        await wait_for("go")
        return seats

    return work


@scenario(
    Gives([2, 1]),
    acts=[("seat",), ("seat",), ("confirm", "a", 2), ("confirm", "b", 1)],
    moves=[Signal("go")],
)
def equal_tools_do_not_swap(app: App, outside: Outside) -> Any:
    a, b = _two_seats(app, outside)

    @app.tool(reconcile=outside.reconcile)
    async def confirm(who: str, number: int) -> str:
        return outside.act("confirm", who, number)

    async def late(who: str, book: Any) -> int:
        number = await book()
        await confirm(who, number)
        return int(number)

    @app.job
    async def work() -> Any:
        seats = await asyncio.gather(late("a", a), late("b", b))
        await wait_for("go")
        return seats

    return work


@scenario(Gives(["yes", "act(mail)"]), acts=[("act", "mail")], moves=[Signal("ok", "yes", after=("act", "mail"))])
def native_await_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def ask() -> Any:
        await asyncio.sleep(0.02)
        return await act("mail")

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("ok"), ask())

    return work


@scenario(Gives(["yes", "act(mail)"]), acts=[("act", "mail")], moves=[Signal("ok", "yes", after=("act", "mail"))])
def thread_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def ask() -> Any:
        await asyncio.to_thread(time.sleep, 0.02)
        return await act("mail")

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("ok"), ask())

    return work


@scenario(Gives(["yes", "act(bottom)"]), acts=[("act", "bottom")], moves=[Signal("ok", "yes", after=("act", "bottom"))])
def deep_branches_beside_a_wait(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    async def deep(levels: int) -> Any:
        return (await asyncio.gather(deep(levels - 1)))[0] if levels else await echo("bottom")

    async def ask() -> Any:
        return await act(await deep(60))

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("ok"), ask())

    return work


@scenario(Gives(["act(a)", "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=[Signal("go")], refusable=True)
def tools_from_a_thread_pool(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        with ThreadPoolExecutor(2) as pool:
            try:
                found: Any = list(pool.map(act, ["a", "b"]))
                for one in found:
                    if asyncio.iscoroutine(one):  # called as outside a job: no one awaits it
                        one.close()
                        return "a coroutine"
            except Exception as error:  # noqa: BLE001 - to refuse is right, too
                found = {"refused": str(error)}
        wait_for("go")
        return found

    return work


@scenario(Gives("refused"))
def tool_inside_a_step_that_retries(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def both() -> None:
        await act("inside")
        raise ConnectionError("after it")

    @app.job
    async def work() -> str:
        try:
            await both()
        except StepFailed as failure:
            return "refused" if "act" in failure.reason and "after it" not in failure.reason else failure.reason
        return "it was called"

    return work


@scenario(
    Gives("{str 'b': list(int 1, str 'x'), str 'a': list(list(int 2), NoneType None), str '0': float 1.5}"),
    moves=[Signal("go")],
)
def values_live_and_replayed(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.step
    async def values():  # type: ignore[no-untyped-def]  # noqa: ANN202 - without a hint a value is what JSON makes of it
        return {"b": (1, "x"), "a": ((2,), None), "0": 1.5}

    @app.job
    async def work() -> str:
        said = describe(await values())
        seen = await echo(said)
        await wait_for("go")
        return str(seen)

    return work


@scenario(Fails("KeyboardInterrupt"))
def raise_keyboard_interrupt_async(app: App, _: Outside) -> Any:
    @app.step
    async def stops() -> None:
        raise KeyboardInterrupt("in a step")

    @app.job
    async def work() -> None:
        await stops()

    return work


@scenario(Fails("KeyboardInterrupt"))
def raise_keyboard_interrupt_in_job(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> None:
        raise KeyboardInterrupt("in a job")

    return work


@scenario(Gives("early"), moves=[Signal("x", "early", at=START)])
def early_signal_zero_timeout(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        try:
            return await wait_for("x", timeout=0)
        except WaitTimeout:
            return "nothing there"

    return work


@scenario(Gives("act(x)"), acts=[("act", "x")], moves=[Signal("go")], refusable=True)
def tool_through_run_in_executor(app: App, outside: Outside) -> Any:
    @app.tool(reconcile=outside.reconcile)
    def act(what: str) -> str:
        return outside.act("act", what)

    @app.job
    async def work() -> Any:
        try:
            found: Any = await asyncio.get_running_loop().run_in_executor(None, act, "x")
        except Exception as error:  # noqa: BLE001 - to refuse is right, too
            found = {"refused": str(error)}
        await wait_for("go")
        return found

    return work


@scenario(Gives("one id"), moves=[Signal("go"), Signal("on")], others={"other": ["succeeded"]})
def start_inside_a_job_is_once(app: App, _: Outside) -> Any:
    @app.job
    async def other(n: int) -> int:
        return n

    @app.job
    async def work() -> str:
        first = await other.astart(1)
        await wait_for("go")
        await wait_for("on")
        return "one id" if first.id else "no id"

    return work


@scenario(
    Gives("sent"), moves=[Signal("go"), Signal("on"), Signal("end", to="receiver")], others={"receiver": ["succeeded"]},
    acts=[("act", "one")],
)  # fmt: skip
def signal_inside_a_job_is_once(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def receiver() -> Any:
        await act(await wait_for("k"))
        await wait_for("end")
        try:
            await act(f"again: {await wait_for('k', timeout=0)}")
        except WaitTimeout:
            return "once"

    @app.job
    async def work() -> str:
        handle = await receiver.astart()
        await app.asignal(handle.id, "k", "one")
        await wait_for("go")
        await wait_for("on")
        return "sent"

    return work


@scenario(
    Gives("stopped"),
    acts=[("act", "stopped")],
    moves=[Signal("stop"), Signal("finish", to="child"), Signal("end")],
    others={"child": ["succeeded"]},
)
def race_of_child_and_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child() -> str:
        await wait_for("finish")
        return "child"

    @app.job
    async def work() -> str:
        ended, stop = asyncio.create_task(child()), asyncio.create_task(wait_for("stop"))
        done, _ = await asyncio.wait([ended, stop], return_when=asyncio.FIRST_COMPLETED)
        decision = "ended" if ended in done else "stopped"
        await act(decision)
        await ended
        await wait_for("end")
        return decision

    return work


@scenario(
    Gives(["act(slow)", "act(after)"]),
    acts=[("act", "slow"), ("act", "after")],
    moves=[Signal("go", after=("act", "slow"))],
)
def slow_branch_is_no_nondeterminism(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def slow() -> Any:
        await asyncio.sleep(0.15)
        return await act("slow")

    async def after() -> Any:
        await wait_for("go")
        return await act("after")

    @app.job
    async def work() -> Any:
        return await asyncio.gather(slow(), after())

    return work
