"""Every scenario ends the same and acts the same: live, replayed after every wait, and with a crash at any commit.

PostgreSQL gets every scenario live and replayed, and a few crash points of each; SQLite every fourth crash point.
``make scenarios`` tries all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import scenarios  # noqa: F401 - its modules register them
from holdfast.clock import ManualClock
from holdfast.store import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SqliteStore
from support.clocked import opened
from support.postgres import fresh_schema, server
from support.scenarios import (
    AT_ONCE,
    KINDS,
    SECONDS,
    Scenario,
    Story,
    crash_at,
    live,
    play_scenario,
    registered,
    rehearsed,
    replayed,
)

EVERYTHING = bool(os.environ.get("HOLDFAST_SCENARIOS"))
BACKENDS = ("memory", "sqlite", "postgres")
STRIDE = {"memory": 1, "sqlite": 4, "postgres": 12}  # of the crash points that are tried by default
ALL = registered()


@functools.cache
def schema() -> str:
    """One for all scenarios of this process: each has an app of its own."""
    return fresh_schema()


@contextlib.asynccontextmanager
async def opened_for(scenario: Scenario, backend: str, folder: Path) -> AsyncIterator[tuple[Store, ManualClock | None]]:
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
        store = PostgresStore(server().url, schema())
    try:
        yield store, clock
    finally:
        await store.close()


async def once(scenario: Scenario, backend: str, folder: Path, mode: Callable[[Story], Awaitable[object]]) -> None:
    async with opened_for(scenario, backend, folder) as (store, clock):
        await mode(Story(scenario, store, clock))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ALL)
def test_live(name: str, backend: str, tmp_path: Path) -> None:
    play_scenario(lambda: once(ALL[name], backend, tmp_path, live))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ALL)
def test_replayed_after_every_wait(name: str, backend: str, tmp_path: Path) -> None:
    play_scenario(lambda: once(ALL[name], backend, tmp_path, replayed))


@pytest.mark.parametrize("name", [one.name for one in ALL.values() if one.can_be_rehearsed])
def test_the_whole_history_fits_the_code_that_made_it(name: str, tmp_path: Path) -> None:
    play_scenario(lambda: once(ALL[name], "memory", tmp_path, rehearsed))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [one.name for one in ALL.values() if one.crashes])
def test_a_crash_at_any_commit_changes_nothing(name: str, backend: str, tmp_path: Path) -> None:
    stride = 1 if EVERYTHING else STRIDE[backend]
    first = zlib.crc32(f"{backend}{name}".encode()) % stride + 1
    points = (
        (at, kind) for at in itertools.count(1) for kind in KINDS if (2 * at + KINDS.index(kind)) % stride == first - 1
    )
    play_scenario(lambda: crashes(ALL[name], backend, tmp_path, points), 10 * SECONDS, quiet=False)


async def crashes(scenario: Scenario, backend: str, folder: Path, points: Iterator[tuple[int, str]]) -> None:
    """Try crash points, some side by side, until one lies after the last commit.

    In memory each has a store of its own; elsewhere they share one, and each has an app of its own.
    """

    async def one(at: int, kind: str, shared: Store | None) -> bool:
        place = folder / f"{at}-{KINDS.index(kind)}"
        place.mkdir()
        try:
            async with asyncio.timeout(SECONDS):
                if shared is not None:
                    return await crash_at(Story(scenario, shared), at, kind)
                async with opened_for(scenario, backend, place) as (store, clock):
                    return await crash_at(Story(scenario, store, clock), at, kind)
        except BaseException as error:
            error.add_note(f"{scenario.name} on {backend}: the worker was killed at commit {at}, {kind}")
            raise

    sharing = backend != "memory" and not scenario.clocked
    async with opened_for(scenario, backend, folder) as (store, _):
        while True:
            batch = list(itertools.islice(points, AT_ONCE if backend == "memory" else AT_ONCE // 2))
            tried = [one(at, kind, store if sharing else None) for at, kind in batch]
            if not all(await asyncio.gather(*tried)):
                return
