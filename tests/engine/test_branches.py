"""A job that waits at several places at once: whatever comes first brings it back, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import random
import time
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import App, Backoff, Done, Permanent, StepFailed, WaitTimeout, gather, sleep, uuid4, wait_for
from holdfast.machines import JobState
from support.stories import drain, play


async def waiting_for(app: App, job: str) -> set[str]:
    row = await app.store().get(job)
    assert row is not None
    assert row.state is JobState.WAITING
    assert row.wait is not None
    return {place.correlation_key or "" for place in row.wait.places()}


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")])
def test_signals_for_several_waits_may_come_in_any_order(app: App, order: tuple[str, ...]) -> None:
    seen: list[str] = []

    @app.step
    async def note(what: str) -> str:
        seen.append(what)
        return what

    async def branch(key: str) -> str:
        return await note(f"{key}={await wait_for(key, timeout=3600)}")

    @app.job
    async def work() -> list[str]:
        return await gather(branch("a"), branch("b"), branch("c"))

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        left = {"a", "b", "c"}
        for number, key in enumerate(order):
            assert await waiting_for(app, handle.id) == left
            assert await handle.asignal(key, number) == "delivered"
            left.discard(key)
            await drain(app)
            assert seen[-1] == f"{key}={number}", "the branch that was signalled has gone on"
        assert sorted(await handle.aresult()) == sorted(seen)
        assert await app.averify() == {}

    play(story())
    assert len(seen) == 3


def test_one_wait_that_ends_by_time_leaves_the_others_open(app: App) -> None:
    @app.job
    async def work() -> list[Any]:
        async def patient() -> Any:
            try:
                return await wait_for("never", timeout=0.05)
            except WaitTimeout:
                return "gave up"

        return await gather(patient(), wait_for("go"), sleep(0.1))

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await waiting_for(app, handle.id) == {"go"}
        await handle.asignal("go", 1)
        await drain(app)
        assert await handle.aresult() == ["gave up", 1, None]

    play(story())


def test_a_signal_is_heard_while_another_branch_waits_for_a_late_retry(app: App) -> None:
    calls: list[str] = []

    @app.step(backoff=Backoff(retries=1, first_seconds=3600, cap_seconds=3600, jitter=0))
    async def flaky() -> str:
        calls.append("flaky")
        raise ConnectionError("down")

    @app.step
    async def note(what: str) -> str:
        calls.append(what)
        return what

    @app.job
    async def work() -> list[Any]:
        async def branch() -> str:
            return await note(await wait_for("go"))

        return await gather(flaky(), branch())

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert "go" in await waiting_for(app, handle.id)
        await handle.asignal("go", "went")
        await drain(app)
        assert calls == ["flaky", "went"], "the branch has gone on, and the retry still waits for its time"
        row = await app.store().get(handle.id)
        assert row is not None
        assert (await handle.arecord()).stage == "retrying", "nothing else is left to wait for"
        assert row.due_at - await app.store().now() > 3000

    play(story())


def test_children_and_signals_are_waited_for_at_once(app: App) -> None:
    @app.job
    async def child(n: int) -> int:
        return int(await wait_for("number")) * n

    @app.job
    async def parent() -> list[Any]:
        return await gather(child(1), child(10), wait_for("go"))

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        one, two = sorted(record.run_id for record in await app.alist() if record.run_id != handle.id)
        await app.asignal(two, "number", 2)
        await drain(app)
        await handle.asignal("go", "went")
        await drain(app)
        await app.asignal(one, "number", 1)
        await drain(app)
        assert sorted(map(str, await handle.aresult())) in (["1", "20", "went"], ["10", "2", "went"])
        assert await app.averify() == {}

    play(story())


def test_the_children_of_a_job_that_is_cancelled_while_it_waits_are_cancelled_too(app: App) -> None:
    @app.job
    async def child() -> None:
        await wait_for("never")

    @app.job
    async def parent() -> None:
        await gather(child(), child())

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        await app.acancel(handle.id, "not needed")
        assert {record.status for record in await app.alist()} == {"canceled"}
        assert len(await app.alist()) == 3

    play(story())


def test_a_running_child_is_cancelled_when_its_parent_fails(app: App) -> None:
    begun = asyncio.Event()

    @app.job
    async def child() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    @app.step
    async def broken() -> None:
        await begun.wait()
        raise Permanent("no use")

    @app.job
    async def parent() -> None:
        both = asyncio.gather(child(), broken())
        try:
            await both
        except StepFailed:
            both.cancel()
            raise

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        assert {record.run_id: record.status for record in await app.alist()}[handle.id] == "failed"
        assert sorted(record.status for record in await app.alist()) == ["canceled", "failed"]

    play(story())


Moves = list[tuple[str, int]]


def random_moves(rng: random.Random) -> list[Moves]:
    """Some branches, each a list of things to do."""
    kinds = ["add", "wait", "wait", "sleep"]
    lengths = [rng.randrange(1, 5) for _ in range(rng.randrange(1, 5))]
    return [[(rng.choice(kinds), rng.randrange(1, 20)) for _ in range(length)] for length in lengths]


def signals_in(branches: list[Moves], rng: random.Random) -> list[tuple[str, int]]:
    """The signals that the branches wait for, in some order."""
    places = [(f"{number}.{place}", move) for number, moves in enumerate(branches) for place, move in enumerate(moves)]
    rng.shuffle(places)
    return [(key, n) for key, (kind, n) in places if kind == "wait"]


@pytest.mark.parametrize("seed", range(12))
def test_random_branches_end_right_whatever_the_order_of_signals(app: App, seed: int) -> None:
    """Signals come in random order, some before anybody waits for them, and workers come and go between them."""
    rng = random.Random(seed)
    branches = random_moves(rng)

    @app.step
    async def add(total: int, n: int) -> int:
        return total + n

    async def branch(number: int, moves: Moves) -> int:
        total = 0
        for place, (kind, n) in enumerate(moves):
            if kind == "add":
                total = await add(total, n)
            elif kind == "sleep":
                await sleep(n / 1000)
            else:
                total += await wait_for(f"{number}.{place}")
        return total

    @app.job
    async def work() -> list[int]:
        return await gather(*(branch(number, moves) for number, moves in enumerate(branches)))

    async def story() -> None:
        handle = await app.astart(work)
        for key, n in signals_in(branches, rng):
            await handle.asignal(key, n)
            if rng.random() < 0.5:
                await drain(app)
        await drain(app)
        expected = [sum(n for kind, n in moves if kind != "sleep") for moves in branches]
        assert await handle.aresult(timeout=60) == expected
        assert await app.averify(handle.id) == {}

    play(story())


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_failure_deep_inside_nested_branches_ends_the_job_and_is_not_mistaken_for_waiting(
    app: App, depth: int
) -> None:
    @app.step
    async def broken() -> None:
        raise Permanent("no use")

    async def nested(level: int) -> None:
        if level == 0:
            await broken()
        else:
            await asyncio.gather(wait_for(f"never {level}"), nested(level - 1))

    @app.job
    async def work() -> None:
        await nested(depth)

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert (await handle.arecord()).status == "failed"

    play(story())


def test_a_wait_whose_branch_was_cancelled_is_not_waited_for_any_more(app: App) -> None:
    @app.step
    async def quick() -> int:
        return 1

    @app.job
    async def work() -> str:
        never = asyncio.create_task(wait_for("never", timeout=3600))
        done, _ = await asyncio.wait({never, asyncio.create_task(quick())}, return_when=asyncio.FIRST_COMPLETED)
        never.cancel()
        await quick()
        await asyncio.sleep(0.02)  # with the cancelled wait still counted, the job would be let go here, for ever
        return f"{len(done)} done, then {await wait_for('go')}"

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await waiting_for(app, handle.id) == {"go"}
        assert await app.store().next_due() is None, "no time brings it back either"
        await handle.asignal("go", "gone")
        await drain(app)
        assert await handle.aresult(timeout=60) == "1 done, then gone"

    play(story())


def test_values_go_to_the_branches_that_they_were_made_for_whoever_comes_first(app: App) -> None:
    @app.step
    async def slow(number: int) -> None:
        await asyncio.sleep(0.05 if number == 0 else 0)

    @app.tool
    async def use(number: int, name: str) -> str:
        return f"{number}: {name}"

    async def branch(number: int) -> str:
        await slow(number)  # the first branch comes last; on replay it comes first
        await sleep(0.001)
        return await use(number, uuid4())

    @app.job
    async def work() -> list[str]:
        made = await gather(branch(0), branch(1), branch(2))
        await wait_for("go")
        return made

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await waiting_for(app, handle.id) == {"go"}
        await handle.asignal("go")
        await drain(app)
        assert [text[0] for text in await handle.aresult(timeout=60)] == ["0", "1", "2"]

    play(story())


def test_a_signal_reaches_a_branch_while_another_is_busy(app: App) -> None:
    turns: list[int] = []
    busy = asyncio.Event()

    @app.step
    async def turn(n: int) -> int:
        turns.append(n)
        await asyncio.sleep(0.002)
        if n == 5:
            busy.set()
        return n

    @app.job
    async def work() -> list[Any]:
        async def loop() -> None:
            n = 0
            while True:
                n = await turn(n) + 1

        looping = asyncio.ensure_future(loop())
        said = await wait_for("stop")
        looping.cancel()
        again = await wait_for("again")
        return [said, again]

    async def story() -> None:
        handle = await app.astart(work)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await busy.wait()
        assert await handle.asignal("stop", "enough", id="s1") == "kept"
        async for record in handle.awatch():
            if record.stage == "parked":
                break
        assert await app.store().inbox(handle.id) == [], "it is used up"
        assert await handle.asignal("stop", "enough", id="s1") == "repeat"
        await handle.asignal("again", 2)
        assert await handle.aresult(timeout=60) == ["enough", 2]
        worker.stop()
        await working
        assert await app.averify() == {}

    play(story())
    assert turns == list(range(len(turns))), "no turn was made twice, though the job was taken up again"


def test_a_wait_times_out_while_another_branch_is_busy(app: App) -> None:
    over = asyncio.Event()

    @app.step
    async def long() -> str:
        await over.wait()
        return "done"

    @app.job
    async def work() -> list[Any]:
        async def patient() -> str:
            try:
                return str(await wait_for("never", timeout=0.05))
            except WaitTimeout:
                over.set()
                return "gave up"

        return await gather(patient(), long(), sleep(0.01))

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await handle.aresult(timeout=60) == ["gave up", "done", None]
        assert await app.averify() == {}

    play(story())


def test_a_child_that_ends_while_its_parent_is_busy_is_heard_at_once(app: App) -> None:
    heard = asyncio.Event()

    @app.job
    async def child() -> int:
        return 7

    @app.step
    async def long() -> str:
        await heard.wait()
        return "done"

    @app.job
    async def parent() -> list[Any]:
        async def listen() -> Any:
            got = await child()
            heard.set()
            return got

        return await gather(listen(), long())

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        assert await handle.aresult(timeout=60) == [7, "done"]

    play(story())


def test_a_job_begins_in_the_context_of_its_worker_and_not_in_that_of_the_job_before_it(app: App) -> None:
    mine: ContextVar[int] = ContextVar("mine", default=-1)
    drawn: dict[int, set[str]] = {}
    inherited: set[int] = set()

    @app.step
    async def use(number: int) -> int:
        return number

    @app.job
    async def child(number: int) -> int:
        return await use(number)

    @app.job
    async def parent(number: int) -> None:
        inherited.add(mine.get())
        mine.set(number)
        drawn.setdefault(number, set()).add(uuid4())
        await child(number)

    async def story() -> None:
        for number in range(5):
            await parent.astart(number)
        await app.worker(concurrency=1).arun(until_idle=True)  # so that each fills the slot of another

    play(story())
    assert {number: len(names) for number, names in drawn.items()} == dict.fromkeys(range(5), 1), "the same on replay"
    assert inherited == {-1}


def test_a_branch_whose_process_stood_still_is_waited_for_before_a_new_call_is_made(app: App) -> None:
    """Time plays no part: slow code is not different code (E8)."""
    calls: list[str] = []

    @app.step
    async def note(what: str) -> str:
        calls.append(what)
        return what

    async def new() -> str:
        return await note(await wait_for("go"))

    async def recorded() -> str:
        if calls:
            time.sleep(0.2)  # noqa: ASYNC251 - it stands still
            await asyncio.sleep(0.2)
            await asyncio.to_thread(time.sleep, 0.2)
            for _ in range(20):
                await asyncio.sleep(0)
        return await note("recorded")

    @app.job
    async def work() -> list[str]:
        return await gather(new(), recorded())

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        await handle.asignal("go", "new")
        await drain(app)
        assert await handle.aresult() == ["new", "recorded"]

    play(story())
    assert calls == ["recorded", "new"]


def test_code_that_awaits_in_its_finally_sees_nothing_of_its_suspension(app: App) -> None:
    """Suspension is not cancellation, and shows no other error either, however deep the code that cleans up (E14)."""
    seen: list[str] = []

    async def cleans_up() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(wait_for("go"))
            return str(waiting.result())
        finally:
            await asyncio.sleep(0)

    @app.job
    async def work() -> str:
        try:
            return await cleans_up()
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        await handle.asignal("go", "gone")
        await drain(app)
        assert await handle.aresult() == "gone"

    play(story())
    assert seen == ["GeneratorExit"]


def test_a_tool_that_was_cut_off_is_asked_about_when_a_retry_no_longer_cuts_it_off(app: App) -> None:
    """It may have acted: it is not called again without a word (E5)."""
    acted: list[str] = []
    failing = [True]
    begun = asyncio.Event()

    @app.tool
    async def charge(card: str) -> str:
        acted.append(card)
        begun.set()
        await asyncio.sleep(3600)
        return "never"

    @app.step
    async def flaky() -> str:
        await begun.wait()
        if failing[0]:
            raise Permanent("not now")
        return "well"

    @app.job
    async def work() -> list[str]:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(charge("4242")), group.create_task(flaky())]
        return [one.result() for one in both]

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert (await handle.arecord()).status == "failed"
        failing[0] = False
        again = await app.aretry(handle.id, actor="an operator", reason="it is back")
        await drain(app)
        (question,) = [one for one in await app.aevents(handle.id) if one.payload.get("wait_type") == "human"]
        await app.aresolve(again.run_id, question.payload["node"], done="a receipt")
        await drain(app)
        assert await app.aoutcome(again.run_id) == ["a receipt", "well"]
        assert await app.averify() == {}

    play(story())
    assert acted == ["4242"]


def test_a_tool_in_doubt_may_be_cut_off_again_and_stays_in_doubt(app: App) -> None:
    """Each retry cuts it off before its doubt is settled. The history stays legal, and the tool acts once (E4, E5)."""
    acted: list[str] = []
    events = [asyncio.Event(), asyncio.Event(), asyncio.Event()]  # each try of the step waits for one
    tries: list[int] = []

    async def reconcile(card: str, external_key: str) -> Done:
        del card, external_key
        if len(tries) < 3:
            events[len(tries)].set()
            await asyncio.Event().wait()  # until it is cut off
        return Done("a receipt")

    @app.tool(reconcile=reconcile)
    async def charge(card: str) -> str:
        acted.append(card)
        events[0].set()
        await asyncio.Event().wait()
        return "never"

    @app.step
    async def flaky() -> str:
        if len(tries) == 3:
            return "well"
        await events[len(tries)].wait()
        tries.append(1)
        raise Permanent("not now")

    @app.job
    async def work() -> list[str]:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(charge("4242")), group.create_task(flaky())]
        return [each.result() for each in both]

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        run = handle.id
        for _ in range(3):
            assert await app.averify() == {}
            run = (await app.aretry(run, actor="an operator", reason="it is back")).run_id
            await drain(app)
        assert await app.aoutcome(run) == ["a receipt", "well"]
        assert await app.averify() == {}

    play(story())
    assert acted == ["4242"]
