"""Plain steps that run in the thread of their plain job: recorded, retried, cancelled and replayed as all others."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, Backoff, RunHandle, StepFailed, changed, export, external_key, now, spend, uuid4, wait_for
from holdfast.authoring.conductor import Suspended, conductor
from holdfast.clock import elapsed
from holdfast.engine import own_thread
from holdfast.engine.lease import Lease
from holdfast.machines import JobState
from support.stories import drain, play, quick, until

TRIES = ["node_started", "command_committed", "node_finished"]


def outcome(app: App, job: Any, *args: Any) -> tuple[Any, RunHandle]:
    async def story() -> Any:
        handle = await app.astart(job, *args)
        await drain(app)
        result = await handle.aresult(timeout=60)
        assert await app.averify() == {}
        return result, handle

    return play(story())  # type: ignore[no-any-return]


def test_a_brief_step_runs_in_the_thread_of_its_job_once_it_is_known_to_be_brief(app: App) -> None:
    @app.step
    def where(number: int) -> list[Any]:
        return [number, threading.get_ident(), external_key()]

    @app.job
    def work() -> list[Any]:
        return [threading.get_ident(), [where(number) for number in (1, 2, 1)], [where(2)]]

    (own, ran, again), handle = outcome(app, work)
    assert [number for number, _, _ in ran] == [1, 2, 1]
    assert [thread == own for _, thread, _ in [*ran, *again]] == [False, True, True, True], "the first is not known"
    events = handle.events()
    nodes = [event.payload["node"] for event in events if event.type == "node_started"]
    assert [key for _, _, key in [*ran, *again]] == [f"holdfast:{handle.id}:{node}" for node in nodes]
    assert nodes[2:] == [f"{nodes[0]}#2", f"{nodes[1]}#2"]
    assert [event.type for event in events] == ["job_created", "job_running", *TRIES * 4, "job_completed"]
    payloads = [dict(event.payload) for event in events[2:-1]]
    for payload in payloads:
        payload.pop("node"), payload.pop("result", None), payload.pop("args", None)
    assert [payloads[at : at + 3] for at in (3, 6, 9)] == [payloads[:3]] * 3, "they are recorded as the first one is"


def test_a_step_that_was_not_brief_runs_in_another_thread(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.step
    def where(number: int) -> int:
        del number
        return threading.get_ident()

    @app.step
    def becomes_slow() -> None:
        monkeypatch.setattr(own_thread, "BRIEF_SECONDS", 0.0)

    @app.job
    def work() -> list[int]:
        before = [threading.get_ident(), where(1), where(2)]
        becomes_slow()
        return [*before, where(3), where(4)]

    (own, _, brief, last_brief, slow), _ = outcome(app, work)
    assert (brief, last_brief) == (own, own)
    assert slow != own


def test_steps_with_a_timeout_tools_and_async_steps_run_in_threads_of_their_own(app: App) -> None:
    @app.step(timeout=60)
    def timed() -> int:
        return threading.get_ident()

    @app.tool
    def act() -> int:
        return threading.get_ident()

    @app.step
    async def coroutine() -> int:
        return threading.get_ident()

    @app.job
    def work() -> list[int]:
        plain = [timed() for _ in "ab"] + [act() for _ in "ab"]
        return [threading.get_ident(), *plain, *[coroutine() for _ in "ab"]]  # type: ignore[list-item]  # - in a plain job

    (own, *others), _ = outcome(app, work)
    assert own not in others


def test_a_failure_in_the_thread_of_the_job_is_retried_and_raised_as_any_other(app: App) -> None:
    tries: list[int] = []

    @app.step(retries=2, backoff=Backoff(first_seconds=0.001))
    def flaky(number: int, fails: int) -> int:
        tries.append(number)
        if tries.count(number) <= fails:
            raise SystemExit("out") if fails > 2 else ValueError("not yet")
        return threading.get_ident()

    @app.job
    def work() -> list[Any]:
        found: list[Any] = [threading.get_ident() == flaky(number, 0) for number in (0, 1)]
        found.append(flaky(2, 2) is not None)
        try:
            flaky(3, 9)
        except StepFailed as failure:
            found += [failure.kind, "SystemExit" in failure.reason]
        return [*found, threading.get_ident() == flaky(4, 0)]

    found, handle = outcome(app, work)
    assert found == [False, True, True, "RuntimeError", True, True]
    assert tries == [0, 1, 2, 2, 2, 3, 3, 3, 4]
    ends = [event.payload for event in handle.events() if event.type == "node_finished"]
    assert [end["result_type"] for end in ends] == [
        "success", "success", "retryable_failure", "retryable_failure", "success",
        "retryable_failure", "retryable_failure", "retryable_failure", "success",
    ]  # fmt: skip
    begun = [event.payload for event in handle.events() if event.type == "node_started"]
    assert [each["try"] for each in begun] == [1, 1, 1, 2, 3, 1, 2, 3, 1]


def test_what_code_does_with_a_result_or_an_argument_changes_nothing_that_is_recorded(app: App) -> None:
    seen: list[Any] = []

    @app.step
    def grow(items: list[int]) -> Any:
        items.append(0)
        return {"items": items}

    @app.job
    def work() -> list[Any]:
        given, kept = [1], []
        for _ in range(3):
            result = grow(given)
            kept.append(list(result["items"]))
            result["items"].append("mine")
            given.append(2)
        wait_for("go")
        seen.append(kept)
        return kept

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() == [[1, 0], [1, 2, 0], [1, 2, 2, 0]]
        recorded = [
            each.payload for each in await handle.aevents() if each.type in {"node_started", "command_committed"}
        ]
        assert [each["args"]["items"] for each in recorded[::2]] == [[1], [1, 2], [1, 2, 2]]
        assert [each["result"]["items"] for each in recorded[1::2]] == seen[-1]

    play(story())


def test_values_and_results_of_a_plain_job_are_the_same_after_a_wait(app: App) -> None:
    rounds: list[Any] = []

    @app.step
    def echo(value: Any) -> Any:
        return value

    @app.job
    def work() -> None:
        found: list[Any] = []
        for number in range(5):
            found += [echo(number), now(), echo(number), uuid4()]
        rounds.append(found)
        wait_for("go")
        found += [echo("after"), now(), echo("after"), uuid4()]
        rounds.append(found)
        wait_for("on")

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        for key in ("go", "on"):
            await handle.asignal(key)
            await drain(app)
        assert (await handle.arecord()).status == "succeeded", (await handle.arecord()).error
        assert await app.averify() == {}

    play(story())
    assert len({str(found) for found in rounds if len(found) == 20}) == 1
    assert len({str(found) for found in rounds if len(found) == 24}) == 1


def test_the_code_does_not_see_what_a_step_sets_in_its_context(app: App) -> None:
    colour: ContextVar[str] = ContextVar("colour", default="none")

    @app.step
    def paint(new: str) -> str:
        before = colour.get()
        colour.set(new)
        return before

    @app.job
    def work() -> list[str]:
        colour.set("mine")
        return [paint("red"), paint("green"), paint("blue"), colour.get()]

    assert outcome(app, work)[0] == ["mine"] * 4


def test_code_that_runs_ahead_of_the_loop_and_of_the_disk_is_recorded_in_order(app: App) -> None:
    @app.step
    def count(number: int) -> int:
        return number

    @app.job
    def work() -> int:
        return sum(count(number) for number in range(1000))

    result, handle = outcome(app, work)
    assert result == sum(range(1000))
    committed = [event.payload["result"] for event in handle.events() if event.type == "command_committed"]
    assert committed == list(range(1000))


def test_results_that_are_large_exports_and_spending_are_on_disk_before_the_step_has_ended(app: App) -> None:
    @app.step
    def produce(number: int, size: int) -> str:
        export({"number": number}, f"report {number}")
        spend(tokens=number)
        return "x" * size

    @app.job
    def work() -> list[int]:
        return [len(produce(number, size)) for number, size in enumerate((1, 1, 2_000_000, 1))]

    result, handle = outcome(app, work)
    assert result == [1, 1, 2_000_000, 1]
    assert [item.name for item in app.exports(handle.id)] == [f"report {number}" for number in range(4)]
    assert handle.record().metrics["spent"] == {"tokens": 6}


def test_a_cancel_is_seen_after_the_step_that_runs_in_the_thread_of_the_job(url: str) -> None:
    app = App("shop", config=quick(url, grace_seconds=60.0))
    begun, free = threading.Event(), threading.Event()
    seen: list[str] = []

    @app.step
    def step(blocks: bool) -> int:
        if blocks:
            begun.set()
            free.wait(60)
        return threading.get_ident()

    @app.job
    def work() -> None:
        assert step(blocks=False) != threading.get_ident()
        try:
            assert step(blocks=True) == threading.get_ident()
            seen.append("the step has returned")
            step(blocks=False)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def story() -> None:
        handle = await app.astart(work)
        worker = app.worker()
        working = asyncio.create_task(worker.arun(until_idle=True))
        await asyncio.to_thread(begun.wait, 60)
        await handle.acancel("enough")

        async def worker_knows() -> bool:
            return not any(each.goes_on() for each in worker._worker.running.values())  # type: ignore[union-attr]

        await until(worker_knows)
        free.set()
        await working
        assert (await handle.arecord()).status == "canceled"
        assert [event.type for event in await handle.aevents()][-2:] == ["node_finished", "job_cancelled"]
        await app.aclose()

    play(story())
    assert seen == ["the step has returned", "cancelled"]


def test_the_thread_goes_on_alone_only_with_a_lease_and_in_its_own_process(app: App) -> None:
    @app.step
    def where() -> int:
        return threading.get_ident()

    @app.job
    def work() -> list[bool]:
        where()
        running: Any = conductor.get()
        own, lease = running._own_thread, running.lease
        found = [own.takes(where)]
        running.lease = Lease(elapsed() - 100.0, 10.0)
        found.append(own.takes(where))
        running.lease, own._pid = lease, -1  # as in a process that was forked from this one
        found.append(own.takes(where))
        own._pid = os.getpid()
        return [*found, own.takes(where)]

    assert outcome(app, work)[0] == [True, False, False, True]


def test_a_wait_in_another_thread_does_not_suspend_the_job_under_its_step(app: App) -> None:
    stepping, free = threading.Event(), threading.Event()
    ran: list[int] = []

    @app.step
    def step(number: int) -> int:
        ran.append(number)
        if number == 1:
            stepping.set()
            free.wait(60)
        return number

    @app.job
    def work() -> Any:
        step(0)
        found: list[Any] = []

        def waits() -> None:
            stepping.wait(60)
            with suppress(Suspended):  # as the code's own thread is, a thread of it is closed when the job is suspended
                found.append(wait_for("x"))

        other = threading.Thread(target=copy_context().run, args=(waits,))
        other.start()
        step(1)
        other.join()
        return found

    async def story() -> None:
        handle = await app.astart(work)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await asyncio.to_thread(stepping.wait, 60)

        async def rests() -> bool:
            running = list(worker._worker.running.values())  # type: ignore[union-attr]
            return not running or running[0].code.threads_waiting == 1

        await until(rests)
        for _ in range(100):  # turns of the loop, in which it would be suspended
            await asyncio.sleep(0)
        free.set()

        async def is_suspended() -> bool:
            row = await app.store().get(handle.id)
            return row is not None and row.state is JobState.WAITING

        await until(is_suspended)
        await handle.asignal("x", 7)
        assert await handle.aresult(timeout=60) == [7]
        worker.stop()
        await working

    play(story())
    assert ran == [0, 1]


def test_results_are_made_in_the_context_of_the_code_as_in_a_replay(app: App) -> None:
    unit: ContextVar[str] = ContextVar("unit", default="none")

    @dataclass
    class Price:
        cents: int

        def __post_init__(self) -> None:
            self.shown = f"{self.cents} {unit.get()}"

    @app.step
    def price(cents: int) -> Price:
        unit.set("of the step")
        return Price(cents)

    @app.job
    def work() -> list[str]:
        unit.set("of the job")
        return [price(cents).shown for cents in range(3)]

    assert outcome(app, work)[0] == ["0 of the job", "1 of the job", "2 of the job"]


def test_a_step_with_a_loop_of_its_own_can_be_called_inside_a_loop_of_the_code(app: App) -> None:
    @app.step
    def get(number: int) -> int:
        return asyncio.run(asyncio.sleep(0, number))

    @app.job
    def work() -> list[int]:
        async def main() -> list[int]:
            return [get(number) for number in range(3)]

        return asyncio.run(main())

    assert outcome(app, work)[0] == [0, 1, 2]


@pytest.mark.parametrize("base", [BaseException, SystemExit, GeneratorExit])
def test_an_error_without_a_readable_text_is_recorded(app: App, base: type[BaseException]) -> None:
    class Odd(base):  # type: ignore[misc,valid-type]  # - each in turn
        def __str__(self) -> str:
            raise ValueError("it has no text")

    @app.step
    def step(*, fails: bool) -> None:
        if fails:
            raise Odd

    @app.job
    def work() -> list[str]:
        kinds = []
        for fails in (True, False, True):
            try:
                step(fails=fails)
            except StepFailed as failure:
                kinds.append(failure.kind)
        return kinds

    kinds, handle = outcome(app, work)
    assert len(kinds) == 2
    assert [event.type for event in handle.events()].count("node_finished") == 3


def test_a_change_is_new_to_a_run_whose_thread_went_on_alone(app: App) -> None:
    versions = [1]

    @app.step
    def step(number: int) -> int:
        return number

    @app.job
    def warm() -> int:
        return step(-1)

    @app.job
    def work() -> bool:
        if versions[-1] == 1:
            uuid4()  # the new code does not ask for it
        wait_for("go")
        return step(1) == 1 and step(2) == 2 and versions[-1] == 2 and changed("mark")

    async def story() -> None:
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        handle = await app.astart(work)

        async def waits() -> bool:
            row = await app.store().get(handle.id)
            return row is not None and row.state is JobState.WAITING

        await until(waits)
        versions.append(2)
        await (await app.astart(warm)).aresult(timeout=60)
        await handle.asignal("go")
        assert await handle.aresult(timeout=60) is True
        worker.stop()
        await working

    play(story())


def test_steps_that_block_hold_up_no_other_job(app: App) -> None:
    meeting = threading.Barrier(16)

    @app.step
    def meet(waits: bool) -> int:
        return meeting.wait(60) if waits else threading.get_ident()

    @app.job
    def work() -> int:
        meet(waits=False)
        return meet(waits=True)

    async def story() -> None:
        handles = [await app.astart(work) for _ in range(16)]
        await app.worker(concurrency=16).arun(until_idle=True)
        assert sorted([await handle.aresult(timeout=60) for handle in handles]) == list(range(16))
        assert await app.averify() == {}

    play(story())


def test_threads_that_the_code_has_started_call_while_its_own_thread_does(app: App) -> None:
    @app.step
    def echo(value: str) -> str:
        return value

    @app.job
    def work() -> list[str]:
        echo("first")
        found: list[str] = []
        context = copy_context()
        other = threading.Thread(target=lambda: context.run(lambda: found.extend(echo("other") for _ in range(50))))
        other.start()
        found += [echo("own") for _ in range(50)]
        other.join()
        wait_for("go")
        return sorted(found)

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() == ["other"] * 50 + ["own"] * 50
        begun = [event.payload["node"] for event in await handle.aevents() if event.type == "node_started"]
        assert len(begun) == len(set(begun)) == 101, "no call is made twice, and none has the identity of another"
        assert await app.averify() == {}

    play(story())
