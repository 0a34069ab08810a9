"""Every backend keeps the whole contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.store import Store
from holdfast.store.contract import CONTRACT, Clause, Lab
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

BACKENDS: dict[str, Callable[[Path, ManualClock], Store]] = {
    "memory": lambda _, clock: MemoryStore(clock),
    "sqlite": lambda folder, clock: SqliteStore(folder / "jobs.db", clock),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
def test_the_contract(clause: Clause, backend: str, tmp_path: Path) -> None:
    clock = ManualClock()

    async def keep() -> None:
        store = BACKENDS[backend](tmp_path, clock)
        try:
            await clause(Lab(store, clock))
        finally:
            await store.close()

    asyncio.run(keep())
