"""Locks of the shared memory that stay when a second SQLite library in the process closes the file."""

from __future__ import annotations

import asyncio
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.store.sqlite import descriptor_locks
from holdfast.store.sqlite.store import SqliteStore

# Another process: says whether it can write, or how much of the log a checkpoint could not move.
WRITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    print(error)
else:
    print("wrote")
"""
TRUNCATE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
print(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
"""


def other_process(code: str, path: Path) -> str:
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def read_with_another_library(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=0)
    connection.execute("SELECT count(*) FROM jobs").fetchone()
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A database that a store of this process has open."""
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    yield path
    asyncio.run(store.close())


@pytest.fixture
def connection(path: Path) -> Iterator[apsw.Connection]:
    """A connection of the library that the store uses."""
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE notes (text)")
    connection.execute("INSERT INTO notes VALUES ('first')")
    yield connection
    connection.close()


def test_a_transaction_stays_alone_when_another_library_reads_and_closes(
    path: Path, connection: apsw.Connection
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    read_with_another_library(path)
    assert other_process(WRITE, path) == "database is locked"
    connection.execute("COMMIT")
    assert other_process(WRITE, path) == "wrote"


def test_the_log_of_a_reader_stays_when_another_library_reads_and_closes(
    path: Path, connection: apsw.Connection
) -> None:
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM notes").get == 1
    connection.execute("INSERT INTO notes VALUES ('second')")
    read_with_another_library(path)
    assert other_process(TRUNCATE, path) == "1", "busy: a reader needs the log"
    assert reader.execute("SELECT count(*) FROM notes").get == 1
    reader.close()
    assert other_process(TRUNCATE, path) == "0"


def test_two_libraries_of_one_process_do_not_write_at_once(path: Path, connection: apsw.Connection) -> None:
    second = sqlite3.connect(path, timeout=0, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        second.execute("BEGIN IMMEDIATE")
    connection.execute("COMMIT")
    second.execute("BEGIN IMMEDIATE")
    with pytest.raises(apsw.BusyError):
        connection.execute("BEGIN IMMEDIATE")
    second.close()


def test_a_forked_child_and_its_parent_do_not_write_at_once(tmp_path: Path) -> None:
    code = """
import os, sys, apsw
from holdfast.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
own = apsw.Connection(sys.argv[1])
own.execute("SELECT count(*) FROM jobs").get  # from here on it has the shared memory open, which the child inherits
(asked, ask), (told, tell) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(ask)
    second = SqliteStore(sys.argv[1])
    second._write_connection.execute("BEGIN IMMEDIATE")
    os.write(tell, b"begun")
    os.read(asked, 9)
    os._exit(0)
os.close(tell)
assert os.read(told, 9) == b"begun"
try:
    own.execute("BEGIN IMMEDIATE")
except apsw.BusyError:
    print("busy")
os.close(ask)
os.wait()
own.execute("BEGIN IMMEDIATE")
print("wrote")
"""
    assert other_process(code, tmp_path / "jobs.db").split() == ["busy", "wrote"]


def test_a_connection_that_was_open_before_keeps_its_kind_of_locks(tmp_path: Path) -> None:
    code = """
import sys, apsw
from holdfast.store.sqlite import descriptor_locks
own = apsw.Connection(sys.argv[1])
print(descriptor_locks.install())
own.close()
print(descriptor_locks.install(), descriptor_locks.install())
"""
    assert other_process(code, tmp_path / "jobs.db").split() == ["False", "True", "True"]


def test_a_processor_without_code_keeps_the_posix_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descriptor_locks.is_supported()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not descriptor_locks.is_supported()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_code_ends_in_a_jump_to_the_call_that_was_there_before(machine: str) -> None:
    first, second = (descriptor_locks.machine_code(machine, address) for address in (0, 2**64 - 1))
    changed = [place for place in range(len(first)) if first[place] != second[place]]
    assert changed == list(range(changed[0], changed[0] + 8))
    assert len(first) == len(second) == {"x86_64": 44, "aarch64": 48}[machine]
