"""A worker's readiness: what it says follows the table, whatever happens to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import strategies as st

from holdfast import App, Config, InvalidSetting, sleep, wait_for
from holdfast.engine.worker import Worker
from holdfast.engine.worker_gate import WorkGate, gate_cards
from holdfast.errors import StoreUnavailable
from holdfast.machines.ready_table import BudgetExhausted, Busy, Pending, ReadyState, RetryAfter, WakeSource
from holdfast.ready import Gate, raise_violation
from holdfast.store import PutWorker, Renew
from holdfast.store.limits import Blocked
from holdfast.store.memory import MemoryStore
from support.stories import play, quick, until
from support.timeless import given, settings


def gate(slots: int = 2) -> tuple[WorkGate, list[float]]:
    clock = [0.0]
    return WorkGate(slots, now=lambda: clock[0], on_violation=raise_violation), clock


def held(why: str, until: float | None = None) -> Blocked:
    return Blocked("default", cast(Any, why), 10.0, 0.0, until)


def said(one: WorkGate) -> list[Any]:
    """All it says to somebody who waits, up to Ready or Pending."""
    readings = [one.poll_ready(lambda: None)]
    while readings[-1].state not in {ReadyState.READY, ReadyState.PENDING}:
        readings.append(one.poll_ready(lambda: None))
    return readings


def test_all_slots_taken_is_busy_and_a_job_that_ends_wakes_it() -> None:
    one, _ = gate(1)
    one.busy = 1
    busy, pending = said(one)
    assert isinstance(busy, Busy)
    assert busy.reason == "all 1 slots are taken"
    assert isinstance(pending, Pending)
    one.freed()
    assert one.counts().wakes["io_ready"] == 1
    assert [reading.state for reading in said(one)] == ["ready"]


def test_a_used_up_rate_is_told_once_and_its_next_token_wakes_it() -> None:
    one, clock = gate()
    one.claimed(all_there_was=True, held=(held("rate", until=100.5),), now=100.0)
    first, then = said(one)
    assert first == BudgetExhausted(10.0, 0.0)
    assert isinstance(then, Pending)
    assert one.wake_in_seconds() == 0.5
    clock[0] = 0.5
    assert [reading.state for reading in said(one)] == ["ready"]
    assert one.counts().wakes["timer"] == 1


@pytest.mark.parametrize("why", ["concurrency", "group_concurrency", "paused"])
def test_a_full_or_paused_queue_is_busy_and_a_changed_limit_wakes_it(why: str) -> None:
    one, _ = gate()
    one.claimed(all_there_was=True, held=(held(why),), now=100.0)
    first, then = said(one)
    assert isinstance(first, Busy)
    assert "default" in first.reason
    assert isinstance(then, Pending)
    one.heard(WakeSource.CONFIG_RELOAD)
    assert [reading.state for reading in said(one)] == ["ready"]
    assert one.counts().wakes["config_reload"] == 1


def test_an_absent_store_is_left_alone_for_a_while() -> None:
    one, clock = gate()
    one.away(2.0)
    assert [type(reading) for reading in said(one)] == [RetryAfter, Pending]
    clock[0] = 2.0
    assert [reading.state for reading in said(one)] == ["ready"]


def test_nothing_due_is_pending_until_something_is() -> None:
    one, clock = gate()
    one.claimed(all_there_was=True, held=(), now=100.0)
    assert [reading.state for reading in said(one)] == ["pending"]
    one.due(3.0)
    assert said(one)[-1].state == "pending"
    clock[0] = 3.0
    assert [reading.state for reading in said(one)] == ["ready"]
    assert one.counts().wakes["timer"] == 2, "it heard that something is due, and then it was"


def test_what_is_due_later_than_a_clock_can_count_is_pending() -> None:
    one, _ = gate()
    one.claimed(all_there_was=True, held=(), now=100.0)
    one.due(1e300)
    assert said(one)[-1].state == "pending"


MOVES = st.one_of(
    st.sampled_from(["heard", "reload", "freed", "start", "poll", "wait", "resize"]),
    st.tuples(st.just("move"), st.sampled_from([0.1, 1.0, 5.0])),
    st.tuples(st.just("due"), st.sampled_from([None, 0.0, 1.0, 3.0])),
    st.tuples(st.just("away"), st.sampled_from([0.1, 2.0])),
    st.tuples(
        st.just("claimed"),
        st.booleans(),
        st.lists(st.sampled_from([held("rate", 101.0), held("rate", 99.0), held("paused"), held("concurrency")])),
    ),
)


@given(st.lists(MOVES, max_size=40))
@settings(max_examples=500, deadline=None)
def test_whatever_happens_to_a_worker_its_gate_keeps_to_the_table(moves: list[Any]) -> None:
    one, clock = gate(2)
    for move in moves:
        happens(one, clock, move)
    said(one)
    assert one.counts().violations == 0
    (card,) = gate_cards([one], 100.0)
    assert card.state == one.counts().state


def happens(one: WorkGate, clock: list[float], move: Any) -> None:  # noqa: C901 - a row for each move
    match move:
        case "heard":
            one.heard()
        case "reload":
            one.heard(WakeSource.CONFIG_RELOAD)
        case "freed" if one.busy:
            one.freed()
        case "start" if one.busy < 2:
            one.busy += 1
        case "poll":
            one.poll_ready()
        case "wait":
            said(one)
        case "resize":
            one.resized(3 - one.slots)
        case ("move", seconds):
            clock[0] += seconds
        case ("due", seconds):
            one.due(seconds)
        case ("away", seconds):
            one.away(seconds)
        case ("claimed", all_there_was, limits):
            one.claimed(all_there_was=all_there_was, held=tuple(limits), now=100.0)
        case _:
            pass


class Flaky(MemoryStore):
    """A store that is away when it is told to be."""

    away = False

    async def commit(self, batch: Any) -> Any:
        if self.away:
            raise StoreUnavailable("gone")
        return await super().commit(batch)


def test_a_worker_goes_through_its_states_as_it_works() -> None:
    """Ready, Busy, Pending and RetryAfter, by the real loop; nothing of it breaks the table."""

    async def story() -> None:
        app = App("shop", config=quick("memory:", concurrency=1))
        app._opened = store = Flaky()

        @app.job
        async def long() -> None:
            await sleep(0.001)
            await wait_for("go")

        @app.step
        async def until_go() -> None:
            await go.wait()

        @app.job
        async def busy() -> None:
            await until_go()

        go = asyncio.Event()
        worker = Worker(
            store, app.entries, app.config, children=app.submission, on_violation=raise_violation, concurrency=1
        )
        working = asyncio.create_task(worker.run())
        counts = worker.gate.counts
        await until(lambda: _is(counts().state == "pending" and worker.gate.why() == "nothing is due"))
        await busy.astart()
        await until(lambda: _is(counts().polls["busy"] > 0 and counts().state == "pending"))
        assert worker.gate.why() == "all 1 slots are taken"
        go.set()
        handle = await long.astart()
        await until(lambda: _waiting(app, handle.id))
        await handle.asignal("go")
        await until(lambda: _ended(app, handle.id))
        store.away = True
        worker.gate.heard()
        worker._heard(2)
        await until(lambda: _is(counts().polls["retry_after"] > 0))
        store.away = False
        await until(lambda: _is(counts().wakes["timer"] > 0))
        handle = await busy.astart()
        await until(lambda: _ended(app, handle.id))
        worker.stop()
        await working
        found = counts()
        assert found.violations == 0
        assert found.wakes["io_ready"] > 0
        await app.aclose()

    play(story())


async def _is(so: bool) -> bool:
    return so


async def _waiting(app: App, job: str) -> bool:
    row = await app.store().get(job)
    return row is not None and row.wait is not None and row.wait.correlation_key == "go"


async def _ended(app: App, job: str) -> bool:
    return (await app.aget(job)).status == "succeeded"


def test_leases_are_renewed_before_a_gate_is_asked_how_it_is() -> None:
    """It may take its time."""
    order: list[str] = []

    def asked() -> list[Gate]:
        order.append("asked")
        return []

    class Watched(MemoryStore):
        def commit_blocking(self, batch: Any) -> Any:
            order.extend(type(command).__name__ for command in batch if isinstance(command, (Renew, PutWorker)))
            return super().commit_blocking(batch)

    async def story() -> None:
        app = App("shop", config=quick("memory:", lease_seconds=3600))
        worker = Worker(Watched(), app.entries, app.config, children=app.submission, gates=asked)
        working = asyncio.create_task(worker.run())
        await until(lambda: _is("PutWorker" in order))
        worker.stop()
        await working

    play(story())
    assert order[:3] == ["Renew", "asked", "PutWorker"]


def test_a_changed_settings_file_takes_effect_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("concurrency = 1\n")
    running: list[int] = []

    async def story() -> None:
        go = asyncio.Event()
        app = App("shop", config=quick("memory:", settings_file=str(path)))

        @app.step
        async def until_go() -> None:
            await go.wait()

        @app.job
        async def work(number: int) -> None:
            running.append(number)
            await until_go()

        worker = Worker(app.store(), app.entries, app.config, children=app.submission, on_violation=raise_violation)
        working = asyncio.create_task(worker.run())
        await until(lambda: _is(worker.gate.slots == 1))
        for number in range(3):
            await work.astart(number)
        await until(lambda: _is(running == [0] and worker.gate.counts().state == "pending"))
        path.write_text("concurrency = 3\n")
        await until(lambda: _is(len(running) == 3))
        assert worker.gate.counts().wakes["config_reload"] > 0
        path.write_text("concurrency = 'many'\n")
        path.with_suffix(".new").write_text("concurrency = 5\ngrace_seconds = 1.5\n")
        path.with_suffix(".new").rename(path)  # as editors do
        await until(lambda: _is(worker.gate.slots == 5))
        go.set()
        worker.stop()
        await working
        await app.aclose()

    play(story())


@pytest.mark.parametrize("text", ["concurrency = 0", "concurrency = 'x'", "url = 'memory:'", "= 3", "nonsense = 1"])
def test_a_settings_file_that_says_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    config = Config(settings_file=str(path))
    with pytest.raises(InvalidSetting):
        config.reloaded()


def test_without_the_file_settings_are_as_they_were(tmp_path: Path) -> None:
    config = Config(settings_file=str(tmp_path / "none.toml"))
    assert config.reloaded() == config


def test_gates_are_on_the_workers_card(app: App) -> None:
    async def story() -> None:
        worker = app.worker(name="w1")
        working = asyncio.create_task(worker.arun())

        async def shown() -> bool:
            return bool(await app.agates())

        await until(shown)
        (view,) = await app.agates()
        assert (view.worker, view.gate.name) == ("w1", "worker")
        assert view.gate.state in list(ReadyState)
        worker.stop()
        await working

    play(story())
