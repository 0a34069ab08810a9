"""Code that changes while a job waits: what fits goes on, what does not is stopped before it acts."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, changed, wait_for
from scenarios.parts import acting, echoing
from support.scenarios import Answer, Deploy, Fails, Gives, Outside, Signal, scenario

GO = [Deploy(), Signal("go")]


@scenario(Gives(["a", "act(b)"]), acts=[("act", "b")], moves=GO)
def the_same_code(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        first = await echo("a")
        await wait_for("go")
        return [first, await act("b")]

    return work


@scenario(Fails("NonDeterminism"), acts=[("act", "a")], moves=GO)
def other_arguments_are_stopped_before_they_act(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job(on_misfit="fail")
    async def work() -> Any:
        first = await act("a" if outside.version == 1 else "changed")
        await wait_for("go")
        return first

    return work


@scenario(Fails("NonDeterminism", "step", "a", "changed"), moves=GO)
def the_refusal_shows_both_calls(app: App, outside: Outside) -> Any:
    step = echoing(app, "step")

    @app.job(on_misfit="fail")
    async def work() -> Any:
        first = await step("a" if outside.version == 1 else "changed")
        await wait_for("go")
        return first

    return work


@scenario(Gives(["a", "new", "act(b)"]), acts=[("act", "b"), ("act", "new")], moves=GO)
def an_added_tool_shifts_nothing(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        first = await echo("a")
        added = "new" if outside.version == 1 else await echo("new")
        second = await act("b")
        if outside.version > 1:
            await act("new")
        await wait_for("go")
        return [first, added, second]

    return work


@scenario(Gives(["a", "c"]), moves=GO)
def a_removed_step(app: App, outside: Outside) -> Any:
    echo, other = echoing(app), echoing(app, "other")

    @app.job
    async def work() -> Any:
        first = await echo("a")
        if outside.version == 1:
            await other("b")
        await wait_for("go")
        return [first, await echo("c")]

    return work


@scenario(Gives(["act(a)", "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=GO)
def steps_in_another_order(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        if outside.version == 1:
            a, b = await act("a"), await act("b")
        else:
            b, a = await act("b"), await act("a")
        await wait_for("go")
        return [a, b]

    return work


@scenario(Gives(["act(a)", "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=GO)
def one_after_the_other_becomes_at_once(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        found = [await act("a"), await act("b")] if outside.version == 1 else await asyncio.gather(act("a"), act("b"))
        await wait_for("go")
        return found

    return work


@scenario(Gives(["old", "new"]), moves=GO)
def a_renamed_step_is_a_new_one(app: App, outside: Outside) -> Any:
    old, new = echoing(app, "old"), echoing(app, "new")

    @app.job
    async def work() -> Any:
        found = await (old if outside.version == 1 else new)("old")
        await wait_for("go")
        return [found, "new"]

    return work


@scenario(Gives(["act(a)", "act(after)"]), acts=[("act", "a"), ("act", "after")], moves=GO)
def slow_code_is_not_different_code(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def branch() -> Any:
        if outside.version > 1:
            await asyncio.sleep(0.15)
        return await act("a")

    async def after() -> Any:
        await wait_for("go")
        return await act("after")

    @app.job
    async def work() -> Any:
        return await asyncio.gather(branch(), after())

    return work


@scenario(Gives("a"), acts=[("act", "a")], moves=GO)
def a_key_of_its_own_outlives_other_arguments(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        found = await act.options(key="mine")("a" if outside.version == 1 else "changed")
        await wait_for("go")
        return "a" if found == "act(a)" else found

    return work


@scenario(Gives(["new", "act(a)"]), acts=[("act", "a"), ("act", "new")], moves=GO)
def an_added_branch(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def added() -> Any:
        if outside.version > 1:
            await act("new")
        return "new"

    async def old() -> Any:
        found = await act("a")
        await wait_for("go")
        return found

    @app.job
    async def work() -> Any:
        return await asyncio.gather(added(), old())

    return work


@scenario(Fails("NonDeterminism"), acts=[("act", "a"), ("act", "b")], moves=GO)
def other_arguments_in_a_branch(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def branch(what: str) -> Any:
        found = await act(what)
        await wait_for("go")
        return found

    @app.job(on_misfit="fail")
    async def work() -> Any:
        return await asyncio.gather(branch("a"), branch("b" if outside.version == 1 else "changed"))

    return work


@scenario(Gives("mended"), acts=[("act", "a"), ("act", "b")], moves=[Signal("go"), Deploy(), Signal("on")])
def code_after_the_wait_may_change(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        await act("a")
        await wait_for("go")
        await wait_for("on")
        if outside.version > 1:
            await act("b")
            return "mended"
        return "old"

    return work


@scenario(Gives(["act(a)", "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=GO)
def a_run_past_a_marked_change_stays_on_the_old_side(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        first = await act("a")
        if outside.version > 1 and changed("fee"):
            await act("fee")
        await wait_for("go")
        return [first, await act("b")]

    return work


@scenario(Gives(["act(a)", "act(fee)"]), acts=[("act", "a"), ("act", "fee")], moves=[*GO, Signal("on")])
def a_run_before_a_marked_change_is_on_the_new_side(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        first = await act("a")
        await wait_for("go")
        second = await act("fee" if outside.version > 1 and changed("fee") else "no fee")
        await wait_for("on")
        assert changed("fee")
        return [first, second]

    return work


@scenario(Gives(["act(a)", "act(b)"]), acts=[("act", "a"), ("act", "b")], moves=GO)
def branches_at_a_marked_change(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def branch(what: str) -> Any:
        done = await act(what)
        if outside.version > 1 and changed("fee"):
            await act(f"fee of {what}")
        if what == "b":
            await wait_for("go")
        return done

    @app.job
    async def work() -> Any:
        return await asyncio.gather(branch("a"), branch("b"))

    return work


def _pays(app: App, outside: Outside) -> Any:
    """Declare a job whose second version pays another amount than the first has paid."""
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        first = await act("a" if outside.version == 1 else "changed")
        await wait_for("go")
        return [first, await act("b")]

    return work


@scenario(
    Gives(["act(changed)", "act(b)"]),
    acts=[("act", "a"), ("act", "changed"), ("act", "b")],
    moves=[*GO, Answer("accept")],
)
def a_misfit_is_accepted(app: App, outside: Outside) -> Any:
    return _pays(app, outside)


@scenario(
    Fails("NonDeterminism", "act(what='changed')", "act(what='a')"), acts=[("act", "a")], moves=[*GO, Answer("fail")]
)
def a_misfit_fails_on_demand(app: App, outside: Outside) -> Any:
    return _pays(app, outside)


@scenario(
    Gives(["act(changed)", "act(b)"]),
    acts=[("act", "a"), ("act", "changed"), ("act", "b")],
    moves=[*GO, Answer("fork"), Signal("go")],
)
def a_misfit_is_forked(app: App, outside: Outside) -> Any:
    return _pays(app, outside)


@scenario(
    Gives(["x", "act(changed)", "y"]),
    acts=[("act", "a"), ("act", "changed")],
    moves=[*GO, Answer("accept"), Signal("x"), Signal("y")],
)
def a_misfit_in_a_branch_leaves_the_others_as_they_were(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    async def waits(key: str) -> Any:
        await wait_for(key)
        return await echo(key)

    async def pays() -> Any:
        paid = await act("a" if outside.version == 1 else "changed")
        await wait_for("go")
        return paid

    @app.job
    async def work() -> Any:
        return await asyncio.gather(waits("x"), pays(), waits("y"))

    return work
