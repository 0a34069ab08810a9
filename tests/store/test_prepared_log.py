"""The log of a SQLite file is made longer ahead of SQLite: no reader and no recovery takes that for transactions."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from holdfast.store import Submit
from holdfast.store.sqlite.database_files import LOG_BYTES, LOG_BYTES_FIRST
from holdfast.store.sqlite.store import SqliteStore

COUNT = 400  # more than fill the log once


def submit(number: int) -> Submit:
    return Submit(job=f"job-{number:03}", plugin="shop", entry="checkout", args={})


def names_in(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [name for (name,) in connection.execute("SELECT id FROM jobs ORDER BY id")]
    finally:
        connection.close()


def test_a_copy_of_the_files_at_any_time_has_every_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    log, sizes = tmp_path / "jobs.db-wal", set()
    for number in range(COUNT):
        store.commit_blocking([submit(number)])
        sizes.add(log.stat().st_size)
        if number % 20 in {1, 2}:
            copy = tmp_path / f"copy-{number}.db"
            shutil.copyfile(tmp_path / "jobs.db", copy)
            shutil.copyfile(log, f"{copy}-wal")
            assert names_in(copy) == [f"job-{each:03}" for each in range(number + 1)]
    assert max(sizes) == LOG_BYTES, "SQLite has reused the log before its end"
    asyncio.run(store.close())
    assert not log.exists()
    assert len(names_in(tmp_path / "jobs.db")) == COUNT


def test_a_process_with_one_commit_writes_no_more_than_it_needs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    asyncio.run(store.close())
    store = SqliteStore(tmp_path / "jobs.db")
    store.commit_blocking([submit(1)])
    assert (tmp_path / "jobs.db-wal").stat().st_size <= LOG_BYTES_FIRST
    asyncio.run(store.close())


def test_a_log_that_cannot_be_prepared_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    monkeypatch.setattr(store._files, "_real_path", str(tmp_path / "nowhere" / "jobs.db"))
    for number in range(20):
        store.commit_blocking([submit(number)])
    monkeypatch.undo()
    assert asyncio.run(store.get("job-019")) is not None
    asyncio.run(store.close())
