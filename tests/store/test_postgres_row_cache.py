"""Rows that a process knows are locked and not read; a row that somebody has changed is read again."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast.errors import UnknownJob
from holdfast.machines import JobState
from holdfast.store import Append, Cancel, Pause, PutWorker, Renew, WorkerCard
from holdfast.store.postgres import transaction
from holdfast.store.postgres.row_cache import RowCache
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows import Job
from holdfast.store.sql.columns import job_of
from support.postgres import fresh_schema, server
from support.postgres_store import claim, submit, with_store
from support.stories import play, until

STEP = (("node_started", {"node": "s:0", "name": "s", "try": 1, "args": {}}),)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the rows that batches have read."""
    names: list[str] = []

    def seen(row: tuple[Any, ...]) -> Job:
        names.append(row[0])
        return job_of(row)

    monkeypatch.setattr(transaction, "job_of", seen)
    return names


def test_what_we_have_written_ourselves_is_not_read_again(read: list[str]) -> None:
    async def story(store: PostgresStore) -> None:
        await store.commit([submit("a"), submit("b")])
        await store.commit([claim(), claim()])
        read.clear()
        for _ in range(3):
            await store.commit([Append("a", 1, STEP), Append("b", 1, STEP)])
            await store.commit([Renew("w", (("a", 1), ("b", 1)), 60)])
        assert read == []
        (done,) = await store.commit([Append("a", 1, (("job_completed", {"result": None}),))])
        assert (done.state, done.version) == (JobState.COMPLETED, 6)

    with_store(story)


def test_what_another_process_has_changed_is_read_again(read: list[str]) -> None:
    """A pause leaves the stream as it is; a cancel does not."""
    url, schema = server().url, fresh_schema()

    async def story() -> None:
        here, there = (PostgresStore(url, schema) for _ in range(2))
        await here.commit([submit(name) for name in "abc"])
        await here.commit([claim() for _ in range(3)])
        await there.commit([Pause("a"), Cancel("b", "no more")])
        read.clear()
        (leases,) = await here.commit([Renew("w", tuple((name, 1) for name in "abc"), 60)])
        assert (leases.pause, leases.cancel, leases.lost) == ({"a"}, {"b"}, frozenset())
        assert sorted(read) == ["a", "b"]
        await here.close()
        await there.close()

    play(story())


def test_what_changes_while_its_lock_is_waited_for_is_read_again() -> None:
    """The row that the lock is given for is the one that was written meanwhile."""
    schema = fresh_schema()

    async def story(store: PostgresStore) -> None:
        await store.commit([submit("a")])
        await store.commit([claim()])
        with psycopg.connect(server().url) as other, psycopg.connect(server().url, autocommit=True) as looking:
            other.execute(f"UPDATE {schema}.jobs SET pause = true WHERE id = 'a'".encode())
            assert store._write_connection is not None
            pid = store._write_connection.info.backend_pid

            async def waits() -> bool:
                asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
                return looking.execute(asked, (pid,)).fetchone() == (True,)

            renewing = asyncio.create_task(store.commit([Renew("w", (("a", 1),), 60)]))
            await until(waits)
            other.commit()
            (leases,) = await renewing
        assert leases.pause == {"a"}

    with_store(story, schema)


def test_rows_that_are_known_and_gone_are_unknown_jobs(read: list[str]) -> None:
    """No row is locked then, so the time comes from elsewhere."""
    url, schema = server().url, fresh_schema()

    async def story() -> None:
        store = PostgresStore(url, schema)
        card = WorkerCard("w", "host", 1, 1, None, (), 60.0)
        await store.commit([submit("a"), submit("b")])
        await store.commit([claim(), claim()])
        read.clear()
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(f"DELETE FROM {schema}.jobs WHERE id = 'a'")
        gone, kept = await store.commit([Append("a", 1, STEP), Append("b", 1, STEP)])
        assert (type(gone), kept.version) == (UnknownJob, 3)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(f"DELETE FROM {schema}.jobs WHERE id = 'b'")
        for _ in range(2):
            gone, _ = await store.commit([Append("b", 1, STEP), PutWorker(card)])
            assert type(gone) is UnknownJob
            (worker,) = await store.workers()
            assert worker.seen_at > 0
        (leases,) = await store.commit([Renew("w", (("a", 1), ("b", 1)), 60)])
        assert leases.lost == {"a", "b"}
        assert read == []
        await store.commit([submit("c")])
        row = await store.get("c")
        assert row is not None
        assert row.created_at > 0
        await store.close()

    play(story())


def test_rows_are_forgotten_with_the_connection(read: list[str]) -> None:
    async def story(store: PostgresStore) -> None:
        await store.commit([submit("a")])
        await store.commit([claim()])
        assert store._write_connection is not None
        store._write_connection.close()
        read.clear()
        await store.commit([Append("a", 1, STEP)])
        assert read == ["a"]

    with_store(story)


def test_a_row_of_the_same_transaction_with_another_stream_is_not_the_one_we_know() -> None:
    """As on a standby that has taken over, and gives a number again that the server before it had given."""

    async def story(store: PostgresStore) -> None:
        await store.commit([submit("a")])
        await store.commit([claim()])
        row = await store.get("a")
        assert row is not None
        seen = RowCache()
        seen.remember({"a": row}, {"a"}, "7")
        assert seen.unchanged("a", "7", row.head) is row
        assert seen.unchanged("a", "8", row.head) is None
        assert seen.unchanged("a", "7", "0" * 64) is None
        seen.remember({"a": None}, {"a"}, "9")
        assert seen.unchanged("a", "7", row.head) is None

    with_store(story)
