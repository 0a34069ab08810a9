"""What users write, run end to end on each store: steps, tools, waits, children, retries, cancels, deadlines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    App,
    Backoff,
    Done,
    IdempotencyConflict,
    InvalidArguments,
    NonDeterminism,
    NotDone,
    NotInDoubt,
    NotInsideJob,
    Permanent,
    RunCanceled,
    RunFailed,
    RunTimedOut,
    StepFailed,
    UnknownEntry,
    UnknownJob,
    WaitTimeout,
    attempt,
    check_cancelled,
    external_key,
    gather,
    now,
    random,
    sleep,
    uuid4,
    wait_for,
)
from holdfast import map as map_steps
from holdfast.store import Append, Command, Reclaim, ReleaseLeases
from support.clocked import opened
from support.stories import drain, play, quick


async def outcome(app: App, job: Any, *args: Any, **kwargs: Any) -> Any:
    handle = await app.astart(job, *args, **kwargs)
    await drain(app)
    result = await handle.aresult(timeout=60)
    assert await app.averify() == {}
    return result


async def outcome_over_a_park(app: App, job: Any) -> Any:
    """Run a job that waits for "go" once: what is before the wait is replayed, however slow the store is."""
    handle = await app.astart(job)
    await drain(app)
    await handle.asignal("go")
    await drain(app)
    assert await app.averify() == {}
    return await handle.aresult(timeout=60)


# Calling


def test_an_async_job_calls_steps_and_tools_and_gives_their_results(app: App) -> None:
    @app.step
    async def price(sku: str) -> int:
        return len(sku) * 100

    @app.tool
    async def charge(card: str, cents: int) -> str:
        return f"{card}:{cents}"

    @app.job
    async def checkout(sku: str, card: str) -> str:
        return await charge(card, await price(sku))

    assert play(outcome(app, checkout, "A1", card="4242")) == "4242:200"


def test_a_plain_job_calls_async_and_plain_steps_without_await(app: App) -> None:
    loop_thread: list[int] = []

    @app.step
    def double(n: int) -> int:
        return n * 2

    @app.step
    async def add(n: int) -> int:
        return n + 1

    @app.job
    def work(n: int) -> list[Any]:
        loop_thread.append(threading.get_ident())
        return [double(n), add(n), map_steps(double, [1, 2]), uuid4() != uuid4()]

    assert play(outcome(app, work, 5)) == [10, 6, [2, 4], True]
    assert loop_thread != [threading.get_ident()], "a plain job runs in a thread of its own"


def test_outside_a_job_the_functions_are_just_functions(app: App) -> None:
    @app.step
    def double(n: int) -> int:
        return n * 2

    @app.job
    def work(n: int) -> int:
        return double(n)

    assert (double(2), work.function(3)) == (4, 6)
    with pytest.raises(NotInsideJob):
        now()
    with pytest.raises(NotInsideJob):
        external_key()
    check_cancelled()


@dataclass
class Order:
    sku: str
    count: int = 1


class Receipt(msgspec.Struct):
    total: int
    orders: list[Order]


def test_arguments_and_results_are_typed_by_the_hints(app: App) -> None:
    seen: list[object] = []

    @app.step
    async def total(orders: list[Order], wait: timedelta) -> Receipt:
        seen.extend([type(orders[0]), type(wait)])
        return Receipt(sum(order.count for order in orders), orders)

    @app.job
    async def work(orders: list[Order]) -> Receipt:
        receipt = await total(orders, timedelta(seconds=5))
        seen.append(type(receipt.orders[0]))
        return receipt

    result = play(outcome(app, work, [Order("a", 2), Order("b")]))
    assert result == Receipt(3, [Order("a", 2), Order("b")])
    assert seen == [Order, timedelta, Order]


class Model:
    """Looks like a pydantic model, without pydantic."""

    def __init__(self, n: int) -> None:
        self.n = n

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n}

    @classmethod
    def model_validate(cls, plain: dict[str, Any]) -> Model:
        return cls(plain["n"])


def test_models_with_their_own_methods_work_as_arguments_and_results(app: App) -> None:
    @app.job
    async def work(model: Model) -> Model:
        return Model(model.n + 1)

    assert play(outcome(app, work, Model(1))).n == 2


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("A1", 2, 3), {}),
        ((), {"sku": "A1", "colour": "red"}),
        ((5,), {}),
        (("A1", "two"), {}),
        ((object(),), {}),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_stored(app: App, args: Any, kwargs: Any) -> None:
    @app.job
    async def work(sku: str, count: int = 1) -> None:
        pass

    with pytest.raises(InvalidArguments, match="work"):
        app.start(work, *args, **kwargs)
    assert app.list() == []


def test_an_unknown_job_is_named_with_those_there_are(app: App) -> None:
    @app.job
    async def work() -> None:
        pass

    with pytest.raises(UnknownEntry, match="no job is named 'wrok'; the known jobs are: work"):
        app.start("wrok")
    with pytest.raises(UnknownJob):
        app.get("nobody")


def test_two_of_one_name_are_refused(app: App) -> None:
    @app.job
    async def work() -> None:
        pass

    @app.step
    async def step() -> None:
        pass

    with pytest.raises(ValueError, match="already has a job 'work'"):
        app.job(work.function)
    with pytest.raises(ValueError, match="already has a step or tool 'step'"):
        app.tool(step.function)
    with pytest.raises(ValueError, match="on_doubt must be one of"):
        app.tool(name="other", on_doubt="hope")(step.function)
    with pytest.raises(TypeError, match="cannot be stored by name"):
        app.step(name="lambda")(lambda *items: items)


def test_branches_run_at_once_and_keep_their_order(app: App) -> None:
    at_once: list[int] = []
    running = 0

    @app.step
    async def slow(n: int) -> int:
        nonlocal running
        running += 1
        at_once.append(running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return n * 10

    @app.job
    async def work() -> list[Any]:
        plain = await asyncio.gather(*(slow(n) for n in range(5)))
        return [plain, await gather(slow(7), slow(8)), await map_steps(slow, range(20, 24), limit=2)]

    assert play(outcome(app, work)) == [[0, 10, 20, 30, 40], [70, 80], [200, 210, 220, 230]]
    assert max(at_once[:5]) == 5
    assert max(at_once[-4:]) == 2


def test_recorded_values_are_the_same_on_replay(app: App) -> None:
    seen: list[tuple[float, float, str]] = []

    @app.job
    async def work() -> int:
        seen.append((now(), random(), uuid4()))
        await wait_for("go")
        seen.append((now(), random(), uuid4()))
        return len(set(seen))

    play(outcome_over_a_park(app, work))
    assert seen[0] == seen[1], "the code before the wait ran again and saw the same"
    assert seen[2] != seen[1], "the code after it is further on"
    assert len(seen) == 3


def test_a_call_is_made_once_however_often_the_job_is_taken_up_again(app: App) -> None:
    calls: list[str] = []

    @app.step
    async def once(name: str) -> str:
        calls.append(name)
        return name

    @app.job
    async def work() -> list[str]:
        done = []
        for name in ("a", "b", "b", "c"):
            done.append(await once(name))
            await sleep(0.001)
        return done

    assert play(outcome(app, work)) == ["a", "b", "b", "c"]
    assert calls == ["a", "b", "b", "c"]


def test_external_keys_stay_and_attempts_change(app: App) -> None:
    seen: list[tuple[str, int]] = []

    @app.step(backoff=Backoff(retries=1, first_seconds=0.001))
    async def call() -> None:
        seen.append((external_key(), attempt()))
        if len(seen) == 1:
            raise ValueError("once more")

    @app.job
    async def work() -> int:
        await call()
        return attempt()

    assert play(outcome(app, work)) == 1
    assert seen[0][0] == seen[1][0]
    assert seen[0][0].startswith("holdfast:")


# Failing


def test_a_step_is_retried_as_its_policy_says(app: App) -> None:
    tries: list[int] = []

    @app.step(backoff=Backoff(retries=3, first_seconds=0.001))
    async def flaky() -> str:
        tries.append(len(tries))
        if len(tries) < 4:
            raise ConnectionError("not yet")
        return "there"

    @app.job
    async def work() -> str:
        return await flaky()

    assert play(outcome(app, work)) == "there"
    assert len(tries) == 4


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_long_retry_is_kept_in_the_store_and_not_in_the_worker(backend: str, tmp_path: Path) -> None:
    app = App("shop", config=quick("memory:"))
    app._opened, clock = opened(backend, tmp_path)
    tries: list[int] = []

    @app.step(backoff=Backoff(retries=2, first_seconds=3600, cap_seconds=3600, jitter=0))
    async def flaky() -> str:
        tries.append(attempt())
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "there"

    @app.job
    async def work() -> str:
        return await flaky()

    async def story() -> None:
        handle = await app.astart(work)
        for number in range(1, 3):
            await drain(app)
            assert len(tries) == number
            assert (await handle.arecord()).stage == "retrying"
            clock.move(4000)
        await drain(app)
        assert await handle.aresult() == "there"
        assert await app.averify() == {}
        await app.aclose()

    play(story())
    assert tries == [1, 2, 3], "each try was an attempt of its own"


def test_a_long_retry_in_one_branch_does_not_cut_off_a_tool_in_another(app: App) -> None:
    app.config = msgspec.structs.replace(app.config, inline_retry_seconds=0.001)
    tries: list[int] = []
    acted: list[str] = []
    refused = asyncio.Event()

    @app.step(backoff=Backoff(retries=1, first_seconds=0.02, jitter=0))
    async def flaky() -> str:
        tries.append(1)
        refused.set()
        if len(tries) == 1:
            raise ConnectionError("not yet")
        return "there"

    @app.tool
    async def slow() -> str:
        await refused.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        acted.append("acted")
        return "acted"

    @app.job
    async def work() -> list[str]:
        return await gather(slow(), flaky())

    assert play(outcome(app, work)) == ["acted", "there"]
    assert acted == ["acted"]


@pytest.mark.parametrize("error", [Permanent("no use"), KeyError("other")])
def test_some_failures_are_not_retried(app: App, error: Exception) -> None:
    tries: list[int] = []

    @app.step(backoff=Backoff(retries=5, first_seconds=0.001, only=(Permanent, ConnectionError)))
    async def hopeless() -> None:
        tries.append(1)
        raise error

    @app.job
    async def work() -> str:
        try:
            await hopeless()
        except StepFailed as failure:
            return f"{failure.step} {failure.kind}"
        return "no failure"

    assert play(outcome(app, work)) == f"hopeless {type(error).__name__}"
    assert len(tries) == 1


def test_a_failure_that_the_code_caught_is_raised_again_on_replay(app: App) -> None:
    caught: list[str] = []

    @app.step
    async def bad() -> None:
        raise ValueError("as always")

    @app.job
    async def work() -> str:
        try:
            await bad()
        except StepFailed as failure:
            caught.append(str(failure))
        await wait_for("go")
        return "went on"

    assert play(outcome_over_a_park(app, work)) == "went on"
    assert caught == ["bad failed: ValueError: as always"] * 2


def test_a_step_over_its_time_has_failed_with_that_reason(app: App) -> None:
    @app.step(timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.job
    async def work() -> None:
        await slow()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        with pytest.raises(RunFailed, match="step timeout"):
            await handle.aresult()
        events = await handle.aevents()
        finished = next(event for event in events if event.type == "node_finished")
        assert (finished.payload["result_type"], finished.payload["reason"]) == ("retryable_failure", "step timeout")
        assert all(event.type != "command_committed" for event in events)

    play(story())


def test_a_job_that_raises_fails_with_its_error_and_can_be_retried_by_an_operator(app: App) -> None:
    broken = True

    @app.job
    async def work() -> str:
        if broken:
            raise ZeroDivisionError("by zero")
        return "mended"

    async def story() -> None:
        nonlocal broken
        handle = await app.astart(work)
        await drain(app)
        record = await handle.arecord()
        assert record.error is not None
        assert (record.status, record.error.code, record.error.message) == ("failed", "ZeroDivisionError", "by zero")
        assert "in work" in record.error.details["traceback"]
        with pytest.raises(RunFailed, match="by zero"):
            await handle.aresult()
        broken = False
        again = await app.aretry(handle.id, actor="ana", reason="mended")
        assert again.run_id == f"{handle.id}.2"
        await drain(app)
        assert (await app.aget(again.run_id)).status == "succeeded"
        assert (await handle.arecord()).status == "failed", "the old run stays failed for ever"

    play(story())


def test_a_job_with_retries_is_tried_again_after_a_wait(app: App) -> None:
    tries: list[int] = []

    @app.job(backoff=Backoff(retries=2, first_seconds=0.01))
    async def work() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return len(tries)

    assert play(outcome(app, work)) == 3


def test_a_result_that_cannot_be_kept_fails_the_job_and_names_it(app: App) -> None:
    @app.job
    async def work() -> Any:
        return object()

    with pytest.raises(RunFailed, match="the result of work cannot be stored"):
        play(outcome(app, work))


# Waiting


def test_a_signal_wakes_a_waiting_job_with_its_payload(app: App) -> None:
    @app.job
    async def work() -> Any:
        return await wait_for("shipped", timeout="3d")

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        record = await handle.arecord()
        assert (record.status, record.stage) == ("running", "parked")
        assert await handle.asignal("other", 1) == "kept"
        assert await handle.asignal("shipped", {"by": "dhl"}, id="s1") == "delivered"
        assert await handle.asignal("shipped", {"by": "dhl"}, id="s1") == "repeat"
        await drain(app)
        assert await handle.aresult() == {"by": "dhl"}
        assert await handle.asignal("shipped", 2) == "too_late"

    play(story())


def test_a_signal_sent_before_the_wait_is_not_lost(app: App) -> None:
    @app.job
    async def work() -> list[Any]:
        return [await wait_for("k"), await wait_for("k")]

    async def story() -> None:
        handle = await app.astart(work)
        await handle.asignal("k", "first")
        await handle.asignal("k", "second")
        await drain(app)
        assert await handle.aresult() == ["first", "second"]

    play(story())


def test_a_wait_that_nobody_ends_times_out(app: App) -> None:
    @app.job
    async def work() -> str:
        try:
            await wait_for("never", timeout=0.01)
        except WaitTimeout as late:
            return str(late)
        return "woken"

    assert play(outcome(app, work)) == "no signal 'never' arrived in time"


def test_a_wait_in_one_branch_does_not_stop_the_others(app: App) -> None:
    @app.step
    async def step(n: int) -> int:
        await asyncio.sleep(0.005)
        return n

    @app.job
    async def work() -> list[Any]:
        return await gather(wait_for("go", timeout=3600), step(1), step(2))

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert [event.type for event in await handle.aevents()].count("command_committed") == 2
        await handle.asignal("go", "went")
        await drain(app)
        assert await handle.aresult() == ["went", 1, 2]

    play(story())


# Children


def test_a_child_is_started_once_and_its_result_comes_back(app: App) -> None:
    started: list[int] = []

    @app.job
    async def square(n: int) -> int:
        started.append(n)
        return n * n

    @app.job
    async def work() -> list[int]:
        results = await gather(square(2), square(3))
        await sleep(0.001)
        return results

    assert play(outcome(app, work)) == [4, 9]
    assert sorted(started) == [2, 3]


def test_a_childs_failure_reaches_its_parent(app: App) -> None:
    @app.job
    async def bad() -> None:
        raise ValueError("child is down")

    @app.job
    async def work() -> str:
        try:
            await bad()
        except StepFailed as failure:
            return str(failure)
        return "fine"

    assert play(outcome(app, work)).startswith("bad failed: ValueError: child is down (bad(), run ")


# Cancelling, pausing, deadlines


def test_a_running_job_sees_its_cancel_and_may_clean_up(app: App) -> None:
    app.config = msgspec.structs.replace(app.config, lease_seconds=3600)  # no heartbeat tells of it
    cleaned: list[str] = []
    begun = asyncio.Event()

    @app.step
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.job
    async def work() -> None:
        try:
            await hang()
        finally:
            cleaned.append("yes")

    async def story() -> None:
        handle = await app.astart(work)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await begun.wait()
        assert (await handle.acancel("enough")).status in {"cancel_requested", "canceled"}  # it may be over by then
        await handle.acancel("again")
        with pytest.raises(RunCanceled, match="enough"):
            await handle.aresult(timeout=60)
        worker.stop()
        await working
        record = await handle.arecord()
        assert (record.status, record.cancel_reason) == ("canceled", "enough")
        types = [event.type for event in await handle.aevents()]
        assert types[-3:] == ["cancel_requested", "node_finished", "job_cancelled"], "the step was cut off"
        assert await app.averify() == {}

    play(story())
    assert cleaned == ["yes"]


def test_a_job_that_swallows_its_cancel_is_ended_after_the_grace_time(app: App) -> None:
    begun = asyncio.Event()
    free = False

    @app.job
    async def stubborn() -> None:
        begun.set()
        while not free:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    async def story() -> None:
        nonlocal free
        handle = await app.astart(stubborn)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await begun.wait()
        await handle.acancel()
        with pytest.raises(RunCanceled):
            await handle.aresult(timeout=60)
        free = True
        worker.stop()
        await working

    play(story())


def test_a_queued_job_is_cancelled_and_never_starts(app: App) -> None:
    @app.job
    async def work() -> None:
        raise AssertionError("started")

    async def story() -> None:
        handle = await app.astart(work)
        assert (await handle.acancel("no")).status == "canceled"
        await drain(app)
        assert (await handle.arecord()).status == "canceled"

    play(story())


def test_a_paused_job_stops_at_its_next_step_and_goes_on_when_resumed(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.config = msgspec.structs.replace(app.config, lease_seconds=3600)  # no heartbeat tells of it
    calls: list[int] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.step
    async def step(n: int) -> int:
        calls.append(n)
        begun.set()
        if n == 1:
            await go_on.wait()
        return n

    @app.job
    async def work() -> int:
        return await step(1) + await step(2)

    async def story() -> None:
        handle = await app.astart(work)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await begun.wait()
        assert worker._worker is not None
        (running,) = worker._worker.running.values()
        heard, hear = asyncio.Event(), running.ask_to_pause

        def listen() -> None:
            hear()
            heard.set()

        monkeypatch.setattr(running, "ask_to_pause", listen)
        await app.apause(handle.id)
        await asyncio.wait_for(heard.wait(), 60)
        go_on.set()
        async for record in handle.awatch():
            if record.stage == "parked":
                break
        assert calls == [1]
        await app.aresume(handle.id)
        assert await handle.aresult(timeout=60) == 3
        worker.stop()
        await working

    play(story())
    assert calls == [1, 2]


def test_a_deadline_ends_a_running_job_as_timeout(app: App) -> None:
    @app.job(deadline=0.05)
    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        with pytest.raises(RunTimedOut):
            await handle.aresult()
        assert await app.averify() == {}

    play(story())


def test_a_deadline_holds_while_waiting_and_none_means_none(app: App) -> None:
    @app.job(deadline=0.05)
    async def work() -> None:
        await wait_for("never")

    async def story() -> None:
        late = await app.astart(work)
        free = await app.astart(work.options(deadline=0))
        await drain(app)
        with pytest.raises(RunTimedOut):
            await late.aresult()
        assert (await free.arecord()).status == "running"

    play(story())


# Starting


def test_an_idempotency_key_gives_the_same_run_for_the_same_arguments(app: App) -> None:
    @app.job
    async def work(n: int) -> int:
        return n

    one = work.options(key="order-7").start(1)
    assert work.options(key="order-7").start(1).id == one.id
    with pytest.raises(IdempotencyConflict):
        work.options(key="order-7").start(2)
    with pytest.raises(TypeError, match="unknown options colour"):
        work.options(colour="red")


def test_options_choose_priority_delay_and_queue(app: App) -> None:
    order: list[str] = []

    @app.job
    async def work(name: str) -> None:
        order.append(name)

    async def story() -> None:
        choices: list[tuple[str, dict[str, Any]]] = [
            ("low", {"priority": -1}),
            ("other", {"queue": "elsewhere"}),
            ("late", {"delay": "50ms", "priority": -2}),
            ("high", {"priority": 5}),
        ]
        for name, chosen in choices:
            await work.options(**chosen).astart(name)
        async with asyncio.timeout(60):
            await app.worker(concurrency=1, queues=["default"]).arun(until_idle=True)

    play(story())
    assert order == ["high", "low", "late"]


def test_many_runs_are_started_at_once(app: App) -> None:
    @app.job
    async def work(n: int) -> int:
        return n

    names = app.start_many(work, [{"n": n} for n in range(500)])
    assert len(set(names)) == 500
    assert names == sorted(names)
    app.worker().run(until_idle=True)
    assert {record.status for record in app.list(limit=1000)} == {"succeeded"}


def test_the_plain_colour_does_what_the_async_one_does(app: App) -> None:
    @app.job
    async def work(n: int) -> Any:
        return n, await wait_for("go")

    handle = work.start(1)
    app.worker().run(until_idle=True)
    assert handle.signal("go", 2) == "delivered"
    app.worker().run(until_idle=True)
    assert handle.result(timeout=60) == [1, 2]
    assert [record.status for record in handle.watch()] == ["succeeded"]
    assert handle.record() == app.get(handle.id)
    assert handle.events()[-1].type == "job_completed"
    assert app.verify() == {}
    assert app.verify(handle.id) == {}


def test_an_entry_without_a_handler_waits(app: App) -> None:
    @app.job
    async def work() -> None:
        pass

    handle = work.start()
    del app.entries["shop", "work"]
    app.worker().run(until_idle=True)
    assert handle.record().status == "queued"


# Tools and doubt


async def die_inside(app: App, handle: Any) -> None:
    """Have the job claimed and its tool declared by a worker that is then gone."""
    row = await app.store().get(handle.id)
    assert row is not None
    await app.store().commit([ReleaseLeases(row.lease.worker if row.lease else ""), Reclaim()])


def doubtful(app: App, calls: list[str], **options: Any) -> Any:
    """A job whose tool is started by a worker that dies; the next attempt finds it in doubt."""
    crash = asyncio.Event()

    @app.tool(**options)
    async def charge(card: str) -> str:
        calls.append(card)
        if len(calls) == 1:
            crash.set()
            await asyncio.Event().wait()
        return f"receipt-{len(calls)}"

    @app.job
    async def pay(card: str) -> str:
        return await charge(card)

    async def begin() -> Any:
        handle = await app.astart(pay, "4242")
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await crash.wait()
        working.cancel()
        await asyncio.wait([working])
        for one in list(worker._worker.running.values()):  # type: ignore[union-attr]
            one.lose()
        await die_inside(app, handle)
        return handle

    return begin


def test_a_tool_in_doubt_asks_and_is_not_called_again(app: App) -> None:
    calls: list[str] = []
    begin = doubtful(app, calls)

    async def story() -> None:
        handle = await begin()
        await drain(app)
        record = await handle.arecord()
        assert (record.status, record.stage) == ("running", "in_doubt")
        waiting = (await handle.aevents())[-1].payload
        assert waiting["wait_type"] == "human"
        with pytest.raises(NotInDoubt):
            await app.aresolve(handle.id, "other", done=1)
        with pytest.raises(ValueError, match="pass exactly one of"):
            await app.aresolve(handle.id, waiting["node"], done=1, fail=True)
        with pytest.raises(ValueError, match="pass exactly one of"):
            await app.aresolve(handle.id, waiting["node"])
        await app.aresolve(handle.id, waiting["node"], done="receipt-by-phone", actor="ana")
        await drain(app)
        assert await handle.aresult() == "receipt-by-phone"
        assert await app.averify() == {}

    play(story())
    assert calls == ["4242"]


@pytest.mark.parametrize(("answer", "ends", "count"), [("not_done", "receipt-2", 2), ("fail", None, 1)])
def test_an_operator_may_also_answer_that_it_has_not_acted_or_give_up(
    app: App, answer: str, ends: str | None, count: int
) -> None:
    calls: list[str] = []
    begin = doubtful(app, calls)

    async def story() -> None:
        handle = await begin()
        await drain(app)
        node = (await handle.aevents())[-1].payload["node"]
        await app.aresolve(handle.id, node, not_done=answer == "not_done", fail=answer == "fail")
        await drain(app)
        if ends is None:
            with pytest.raises(RunFailed, match="it is unknown whether it acted"):
                await handle.aresult()
        else:
            assert await handle.aresult() == ends
        assert await app.averify() == {}

    play(story())
    assert len(calls) == count


@pytest.mark.parametrize(
    ("options", "ends", "count"),
    [
        ({"on_doubt": "retry"}, "receipt-2", 2),
        ({"on_doubt": "fail"}, None, 1),
        ({"reconcile": lambda **told: Done(f"found {told['card']}")}, "found 4242", 1),
        ({"reconcile": lambda **_: NotDone()}, "receipt-2", 2),
    ],
    ids=["retry", "fail", "done", "not done"],
)
def test_a_tool_in_doubt_is_settled_by_its_policy(app: App, options: Any, ends: str | None, count: int) -> None:
    calls: list[str] = []
    begin = doubtful(app, calls, **options)

    async def story() -> None:
        handle = await begin()
        await drain(app)
        if ends is None:
            with pytest.raises(RunFailed, match="it is unknown whether it acted"):
                await handle.aresult()
        else:
            assert await handle.aresult() == ends
        assert await app.averify() == {}

    play(story())
    assert len(calls) == count


def test_a_stale_attempt_can_write_nothing(app: App) -> None:
    calls: list[str] = []
    begin = doubtful(app, calls)

    async def story() -> None:
        handle = await begin()
        (answer,) = await app.store().commit([Append(handle.id, 1, (("job_completed", {}),))])
        assert type(answer).__name__ == "StaleAttempt"

    play(story())


# Replaying


def test_code_that_asks_for_something_else_is_stopped_before_it_acts(app: App) -> None:
    charged: list[int] = []
    cents = 100

    @app.tool
    async def charge(amount: int) -> int:
        charged.append(amount)
        return amount

    @app.job(on_misfit="fail")
    async def pay() -> int:
        paid = await charge(cents)
        await wait_for("go")
        return paid

    async def story() -> None:
        nonlocal cents
        handle = await app.astart(pay)
        await drain(app)
        cents = 101
        await handle.asignal("go")
        await drain(app)
        with pytest.raises(
            RunFailed,
            match=r"the code now calls charge\(amount=101\), but its history has charge\(amount=100\)",
        ):
            await handle.aresult()
        record = await handle.arecord()
        assert record.error is not None
        assert record.error.code == NonDeterminism.__name__

    play(story())
    assert charged == [100]


def test_a_new_step_in_the_code_shifts_no_other(app: App) -> None:
    calls: list[str] = []
    newer = False

    @app.step
    async def old(n: int) -> int:
        calls.append(f"old {n}")
        return n

    @app.step
    async def new() -> int:
        calls.append("new")
        return 100

    @app.job
    async def work() -> int:
        extra = await new() if newer else 0
        total = await old(1) + await old(2)
        await wait_for("go")
        return total + extra

    async def story() -> None:
        nonlocal newer
        handle = await app.astart(work)
        await drain(app)
        newer = True
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() == 103

    play(story())
    assert calls == ["old 1", "old 2", "new"]


def test_branches_are_replayed_in_any_order(app: App) -> None:
    calls: list[int] = []
    order = [1, 2, 3]

    @app.step
    async def step(n: int) -> int:
        calls.append(n)
        return n

    @app.job
    async def work() -> list[int]:
        first = await gather(*(step(n) for n in order))
        await wait_for("go")
        return [*first, await step(9)]

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        order.reverse()
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() == [3, 2, 1, 9]

    play(story())
    assert calls == [1, 2, 3, 9]


def test_a_context_variable_of_job_code_is_not_seen_by_the_commits_of_its_worker(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit has the writes of many jobs. Whichever of them began it must not show."""
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    seen: list[str] = []
    store = app._store()
    commit = store.commit

    async def watched(batch: Sequence[Command]) -> list[Any]:
        seen.append(tenant.get())
        return await commit(batch)

    monkeypatch.setattr(store, "commit", watched)

    @app.step
    async def work(name: str) -> str:
        return f"{name} for {tenant.get()}"

    @app.job
    async def job(name: str) -> list[str]:
        tenant.set(name)
        stamp = now()
        return [await work(name), await work(str(stamp > 0))]

    runs = [job.start(name) for name in ("ada", "bob")]
    app.worker().run(until_idle=True)
    assert [app.outcome(run.id)[0] for run in runs] == ["ada for ada", "bob for bob"]
    assert set(seen) == {"none"}
