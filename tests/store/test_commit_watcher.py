"""What other processes commit to a SQLite file is heard of, and nobody asks for it again and again."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.store import Append, Claim, Submit
from holdfast.store.sqlite.commit_watcher import BURST, FRUITLESS_MAX, LOOKS_MAX, CommitWatcher, Pace
from holdfast.store.sqlite.store import SqliteStore


def submission(name: str) -> Submit:
    return Submit(job=name, plugin="shop", entry="greet", args={}, fingerprint="f")


class Told:
    """Counts what a store tells of."""

    def __init__(self) -> None:
        self.times = 0
        self._event = threading.Event()

    def __call__(self, change: int) -> None:
        assert change
        self.times += 1
        self._event.set()

    def wait(self) -> bool:
        heard = self._event.wait(60)
        self._event.clear()
        return heard


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[SqliteStore, SqliteStore]]:
    here, there = (SqliteStore(tmp_path / "jobs.db") for _ in range(2))
    yield here, there
    for store in (here, there):
        asyncio.run(store.close())


def test_a_commit_of_another_is_heard_of(stores: tuple[SqliteStore, SqliteStore]) -> None:
    here, there = stores
    told = Told()
    end = here.subscribe(told)
    for number in range(3):
        there.commit_blocking([submission(f"job-{number}")])
        assert told.wait()
    assert here.change_count() == 3
    end()


def test_a_commit_of_ones_own_is_told_once_and_not_heard_of_again(stores: tuple[SqliteStore, SqliteStore]) -> None:
    here, there = stores
    told = Told()
    here.subscribe(told)
    here.commit_blocking([submission("own")])
    assert told.wait()
    there.commit_blocking([submission("other")])
    assert told.wait()
    assert (told.times, here.change_count()) == (2, 1)


def test_who_writes_without_a_ring_is_noticed_all_the_same(stores: tuple[SqliteStore, SqliteStore]) -> None:
    here, _ = stores
    told = Told()
    here.subscribe(told)
    connection = apsw.Connection(str(here._path))
    connection.execute("DELETE FROM workers WHERE name = 'nobody'; CREATE TABLE elsewhere (a); DROP TABLE elsewhere")
    connection.close()
    assert told.wait()


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_commit_of_another_program_right_after_ones_own_is_noticed(
    stores: tuple[SqliteStore, SqliteStore], monkeypatch: pytest.MonkeyPatch, *, is_blocking: bool
) -> None:
    """It comes before the thread that commits has read the mark of its own commit."""
    here, _ = stores
    told = Told()
    here.subscribe(told)
    files, other = here._files, apsw.Connection(str(here._path))
    read_mark, foreign = files.commit_mark, iter(["CREATE TABLE elsewhere (a)"])

    def commit_mark() -> object:
        if threading.current_thread().name != "holdfast-ear" and not here._write_connection.in_transaction:
            other.execute(next(foreign, ""))
        return read_mark()

    monkeypatch.setattr(files, "commit_mark", commit_mark)
    here.commit_blocking([submission("own")]) if is_blocking else asyncio.run(here.commit([submission("own")]))
    assert told.wait()
    while not here.change_count():
        assert told.wait()
    assert next(foreign, None) is None
    other.close()


def test_a_commit_counts_although_the_file_cannot_be_asked_about_it(
    stores: tuple[SqliteStore, SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached row is that of the commit, so the next event of the job gets the next number."""
    here, _ = stores
    here.commit_blocking([submission("a")])
    here.commit_blocking(
        [Claim(worker="w", entries=frozenset({("shop", "greet")}), queues=None, limit=1, lease_seconds=60)]
    )
    files, refused = here._files, []
    read_mark = files.commit_mark

    def refuse(*_: object) -> int:
        refused.append(1)
        return apsw.SQLITE_DENY

    def commit_mark() -> object:
        here._write_connection.authorizer = refuse if not here._write_connection.in_transaction else None
        return read_mark()

    step = (("node_started", {"node": "s:0", "name": "s", "try": 1, "args": {}}),)
    with monkeypatch.context() as patched:
        patched.setattr(files, "commit_mark", commit_mark)
        (first,) = here.commit_blocking([Append("a", 1, step)])
    here._write_connection.authorizer = None
    (second,) = here.commit_blocking([Append("a", 1, step)])
    assert refused
    assert (first.version, second.version) == (3, 4)
    assert [event.seq for event in asyncio.run(here.events("a"))] == [1, 2, 3, 4]


