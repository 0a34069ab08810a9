"""Failures of steps, tools and children: tried again, given up, and seen the same live and replayed."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, Backoff, Permanent, RetryAfter, StepFailed, WaitTimeout, gather, wait_for
from scenarios.parts import acting, echoing, failing
from support.scenarios import Advance, Fails, Gives, Outside, Retry, Signal, scenario

QUICK = Backoff(retries=2, first_seconds=0.005, jitter=0)


def _said(error: BaseException) -> list[Any]:
    """All that code can see of an error."""
    cause = None if error.__cause__ is None else repr(error.__cause__)
    return [type(error).__name__, str(error), cause, getattr(error, "reason", None), getattr(error, "kind", None)]


@scenario(Gives("third try"), moves=[Signal("go")])
def a_step_that_is_tried_three_times(app: App, outside: Outside) -> Any:
    @app.step(backoff=QUICK)
    async def flaky() -> str:
        if outside.count("tries") < 3:
            raise ConnectionError("down")
        return "third try"

    @app.job
    async def work() -> Any:
        found = await flaky()
        await wait_for("go")
        return found

    return work


@scenario(Gives("down"), moves=[Signal("go")])
def a_step_whose_tries_are_used_up(app: App, _: Outside) -> Any:
    @app.step(backoff=QUICK)
    async def flaky() -> None:
        raise ConnectionError("down")

    @app.job
    async def work() -> Any:
        try:
            await flaky()
        except StepFailed as failure:
            await wait_for("go")
            return failure.reason

    return work


@scenario(Gives(["hopeless", 1]), moves=[Signal("go")], crashes=False)
def a_permanent_failure_is_not_tried_again(app: App, outside: Outside) -> Any:
    @app.step(backoff=QUICK)
    async def hopeless() -> None:
        outside.count("tries")
        raise Permanent("hopeless")

    @app.step
    async def tries() -> int:
        return outside.count("tries") - 1

    @app.job
    async def work() -> Any:
        try:
            await hopeless()
        except StepFailed as failure:
            count = await tries()
            await wait_for("go")
            return [failure.reason, count]

    return work


@scenario(Gives(["other", 1]), moves=[Signal("go")], crashes=False)
def an_error_that_the_policy_does_not_name(app: App, outside: Outside) -> Any:
    @app.step(backoff=Backoff(retries=3, first_seconds=0.005, only=(ConnectionError,)))
    async def fails() -> None:
        outside.count("tries")
        raise ValueError("other")

    @app.step
    async def tries() -> int:
        return outside.count("tries") - 1

    @app.job
    async def work() -> Any:
        try:
            await fails()
        except StepFailed as failure:
            count = await tries()
            await wait_for("go")
            return [failure.reason, count]

    return work


@scenario(Gives("after a while"), moves=[Signal("go")])
def a_step_that_asks_to_come_back_later(app: App, outside: Outside) -> Any:
    @app.step
    async def busy() -> str:
        if outside.count("tries") < 3:
            raise RetryAfter(0.01)
        return "after a while"

    @app.job
    async def work() -> Any:
        found = await busy()
        await wait_for("go")
        return found

    return work


@scenario(Gives("act(paid)"), acts=[("act", "paid")], moves=[Signal("go")])
def a_tool_that_is_tried_again(app: App, outside: Outside) -> Any:
    @app.tool(backoff=QUICK, reconcile=outside.reconcile)
    async def pay() -> str:
        if outside.count("tries") < 3:
            raise ConnectionError("not reached")
        return outside.act("act", "paid")

    @app.job
    async def work() -> Any:
        found = await pay()
        await wait_for("go")
        return found

    return work


@scenario(Gives("act(paid)"), acts=[("act", "paid")], moves=[Signal("go")])
def a_tool_that_may_be_repeated(app: App, outside: Outside) -> Any:
    @app.tool(on_doubt="retry")
    async def pay() -> str:
        return outside.act_once("act", "paid")

    @app.job
    async def work() -> Any:
        found = await pay()
        await wait_for("go")
        return found

    return work


@scenario(Gives(["StepFailed", True]), moves=[Signal("go"), Signal("on")])
def the_failure_of_a_step_is_the_same_replayed(app: App, _: Outside) -> Any:
    echo, fail = echoing(app), failing(app)

    @app.job
    async def work() -> Any:
        try:
            await fail("boom: é\n")
        except StepFailed as failure:
            mine = _said(failure)
        first = await echo(mine)
        await wait_for("go")
        await wait_for("on")
        return [mine[0], mine == first and mine[2] is None]

    return work


@scenario(Gives(["StepFailed", True]), moves=[Signal("go")])
def the_failure_of_a_plain_step_is_the_same_replayed(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.step
    def fails() -> None:
        raise KeyError("sku")

    @app.job
    async def work() -> Any:
        try:
            await fails()  # type: ignore[misc]
        except StepFailed as failure:
            mine = _said(failure)
        first = await echo(mine)
        await wait_for("go")
        return [mine[0], mine == first and mine[2] is None]

    return work


@scenario(Gives(["StepFailed", True]), moves=[Signal("go")])
def the_failure_of_a_tool_is_the_same_replayed(app: App, outside: Outside) -> Any:
    echo = echoing(app)

    @app.tool(reconcile=outside.reconcile)
    async def fails() -> None:
        raise ConnectionError("refused")

    @app.job
    async def work() -> Any:
        try:
            await fails()
        except StepFailed as failure:
            mine = _said(failure)
        first = await echo(mine)
        await wait_for("go")
        return [mine[0], mine == first and mine[2] is None]

    return work


@scenario(Gives([True, True]), moves=[Signal("go")], others={"child": ["failed"]})
def the_failure_of_a_child_is_the_same_replayed(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def child() -> None:
        raise ValueError("boom")

    @app.job
    async def work() -> Any:
        try:
            await child()
        except Exception as failure:  # noqa: BLE001 - which one is not the point
            mine = _said(failure)
        first = await echo(mine)
        await wait_for("go")
        return ["boom" in mine[1], mine == first and mine[2] is None]

    return work


@scenario(Gives(["WaitTimeout", True]), moves=[Signal("go")])
def the_end_of_a_wait_is_the_same_replayed(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        try:
            await wait_for("never", timeout=0.01)
        except WaitTimeout as late:
            mine = _said(late)
        first = await echo(mine)
        await wait_for("go")
        return [mine[0], mine == first and mine[2] is None]

    return work


@scenario(Gives(["act(once)", "second attempt"]), acts=[("act", "once")])
def a_job_that_is_tried_again(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job(backoff=Backoff(retries=2, first_seconds=0.005, jitter=0))
    async def work() -> Any:
        said = await act("once")
        if outside.count("attempts") < 2:
            raise ConnectionError("in the job's own code")
        return [said, "second attempt"]

    return work


@scenario(Fails("StepFailed", "boom"), acts=[("act", "before")])
def a_failure_that_the_job_does_not_catch(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    async def work() -> Any:
        await act("before")
        await fail("boom")
        await act("never")

    return work


@scenario(Fails("InvalidResult"))
def a_result_that_cannot_be_kept(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        return object()

    return work


@scenario(Gives("StepFailed"), moves=[Signal("go")])
def a_result_of_a_step_that_cannot_be_kept(app: App, _: Outside) -> Any:
    @app.step(backoff=QUICK)
    async def odd() -> Any:
        return object()

    @app.job
    async def work() -> Any:
        try:
            await odd()
        except StepFailed as failure:
            await wait_for("go")
            return type(failure).__name__

    return work


@scenario(Gives("third try"), moves=[Advance(3700), Advance(7300)])
def retries_that_are_hours_apart(app: App, outside: Outside) -> Any:
    @app.step(backoff=Backoff(retries=2, first_seconds=3600, cap_seconds=7200, jitter=0))
    async def flaky() -> str:
        if outside.count("tries") < 3:
            raise ConnectionError("down")
        return "third try"

    @app.job
    async def work() -> Any:
        return await flaky()

    return work


@scenario(Gives(["act(a)", "mended"]), acts=[("act", "a")], moves=[Retry()])
def an_operators_retry_keeps_what_was_done(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def fails_once() -> str:
        if outside.retries() == 0:
            raise Permanent("not yet")
        return "mended"

    @app.job
    async def work() -> Any:
        return [await act("a"), await fails_once()]

    return work


@scenario(
    Gives("undone"),
    acts=[("act", "flight"), ("act", "hotel"), ("act", "cancel hotel"), ("act", "cancel flight")],
    in_order=True,
    moves=[Signal("go")],
)
def a_saga_that_is_undone(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    async def work() -> Any:
        undo = []
        try:
            for what in ("flight", "hotel"):
                await act(what)
                undo.append(f"cancel {what}")
            await wait_for("go")
            await fail("no car")
        except StepFailed:
            for what in reversed(undo):
                await act(what)
            return "undone"

    return work


@scenario(Gives(["a", "boom"]), acts=[("act", "a")], moves=[Signal("go")])
def a_failure_in_one_of_two_branches(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(act("a"), fail("boom"), return_exceptions=True)
        await wait_for("go")
        return ["a" if found[0] == "act(a)" else found[0], getattr(found[1], "reason", None)]

    return work


@scenario(Fails("first"), acts=[("act", "b")])
def the_first_of_two_failures_counts(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)

    @app.job
    async def work() -> Any:
        await gather(fail("first"), fail("second"), act("b"))

    return work


@scenario(Gives("went on"), acts=[("act", "a")], moves=[Signal("go")])
def a_failed_call_may_be_made_again(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def flaky() -> str:
        if not outside.has_acted("act", "a"):
            raise Permanent("not yet")
        return "went on"

    @app.job
    async def work() -> Any:
        try:
            found = await flaky()
        except StepFailed:
            await act("a")
            found = await flaky()
        await wait_for("go")
        return found

    return work
