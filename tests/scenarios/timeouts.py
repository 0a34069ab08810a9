"""Time limits of the code itself, of steps and tools, and of waits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from holdfast import App, Backoff, StepFailed, WaitTimeout, sleep, wait_for
from scenarios.parts import acting, echoing, held, seats
from support.scenarios import Gives, Outside, Signal, scenario


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def timeout_around_a_step(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.timeout(0.02):
                await hold("never")
        except TimeoutError:
            await wait_for("go")
            return await act("after")

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def asyncio_wait_for_around_a_step(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        try:
            await asyncio.wait_for(hold("never"), 0.02)
        except TimeoutError:
            await wait_for("go")
            return await act("after")

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def asyncio_wait_for_around_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        try:
            await asyncio.wait_for(wait_for("never"), 0.02)
        except TimeoutError:
            await wait_for("go")
            return await act("after")

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def timeout_around_a_child(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child() -> None:
        await wait_for("never")

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.timeout(0.03):
                await child()
        except TimeoutError:
            await wait_for("go")
            return await act("after")

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def timeout_around_a_sleep(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.timeout(0.02):
                await sleep("1h")
        except TimeoutError:
            await wait_for("go")
            return await act("after")

    return work


@scenario(Gives("in time"), moves=[Signal("go")])
def timeout_that_is_not_needed(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        async with asyncio.timeout(60):
            found = await echo("in time")
        await wait_for("go")
        return found

    return work


@scenario(Gives("yes"), moves=[Signal("answer", "yes", at="waits")])
def a_signal_in_time_within_a_timeout(app: App, outside: Outside) -> Any:
    @app.job
    async def work() -> Any:
        async with asyncio.timeout(60):  # the timer is native work: the job stays in memory, and is signalled there
            outside.mark("waits")
            return await wait_for("answer")

    return work


@scenario(Gives(["inner", "act(after)"]), acts=[("act", "after")], moves=[Signal("go")])
def the_inner_timeout_ends_first(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        said = ""
        async with asyncio.timeout(60):
            try:
                async with asyncio.timeout(0.02):
                    await hold("never")
            except TimeoutError:
                said = "inner"
        await wait_for("go")
        return [said, await act("after")]

    return work


@scenario(Gives(["outer", "act(after)"]), acts=[("act", "after")], moves=[Signal("go")])
def the_outer_timeout_ends_first(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        said = ""
        try:
            async with asyncio.timeout(0.02):
                try:
                    async with asyncio.timeout(60):
                        await hold("never")
                except TimeoutError:
                    said = "inner"
        except TimeoutError:
            said += "outer"
        await wait_for("go")
        return [said, await act("after")]

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")])
def a_timeout_that_is_moved(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.timeout(None) as limit:
                limit.reschedule(asyncio.get_running_loop().time() + 0.02)
                await wait_for("never")
        except TimeoutError:
            return await act("after")

    return work


@scenario(Gives(["quick"]), acts=[("act", "after")], moves=[Signal("go")])
def timeout_around_branches(app: App, outside: Outside) -> Any:
    act, echo, hold = acting(app, outside), echoing(app), held(app, outside)

    @app.job
    async def work() -> Any:
        found: list[Any] = []

        async def note(call: Any) -> None:
            found.append(await call)

        try:
            async with asyncio.timeout(0.25):
                await asyncio.gather(note(wait_for("never")), note(echo("quick")), note(hold("never")))
        except TimeoutError:
            await act("after")
        await wait_for("go")
        return found

    return work


@scenario(
    Gives(["act(cleaned up)", "act(after)"]), acts=[("act", "cleaned up"), ("act", "after")], in_order=True,
    moves=[Signal("go")],
)  # fmt: skip
def cleanup_after_a_timeout_may_act(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        said = []
        try:
            async with asyncio.timeout(0.02):
                try:
                    await wait_for("never")
                except asyncio.CancelledError:
                    said.append(await act("cleaned up"))
                    raise
        except TimeoutError:
            said.append(await act("after"))
        await wait_for("go")
        return said

    return work


@scenario(Gives("step timeout"), moves=[Signal("go")])
def a_step_over_its_time_has_failed(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.step(timeout=0.02)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @app.job
    async def work() -> Any:
        try:
            await hangs()
        except StepFailed as failure:
            said = await echo(failure.reason)
            await wait_for("go")
            return said

    return work


@scenario(Gives("second try"), moves=[Signal("go")])
def a_step_over_its_time_is_tried_again(app: App, outside: Outside) -> Any:
    @app.step(timeout=0.03, backoff=Backoff(retries=1, first_seconds=0.01))
    async def hangs_once() -> str:
        if outside.count("tries") == 1:
            await asyncio.Event().wait()
        return "second try"

    @app.job
    async def work() -> Any:
        found = await hangs_once()
        await wait_for("go")
        return found

    return work


@scenario(Gives("act(1)"), acts=[("act", 1)], moves=[Signal("go")], doubts=True)
def a_tool_over_its_time_is_asked_about(app: App, outside: Outside) -> Any:
    @app.tool(timeout=0.03, reconcile=outside.reconcile)
    async def act(n: int) -> str:
        outside.act("act", n)
        await asyncio.Event().wait()
        return "never"

    @app.job
    async def work() -> Any:
        found = await act(1)
        await wait_for("go")
        return found

    return work


@scenario(Gives(["WaitTimeout", "act(after)"]), acts=[("act", "after")], moves=[Signal("go")])
def a_wait_over_its_time(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        try:
            await wait_for("never", timeout=0.02)
        except WaitTimeout as late:
            said = await echo([type(late).__name__, str(late), repr(late.__cause__)])
            after = await act("after")
            await wait_for("go")
            return [said[0], after]

    return work


@scenario(Gives("nothing there"))
def a_look_into_an_empty_inbox(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        try:
            return await wait_for("x", timeout=0)
        except WaitTimeout:
            return "nothing there"

    return work


@scenario(Gives(["act(a)", "TimeoutError", "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=[Signal("go")])
def a_timeout_cuts_off_a_step_and_keeps_what_was_done(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        said = []
        try:
            async with asyncio.timeout(0.25):
                said.append(await act("a"))
                await hold("never")
                said.append(await act("not reached"))
        except TimeoutError as late:
            said.append(type(late).__name__)
        await wait_for("go")
        said.append(await act("b"))
        return said

    return work


@scenario(Gives("held"), acts=[("act", "too slow")], moves=[Signal("go")])
def a_step_cut_off_is_called_again_when_asked_for_again(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        try:
            async with asyncio.timeout(0.02):
                await hold("second")
        except TimeoutError:
            await act("too slow")
        outside.mark("second")
        found = await hold("second")
        await wait_for("go")
        return found

    return work


def _cut_off_slowly(app: App, outside: Outside, *, tool: bool, in_order: bool) -> Any:
    """A call that is cut off, and ends only after another branch has gone on.

    The order holds while the process lives. In a process that replays the cut, the call does not run any more.
    """
    seat, hold = seats(app, outside), held(app, outside)

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outside.mark("cut")
            await outside.reached("b is seated")
            raise

    call: Any = app.tool(reconcile=outside.reconcile)(stubborn) if tool else app.step(stubborn)

    async def a() -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await call()
        if in_order:
            outside.need_act("seat")  # by b; else the call was cut off before it began
        outside.mark("cut")
        return await seat()

    async def b() -> Any:
        await hold("cut")
        found = await seat()
        outside.mark("b is seated")
        return found

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(a(), b())
        await wait_for("go")
        return found if in_order else sorted(found)

    return work


@scenario(Gives([2, 1]), acts=[("seat",), ("seat",)], moves=[Signal("go")], crashes=False)
def a_step_cut_off_ends_after_another_outcome(app: App, outside: Outside) -> Any:
    return _cut_off_slowly(app, outside, tool=False, in_order=True)


@scenario(Gives([2, 1]), acts=[("seat",), ("seat",)], moves=[Signal("go")], crashes=False)
def a_tool_cut_off_ends_after_another_outcome(app: App, outside: Outside) -> Any:
    return _cut_off_slowly(app, outside, tool=True, in_order=True)


@scenario(Gives([1, 2]), acts=[("seat",), ("seat",)], moves=[Signal("go")])
def a_step_cut_off_slowly(app: App, outside: Outside) -> Any:
    return _cut_off_slowly(app, outside, tool=False, in_order=False)


@scenario(Gives([1, 2]), acts=[("seat",), ("seat",)], moves=[Signal("go")])
def a_tool_cut_off_slowly(app: App, outside: Outside) -> Any:
    return _cut_off_slowly(app, outside, tool=True, in_order=False)


def _cut_off_for_nothing(app: App, outside: Outside, *, fails: bool) -> Any:
    """A step that is cut off and ends all the same, with a result or a failure."""
    hold = held(app, outside)

    @app.step(retries=0)
    async def turn(n: int) -> int:
        try:
            outside.mark("turning")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if fails:
                raise ValueError("cut") from None
        return n

    @app.job
    async def work() -> Any:
        ended: list[str] = []

        async def loop() -> None:
            n = 0
            try:
                while True:
                    n = await turn(n) + 1
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        looping = asyncio.ensure_future(loop())
        await hold("turning")
        looping.cancel()
        await asyncio.wait([looping])
        await wait_for("go")
        return [*ended, looping.cancelled()]

    return work


@scenario(Gives(["cancelled", True]), moves=[Signal("go")])
def a_cancel_is_not_lost_when_the_step_returns_all_the_same(app: App, outside: Outside) -> Any:
    return _cut_off_for_nothing(app, outside, fails=False)


@scenario(Gives(["cancelled", True]), moves=[Signal("go")])
def a_cancel_is_not_lost_when_the_step_fails_all_the_same(app: App, outside: Outside) -> Any:
    return _cut_off_for_nothing(app, outside, fails=True)
