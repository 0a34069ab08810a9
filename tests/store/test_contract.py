"""Every backend keeps the whole contract."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.store import Store, contract
from holdfast.store.contract import CONTRACT, Clause, Lab
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from support.postgres import ServerClock, fresh_schema, server

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


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
def test_the_contract_on_postgres(clause: Clause) -> None:
    schema = fresh_schema()

    async def keep() -> None:
        clock = ServerClock(schema)
        store = PostgresStore(server().url, schema, monotonic=clock.now)
        clock.take_over()
        try:
            await clause(Lab(store, clock))
        finally:
            await store.close()

    asyncio.run(keep())


def test_every_clause_that_is_written_is_in_the_contract() -> None:
    folder = Path(contract.__file__).parent
    written = [
        name
        for path in folder.glob("*.py")
        for name in re.findall(r"^async def ([a-z]\w+)\(lab", path.read_text(), re.MULTILINE)
    ]
    assert sorted(written) == sorted(clause.__name__ for clause in CONTRACT)
    assert len(CONTRACT) == len(set(written)) > 40