def test_a_commit_is_heard_of_where_sqlite_keeps_no_log(tmp_path: Path) -> None:
    """Some file systems cannot share memory. There nothing but the database shows whose commit the last one was."""
    system = apsw.VFS("holdfast-without-log", base="unix-dotfile", makedefault=True)
    try:
        here, there = (SqliteStore(tmp_path / "jobs.db") for _ in range(2))
        assert here._write_connection.pragma("journal_mode") == "delete"
        told = Told()
        here.subscribe(told)
        for number in range(3):
            there.commit_blocking([submission(f"job-{number}")])
            assert told.wait()
        for store in (here, there):
            asyncio.run(store.close())
    finally:
        system.unregister()


def test_a_commit_is_heard_of_after_the_log_was_removed_and_made_again(tmp_path: Path) -> None:
    """The store's files stay open for a connection of the user's code, which then removes the log as the last user."""
    first = SqliteStore(tmp_path / "jobs.db")
    connection = apsw.Connection(str(first._path))
    connection.execute("SELECT count(*) FROM jobs").fetchall()
    asyncio.run(first.close())
    connection.close()
    assert not Path(f"{first._path}-shm").exists()
    here, there = (SqliteStore(tmp_path / "jobs.db") for _ in range(2))
    told = Told()
    here.subscribe(told)
    here.commit_blocking([submission("own")])
    assert told.wait()
    there.commit_blocking([submission("other")])
    assert told.wait()
    for store in (here, there):
        asyncio.run(store.close())


def test_without_the_systems_help_the_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())  # a system without inotify
    here, there = (SqliteStore(tmp_path / "jobs.db", poll_seconds=0.001) for _ in range(2))
    told = Told()
    here.subscribe(told)
    assert here._watcher is not None
    assert not here._watcher.is_woken
    there.commit_blocking([submission("other")])
    assert told.wait()
    for store in (here, there):
        asyncio.run(store.close())


def test_a_bell_that_cannot_be_watched_is_looked_at(tmp_path: Path) -> None:
    looked = threading.Event()

    def look() -> bool:
        looked.set()
        return False

    ear = CommitWatcher(tmp_path / "nothing", lambda: None, look, poll_seconds=0.001)
    assert not ear.is_woken
    assert looked.wait(60)
    ear.stop()


def test_somebody_whose_loop_was_closed_does_not_end_the_ear(tmp_path: Path) -> None:
    bell = tmp_path / "bell"
    bell.touch()
    looked = threading.Semaphore(0)

    def look() -> bool:
        looked.release()
        raise RuntimeError("Event loop is closed")

    ear = CommitWatcher(bell, lambda: None, look, poll_seconds=0.001)
    assert ear.is_woken
    descriptor = os.open(bell, os.O_RDWR)
    for _ in range(2):
        os.pwrite(descriptor, b"!", 0)
        assert looked.acquire(timeout=60)
    os.close(descriptor)
    ear.stop()


def test_an_ear_that_is_not_rung_does_not_look(tmp_path: Path) -> None:
    bell = tmp_path / "bell"
    bell.touch()
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        return True

    ear = CommitWatcher(bell, lambda: None, look, poll_seconds=0.001)
    assert not ear._rung(ear._watched or 0)
    ear.stop()
    assert looks == []


def test_a_few_commits_are_seen_at_once_and_many_at_a_bounded_rate() -> None:
    pace, now, pauses = Pace(0.02, now=0.0), 0.0, []
    for _ in range(BURST + LOOKS_MAX):  # each commit comes as soon as the last was seen
        pauses.append(pace.after(now, found=True))
        now += pauses[-1]
    assert pauses[:BURST] == [0.0] * BURST
    assert now == pytest.approx(1.0, rel=0.01), "so many looks a second"
    assert pace.after(now + 1, found=True) == 0, "after a silence the first commits are seen at once again"


def test_commits_of_ones_own_are_looked_at_less_and_less_often() -> None:
    pace, now, pauses = Pace(0.02, now=0.0), 0.0, []
    for _ in range(FRUITLESS_MAX + 20):
        pauses.append(pace.after(now, found=False))
        now += pauses[-1] + 0.01
    assert pauses[0] == 0
    assert pauses[-1] == 0.02
    assert pauses == sorted(pauses)
    assert pace.after(now, found=True) < 0.02
