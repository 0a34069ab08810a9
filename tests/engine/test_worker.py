"""How a worker notices that there is something to do."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import App, attempt, now
from holdfast.authoring.conductor import conductor
from holdfast.engine.worker import Worker
from holdfast.engine.worker_gate import SOON_SECONDS
from holdfast.errors import StoreUnavailable
from holdfast.group_commit import Journal
from holdfast.machines import JobState, ReadyState
from holdfast.store import Append, Command, Reclaim, ReleaseLeases, Store
from holdfast.store.commands import ASKED
from holdfast.store.sqlite.store import SqliteStore
from support.stories import play, quick, until


class DeafStore:
    """A store whose notices all get lost. The test passes on those that it wants."""

    floor_seconds = 0.2

    def __init__(self, store: Store) -> None:
        self._store = store
        self.notices: list[Callable[[int], None]] = []

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        self.notices.append(notice)
        return lambda: self.notices.remove(notice)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_other_notices_do_not_put_off_the_check_for_lost_ones(url: str) -> None:
    app = App("shop", config=quick(url, lease_seconds=3600))
    deaf = DeafStore(app.store())

    @app.job
    async def greet() -> str:
        return "hello"

    async def story() -> None:
        worker = Worker(cast(Store, deaf), app.entries, app.config, children=app.submission)
        working = asyncio.create_task(worker.run())
        await until(lambda: _pended(worker))
        run = await greet.astart()

        async def is_over() -> bool:
            for notice in deaf.notices:
                notice(ASKED)  # many times within `floor_seconds`
            return (await app.aget(run.id)).finished_at is not None

        await until(is_over)
        worker.stop()
        await working

    play(story())
    app.close()


async def _pended(worker: Worker) -> bool:
    return worker.gate.counts().state is ReadyState.PENDING


def test_what_another_process_writes_just_after_a_turn_is_not_slept_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        settings = quick(f"sqlite:///{tmp_path / 'jobs.db'}", lease_seconds=3600)
        here, there = (App("shop", config=settings) for _ in range(2))
        ran = asyncio.Event()

        async def greet() -> None:
            ran.set()

        for app in (here, there):
            app.job(greet)
        next_due = SqliteStore.next_due

        async def another_writes_now(store: SqliteStore, after: float | None = None) -> float | None:
            monkeypatch.undo()
            due = await next_due(store, after)
            await there.astart("greet")
            return due

        monkeypatch.setattr(SqliteStore, "next_due", another_writes_now)
        worker = here.worker()
        working = asyncio.create_task(worker.arun())
        async with asyncio.timeout(60):
            await ran.wait()
        worker.stop()
        await working
        assert [record.status for record in await here.alist()] == ["succeeded"]
        await here.aclose()
        await there.aclose()

    play(story())


def test_a_job_that_becomes_due_during_a_turn_is_not_slept_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of a turn comes too early for it, and the look for what is due next too late."""

    async def story() -> None:
        app = App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}", lease_seconds=3600))
        ran = asyncio.Event()

        @app.job
        async def greet() -> None:
            ran.set()

        next_due = SqliteStore.next_due
        handle = await greet.options(delay=0.2).astart()
        row = await app.store().get(handle.id)
        assert row is not None

        async def late(store: SqliteStore, after: float | None = None) -> float | None:
            monkeypatch.undo()
            while await store.now() <= row.due_at:  # noqa: ASYNC110 - only the clock can tell
                await asyncio.sleep(0.01)
            return await next_due(store, after)

        monkeypatch.setattr(SqliteStore, "next_due", late)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        async with asyncio.timeout(60):
            await ran.wait()
        worker.stop()
        await working
        await app.aclose()

    play(story())


