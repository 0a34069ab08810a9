"""Plain jobs, without async: the same guarantees."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast import App, StepFailed, WaitTimeout, gather, now, random, sleep, uuid4, wait_for
from holdfast import map as map_steps
from scenarios.parts import acting, echoing, failing
from support.scenarios import START, Cancel, Canceled, Fails, Gives, Outside, Signal, scenario


@scenario(Gives(["a", "act(b)", "went"]), acts=[("act", "b")], moves=[Signal("go", "went")])
def plain_steps_tools_and_waits(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    def work() -> Any:
        return [echo("a"), act("b"), wait_for("go")]

    return work


@scenario(Gives(["a", "act(b)", "went"]), acts=[("act", "b")], moves=[Signal("go", "went")])
def plain_functions_in_an_async_job(app: App, outside: Outside) -> Any:
    @app.step
    def echo(value: str) -> str:
        return value

    @app.tool(reconcile=outside.reconcile)
    def act(what: str) -> str:
        return outside.act("act", what)

    @app.job
    async def work() -> Any:
        return [await echo("a"), await act("b"), await wait_for("go")]  # type: ignore[misc]

    return work


@scenario(Gives("child of plain"), moves=[Signal("go", to="child")], others={"child": ["succeeded"]})
def an_async_child_of_a_plain_job(app: App, _: Outside) -> Any:
    @app.job
    async def child(name: str) -> str:
        await wait_for("go")
        return f"child of {name}"

    @app.job
    def work() -> Any:
        return child("plain")

    return work


@scenario(Gives("child of async"), moves=[Signal("go", to="child")], others={"child": ["succeeded"]})
def a_plain_child_of_an_async_job(app: App, _: Outside) -> Any:
    @app.job
    def child(name: str) -> str:
        wait_for("go")
        return f"child of {name}"

    @app.job
    async def work() -> Any:
        return await child("async")  # type: ignore[misc]

    return work


@scenario(Gives(["timed out", "late"]), moves=[Signal("x", "late")])
def a_plain_wait_over_its_time(app: App, _: Outside) -> Any:
    @app.job
    def work() -> Any:
        said = "in time"
        try:
            wait_for("x", timeout=0.02)
        except WaitTimeout:
            said = "timed out"
        return [said, wait_for("x")]

    return work


@scenario(Gives(["early", "nothing"]), moves=[Signal("x", "early", at=START)])
def a_plain_look_into_the_inbox(app: App, _: Outside) -> Any:
    @app.job
    def work() -> Any:
        found = wait_for("x", timeout=0)
        try:
            return [found, wait_for("x", timeout=0)]
        except WaitTimeout:
            return [found, "nothing"]

    return work


@scenario(Gives(["boom", "act(undo)"]), acts=[("act", "undo")], moves=[Signal("go")])
def a_plain_job_catches_a_failure(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    def work() -> Any:
        try:
            fail("boom")
        except StepFailed as failure:
            said = [failure.reason, act("undo")]
        wait_for("go")
        return said

    return work


@scenario(Gives("slept"), acts=[("act", "slept")])
def a_plain_job_sleeps(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        sleep(0.02)
        act("slept")
        return "slept"

    return work


@scenario(Gives([0, 1, 2, 3]), moves=[Signal("go")])
def a_plain_job_maps(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    def work() -> Any:
        found = map_steps(echo, range(4), limit=2)
        wait_for("go")
        return found

    return work


@scenario(Gives("refused"), acts=[("act", "a")], moves=[Signal("go")])
def gather_in_a_plain_job_is_refused(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        try:
            _ = gather(act("a"))
        except RuntimeError as error:
            wait_for("go")
            return "refused" if "map" in str(error) else str(error)

    return work


@scenario(Gives("the same"), moves=[Signal("go")])
def time_and_chance_in_a_plain_job(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    def work() -> Any:
        mine = [now(), random(), uuid4()]
        first = echo(mine)
        wait_for("go")
        return "the same" if mine == first else [mine, first]

    return work


@scenario(Canceled(), moves=[Cancel("not needed")])
def a_cancel_of_a_plain_job_that_waits(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        wait_for("go")
        act("never")

    return work


@scenario(Fails("ValueError", "plain"), acts=[("act", "before")])
def a_plain_job_that_fails(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        act("before")
        raise ValueError("plain")

    return work


@scenario(Gives("went"), moves=[Signal("go", "went")])
def suspension_of_a_plain_job_is_no_error(app: App, outside: Outside) -> Any:
    @app.job
    def work() -> Any:
        try:
            return wait_for("go")
        except Exception:
            outside.act("the code saw an error")
            raise

    return work


@scenario(Gives("act(cleanup)"), acts=[("act", "cleanup")], moves=[Signal("go"), Signal("on")])
def finally_of_a_plain_job_acts_once(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        try:
            wait_for("go")
            wait_for("on")
        finally:
            said = act("cleanup")
        return said

    return work


@scenario(Gives(10), acts=[("act", n) for n in range(10)], in_order=True, moves=[Signal("k", n) for n in range(10)])
def a_plain_job_with_many_waits(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        for _ in range(10):
            act(wait_for("k"))
        return 10

    return work


@scenario(Gives(["act(a)", "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=[Signal("go")], refusable=True)
def tools_in_threads_with_the_jobs_context(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    def work() -> Any:
        with ThreadPoolExecutor(2) as pool:
            try:
                calls = [pool.submit(contextvars.copy_context().run, act, what) for what in "ab"]
                found: Any = [call.result() for call in calls]
            except Exception as error:  # noqa: BLE001 - to refuse is right, too
                found = {"refused": str(error)}
        wait_for("go")
        return found

    return work


@scenario(Gives("act(a)"), acts=[("act", "a")], moves=[Signal("go")], refusable=True)
def a_tool_in_a_bare_thread(app: App, outside: Outside) -> Any:
    @app.tool(reconcile=outside.reconcile)
    def act(what: str) -> str:
        return outside.act("act", what)

    @app.job
    def work() -> Any:
        found: list[Any] = []

        def calls() -> None:
            try:
                found.append(act("a"))
            except Exception as error:  # noqa: BLE001 - to refuse is right, too
                found.append({"refused": str(error)})

        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
        wait_for("go")
        return found[0]

    return work


@scenario(Gives(["a", "b"]), moves=[Signal("go")], refusable=True)
def steps_from_a_thread_pool(app: App, _: Outside) -> Any:
    @app.step
    def echo(value: str) -> str:
        return value

    @app.job
    def work() -> Any:
        with ThreadPoolExecutor(2) as pool:
            try:
                found: Any = list(pool.map(echo, ["a", "b"]))
            except Exception as error:  # noqa: BLE001 - to refuse is right, too
                found = {"refused": str(error)}
        wait_for("go")
        return found

    return work


@scenario(Gives("act(x)"), acts=[("act", "x")], moves=[Signal("go")])
def a_tool_through_to_thread(app: App, outside: Outside) -> Any:
    import asyncio

    @app.tool(reconcile=outside.reconcile)
    def act(what: str) -> str:
        return outside.act("act", what)

    @app.job
    async def work() -> Any:
        found = await asyncio.to_thread(act, "x")
        await wait_for("go")
        return found

    return work


@scenario(Gives("refused"))
def a_plain_tool_inside_a_plain_step(app: App, outside: Outside) -> Any:
    @app.tool(reconcile=outside.reconcile)
    def act(what: str) -> str:
        return outside.act("act", what)

    @app.step
    def both() -> str:
        return act("inside")

    @app.job
    def work() -> Any:
        try:
            both()
        except StepFailed as failure:
            return "refused" if "act" in failure.reason else failure.reason
        return "it was called"

    return work


@scenario(Gives("refused"))
def a_tool_inside_a_tool(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.tool(reconcile=outside.reconcile)
    async def outer() -> Any:
        return await act("inside")

    @app.job
    async def work() -> Any:
        try:
            await outer()
        except StepFailed as failure:
            return "refused" if "act" in failure.reason else failure.reason
        return "it was called"

    return work


@scenario(Gives("inner, outer"), moves=[Signal("go")])
def a_step_inside_a_step_is_part_of_it(app: App, _: Outside) -> Any:
    @app.step
    async def inner() -> str:
        return "inner"

    @app.step
    async def outer() -> str:
        return f"{await inner()}, outer"

    @app.job
    async def work() -> Any:
        found = await outer()
        await wait_for("go")
        return found

    return work
