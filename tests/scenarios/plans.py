"""Plans: graphs of calls, waits, sleeps and children, with nodes that race."""

from __future__ import annotations

from typing import Any

from holdfast import App
from scenarios.parts import acting, echoing, failing
from support.scenarios import Fails, Gives, Outside, Signal, scenario


@scenario(Gives({"join": ["act(a)", "act(b)"]}), acts=[("act", "a"), ("act", "b")])
def a_plan_of_two_branches(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def join(parts: list[str]) -> list[str]:
        return sorted(parts)

    plan = app.plan("work")
    a = plan.call(act, what="a", id="a")
    b = plan.call(act, what="b", id="b")
    plan.call(join, parts=[a, b])
    return plan


@scenario(
    Gives({"after_a": "act(a)", "after_b": "act(b)"}), acts=[("act", "b"), ("act", "a")], in_order=True,
    moves=[Signal("b"), Signal("a")],
)  # fmt: skip
def waits_of_a_plan_in_the_order_of_their_signals(app: App, outside: Outside) -> Any:
    act = acting(app, outside)
    plan = app.plan("work")
    for name in "ab":
        plan.call(act, what=name, id=f"after_{name}", after=plan.wait(name))
    return plan


@scenario(
    Gives({"second": "act(second)", "first": "act(first)"}),
    acts=[("act", "second"), ("act", "first")],
    in_order=True,
    moves=[Signal("go")],
)
def steps_of_a_plan_in_the_order_of_their_ends(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.step
    async def hold(until: str | None) -> str:
        if until is not None:
            await outside.acted("act", until)
        return "held"

    plan = app.plan("work")
    go = plan.wait("go")
    early = plan.call(hold, until=None, id="early")
    late = plan.call(hold, until="second", id="late")
    plan.call(act, what="second", id="second", after=early)
    plan.call(act, what="first", id="first", after=late)
    plan.returns({"second": "act(second)", "first": "act(first)"})
    del go
    return plan


@scenario(Gives({"act": ["act(1)", "act(2)", "act(3)"]}), acts=[("act", 1), ("act", 2), ("act", 3)])
def a_map_of_tools(app: App, outside: Outside) -> Any:
    act = acting(app, outside)
    plan = app.plan("work")
    plan.map(act, [1, 2, 3], what=plan.item, limit=2)
    return plan


@scenario(
    Gives({"child": "child of a"}),
    acts=[("act", "a")],
    moves=[Signal("go", to="child")],
    others={"child": ["succeeded"]},
)
def a_child_of_a_plan(app: App, outside: Outside) -> Any:
    from holdfast import wait_for

    act = acting(app, outside)

    @app.job
    async def child(name: str) -> str:
        await act(name)
        await wait_for("go")
        return f"child of {name}"

    plan = app.plan("work")
    plan.job(child, name="a")
    return plan


@scenario(Fails("boom"), acts=[("act", "sibling")])
def a_node_that_fails_and_its_sibling(app: App, outside: Outside) -> Any:
    act, fail = acting(app, outside), failing(app)
    plan = app.plan("work")
    broken = plan.call(fail, message="boom")
    plan.call(act, what="sibling", id="sibling")
    plan.call(act, what="never", id="never", after=broken)
    return plan


@scenario(Gives({"act": "act(slept)"}), acts=[("act", "slept")])
def a_sleep_in_a_plan(app: App, outside: Outside) -> Any:
    act = acting(app, outside)
    plan = app.plan("work")
    plan.call(act, what="slept", after=plan.sleep(0.02))
    return plan


@scenario(Gives({"act": "act(yes)"}), acts=[("act", "yes")], moves=[Signal("answer", {"said": "yes"})])
def what_a_signal_says_is_referred_to(app: App, outside: Outside) -> Any:
    act = acting(app, outside)
    plan = app.plan("work")
    answer = plan.wait("answer")
    plan.call(act, what=answer["said"])
    return plan


@scenario(Gives({"last": ["b", "act(a)"]}), acts=[("act", "a")], moves=[Signal("b", "b")])
def a_wait_beside_a_tool_in_a_plan(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)
    plan = app.plan("work")
    a = plan.call(act, what="a", id="a")
    b = plan.wait("b")
    plan.call(echo, value=[b, a], id="last")
    return plan