def test_a_worker_that_gets_back_a_job_it_has_lost_ends_the_old_attempt_and_keeps_the_new_one(app: App) -> None:
    begun: list[int] = []
    ended: list[int] = []
    seen = asyncio.Event()

    @app.step
    async def long() -> None:
        number = attempt()
        begun.append(number)
        try:
            await (asyncio.Event() if number == 1 else seen).wait()
        finally:
            ended.append(number)

    @app.job
    async def work() -> str:
        await long()
        return "done"

    async def story() -> None:
        handle = await app.astart(work)
        worker = app.worker(name="w1")
        working = asyncio.create_task(worker.arun())
        await until(lambda: _is(begun == [1]))
        await app.store().commit([ReleaseLeases("w1"), Reclaim()])  # as after a night in standby: no notice came
        await until(lambda: _is(begun == [1, 2]))
        await until(lambda: _is(ended == [1]))
        seen.set()
        assert await handle.aresult() == "done"
        worker.stop()
        await working

    play(story())
    assert ended == [1, 2]


async def _is(so: bool) -> bool:
    return so


def test_the_end_of_a_job_and_the_claim_of_the_next_are_one_transaction_and_never_hold_two(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []
    held: list[int] = []
    write = Journal._commit

    async def seen(journal: Journal, batch: list[Any]) -> None:
        batches.append([_kind(entry) for entry in batch])
        await write(journal, batch)
        held.append(len(await app.store().jobs(state=JobState.RUNNING)))

    monkeypatch.setattr(Journal, "_commit", seen)

    @app.job
    async def work() -> None:
        pass

    async def story() -> None:
        await app.astart_many("work", [{}] * 10)
        await app.worker(concurrency=1).arun(until_idle=True)
        assert [record.status for record in await app.alist()] == ["succeeded"] * 10

    play(story())
    assert ["end", "Claim"] in batches, "but where the worker has something else to do between two jobs"
    assert max(held) == 1


def _kind(entry: Any) -> str:
    return type(entry.command).__name__ if hasattr(entry, "command") else "end"


def test_a_job_knows_nothing_of_the_one_that_had_its_slot_before(app: App) -> None:
    """Neither its variables nor what it had asked for: a value is known by what was asked for before it (E8)."""
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nothing")
    found: list[str] = []

    @app.step
    async def price(sku: str) -> int:
        return len(sku)

    @app.job
    async def checkout(sku: str) -> float:
        at = now()
        found.append(mine.get())
        mine.set(sku)
        await price(sku)
        return at

    async def story() -> None:
        runs = [await checkout.astart(sku) for sku in ("A", "BB", "CCC")]
        await app.worker(concurrency=1).arun(until_idle=True)
        assert found == ["nothing"] * 3
        nodes = [
            event.payload["node"] for run in runs for event in await run.aevents() if event.type == "value_recorded"
        ]
        assert len(nodes) == 3
        assert len(set(nodes)) == 1, nodes

    play(story())


def test_a_job_whose_program_ends_under_it_has_not_failed(app: App) -> None:
    """Whatever runs on the loop is cancelled then: the worker and the job's code in one go, and in any order."""
    begun = asyncio.Event()

    @app.job
    async def work() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def story() -> str:
        handle = await app.astart(work)
        working = asyncio.create_task(app.worker().arun())
        await begun.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # and whatever they still begin
            await asyncio.wait(others)
        assert working.cancelled()
        return handle.id

    name = play(story())
    row = play(app.store().get(name))
    assert row is not None
    assert row.state is JobState.RUNNING, "until its lease runs out"


def test_a_job_that_has_ended_leaves_nothing_for_the_garbage_collector(app: App) -> None:
    attempts: list[weakref.ref[object]] = []

    @app.step
    async def one() -> None:
        pass

    @app.job
    async def work() -> None:
        attempts.append(weakref.ref(cast(object, conductor.get())))
        await one()

    async def story() -> None:
        await app.astart(work)
        gc.disable()
        try:
            await app.worker().arun(until_idle=True)
            assert [made() for made in attempts] == [None]
        finally:
            gc.enable()

    play(story())


def test_a_worker_that_was_stopped_before_it_began_does_not_begin(tmp_path: Path) -> None:
    async def story() -> None:
        app = App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}"))
        worker = app.worker()
        worker.stop()
        async with asyncio.timeout(60):
            await worker.arun()
        assert await app.aworkers() == [], "it has not even reported"
        await app.aclose()

    play(story())


