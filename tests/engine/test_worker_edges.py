"""All 22 edges of the ReadyState table, each taken by the gate of a worker at work: its loop, a real store (S2, S7).

What the gate says is written down as it is polled. A story may have something happen just when a word was said: a
commit is heard of, the settings change, the store goes away, time passes. `EDGES` says how a worker gets to each edge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Limits
from holdfast.engine.worker import Worker
from holdfast.errors import StoreUnavailable
from holdfast.machines.ready_table import Reading
from holdfast.ready import raise_violation
from holdfast.store.commands import ASKED, WORK
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite.store import SqliteStore
from support import spec
from support.stories import play, quick, until

Edge = tuple[str, str]
Then = Callable[["World"], Callable[[], object]]
SLOW = Limits(queue="rated", rate=1, rate_seconds=3600, burst=1)


class Outages:
    """A store that does not answer when it is told so."""

    unread = unwritten = False

    async def commit(self, batch: Any) -> Any:
        if self.unwritten:
            raise StoreUnavailable("gone")
        return await super().commit(batch)  # type: ignore[misc]  # - of the store that it is mixed with

    async def now(self) -> Any:
        if self.unread:
            raise StoreUnavailable("gone")
        return await super().now()  # type: ignore[misc]  # - of the store that it is mixed with

    async def next_due(self, after: Any = None) -> Any:
        if self.unread:
            raise StoreUnavailable("gone")
        return await super().next_due(after)  # type: ignore[misc]  # - of the store that it is mixed with


class Memory(Outages, MemoryStore):
    """In memory."""


class Sqlite(Outages, SqliteStore):
    """In a file."""


class World:
    """A worker at work, what its gate has said, and what happens when it says something."""

    def __init__(self, store: Any, slots: int, word: str, then: Then) -> None:
        self.app = app = App("shop", config=quick("memory:", concurrency=slots))
        app._opened = self.store = store
        self.go = asyncio.Event()  # what jobs wait for
        self.first = asyncio.Event()
        self.said: list[str] = []
        self.when: dict[str, Callable[[], object]] = {}
        self._word, self._then = word, then
        self.passed = 0.0  # seconds by which time has gone on for the gate

        @app.step
        async def until_go() -> None:
            await self.go.wait()

        @app.step
        async def until_first() -> None:
            await self.first.wait()

        @app.job
        async def held() -> None:
            await until_go()

        @app.job
        async def sooner() -> None:
            await until_first()

        @app.job(queue="rated")
        async def rated() -> None:
            await until_go()

        @app.job
        async def quickly() -> None:
            pass

        self.held, self.sooner, self.rated, self.quickly = held, sooner, rated, quickly
        self.worker = Worker(store, app.entries, app.config, children=app.submission, on_violation=raise_violation)
        self.gate = self.worker.gate
        self.gate.follow(lambda: time.monotonic() + self.passed)
        self._poll, self.gate.poll_ready = self.gate.poll_ready, self.polled  # type: ignore[method-assign]  # - looked at, not changed

    def polled(self, waker: Any = None) -> Reading:
        reading = self._poll(waker)
        self.said.append(reading.state.value)
        self.when.pop(reading.state.value, lambda: None)()
        return reading

    def arm(self) -> None:
        """From now on, when the word is said, the other thing happens."""
        self.when = {self._word: self._then(self)}

    async def rests(self, running: int) -> None:
        """Until so many jobs run, and the worker sleeps."""

        async def so() -> bool:
            return self.gate.busy == running and self.said[-1:] == ["pending"] and not self.worker._wake.is_set()

        await until(so)

    def resize(self, slots: int) -> None:
        self.worker._reload(quick("memory:", concurrency=slots))

    def unread(self) -> None:
        self.store.unread = True

    def goes_away(self) -> None:
        self.unread()
        self.worker._heard(ASKED)  # somebody asks for something, and the store is looked at

    def time_passes(self) -> None:
        self.passed += 10.0
        self.store.unread = self.store.unwritten = False


async def backlog(world: World) -> None:
    for _ in range(3):
        await world.quickly.astart()


async def slots_full(world: World) -> None:
    await world.held.astart()
    await world.rests(1)


async def a_slot_is_freed(world: World) -> None:
    await slots_full(world)
    world.go.set()


async def heard_while_full(world: World) -> None:
    await slots_full(world)
    world.arm()
    await world.quickly.astart()


async def nothing_is_due(world: World) -> None:
    await world.rests(0)


async def fewer_slots(world: World) -> None:
    """Two jobs, and then one slot; one of them ends."""
    await world.sooner.astart()
    await world.held.astart()
    await world.rests(2)
    world.resize(1)
    await world.rests(2)
    world.first.set()


async def fewer_slots_and_both_end(world: World) -> None:
    for _ in range(2):
        await world.held.astart()
    await world.rests(2)
    world.resize(1)
    await world.quickly.astart()
    await world.rests(2)
    world.go.set()


async def a_rate(world: World) -> None:
    await world.app.aset_limits(SLOW)
    for _ in range(2):
        await world.rated.astart()
    await world.rests(1)


async def a_rate_behind_slots(world: World) -> None:
    """The rate was told and the slots became fewer; when the job ends the rate is still used up."""
    await a_rate(world)
    world.resize(1)
    await world.rests(1)
    world.arm()
    world.go.set()


async def a_rate_behind_two_jobs(world: World) -> None:
    await a_rate(world)
    await world.held.astart()
    await world.rests(2)
    world.resize(1)
    await world.rests(2)
    world.go.set()


async def unwritten(world: World) -> None:
    await world.rests(0)
    world.store.unwritten = True
    world.worker._heard(WORK)


async def unread_at_rest(world: World) -> None:
    await world.rests(0)
    world.goes_away()


async def unread_while_full(world: World) -> None:
    await slots_full(world)
    world.goes_away()


async def unread_at_a_rate(world: World) -> None:
    await a_rate(world)
    world.goes_away()


Story = Callable[[World], Awaitable[None]]
NOTHING: tuple[str, Then] = ("", lambda _: lambda: None)


def at(word: str, what: Then) -> tuple[str, Then]:
    """Have something happen just when a word is said."""
    return word, what


HEARD = at("budget_exhausted", lambda world: lambda: world.worker._heard(WORK))

# How a worker gets there: its slots at first, what happens, and what happens just when a word is said.
EDGES: dict[Edge, tuple[int, Story, tuple[str, Then]]] = {
    ("ready", "ready"): (1, backlog, NOTHING),  # a slot is freed and there is more
    ("ready", "busy"): (1, slots_full, NOTHING),
    ("ready", "budget_exhausted"): (2, a_rate, NOTHING),
    ("ready", "retry_after"): (1, unwritten, NOTHING),  # its claim fails
    ("ready", "pending"): (1, nothing_is_due, NOTHING),
    ("busy", "ready"): (2, fewer_slots_and_both_end, NOTHING),  # the first end leaves it full, the second does not
    ("busy", "busy"): (2, fewer_slots, NOTHING),  # a job ends, and it is full all the same, whoever asks
    ("busy", "budget_exhausted"): (3, a_rate_behind_two_jobs, NOTHING),
    ("busy", "retry_after"): (1, heard_while_full, at("busy", lambda world: world.unread)),
    ("busy", "pending"): (1, slots_full, NOTHING),
    ("budget_exhausted", "ready"): (2, a_rate_behind_slots, HEARD),
    ("budget_exhausted", "busy"): (2, a_rate_behind_slots, NOTHING),  # its loop asks after the job's end has
    ("budget_exhausted", "retry_after"): (
        2, a_rate_behind_slots, at("budget_exhausted", lambda world: world.goes_away),
    ),
    ("budget_exhausted", "pending"): (2, a_rate, NOTHING),
    ("retry_after", "ready"): (1, unread_at_rest, at("retry_after", lambda world: world.time_passes)),
    ("retry_after", "busy"): (1, unread_while_full, at("retry_after", lambda world: world.time_passes)),
    ("retry_after", "budget_exhausted"): (2, unread_at_a_rate, at("retry_after", lambda world: world.time_passes)),
    ("retry_after", "pending"): (1, unread_at_rest, NOTHING),
    ("pending", "ready"): (1, a_slot_is_freed, NOTHING),
    ("pending", "busy"): (1, heard_while_full, NOTHING),  # woken for nothing
    ("pending", "budget_exhausted"): (2, a_rate_behind_slots, NOTHING),
    ("pending", "retry_after"): (1, unread_at_rest, NOTHING),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("edge", EDGES, ids=" → ".join)
def test_every_edge_is_taken_by_a_worker_at_work(edge: Edge, backend: str, tmp_path: Path) -> None:
    slots, story, (word, then) = EDGES[edge]

    async def told() -> None:
        world = World(Memory() if backend == "memory" else Sqlite(tmp_path / "jobs.db"), slots, word, then)
        working = asyncio.create_task(world.worker.run())
        if word == "retry_after":  # of the others it is too early to speak
            world.arm()

        async def taken() -> bool:
            return edge in pairwise(world.said)

        await story(world)
        await until(taken)
        world.time_passes()
        world.go.set()
        world.first.set()
        world.worker.stop()
        await working
        assert world.gate.counts().violations == 0
        await world.app.aclose()

    play(told())


@pytest.mark.parametrize("what", ["unread", "unwritten"])
def test_a_store_that_is_away_is_tried_again_with_growing_pauses(what: str) -> None:
    class Counting(Memory):
        def __init__(self) -> None:
            super().__init__()
            self.tried_at: list[float] = []

        async def now(self) -> Any:
            self.tried_at += [time.monotonic()] if self.unread else []
            return await super().now()

        async def commit(self, batch: Any) -> Any:
            self.tried_at += [time.monotonic()] if self.unwritten else []
            return await super().commit(batch)

    async def told() -> None:
        store = Counting()
        world = World(store, 1, "", NOTHING[1])
        working = asyncio.create_task(world.worker.run())
        await world.rests(0)
        setattr(store, what, True)
        world.worker._heard(WORK)

        async def tried() -> bool:
            return len(store.tried_at) >= 3

        await until(tried)
        first, second, third = store.tried_at[:3]
        assert second - first >= 0.099, "it is left alone for a tenth of a second"
        assert third - second >= 0.199, "and then for twice as long"
        world.time_passes()
        world.worker.stop()
        await working
        await world.app.aclose()

    play(told())


def test_these_are_all_the_edges_there_are() -> None:
    assert set(EDGES) == {edge for edge, legal in spec.READY_CELLS.items() if legal}
    assert len(EDGES) == 22
