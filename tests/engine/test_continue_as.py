"""`continue_as`: a run ends, the next goes on with fresh arguments, and nothing of it grows with the chain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import (
    App,
    InvalidArguments,
    NotInsideJob,
    RunCanceled,
    RunFailed,
    UnknownJob,
    continue_as,
    spend,
    wait_for,
)
from holdfast.store import Reclaim, ReleaseLeases
from support.faults import FaultyStore, closing, store_of
from support.stories import drain, play, quick, until

BACKENDS = ["memory", "sqlite", "postgres"]


def test_no_history_grows_in_a_long_loop_of_waits(app: App) -> None:
    rounds = 300
    begun: set[int] = set()

    async def story() -> None:
        waits: asyncio.Queue[int] = asyncio.Queue()

        @app.job
        async def poll(n: int) -> int:
            if n == rounds:
                return n
            if n not in begun:
                begun.add(n)
                waits.put_nowait(n)
            await wait_for("tick")
            return continue_as(n + 1)

        handle = await app.astart(poll, 0)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        for _ in range(rounds):
            await handle.asignal("tick", await waits.get())
        assert await handle.aresult() == rounds
        worker.stop()
        await working
        runs = await app.alist(limit=rounds + 10)
        assert len(runs) == rounds + 1
        assert max([len(await app.aevents(run.run_id)) for run in runs[:: rounds // 20]]) <= 8, "no history grows"
        assert await app.acurrent(handle.id) == runs[0].run_id

    play(story())


def test_the_records_and_histories_name_each_other(app: App) -> None:
    @app.job
    async def work(n: int) -> str:
        if n == 2:
            return "done"
        return continue_as(n + 1)

    async def story() -> None:
        handle = await app.astart(work.options(key="order 7", attributes={"customer": 42}, priority=3), 0)
        await drain(app)
        first = await handle.arecord()
        second = await app.aget(first.continued_as or "")
        third = await app.aget(second.continued_as or "")
        assert (first.continues, second.continues, third.continues) == (None, first.run_id, second.run_id)
        assert (third.continued_as, third.status, third.attributes) == (None, "succeeded", {"customer": 42})
        for run in (first, second, third):
            assert await app.acurrent(run.run_id) == third.run_id
            assert await app.aoutcome(run.run_id) == "done"
        again = await app.astart(work.options(key="order 7"), 0)
        assert again.id == handle.id, "the key is the first run's"
        assert second.run_id in (await app.aexplain(handle.id)).explanation
        assert await app.averify() == {}

    play(story())


def test_whoever_waits_for_the_first_run_gets_the_end_of_the_last(app: App) -> None:
    @app.job
    async def work(n: int, how: str) -> str:
        if n < 2:
            return continue_as(n + 1, how)
        if how == "fail":
            raise ValueError("down")
        if how == "wait":
            await wait_for("never")
        return how

    async def story() -> None:
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        good, bad = await app.astart(work, 0, "well"), await app.astart(work, 0, "fail")
        stays = await app.astart(work, 0, "wait")
        assert await good.aresult(30) == "well"
        with pytest.raises(RunFailed, match="down"):
            await bad.aresult(30)
        waiter = asyncio.create_task(stays.aresult(30))

        async def waits() -> bool:
            return (await app.aget(await app.acurrent(stays.id))).stage == "parked"

        await until(waits)
        with pytest.raises(TimeoutError):
            await stays.aresult(0.01)
        await stays.acancel("enough")
        with pytest.raises(RunCanceled, match="enough"):
            await waiter
        worker.stop()
        await working

    play(story())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["crash", "not applied", "applied"])
def test_a_fault_at_any_commit_makes_no_second_successor(backend: str, mode: str, tmp_path: Path) -> None:
    play(_all_faults(backend, mode, tmp_path))


async def _all_faults(backend: str, mode: str, folder: Path) -> None:
    for at in range(1, 40):
        store = store_of(backend, folder / f"{at}.db")
        failed = await closing(store, _with_fault(store, at, mode))
        if not failed:
            return
    raise AssertionError("a short chain has fewer commits")


def _declared(app: App) -> Any:
    @app.step
    async def add(n: int) -> int:
        return n + 1

    @app.job
    async def work(n: int) -> int:
        if n == 3:
            return n
        return continue_as(await add(n))

    return work


async def _with_fault(store: Any, at: int, mode: str) -> bool:
    """Run a chain with a fault at one commit of its worker, another worker after it; whether the fault came."""
    client = App("shop", config=quick("memory:"))
    client._opened = store
    run = (await client.astart(_declared(client), 0)).id
    faulty = FaultyStore(store, at, mode)
    faulted = App("shop", config=quick("memory:"))
    faulted._opened = faulty
    _declared(faulted)
    worker = faulted.worker(name="faulted")
    working = asyncio.create_task(worker.arun(until_idle=True))
    gone = asyncio.create_task(faulty.gone.wait())
    await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
    for task in (working, gone):
        task.cancel()
    await asyncio.wait([working, gone])

    async def ended() -> bool:
        await store.commit([ReleaseLeases("faulted"), Reclaim()])
        await drain(client)
        return (await client.aget(await client.acurrent(run))).finished_at is not None

    await until(ended)
    assert await client.aoutcome(run) == 3
    runs = await client.alist()
    assert {one.continues for one in runs} == {None, *(one.run_id for one in runs if one.continued_as)}
    assert len(runs) == 4, "one successor each"
    assert await client.averify() == {}
    return faulty.failed


def test_a_budget_is_of_the_chain(app: App) -> None:
    @app.step
    async def think() -> None:
        spend(tokens=40)

    @app.job
    async def work(n: int) -> int:
        if n == 4:
            return n
        await think()
        return continue_as(n + 1)

    async def story() -> None:
        handle = await app.astart(work.options(budget={"tokens": 100}), 0)
        await drain(app)
        run = await app.aget(await app.acurrent(handle.id))
        assert run.stage == "parked", "the third run has spent 120 of 100, and the fourth asks"
        await app.agrant(handle.id, tokens=100)
        await drain(app)
        assert await handle.aresult(5) == 4

    play(story())


def test_links_that_have_ended_are_removed_and_the_first_stays_while_the_chain_goes_on(app: App) -> None:
    @app.job
    async def work(n: int) -> int:
        if n < 3:
            return continue_as(n + 1)
        await wait_for("go")
        return n

    async def story() -> None:
        handle = await app.astart(work.options(key="one"), 0)
        await drain(app)
        assert await app.apurge(older_than=0) == 2
        assert (await app.astart(work.options(key="one"), 0)).id == handle.id
        waiting = await app.aget(await app.acurrent(handle.id))
        with pytest.raises(UnknownJob):
            await app.aget(waiting.continues or "")
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult(5) == 3
        assert await app.averify() == {}
        assert await app.apurge(older_than=0) == 2
        with pytest.raises(UnknownJob):
            await handle.arecord()

    play(story())


def test_outside_the_code_of_a_job_it_is_refused(app: App) -> None:
    refused: list[str] = []

    @app.step
    async def step() -> None:
        continue_as(1)

    @app.step
    def plain_step() -> None:
        continue_as(1)

    @app.job
    async def work(n: int) -> str:
        if n:
            return "never"
        for call in (step, plain_step):
            try:
                await cast(Any, call())
            except Exception as error:  # noqa: BLE001 - what it says is asserted
                refused.append(str(error))
        try:
            await asyncio.to_thread(continue_as, 1)
        except InvalidArguments as error:
            refused.append(str(error))
        return "went on"

    async def story() -> None:
        handle = await app.astart(work, 0)
        await drain(app)
        assert await handle.aresult(5) == "went on"

    play(story())
    assert len(refused) == 3
    assert all("in the job's own function" in one for one in refused)
    with pytest.raises(NotInsideJob):
        continue_as(1)


def test_an_await_before_it_changes_nothing(app: App) -> None:
    @app.job
    async def work(n: int) -> int:
        if n == 1:
            return n
        return int(await continue_as(n + 1))

    async def story() -> None:
        handle = await app.astart(work, 0)
        await drain(app)
        assert await handle.aresult(5) == 1

    play(story())


def test_a_run_whose_arguments_do_not_fit_fails_and_keeps_its_signals(app: App) -> None:
    fixed: list[bool] = []

    @app.job
    async def work(n: int) -> int:
        if n == 1:
            return int(await wait_for("k"))
        return continue_as(n + 1 if fixed else "one")

    async def story() -> None:
        handle = await app.astart(work, 0)
        await handle.asignal("k", 7)
        await drain(app)
        record = await handle.arecord()
        assert (record.status, record.continued_as) == ("failed", None)
        assert record.error is not None
        assert record.error.code == "InvalidArguments"
        fixed.append(True)
        again = await app.aretry(handle.id, actor="ana", reason="mended")
        await drain(app)
        assert await app.aoutcome(again.run_id) == 7
        assert await app.averify() == {}

    play(story())
