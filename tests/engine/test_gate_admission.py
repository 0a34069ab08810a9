"""Steps and tools share gates: who is held has not begun, and does not hold its slot for long."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any, cast

import pytest

from holdfast import App, Config, InvalidArguments, RetryAfter, RunFailed, attempt, gather
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.machines import HistoryEvent, JobEvent, JobState
from holdfast.ready import BackoffGate, BudgetGate, ConcurrencyGate, MemoryLedger, all_of, raise_violation
from support.stories import beating, drain, play, quick, until


async def events(app: App, job: str) -> list[str]:
    return [event.type for event in await app.store().events(job)]


def test_calls_of_many_jobs_share_what_a_gate_lets_through(app: App) -> None:
    gate = ConcurrencyGate(2, name="model", on_violation=raise_violation)
    inside, most = 0, 0

    async def act() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    @app.tool(gate=gate)
    async def ask(number: int) -> int:
        await act()
        return number

    @app.step(gate=gate)
    async def look(number: int) -> int:
        await act()
        return number

    @app.job
    async def work(number: int) -> int:
        return await ask(number) + await look(number)

    async def story() -> list[int]:
        handles = [await work.astart(number) for number in range(10)]
        await drain(app)
        return [await handle.aresult() for handle in handles]

    assert play(story()) == [2 * number for number in range(10)]
    assert most == 2
    assert gate.counts().violations == 0


def test_a_tool_that_is_held_has_not_been_declared(app: App) -> None:
    gate = ConcurrencyGate(1, name="model")
    called: list[int] = []

    @app.tool(gate=gate)
    async def ask() -> None:
        called.append(1)

    @app.job
    async def work() -> None:
        await ask()

    async def story() -> None:
        share = gate.try_acquire()
        assert share is not None
        handle = await work.astart()
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await until(lambda: _is(gate.counts().waiting == 1))
        assert HistoryEvent.TOOL_STARTED not in await events(app, handle.id)
        worker.stop()  # it hands the job back while the call waits
        await working
        assert gate.counts().waiting == 0
        assert HistoryEvent.TOOL_STARTED not in await events(app, handle.id)
        assert called == []
        share.release()
        await drain(app)
        assert (await app.aget(handle.id)).status == "succeeded"
        assert called == [1]
        assert gate.try_acquire() is not None, "nothing is left taken"

    play(story())


async def _is(so: bool) -> bool:
    return so


def test_a_call_whose_gate_opens_much_later_gives_its_slot_back(url: str) -> None:
    app = App("shop", config=quick(url, gate_park_seconds=1.0))
    clock = [0.0]
    gate = BackoffGate(1, name="model", now=lambda: clock[0])
    others: list[int] = []

    @app.tool(gate=gate)
    async def ask() -> str:
        return "answer"

    @app.job
    async def held() -> str:
        return await ask()

    @app.job
    async def other() -> None:
        others.append(1)

    async def story() -> None:
        gate.retry_after(3600)
        handle = await held.astart()
        await other.astart()
        async with asyncio.timeout(60):
            await app.worker(concurrency=1).arun(until_idle=True)
        assert others == [1]
        row = await app.store().get(handle.id)
        assert row is not None
        assert row.state is JobState.QUEUED
        assert row.due_at - await app.store().now() > 3000
        last = (await app.store().events(handle.id))[-1]
        assert (last.type, last.payload["gate"]) == (JobEvent.REQUEUED, "model")
        assert row.attempts == 0, "nothing has failed"
        said = (await app.aexplain(handle.id)).explanation
        assert "the gate model" in said

    play(story())
    app.close()


def test_calls_that_stand_in_line_for_long_give_their_slots_back_and_the_first_stays(url: str) -> None:
    """Nobody can say when the share comes back: two slots, three jobs that wait for it, and one that does not."""
    app = App("shop", config=quick(url, gate_park_seconds=0.05))
    gate = ConcurrencyGate(1, name="model")
    called: list[int] = []

    @app.tool(gate=gate)
    async def ask(number: int) -> int:
        called.append(number)
        return number

    @app.job
    async def held(number: int) -> int:
        return await ask(number)

    @app.job
    async def other() -> str:
        return "done"

    async def story() -> None:
        share = gate.try_acquire()
        assert share is not None
        runs = [await held.astart(number) for number in range(3)]
        worker = app.worker(concurrency=2)
        working = asyncio.create_task(worker.arun())
        assert await (await other.astart()).aresult(timeout=60) == "done"

        async def given_back() -> list[int]:
            streams = [await app.store().events(run.id) for run in runs]
            return [sum(event.payload.get("gate") == "model" for event in stream) for stream in streams]

        async def all_but_one() -> bool:
            return sorted(map(bool, await given_back())) == [False, True, True]

        await until(all_but_one)
        assert gate.counts().waiting >= 1, "the first in line is there when it opens"
        assert not called
        share.release()
        assert [await run.aresult(timeout=60) for run in runs] == [0, 1, 2]
        assert sorted(called) == [0, 1, 2]
        worker.stop()
        await working

    play(story())
    app.close()


def test_a_branch_goes_on_when_its_gate_opens_although_another_works(url: str) -> None:
    """The gate opens much later, but the job cannot be given back: the share is used when it comes, and not kept."""
    app = App("shop", config=quick(url, gate_park_seconds=0.01))
    upstream = BackoffGate(1, name="upstream")
    gate = all_of(upstream, ConcurrencyGate(1), name="model")
    asked = asyncio.Event()

    @app.tool(gate=gate)
    async def ask() -> str:
        asked.set()
        return "asked"

    @app.step
    async def long() -> str:
        await asked.wait()
        return "long"

    @app.job
    async def work() -> list[str]:
        return list(await gather(long(), ask()))

    async def story() -> None:
        upstream.retry_after(3600)
        handle = await work.astart()
        draining = asyncio.create_task(drain(app))

        async def waits() -> bool:
            return gate.counts().waiting == 1 and (await events(app, handle.id)).count(HistoryEvent.NODE_STARTED) == 1

        await until(waits)
        upstream.reset()
        assert await handle.aresult(timeout=60) == ["long", "asked"]
        await draining
        assert gate.try_acquire() is not None

    play(story())
    app.close()


def test_retry_after_closes_the_gate_for_all_and_uses_up_no_retry(url: str) -> None:
    app = App("shop", config=quick(url))
    upstream = BackoffGate(0.05, name="upstream", on_violation=raise_violation)
    gate = all_of(upstream, ConcurrencyGate(8), name="model", on_violation=raise_violation)
    asked: list[int] = []

    @app.tool(gate=gate)
    async def ask() -> str:
        asked.append(1)
        if len(asked) <= 3:
            raise RetryAfter(0.02)
        return "answer"

    @app.job
    async def work() -> str:
        return await ask()

    async def story() -> None:
        handle = await work.astart()
        await drain(app)
        assert await handle.aresult() == "answer"
        found = await app.store().events(handle.id)
        ended = [one.payload for one in found if one.type == HistoryEvent.NODE_FINISHED]
        assert [one.get("postponed") for one in ended[:3]] == [True] * 3
        assert not await app.averify()

    play(story())
    assert len(asked) == 4
    app.close()


def test_what_one_is_told_holds_for_everybody_who_shares_the_gate(app: App) -> None:
    gate = all_of(BackoffGate(1, name="upstream", now=lambda: 0.0), ConcurrencyGate(8), name="model")
    asked: list[str] = []

    @app.tool(gate=gate)
    async def ask() -> None:
        asked.append("ask")
        raise RetryAfter(3600)

    @app.step(gate=gate)
    async def look() -> None:
        asked.append("look")

    @app.job
    async def first() -> None:
        await ask()

    @app.job
    async def second() -> None:
        await look()

    async def story() -> None:
        handles = [await first.astart()]
        await drain(app)
        handles.append(await second.astart())
        await drain(app)
        now = await app.store().now()
        for handle in handles:
            row = await app.store().get(handle.id)
            assert row is not None
            assert row.due_at - now > 3000
            said = (await app.aexplain(handle.id)).explanation
            assert said.startswith("It waits for the gate model, to call "), "the one that was told so, too"

    play(story())
    assert asked == ["ask"]


def test_a_call_without_a_gate_may_be_asked_to_come_back_too(app: App) -> None:
    asked: list[int] = []

    @app.step
    def ask() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise RetryAfter(0.01, "too many requests")
        return "answer"

    @app.job
    def work() -> str:
        return ask()

    async def story() -> None:
        handle = await work.astart()
        await drain(app)
        assert await handle.aresult() == "answer"

    play(story())


def test_failures_feed_the_breaker_and_success_closes_it(app: App) -> None:
    gate = BackoffGate(0.02, trip_after=2, name="upstream", on_violation=raise_violation)
    asked: list[int] = []

    @app.step(gate=gate, retries=3, backoff=None)
    async def ask() -> str:
        asked.append(1)
        if len(asked) <= 2:
            raise ValueError("down")
        return "answer"

    @app.job
    async def work() -> str:
        return await ask()

    async def story() -> None:
        handle = await work.astart()
        await drain(app)
        assert await handle.aresult() == "answer"

    play(story())
    assert gate.why() is None
    assert gate.counts().polls["ready"] > 0


def test_a_call_is_not_asked_to_come_back_for_ever(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.step_calls.POSTPONED_MAX", 2)
    asked: list[int] = []

    @app.step
    async def ask() -> None:
        asked.append(1)
        raise RetryAfter(0.001)

    @app.job
    async def work() -> None:
        await ask()

    async def story() -> None:
        handle = await work.astart()
        await drain(app)
        with pytest.raises(RunFailed):
            await handle.aresult()

    play(story())
    assert len(asked) == 3


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "1", True, 1e13, 10**400])
def test_retry_after_takes_seconds(seconds: Any) -> None:
    with pytest.raises(InvalidArguments, match="seconds must be over 0 and at most a hundred years"):
        RetryAfter(seconds)


def test_something_that_is_no_gate_is_refused_where_it_is_declared() -> None:
    app = App("shop", config=Config(url="memory:"))
    with pytest.raises(ValueError, match=r"gate must be a gate of holdfast\.ready"):
        cast(Any, app).step(gate=3, name="call")(lambda: None)


def test_a_job_that_is_given_back_at_a_gate_leaves_nothing_in_the_log(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    gate = BackoffGate(1, name="upstream", on_violation=raise_violation)
    gate.retry_after(3600)

    @app.tool(gate=gate)
    async def ask() -> None: ...

    @app.job
    async def work() -> None:
        await ask()

    async def story() -> None:
        handle = await work.astart()
        await drain(app)
        assert JobEvent.REQUEUED in await events(app, handle.id)

    with caplog.at_level(logging.ERROR, "asyncio"):
        play(story())
        gc.collect()
    assert caplog.messages == []


def test_a_store_that_is_away_when_a_gate_asks_its_ledger_fails_no_job(app: App) -> None:
    class Away(MemoryLedger):
        left = 0

        def peek(self, budget: str, window_start: float) -> int:
            if self.left:
                self.left -= 1
                raise StoreUnavailable("the connection is lost")
            return super().peek(budget, window_start)

    ledger, called = Away(), [0]
    gate = BudgetGate(9, per=3600, name="model", ledger=ledger, on_violation=raise_violation)

    @app.tool(gate=gate)
    async def ask() -> str:
        called[0] += 1
        return "42"

    @app.job
    async def work() -> str:
        ledger.left = 1 - attempt() // 2  # the first attempt finds it away
        return await ask()

    async def story() -> object:
        handle = await work.astart()
        await drain(app)
        return await handle.aresult()

    assert play(story()) == "42"
    assert called == [1]


def test_a_gate_that_cannot_be_looked_at_keeps_no_lease_from_being_renewed(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating(monkeypatch)

    class Away(MemoryLedger):
        def peek(self, budget: str, window_start: float) -> int:
            raise OSError(f"away: {budget} at {window_start}")

    gate = BudgetGate(9, per=3600, name="model", ledger=Away())
    renewed: set[float] = set()
    go = asyncio.Event()

    @app.tool(gate=gate)
    async def ask() -> None: ...

    @app.step
    async def last() -> None:
        await go.wait()

    @app.job
    async def work() -> int:
        await last()
        return attempt()

    async def story() -> None:
        handle = await work.astart()
        draining = [asyncio.create_task(drain(app)) for _ in range(2)]

        async def again_and_again() -> bool:
            row = await app.store().get(handle.id)
            renewed.update([row.lease.until] if row is not None and row.lease is not None else [])
            return len(renewed) > 3

        await until(again_and_again)
        go.set()
        await asyncio.gather(*draining)
        assert await handle.aresult() == 1

    play(story())


@pytest.mark.parametrize("name", ["two\nlines", "\ud800", "\0"])
def test_a_name_that_cannot_be_kept_or_shown_is_no_name_of_a_gate(name: str) -> None:
    with pytest.raises(InvalidSetting):
        ConcurrencyGate(1, name=name)


def test_a_kind_of_gate_is_no_gate(app: App) -> None:
    with pytest.raises(ValueError, match="such as ConcurrencyGate"):
        app.step(gate=cast("Any", ConcurrencyGate))(len)
