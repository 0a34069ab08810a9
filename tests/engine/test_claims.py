"""A claim goes last in its transaction, behind the ends of the jobs whose slots it fills."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import App
from holdfast.engine.worker import Worker
from holdfast.errors import StoreUnavailable
from holdfast.group_commit import Journal
from holdfast.ready import raise_violation
from holdfast.store import Append, Claim, Command, RemoveWorker
from holdfast.store.memory import MemoryStore
from support.stories import play, quick, until


class Watched(MemoryStore):
    """Remembers what was written together; and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Command]] = []
        self.away = False

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        if self.away:
            raise StoreUnavailable("gone")
        self.batches.append(list(batch))
        return await super().commit(batch)


def test_what_trails_is_made_once_and_goes_behind_what_came_after_it() -> None:
    async def story() -> None:
        store = Watched()
        journal = Journal(store)
        made: list[str] = []

        def make() -> Command:
            made.append("made")
            return RemoveWorker("last")

        asked = journal.trail(make)
        written = journal.enqueue(RemoveWorker("first"))
        assert journal.trail(make) is asked
        await asyncio.gather(asked, written)
        assert (store.batches, made) == ([[RemoveWorker("first"), RemoveWorker("last")]], ["made"])

    play(story())


def test_what_trails_may_turn_out_to_be_nothing() -> None:
    async def story() -> None:
        store = Watched()
        assert await Journal(store).trail(lambda: None) is None
        assert store.batches == []

    play(story())


def test_who_claims_is_told_that_the_store_is_away() -> None:
    async def story() -> None:
        store = Watched()
        store.away = True
        with pytest.raises(StoreUnavailable):
            await Journal(store).trail(lambda: RemoveWorker("w"))

    play(story())


def test_one_claim_fills_the_slots_of_all_jobs_that_end_together_and_is_written_with_their_ends() -> None:
    async def story() -> None:
        app = App("shop", config=quick("memory:", concurrency=5))
        app._opened = store = Watched()
        held: list[asyncio.Future[None]] = []

        @app.job
        async def work() -> None:
            if len(held) < 5:
                held.append(asyncio.get_running_loop().create_future())
                await held[-1]

        await app.astart_many(work, [{} for _ in range(10)])
        worker = Worker(store, app.entries, app.config, children=app.submission, on_violation=raise_violation)
        working = asyncio.create_task(worker.run())

        async def full() -> bool:
            return len(held) == 5

        async def done() -> bool:
            return (await app.astats()).runs == {"succeeded": 10}

        await until(full)
        store.batches.clear()
        for one in held:
            one.set_result(None)
        await until(done)
        *ends, claim = store.batches[0]
        assert [type(one) for one in ends] == [Append] * 5
        assert isinstance(claim, Claim)
        assert claim.limit == 5
        worker.stop()
        await working
        await app.aclose()

    play(story())


def test_a_claim_that_fails_is_made_again_when_the_store_is_back() -> None:
    async def story() -> None:
        app = App("shop", config=quick("memory:", concurrency=1, lease_seconds=0.6))
        app._opened = store = Watched()
        held: list[asyncio.Future[None]] = []

        @app.job
        async def work() -> None:
            if not held:
                held.append(asyncio.get_running_loop().create_future())
                await held[-1]

        await app.astart_many(work, [{} for _ in range(2)])
        worker = Worker(store, app.entries, app.config, children=app.submission, on_violation=raise_violation)
        working = asyncio.create_task(worker.run())

        async def full() -> bool:
            return bool(held)

        async def left_alone() -> bool:
            return worker.gate.counts().polls["retry_after"] > 0

        async def done() -> bool:
            return (await app.astats()).runs == {"succeeded": 2}

        await until(full)
        store.away = True
        held[0].set_result(None)  # its end and the next claim are lost together
        await until(left_alone)
        store.away = False
        await until(done)
        worker.stop()
        await working
        await app.aclose()

    play(story())


def test_a_worker_that_is_stopped_before_it_begins_ends_at_once() -> None:
    """A signal may come while the worker is being made."""

    async def story() -> None:
        app = App("shop", config=quick("memory:"))

        @app.job
        async def work() -> None:
            pass

        run = await app.astart(work)
        for at_once in (False, True):
            worker = Worker(app.store(), app.entries, app.config, children=app.submission)
            worker.stop(at_once=at_once)
            await worker.run()
            assert (await run.arecord()).status == "queued"
        await app.aclose()

    play(story())