CTRL_C = """
import asyncio, signal, sys
from holdfast import App, Config

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background

app = App("shop", config=Config(url=sys.argv[1], shutdown_seconds=0.05, grace_seconds=0.2))

@app.step
async def hang() -> None:
    print("hanging", flush=True)
    await asyncio.sleep(3600)

@app.job
async def work() -> None:
    await hang()

work.start()
app.worker().run()
"""


def test_ctrl_c_hands_jobs_back_and_ends_the_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with subprocess.Popen(
        [sys.executable, "-c", CTRL_C, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "hanging\n"
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert said == "stopping: 1 job has 0.05 s to finish; press Ctrl-C again to end at once\n"
    assert program.returncode == 0
    app = App("shop", url)
    (record,) = app.list()
    last = app.block(app.store().events(record.run_id))[-1]
    assert (last.type, last.payload["reason"]) == ("job_requeued", "worker_shutdown")
    app.close()


@pytest.mark.parametrize("mode", ["applied", "not applied"])
def test_a_store_that_is_away_again_and_again_is_no_crash_of_the_job(url: str, mode: str) -> None:
    """More outages than attempts: the job is given back each time, at once, and is not taken for poison (L6, J14)."""
    app = App("shop", config=quick(url, max_attempts=2, lease_seconds=60.0))
    outages: list[int] = []

    @app.tool(on_doubt="retry")
    async def part(number: int) -> int:
        return number

    @app.job
    async def work() -> int:
        return sum([await part(number) for number in range(6)])

    class Unsteady:
        """Fails each time a result is written for the first time."""

        def __init__(self, store: Store) -> None:
            self._store = store

        async def commit(self, batch: Sequence[Command]) -> list[Any]:
            appends = [command for command in batch if isinstance(command, Append)]
            results = [one for one in appends if any(kind == "tool_invocation_finished" for kind, _ in one.events)]
            if results and len(outages) < 5 and results[0].attempt > len(outages):
                outages.append(results[0].attempt)
                if mode == "applied":
                    await self._store.commit(batch)
                raise StoreUnavailable("for a moment")
            return await self._store.commit(batch)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    app._opened = cast(Store, Unsteady(app.store()))
    run = work.start()
    app.worker().run(until_idle=True)
    assert outages == [1, 2, 3, 4, 5]
    assert run.record().status == "succeeded", run.record().error
    assert [event.payload["reason"] for event in run.events() if event.type == "job_requeued"] == ["store_outage"] * 5
    assert app.verify() == {}
    app.close()


def test_a_thread_that_outlives_its_worker_is_told_that_it_is_over(app: App) -> None:
    """Its worker is gone, and so is the loop: its next call raises, and no coroutine is left to be complained about."""
    begun, free, left = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    @app.step
    def act() -> None: ...

    @app.job
    def work() -> None:
        begun.set()
        free.wait()
        try:
            act()
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            left.set()

    async def story() -> None:
        await app.astart(work)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await asyncio.to_thread(begun.wait)
        worker.stop()
        await working

    play(story())
    free.set()
    assert left.wait(60)
    assert not isinstance(raised[0], Exception), "which the code would take for a failure of the call"
    gc.collect()


def test_a_worker_whose_gate_is_ahead_of_the_time_of_the_store_does_not_spin() -> None:
    """All slots are taken, and something is due by the gate's clock but not yet by the last known time of the store."""

    async def story() -> None:
        app = App("shop", config=quick("memory:"))
        worker = Worker(app.store(), {}, app.config, children=app.submission, concurrency=1)
        loop = worker._loop = asyncio.get_running_loop()
        worker._wake, worker._sweep_at = asyncio.Event(), 1000.5
        worker.gate.busy, worker.gate.fresh = 1, False
        worker.gate.due(0.0)
        begun = loop.time()
        await worker._sleep(1000.0)
        assert loop.time() - begun >= SOON_SECONDS

    play(story())
