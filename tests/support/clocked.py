"""Stores whose time only the test moves."""

from __future__ import annotations

from pathlib import Path

from holdfast.clock import ManualClock
from holdfast.store import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from support.postgres import ServerClock, fresh_schema, server


def opened(backend: str, folder: Path) -> tuple[Store, ManualClock]:
    """Open one of each kind, with the clock it runs by."""
    if backend == "postgres":
        schema = fresh_schema()
        clock = ServerClock(schema)
        store = PostgresStore(server().url, schema, monotonic=clock.now)
        clock.take_over()
        return store, clock
    clock_here = ManualClock()
    if backend == "sqlite":
        return SqliteStore(folder / "jobs.db", clock_here), clock_here
    return MemoryStore(clock_here), clock_here
