"""A backup of a SQLite file that is in use is consistent, checked, and in place whole or not at all."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import apsw
import pytest

from holdfast.client.backup import backup
from holdfast.errors import InvalidArguments, InvalidSetting, StoreUnavailable
from holdfast.machines import check
from holdfast.store import Submit
from holdfast.store.sqlite.online_backup import back_up
from holdfast.store.sqlite.store import SqliteStore


def submit(name: str) -> Submit:
    return Submit(job=name, plugin="shop", entry="checkout", args={"filler": "x" * 3000})


def jobs_in(path: Path) -> list[str]:
    async def look() -> list[str]:
        store = SqliteStore(path)
        rows = await store.jobs(limit=100_000)
        for row in rows:
            assert check(await store.events(row.id), head=row.head) == []
        await store.close()
        return sorted(row.id for row in rows)

    return asyncio.run(look())


def test_a_copy_that_is_made_under_load_holds_all_that_was_acknowledged_before_and_whole_commits(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    acknowledged: list[str] = []
    ended = threading.Event()
    written = threading.Semaphore(0)

    def write() -> None:
        while not ended.is_set():
            pair = [f"{len(acknowledged) + n:06}" for n in range(2)]
            store.commit_blocking([submit(name) for name in pair])
            acknowledged.extend(pair)
            written.release()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in range(5):
            for _ in range(20):
                assert written.acquire(timeout=60)
            before = list(acknowledged)
            made = back_up(tmp_path / "jobs.db", tmp_path / f"copy-{number}.db")
            found = jobs_in(tmp_path / f"copy-{number}.db")
            assert len(found) == made.jobs >= len(before)
            assert found[: len(before)] == before
            assert len(found) % 2 == 0, "half of a commit"
            assert made.events >= made.jobs
    finally:
        ended.set()
        writing.join()
        asyncio.run(store.close())
    assert jobs_in(tmp_path / "jobs.db") == acknowledged


def test_a_copy_is_a_file_of_its_own_that_only_its_owner_can_read(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    store.commit_blocking([submit("a")])
    made = back_up(tmp_path / "jobs.db", tmp_path / "copies.db")
    assert (made.path, made.jobs, made.bytes) == (
        str(tmp_path / "copies.db"),
        1,
        (tmp_path / "copies.db").stat().st_size,
    )
    assert stat.S_IMODE((tmp_path / "copies.db").stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.glob("*copies*")} == {"copies.db"}, "nothing else is left there"
    store.commit_blocking([submit("b")])
    assert jobs_in(tmp_path / "copies.db") == ["a"]
    asyncio.run(store.close())


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    store.commit_blocking([submit("a")])
    there = tmp_path / "copy.db"
    there.write_text("something else")
    with pytest.raises(InvalidArguments, match=r"copy\.db exists: name another file, or use --force"):
        back_up(tmp_path / "jobs.db", there)
    assert there.read_text() == "something else"
    assert back_up(tmp_path / "jobs.db", there, force=True).jobs == 1
    assert jobs_in(there) == ["a"]
    asyncio.run(store.close())


def test_a_destination_that_is_in_use_the_database_itself_or_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    other = SqliteStore(tmp_path / "other.db")
    for there, why in ((path, "is the database itself"), (tmp_path, "is a directory"), (tmp_path / "other.db", "uses")):
        with pytest.raises(InvalidArguments, match=why):
            back_up(path, there, force=True)
    with pytest.raises(StoreUnavailable, match="check the path"):
        back_up(path, tmp_path / "missing" / "copy.db")
    for one in (store, other):
        asyncio.run(one.close())


def test_what_cannot_be_backed_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no such file to back up"):
        backup(f"sqlite:///{tmp_path / 'missing.db'}", tmp_path / "copy.db")
    with pytest.raises(InvalidSetting, match="pg_dump") as refused:
        backup("postgresql://user:secret@host/shop", tmp_path / "copy.db")
    assert "secret" not in str(refused.value)
    with pytest.raises(InvalidSetting, match="only a SQLite file can be backed up"):
        backup("memory:", tmp_path / "copy.db")
    (tmp_path / "notes.txt").write_text("this is not a database, it is a shopping list" * 100)
    with pytest.raises(StoreUnavailable, match="not a SQLite database"):
        backup(f"sqlite:///{tmp_path / 'notes.txt'}", tmp_path / "copy.db")
    apsw.Connection(str(tmp_path / "others.db")).execute("CREATE TABLE a (b)").close()
    with pytest.raises(StoreUnavailable, match="not a database of Holdfast"):
        backup(f"sqlite:///{tmp_path / 'others.db'}", tmp_path / "copy.db")
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "others.db"}


def test_a_damaged_database_leaves_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    store.commit_blocking([submit(f"j{number}") for number in range(50)])
    asyncio.run(store.close())
    data = bytearray(path.read_bytes())
    for offset in range(8192, len(data) - 4096, 4096):
        data[offset : offset + 64] = bytes(range(64))
    path.write_bytes(data)
    with pytest.raises(StoreUnavailable, match="damaged"):
        back_up(path, tmp_path / "copy.db")
    assert not list(tmp_path.glob("*copy*"))
