"""Runs scenarios on each store, in each mode: for the tests, and for the tool that tries every crash point."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from holdfast.clock import ManualClock
from holdfast.store import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from support.clocked import opened
from support.postgres import fresh_schema, server
from support.scenarios import AT_ONCE, KINDS, SECONDS, Scenario, Story, commits_of, crash_at
from support.stories import in_time

__all__ = ["crashes", "once"]


@functools.cache
def _schema() -> str:
    """One for all scenarios of this process: each has an app of its own."""
    return fresh_schema()


@contextlib.asynccontextmanager
async def _opened(scenario: Scenario, backend: str, folder: Path) -> AsyncIterator[tuple[Store, ManualClock | None]]:
    """Open a store that is closed after it, with the clock that the scenario moves if it moves one."""
    clock: ManualClock | None = None
    store: Store
    if scenario.clocked:
        store, clock = opened(backend, folder)
    elif backend == "memory":
        store = MemoryStore()
    elif backend == "sqlite":
        store = SqliteStore(folder / "jobs.db")
    else:
        store = PostgresStore(server().url, _schema())
    try:
        yield store, clock
    finally:
        await store.close()


async def once(scenario: Scenario, backend: str, folder: Path, mode: Callable[[Story], Awaitable[object]]) -> None:
    """Run a scenario once."""

    async def told() -> None:
        async with _opened(scenario, backend, folder) as (store, clock):
            await mode(Story(scenario, store, clock))

    await in_time(told)


async def crashes(scenario: Scenario, backend: str, folder: Path, most: int | None = None) -> int:
    """Kill the worker at every commit, in both ways, or at `most` of them that are spread over the run; how many.

    In memory each has a store of its own; elsewhere they share one, and each has an app of its own.
    """

    async def one(at: int, kind: str, shared: Store | None) -> None:
        place = folder / f"{at}-{KINDS.index(kind)}"
        place.mkdir(parents=True)

        async def told() -> None:
            if shared is not None:
                await crash_at(Story(scenario, shared), at, kind)
                return
            async with _opened(scenario, backend, place) as (store, clock):
                await crash_at(Story(scenario, store, clock), at, kind)

        try:
            async with asyncio.timeout(SECONDS):
                await in_time(told)
        except BaseException as error:
            error.add_note(f"{scenario.name} on {backend}: the worker was killed at commit {at}, {kind}")
            raise

    async with _opened(scenario, backend, folder) as (store, clock):
        points = _points(scenario, backend, await commits_of(Story(scenario, store, clock)), most)
        shared = store if backend != "memory" and not scenario.clocked else None
        at_once = AT_ONCE if shared is None else AT_ONCE // 2
        for first in range(0, len(points), at_once):
            await asyncio.gather(*(one(at, kind, shared) for at, kind in points[first : first + at_once]))
    return len(points)


def _points(scenario: Scenario, backend: str, commits: int, most: int | None) -> list[tuple[int, str]]:
    found = [(at, kind) for at in range(1, commits + 1) for kind in KINDS]
    stride = max(1, len(found) // most) if most is not None else 1
    return found[zlib.crc32(f"{backend} {scenario.name}".encode()) % stride :: stride]
