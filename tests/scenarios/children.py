"""Jobs that start jobs: results, failures, cancels, fan-out, depth."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, sleep, wait_for
from scenarios.parts import acting, echoing
from support.scenarios import Cancel, Fails, Gives, Outside, Signal, scenario


@scenario(Gives([2, 4]), acts=[("act", 1), ("act", 2)], moves=[Signal("go")], others={"child": ["succeeded"] * 2})
def children_one_after_the_other(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child(n: int) -> int:
        await act(n)
        return 2 * n

    @app.job
    async def work() -> Any:
        found = [await child(1), await child(2)]
        await wait_for("go")
        return found

    return work


@scenario(
    Gives([0, 1, 2, 3]), acts=[("act", n) for n in range(4)], moves=[Signal("go")], others={"child": ["succeeded"] * 4}
)
def children_at_once(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child(n: int) -> int:
        await act(n)
        return n

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(*(child(n) for n in range(4)))
        await wait_for("go")
        return found

    return work


@scenario(Gives(1225), moves=[Signal("go")], others={"child": ["succeeded"] * 50}, crashes=False)
def fifty_children(app: App, _: Outside) -> Any:
    @app.job
    async def child(n: int) -> int:
        return n

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(*(child(n) for n in range(50)))
        await wait_for("go")
        return sum(found)

    return work


@scenario(Gives("bottom of 3"), acts=[("act", "bottom")], others={"deeper": ["succeeded"] * 3})
def a_child_starts_a_child(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def deeper(levels: int) -> str:
        if levels:
            return await deeper(levels - 1)
        await act("bottom")
        return "bottom of 3"

    @app.job
    async def work() -> Any:
        return await deeper(2)

    return work


@scenario(
    Gives(["second", "first"]),
    moves=[Signal("name", "second", to="a"), Signal("name", "first", to="b")],
    others={"a": ["succeeded"], "b": ["succeeded"]},
)
def children_that_wait(app: App, _: Outside) -> Any:
    @app.job
    async def a() -> Any:
        return await wait_for("name")

    @app.job
    async def b() -> Any:
        return await wait_for("name")

    @app.job
    async def work() -> Any:
        return await asyncio.gather(a(), b())

    return work


@scenario(
    Gives(["b", "a"]),
    acts=[("act", "b"), ("act", "a")],
    in_order=True,
    moves=[Signal("end", to="b"), Signal("end", to="a"), Signal("go")],
)
def children_in_the_order_of_their_ends(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def a() -> Any:
        await wait_for("end")
        return "a"

    @app.job
    async def b() -> Any:
        await wait_for("end")
        return "b"

    @app.job
    async def work() -> Any:
        order = []
        for ended in asyncio.as_completed([asyncio.create_task(a()), asyncio.create_task(b())]):
            order.append(await ended)
            await act(order[-1])
        await wait_for("go")
        return order

    return work


@scenario(Gives("two runs"), moves=[Signal("go")], others={"child": ["succeeded"] * 2})
def equal_children_are_two(app: App, _: Outside) -> Any:
    @app.step
    async def own_id() -> str:
        from holdfast import external_key

        return external_key().split(":")[1]

    @app.job
    async def child() -> str:
        return await own_id()

    @app.job
    async def work() -> Any:
        first, second = await asyncio.gather(child(), child())
        await wait_for("go")
        return "two runs" if first != second else "one run"

    return work


@scenario(Gives(["caught", "act(undo)"]), acts=[("act", "undo")], moves=[Signal("go")], others={"child": ["failed"]})
def a_child_that_fails(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child() -> None:
        raise ValueError("boom")

    @app.job
    async def work() -> Any:
        try:
            await child()
        except Exception as failure:  # noqa: BLE001 - which one is not the point
            said = "caught" if "boom" in str(failure) else str(failure)
        undone = await act("undo")
        await wait_for("go")
        return [said, undone]

    return work


@scenario(Fails("boom"), others={"child": ["failed"], "waiting": ["canceled"]})
def a_parent_that_fails_ends_its_children(app: App, _: Outside) -> Any:
    @app.job
    async def child() -> None:
        raise ValueError("boom")

    @app.job
    async def waiting() -> None:
        await wait_for("never")

    @app.job
    async def work() -> Any:
        await asyncio.gather(waiting(), child())

    return work


@scenario(Gives("caught"), moves=[Cancel("not needed", to="child"), Signal("go")], others={"child": ["canceled"]})
def a_child_that_an_operator_cancels(app: App, _: Outside) -> Any:
    @app.job
    async def child() -> None:
        await wait_for("never")

    @app.job
    async def work() -> Any:
        try:
            await child()
        except Exception:  # noqa: BLE001 - which one is not the point
            await wait_for("go")
            return "caught"

    return work


@scenario(
    Gives("too slow"),
    acts=[("act", "too slow")],
    moves=[Signal("end", to="child"), Signal("go")],
    others={"child": ["succeeded"]},
)
def a_child_against_a_sleep(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child() -> str:
        await wait_for("end")
        return "in time"

    @app.job
    async def work() -> Any:
        ended, timer = asyncio.create_task(child()), asyncio.create_task(sleep(0.02))
        done, _ = await asyncio.wait([ended, timer], return_when=asyncio.FIRST_COMPLETED)
        said = "in time" if ended in done else "too slow"
        await act(said)
        await ended
        await wait_for("go")
        return said

    return work


@scenario(
    Gives(["child", "went", "held", "slept"]),
    moves=[Signal("end", to="child"), Signal("go", "went")],
    others={"child": ["succeeded"]},
)
def a_child_a_wait_a_step_and_a_sleep(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def child() -> str:
        await wait_for("end")
        return "child"

    async def sleeps() -> str:
        await sleep(0.01)
        return "slept"

    @app.job
    async def work() -> Any:
        return await asyncio.gather(child(), wait_for("go"), echo("held"), sleeps())

    return work


@scenario(
    Gives([["child", "child"], 3]),
    acts=[("act", "a"), ("act", "b")],
    moves=[Signal("go")],
    others={"child": ["succeeded"] * 2},
)
def children_beside_native_work(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def child(what: str) -> str:
        await asyncio.sleep(0.005)
        await act(what)
        return "child"

    async def native() -> int:
        await asyncio.sleep(0.01)
        return 3

    @app.job
    async def work() -> Any:
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(child(what)) for what in "ab"]
            number = group.create_task(native())
        await wait_for("go")
        return [[task.result() for task in children], number.result()]

    return work


@scenario(Gives("mended"), acts=[("act", "once")], others={"child": ["succeeded"]})
def a_child_that_is_tried_again(app: App, outside: Outside) -> Any:
    from holdfast import Backoff

    act = acting(app, outside)

    @app.job(backoff=Backoff(retries=3, first_seconds=0.005, jitter=0))
    async def child() -> str:
        await act("once")
        if outside.count("attempts") < 2:
            raise ConnectionError("down")
        return "mended"

    @app.job
    async def work() -> Any:
        return await child()

    return work
