"""Signals: early, late, many, repeated; starts and signals that job code makes itself."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

from holdfast import App, WaitTimeout, sleep, wait_for
from scenarios.parts import acting, echoing, held
from support.scenarios import START, Gives, Outside, Signal, scenario


def _five(at: str | None = None) -> list[Signal]:
    return [Signal("k", number, at=at) for number in range(5)]


@scenario(Gives([0, 1, 2, 3, 4]), acts=[("act", n) for n in range(5)], in_order=True, moves=_five(START))
def early_signals_in_their_order(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        found = []
        for _ in range(5):
            found.append(await wait_for("k"))
            await act(found[-1])
        return found

    return work


@scenario(Gives([0, 1, 2, 3, 4]), acts=[("act", n) for n in range(5)], in_order=True, moves=_five())
def signals_one_by_one(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        found = []
        for _ in range(5):
            found.append(await wait_for("k"))
            await act(found[-1])
        return found

    return work


@scenario(
    Gives([[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]),
    acts=[("act", n) for n in range(5)],
    in_order=True,
    moves=[Signal(key, first + n, at=f"{key}{n}") for n in range(5) for key, first in (("k", 0), ("other", 10))],
)
def signals_as_soon_as_they_are_waited_for(app: App, outside: Outside) -> Any:
    """The job is resumed at once each time, so it stays in memory at its next waits."""
    act = acting(app, outside)

    async def five(key: str) -> list[int]:
        found = []
        for number in range(5):
            outside.mark(f"{key}{number}")
            found.append(await wait_for(key))
            await sleep(0.001)
            if key == "k":
                await act(found[-1])
        return found

    @app.job
    async def work() -> Any:
        return await asyncio.gather(five("k"), five("other"))

    return work


@scenario(Gives([0, 1, 2, 3, 4]), moves=_five(START))
def early_signals_for_five_branches(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        return await asyncio.gather(*(wait_for("k") for _ in range(5)))

    return work


class Approval(TypedDict):
    approved: bool


@scenario(
    Gives([True, "plain"]),
    acts=[("act", True)],
    moves=[Signal("ok", {"approved": 1}, at=START), Signal("ok", {"approved": True}), Signal("k", "plain")],
)
def an_answer_that_does_not_fit_is_asked_for_again(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        async def answered() -> bool:
            answer = await wait_for("ok", form=Approval)
            await act(answer["approved"])
            return answer["approved"]

        return await asyncio.gather(answered(), wait_for("k"))

    return work


@scenario(Gives(["first", "none"]), moves=[Signal("k", "first", "id1"), Signal("k", "second", "id1"), Signal("go")])
def a_repeated_signal_counts_once(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        found = await wait_for("k")
        await wait_for("go")
        try:
            return [found, await wait_for("k", timeout=0)]
        except WaitTimeout:
            return [found, "none"]

    return work


@scenario(
    Gives(["a", "b"]),
    moves=[Signal("k", "a", "1", at=START), Signal("k", "again", "1", at=START), Signal("k", "b", "2", at=START)],
)
def early_signals_with_a_repeat(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        found = []
        try:
            while True:
                found.append(await wait_for("k", timeout=0))
        except WaitTimeout:
            return found

    return work


@scenario(Gives([["a", "b"], "empty"]), moves=[Signal("k", "a"), Signal("k", "b"), Signal("look")])
def a_look_takes_what_is_there(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        await wait_for("look")
        found = [await wait_for("k", timeout=0), await wait_for("k", timeout=0)]
        try:
            await wait_for("k", timeout=0)
        except WaitTimeout:
            return [found, "empty"]

    return work


@scenario(Gives(["b", "a"]), moves=[Signal("b", "b"), Signal("a", "a")])
def a_signal_for_a_later_wait_is_kept(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        a = await wait_for("a")
        return [await wait_for("b"), a]

    return work


@scenario(Gives(["a", "b", "c"]), acts=[("act", "b")], moves=[Signal("b", "b"), Signal("c", "c"), Signal("a", "a")])
def a_signal_for_one_of_three_branches(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def b() -> Any:
        found = await wait_for("b")
        await act(found)
        return found

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("a"), b(), wait_for("c"))

    return work


@scenario(Gives(["early", "slept"]), moves=[Signal("x", "early", at=START)])
def an_early_signal_beside_a_native_sleep(app: App, _: Outside) -> Any:
    async def sleeps() -> str:
        await asyncio.sleep(0.05)
        return "slept"

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("x", timeout=0.02), sleeps())

    return work


@scenario(Gives(["early", "threaded"]), moves=[Signal("x", "early", at=START)])
def an_early_signal_beside_a_thread(app: App, _: Outside) -> Any:
    import time

    @app.step
    def threaded() -> str:
        time.sleep(0.05)
        return "threaded"

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("x", timeout=0.02), threaded())  # type: ignore[call-overload]

    return work


@scenario(Gives("during"), moves=[Signal("x", "during", at="in the step")])
def a_signal_while_a_step_runs(app: App, outside: Outside) -> Any:
    @app.step
    async def busy() -> None:
        outside.mark("in the step")
        await asyncio.sleep(0.02)

    @app.job
    async def work() -> Any:
        await busy()
        return await wait_for("x")

    return work


@scenario(Gives(["during", "held"]), acts=[("act", "during")], moves=[Signal("x", "during", at="waiting")])
def a_signal_for_a_branch_while_another_is_busy(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    async def waits() -> Any:
        outside.mark("waiting")
        found = await wait_for("x")
        await act(found)
        outside.mark("served")
        return found

    @app.job
    async def work() -> Any:
        return await asyncio.gather(waits(), hold("served"))

    return work


@scenario(Gives(["timed out", "late"]), moves=[Signal("x", "late")])
def a_signal_after_its_wait_timed_out(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        said = "in time"
        try:
            await wait_for("x", timeout=0.02)
        except WaitTimeout:
            said = "timed out"
        return [said, await wait_for("x")]

    return work


@scenario(
    Gives([None, {"a": [1, 2.5, "é", None]}, False]),
    moves=[Signal("x"), Signal("x", {"a": [1, 2.5, "é", None]}), Signal("x", payload=False)],
)
def payloads_of_every_kind(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        return [await wait_for("x") for _ in range(3)]

    return work


@scenario(Gives(["a person", "a hook"]), moves=[Signal("approval", "a person"), Signal("hook", "a hook")])
def waits_for_people_and_hooks(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        return [await wait_for("approval", type="human"), await wait_for("hook", type="webhook")]

    return work


@scenario(
    Gives(20), acts=[("act", n) for n in range(20)], in_order=True, moves=[Signal("k", n, at=START) for n in range(20)]
)
def twenty_signals_in_a_row(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        for _ in range(20):
            await act(await wait_for("k"))
        return 20

    return work


@scenario(Gives("too_late"), moves=[Signal("go")], others={"other": ["succeeded"]})
def a_signal_to_a_run_that_has_ended(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def other() -> str:
        return "ended"

    @app.job
    async def work() -> Any:
        handle = await other.astart()
        await wait_for("go")
        said = await app.asignal(handle.id, "k", 1)
        return await echo(said)

    return work


@scenario(Gives("the same run"), moves=[Signal("go")], others={"other": ["succeeded"]})
def two_starts_with_one_key(app: App, _: Outside) -> Any:
    @app.job
    async def other(n: int) -> int:
        return n

    @app.job
    async def work() -> Any:
        first = await other.options(key="k").astart(1)
        await wait_for("go")
        second = await other.options(key="k").astart(1)
        return "the same run" if first.id == second.id else "two runs"

    return work


@scenario(Gives(3), moves=[Signal("go"), Signal("on")], others={"other": ["succeeded"] * 3})
def three_equal_starts_are_three_runs(app: App, _: Outside) -> Any:
    @app.job
    async def other(n: int) -> int:
        return n

    @app.job
    async def work() -> Any:
        runs = {(await other.astart(1)).id}
        await wait_for("go")
        runs |= {(await other.astart(1)).id, (await other.astart(1)).id}
        await wait_for("on")
        return len(runs)

    return work


@scenario(Gives(4), moves=[Signal("go")], others={"other": ["succeeded"] * 4})
def starts_in_branches(app: App, _: Outside) -> Any:
    @app.job
    async def other(n: int) -> int:
        return n

    @app.job
    async def work() -> Any:
        handles = await asyncio.gather(*(other.astart(n) for n in range(4)))
        await wait_for("go")
        return len({handle.id for handle in handles})

    return work


@scenario(Gives("started"), moves=[Signal("go")], others={"other": ["succeeded"]})
def a_plain_job_starts_another_once(app: App, _: Outside) -> Any:
    @app.job
    async def other(n: int) -> int:
        return n

    @app.job
    def work() -> Any:
        handle = other.start(1)
        wait_for("go")
        return "started" if handle.id else "no id"

    return work


@scenario(
    Gives("sent"), acts=[("act", "one"), ("act", "two")], in_order=True, moves=[Signal("go")],
    others={"receiver": ["succeeded"]},
)  # fmt: skip
def signals_of_a_job_keep_their_order(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def receiver() -> Any:
        await act(await wait_for("k"))
        await act(await wait_for("k"))

    @app.job
    async def work() -> Any:
        handle = await receiver.astart()
        await app.asignal(handle.id, "k", "one")
        await wait_for("go")
        await app.asignal(handle.id, "k", "two")
        return "sent"

    return work


@scenario(Gives("pong"), others={"pong": ["succeeded"]})
def two_jobs_that_signal_each_other(app: App, _: Outside) -> Any:
    @app.job
    async def pong(back: str) -> None:
        await wait_for("ping")
        await app.asignal(back, "pong", "pong")

    @app.step
    async def own_id() -> str:
        from holdfast import external_key

        return external_key().split(":")[1]

    @app.job
    async def work() -> Any:
        handle = await pong.astart(await own_id())
        await app.asignal(handle.id, "ping")
        return await wait_for("pong")

    return work
