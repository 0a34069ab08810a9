"""Cancelling one's own tasks, shielding, cleaning up; a cancel of the run; suspension, which is neither."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

from holdfast import App, check_cancelled, sleep, wait_for
from scenarios.parts import acting, echoing, held
from support.scenarios import START, Cancel, Canceled, Fails, Gives, Outside, Signal, scenario


@scenario(Gives(["cancelled", "late"]), acts=[("act", "cancelled")], moves=[Signal("x", "late"), Signal("go")])
def a_wait_that_was_given_up_takes_no_signal(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(wait_for("x"))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await act("cancelled")
        found = await wait_for("x")
        await wait_for("go")
        return ["cancelled", found]

    return work


@scenario(Gives("cancelled"), acts=[("act", "cancelled")], moves=[Signal("go")])
def own_cancel_of_a_step(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.step
    async def hangs() -> None:
        outside.mark("hangs")
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(hangs())
        await hold("hangs")
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await act("cancelled")
        await wait_for("go")
        return "cancelled"

    return work


@scenario(Gives("cancelled"), acts=[("act", "cancelled")], moves=[Signal("go")])
def own_cancel_of_a_tool_asks_no_one(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.tool(reconcile=outside.reconcile)
    async def hangs() -> None:
        outside.mark("hangs")
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(hangs())
        await hold("hangs")
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await act("cancelled")
        await wait_for("go")
        return "cancelled"

    return work


@scenario(Gives("cancelled"), acts=[("act", "cancelled")], moves=[Signal("go")])
def own_cancel_of_a_sleep(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(sleep("1h"))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await act("cancelled")
        await wait_for("go")
        return "cancelled"

    return work


@scenario(Gives("cancelled"), acts=[("act", "cancelled")], moves=[Signal("go")])
def own_cancel_of_a_child(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def child() -> None:
        await wait_for("never")

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(child())
        await echo("meanwhile")
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await act("cancelled")
        await wait_for("go")
        return "cancelled"

    return work


@scenario(Gives("cancelled"), moves=[Signal("go")])
def own_cancel_of_a_task_that_has_not_begun(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        async def never() -> None:
            await act("never")

        task = asyncio.create_task(never())
        task.cancel()
        await asyncio.wait([task])
        await wait_for("go")
        return "cancelled" if task.cancelled() else "it ran"

    return work


@scenario(Gives("act(slow)"), acts=[("act", "slow")], moves=[Signal("go")])
def a_shield_keeps_a_tool_going(app: App, outside: Outside) -> Any:
    @app.tool(reconcile=outside.reconcile)
    async def slow() -> str:
        await outside.reached("late")
        return outside.act("act", "slow")

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(slow())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.shield(task)
        outside.mark("late")
        found = await task
        await wait_for("go")
        return found

    return work


@scenario(Gives(["why", "act(after)"]), acts=[("act", "after")], moves=[Signal("go")])
def a_cancel_with_a_message(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        async def branch() -> str:
            try:
                await wait_for("never")
            except asyncio.CancelledError as cancel:
                return str(cancel.args[0])
            return "signalled"

        task = asyncio.create_task(branch())
        await asyncio.sleep(0)
        task.cancel("why")
        said = await task
        await wait_for("go")
        return [said, await act("after")]

    return work


@scenario(Gives("act(cleanup)"), acts=[("act", "cleanup")], moves=[Signal("go")])
def a_cancelled_branch_cleans_up_with_a_tool(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        said: list[Any] = []

        async def branch() -> None:
            try:
                await wait_for("never")
            finally:
                said.append(await act("cleanup"))

        task = asyncio.create_task(branch())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await wait_for("go")
        return said[0]

    return work


@scenario(Gives("kept"), acts=[("act", "kept")], moves=[Signal("go")])
def a_branch_that_swallows_its_cancel(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        async def branch() -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await wait_for("never")
            await act("kept")
            return "kept"

        task = asyncio.create_task(branch())
        await asyncio.sleep(0)
        task.cancel()
        found = await task
        await wait_for("go")
        return found

    return work


@scenario(Gives("act(cleanup)"), acts=[("act", "cleanup")], moves=[Signal("go"), Signal("on")])
def finally_acts_once_however_often_the_job_waits(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        try:
            await wait_for("go")
            await wait_for("on")
        finally:
            said = await act("cleanup")
        return said

    return work


@scenario(Gives("went"), moves=[Signal("go", "went")])
def suspension_is_no_exception(app: App, outside: Outside) -> Any:
    @app.job
    async def work() -> Any:
        while True:
            try:
                return await wait_for("go")
            except Exception:
                outside.act("the code saw an error")
                raise

    return work


@scenario(Gives("went"), acts=[("act", "closed")], moves=[Signal("go", "went")])
def an_async_context_over_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    class Session:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, kind: object, *_: object) -> None:
            if kind is asyncio.CancelledError:
                outside.act("the context saw a cancel")
            await act("closed")

    @app.job
    async def work() -> Any:
        async with Session():
            return await wait_for("go")

    return work


@scenario(Gives(["went", "went too"]), moves=[Signal("go", "went"), Signal("on", "went too")])
def suspension_cancels_no_branch(app: App, outside: Outside) -> Any:
    async def branch(key: str) -> Any:
        try:
            return await wait_for(key)
        except asyncio.CancelledError:
            outside.act("a branch saw a cancel")
            raise

    @app.job
    async def work() -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(key)) for key in ("go", "on")]
        return [task.result() for task in tasks]

    return work


@scenario(Canceled(), moves=[Cancel("not needed")])
def a_cancel_while_it_waits(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        await wait_for("go")
        await act("never")

    return work


@scenario(Canceled(), moves=[Cancel("not needed", at=START)])
def a_cancel_before_it_starts(app: App, outside: Outside) -> Any:
    @app.job
    async def work() -> Any:
        outside.act("the code ran")

    return work


@scenario(Canceled(), moves=[Cancel("first"), Cancel("second"), Signal("go")])
def a_cancel_twice_and_a_late_signal(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        await wait_for("go")
        await act("never")

    return work


@scenario(Canceled(), acts=[("cleaned up",)], moves=[Cancel("stop", at="in the step")], crashes=False)
def a_cancel_while_a_step_runs(app: App, outside: Outside) -> Any:
    @app.step
    async def hangs() -> None:
        outside.mark("in the step")
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        try:
            await hangs()
        except asyncio.CancelledError:
            outside.act("cleaned up")
            raise

    return work


@scenario(Canceled(), moves=[Cancel("stop", at="in the branch")], crashes=False)
def a_cancel_ends_every_branch(app: App, outside: Outside) -> Any:
    @app.step
    async def hangs(n: int) -> None:
        if n:
            outside.mark("in the branch")
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(hangs(0))
            group.create_task(wait_for("never"))
            group.create_task(hangs(1))

    return work


@scenario(Canceled(), moves=[Cancel("stop", at="in native code")], crashes=False)
def a_cancel_while_native_code_runs(app: App, outside: Outside) -> Any:
    @app.job
    async def work() -> Any:
        outside.mark("in native code")
        await asyncio.sleep(60)

    return work


@scenario(Canceled(), moves=[Cancel("stop", at="looping")], crashes=False)
def a_plain_job_asks_whether_it_was_cancelled(app: App, outside: Outside) -> Any:
    import time

    @app.job
    def work() -> Any:
        outside.mark("looping")
        while True:
            check_cancelled()
            time.sleep(0.002)

    return work


@scenario(Gives("done anyway"), moves=[Cancel("stop", at="in the step")], crashes=False)
def a_job_that_ends_in_spite_of_its_cancel(app: App, outside: Outside) -> Any:
    @app.step
    async def hangs() -> None:
        outside.mark("in the step")
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        try:
            await hangs()
        except asyncio.CancelledError:
            return "done anyway"

    return work


@scenario(Fails())
def a_job_that_cancels_itself_has_failed(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    return work


@scenario(Gives([True, "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=[Signal("go")])
def a_cancel_that_comes_too_late_for_a_tool(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(act("a"))
        await task
        too_late = not task.cancel()
        await wait_for("go")
        return [too_late, await act("b")]

    return work


@scenario(Canceled(), moves=[Cancel("not needed")], others={"child": ["canceled"], "grandchild": ["canceled"]})
def a_cancel_reaches_children_and_their_children(app: App, _: Outside) -> Any:
    @app.job
    async def grandchild() -> None:
        await wait_for("never")

    @app.job
    async def child() -> None:
        await grandchild()

    @app.job
    async def work() -> Any:
        await child()

    return work


@scenario(Gives("uncancelled"), acts=[("act", "after")], moves=[Signal("go")])
def a_task_that_takes_its_cancel_back(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        async def branch() -> str:
            task = asyncio.current_task()
            assert task is not None
            try:
                await wait_for("never")
            except asyncio.CancelledError:
                task.uncancel()
            async with asyncio.timeout(60):
                await act("after")
            return "uncancelled"

        task = asyncio.create_task(branch())
        await asyncio.sleep(0)
        task.cancel()
        found = await task
        await wait_for("go")
        return found

    return work


def _hanging(app: App, outside: Outside) -> Any:
    @app.tool(reconcile=outside.reconcile)
    async def hangs() -> None:
        outside.mark("hangs")
        await asyncio.Event().wait()

    return hangs


@scenario(Gives("done"), crashes=False)
def a_tool_that_runs_when_its_job_returns_is_recorded_as_cut_off(app: App, outside: Outside) -> Any:
    hangs, hold = _hanging(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(hangs())
        await hold("hangs")
        assert not task.done()
        return "done"

    return work


@scenario(Fails("ValueError"), crashes=False)
def a_tool_that_runs_when_its_sibling_fails_is_recorded_as_cut_off(app: App, outside: Outside) -> Any:
    hangs, hold = _hanging(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        async def fails() -> None:
            await hold("hangs")
            raise ValueError("no")

        await asyncio.gather(hangs(), fails())

    return work


@scenario(Canceled(), moves=[Cancel("stop", at="hangs")], crashes=False)
def a_tool_that_runs_when_its_run_is_cancelled_is_recorded_as_cut_off(app: App, outside: Outside) -> Any:
    hangs = _hanging(app, outside)

    @app.job
    async def work() -> Any:
        await hangs()

    return work
