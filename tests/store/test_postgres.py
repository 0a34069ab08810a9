"""What only a server can do: end a connection, refuse a value, be shared by many processes, be newer than we are."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, InvalidArguments, StoreUnavailable, wait_for
from holdfast.machines import JobState
from holdfast.store import (
    Append,
    Command,
    PutWorker,
    ReleaseLeases,
    SendSignal,
)
from holdfast.store.postgres import store as backend
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.transaction import Transaction
from holdfast.store.sql.migrate import migrations
from support.pooler import Pooler
from support.postgres import fresh_schema, fresh_url, server
from support.postgres_store import card, claim, submit, with_store
from support.stories import drain, play, quick, until


def asked(sql: str, *bindings: Any) -> list[Any]:
    """What somebody else sees who looks into the database."""
    with psycopg.connect(server().url, autocommit=True) as connection:
        return connection.execute(sql, bindings).fetchall()


def end(pid: int) -> None:
    """End a connection, and wait until it is gone."""
    assert asked("SELECT pg_terminate_backend(%s, 10000)", pid) == [(True,)]


# Connections


def test_a_connection_that_ended_while_nobody_used_it_costs_nothing() -> None:
    async def story(store: PostgresStore) -> None:
        await store.commit([submit("a")])
        assert await store.get("a") is not None
        for connection in (store._write_connection, store._read_connection):
            assert connection is not None
            end(connection.info.backend_pid)
        assert await store.get("a") is not None
        assert [one.job for one in await store.commit([submit("b")])] == ["b"]

    with_store(story)


def test_a_connection_that_ends_inside_a_transaction_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = Transaction.carry_out

    def ended(transaction: Transaction, batch: Sequence[Command]) -> list[Any]:
        answers = carry_out(transaction, batch)
        monkeypatch.undo()
        end(transaction._connection.info.backend_pid)
        transaction._connection.execute(transaction._sql.clock)  # it has more to say, and cannot
        return answers

    async def story(store: PostgresStore) -> None:
        monkeypatch.setattr(Transaction, "carry_out", ended)
        assert [one.job for one in await store.commit([submit("a")])] == ["a"]
        assert [row.version for row in await store.jobs()] == [1]

    with_store(story)


def test_a_connection_that_does_not_know_that_it_was_ended_is_not_used_for_ever() -> None:
    async def story(store: PostgresStore) -> None:
        connection = store._write_connection
        assert connection is not None
        connection.pgconn.send_query(b"SELECT 1")  # under way, and nobody will ask for the answer
        end(connection.info.backend_pid)
        assert [one.job for one in await store.commit([submit("a")])] == ["a"]

    with_store(story)


def test_a_thread_that_commits_while_the_store_closes_writes_to_no_other_file(tmp_path: Path) -> None:
    async def story(store: PostgresStore) -> None:
        listener = store._listener
        closed = listener._wake_write
        await store.close()
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        os.dup2(other, closed)  # as the next file that the process opens
        listener.wake()
        assert os.fstat(other).st_size == 0
        os.close(closed)
        os.close(other)

    with_store(story)


def test_nobody_knows_of_a_commit_that_was_not_answered_and_it_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(store: PostgresStore) -> None:
        message = store._listener.message

        def ended(change: int) -> tuple[str, str]:
            assert store._write_connection is not None
            end(store._write_connection.info.backend_pid)
            return message(change)

        monkeypatch.setattr(store._listener, "message", ended)
        with pytest.raises(StoreUnavailable, match="check the server and the URL"):
            await store.commit([submit("a")])
        monkeypatch.undo()
        assert await store.get("a") is None
        await store.commit([submit("a")])
        assert await store.get("a") is not None

    with_store(story)


def test_a_server_that_falls_silent_is_given_up_unless_the_url_says_otherwise() -> None:
    async def silence(store: PostgresStore) -> str:
        assert store._write_connection is not None
        return str(store._write_connection.info.get_parameters()["tcp_user_timeout"])

    assert with_store(silence) == "10000"

    async def said() -> str:
        store = PostgresStore(f"{server().url}?tcp_user_timeout=99000", fresh_schema())
        try:
            return await silence(store)
        finally:
            await store.close()

    assert play(said()) == "99000"


def test_a_store_with_a_worker_has_three_connections() -> None:
    async def story() -> None:
        name = f"c{fresh_schema()[-12:]}"
        app = App("shop", config=quick(f"{fresh_url()}&application_name={name}"))

        @app.step
        async def price(n: int) -> int:
            return n

        @app.job
        async def checkout(n: int) -> int:
            return await price(n)

        worker = app.worker(concurrency=50)
        working = asyncio.create_task(worker.arun())
        handles = [await app.astart(checkout, number) for number in range(30)]
        most = 0
        await until(lambda: connected(name, 3))  # also the one that listens
        for handle in handles:
            await handle.aresult(timeout=60)
            most = max(most, asked("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", name)[0][0])
        worker.stop()
        await working
        assert most == 3
        await app.aclose()
        await until(lambda: connected(name, 0))

    async def connected(name: str, times: int) -> bool:
        return asked("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", name) == [(times,)]

    play(story())


def test_writing_and_reading_need_no_state_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a pooler in transaction mode, where every transaction may be on another connection."""
    persist, fetch = PostgresStore._persist, PostgresStore._fetch
    discarded = []

    def forgetful(store: PostgresStore, batch: Sequence[Command]) -> Any:
        store._connected_for_writing().execute("DISCARD ALL", prepare=False)
        discarded.append("write")
        return persist(store, batch)

    def forgetful_too(store: PostgresStore, sql: str, bindings: Sequence[Any]) -> Any:
        store._connected_for_reading().execute("DISCARD ALL", prepare=False)
        discarded.append("read")
        return fetch(store, sql, bindings)

    monkeypatch.setattr(PostgresStore, "_persist", forgetful)
    monkeypatch.setattr(PostgresStore, "_fetch", forgetful_too)

    async def story() -> None:
        app = App("shop", config=quick(fresh_url()))

        @app.tool
        async def charge(n: int) -> str:
            return f"receipt {n}"

        @app.job
        async def notify(n: int) -> str:
            return await charge(n)

        @app.job
        async def checkout(n: int) -> list[str]:
            return [await wait_for("shipped"), await notify(n)]

        handle = await app.astart(checkout, 1)
        await drain(app)
        await handle.asignal("shipped", "dhl")
        await drain(app)
        assert await handle.aresult(timeout=60) == ["dhl", "receipt 1"]
        assert await app.averify() == {}
        await app.aclose()

    play(story())
    assert {"read", "write"} == set(discarded)


def test_a_process_with_many_open_files_hears_of_others() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard != resource.RLIM_INFINITY else 4096, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    schema = fresh_schema()

    async def story(store: PostgresStore) -> None:
        await until(lambda: heard(store, 1))  # that it listens
        other = PostgresStore(server().url, schema)
        await other.commit([submit("a")])
        await until(lambda: heard(store, 2))
        assert await store.get("a") is not None
        await other.close()

    async def heard(store: PostgresStore, times: int) -> bool:
        return store.change_count() >= times

    try:
        with_store(story, schema)
    finally:
        for one in files:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_behind_a_pooler_nothing_is_heard_and_no_lock_is_left_that_others_would_judge_a_worker_by() -> None:
    schema = fresh_schema()

    async def story() -> None:
        with Pooler() as pooler:
            app = App("shop", config=quick(f"{pooler.url}?schema={schema}"))

            @app.job
            async def greet() -> str:
                return "hello"

            worker = app.worker(name="w")
            working = asyncio.create_task(worker.arun())
            handle = await app.astart(greet)
            assert await handle.aresult(timeout=60) == "hello"
            store = app.store()
            assert isinstance(store, PostgresStore)
            await until(lambda: listed(schema))
            await asyncio.to_thread(store._listener._thread.join, 60)
            for _ in range(3):
                store.commit_blocking([PutWorker(card("w"))])
            assert asked(f"SELECT name, lock_key FROM {schema}.workers") == [("w", None)]
            assert store.change_count() == 0
            worker.stop()
            await working
            await app.aclose()
            pooler.shutdown()

    async def listed(schema: str) -> bool:
        return asked(f"SELECT count(*) FROM {schema}.workers") == [(1,)]

    play(story())


# Schemas


def test_a_schema_of_a_newer_release_is_refused_and_left_alone() -> None:
    schema = fresh_schema()
    with_store(lambda store: store.commit([submit("a")]), schema)
    asked(f"INSERT INTO {schema}.migrations (number) VALUES (99) RETURNING 1")
    known = len(migrations("postgres"))
    with pytest.raises(StoreUnavailable, match=f"the database has schema 99, this release of Holdfast knows {known}"):
        PostgresStore(server().url, schema)
    assert asked(f"SELECT count(*) FROM {schema}.jobs") == [(1,)]
    assert asked(f"SELECT max(number), count(*) FROM {schema}.migrations") == [(99, known + 1)]


def test_eight_processes_that_open_an_empty_database_make_its_tables_once() -> None:
    script = """
import asyncio, sys
from holdfast.store import Submit
from holdfast.store.postgres.store import PostgresStore

async def main(url, schema, name):
    print("ready", flush=True)
    sys.stdin.readline()
    store = PostgresStore(url, schema)
    (answer,) = await store.commit([Submit(job=name, plugin="shop", entry="checkout", args={})])
    print(answer.job, flush=True)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""
    schema = fresh_schema()
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", script, server().url, schema, f"j{number}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(8)
    ]  # fmt: skip
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    assert [opener.communicate(timeout=60)[0] for opener in openers] == [f"j{number}\n" for number in range(8)]
    steps = len(migrations("postgres"))
    assert asked(f"SELECT count(*) FROM {schema}.migrations") == [(steps,)]
    assert asked(f"SELECT count(*) FROM {schema}.jobs") == [(8,)]


# Who is alive


def holders(schema: str, worker: str) -> list[int]:
    sql = f"SELECT pid FROM pg_locks l, {schema}.workers w WHERE l.locktype = 'advisory' AND l.granted AND w.name = %s"
    return [pid for (pid,) in asked(f"{sql} AND ((l.classid::bigint << 32) | l.objid::bigint) = w.lock_key", worker)]


async def alive(schema: str, worker: str) -> bool:
    return bool(holders(schema, worker))


def test_a_worker_that_takes_its_lock_again_in_time_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PATIENCE_SECONDS", 20.0)
    schema = fresh_schema()

    async def story(store: PostgresStore) -> None:
        other = PostgresStore(server().url, schema)
        store.hold_liveness_lock("w")
        store.commit_blocking([PutWorker(card("w"))])
        await until(lambda: alive(schema, "w"))
        for pid in holders(schema, "w"):
            end(pid)
        while not await alive(schema, "w"):
            assert await other.dead_workers() == []
        assert await other.dead_workers() == []
        assert other._suspects == {}, "nothing is held against it"
        await other.close()

    with_store(story, schema)


def test_a_worker_that_only_lost_the_connection_it_listens_on_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot make that connection again: there are no more for its role. Its heartbeat has one (L10)."""
    monkeypatch.setattr(backend, "PATIENCE_SECONDS", 0.05)
    schema = fresh_schema()
    asked_for = f"CREATE ROLE r{schema} LOGIN; GRANT CREATE ON DATABASE postgres TO r{schema}"
    url = server().url.replace("postgres@", f"r{schema}@")

    async def story() -> None:
        with psycopg.connect(server().url, autocommit=True) as owner:
            owner.execute(asked_for.encode())
        store, other = PostgresStore(url, schema), PostgresStore(server().url, schema)
        store.hold_liveness_lock("w")
        store.commit_blocking([PutWorker(card("w"))])
        await until(lambda: alive(schema, "w"))
        store.commit_blocking([PutWorker(card("w"))])
        with psycopg.connect(server().url, autocommit=True) as owner:
            owner.execute(f"ALTER ROLE r{schema} CONNECTION LIMIT 0".encode())
        assert store._write_connection is not None
        listening = set(holders(schema, "w")) - {store._write_connection.info.backend_pid}
        assert len(listening) == 1
        for pid in listening:
            end(pid)
        until_then = time.monotonic() + 20 * backend.PATIENCE_SECONDS
        while time.monotonic() < until_then:
            assert await other.dead_workers() == []
        await store.close()

        async def dead() -> bool:
            return await other.dead_workers() == ["w"]

        await until(dead)
        await other.close()

    play(story())


def test_a_report_shows_that_a_worker_lives_that_has_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PATIENCE_SECONDS", 0.5)
    schema = fresh_schema()

    async def story(store: PostgresStore) -> None:
        other = PostgresStore(server().url, schema)
        store.hold_liveness_lock("w")
        store.commit_blocking([PutWorker(card("w"))])
        await until(lambda: alive(schema, "w"))
        await store.close()
        until_then = time.monotonic() + 3 * backend.PATIENCE_SECONDS
        while time.monotonic() < until_then:
            await other.commit([PutWorker(card("w"))])
            assert await other.dead_workers() == []

        async def dead() -> bool:
            return await other.dead_workers() == ["w"]

        await until(dead)
        await other.close()

    async def run() -> None:
        await story(PostgresStore(server().url, schema))

    play(run())


def test_a_refused_statement_is_not_logged_by_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    """A key that another transaction has created refuses the pipeline; the batch is carried out again, silently."""

    async def story(store: PostgresStore) -> None:
        await store.commit([submit("a")])
        (answer,) = await store.commit([submit("a")])
        assert answer.existing
        bad = SendSignal("a", "\0", None, "s")
        (refusal,) = await store.commit([bad])
        assert isinstance(refusal, InvalidArguments)

    with_store(story)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("psycopg")] == []


def test_a_worker_that_was_buried_alive_is_seen_again_and_its_death_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PATIENCE_SECONDS", 0.05)
    schema = fresh_schema()

    async def story(store: PostgresStore) -> None:
        other = PostgresStore(server().url, schema)
        store.hold_liveness_lock("w")
        store.commit_blocking([PutWorker(card("w"))])
        await until(lambda: alive(schema, "w"))
        await store.commit([submit("a"), claim()])
        await other.commit([ReleaseLeases("w")])
        assert await store.dead_workers() == []
        (answer,) = await store.commit([Append("a", 1, (("job_completed", {}),))])
        assert type(answer).__name__ == "StaleAttempt"
        row = await store.get("a")
        assert row is not None
        assert (row.state, row.version) == (JobState.RUNNING, 2), "it wrote nothing"
        store.commit_blocking([PutWorker(card("w"))])
        assert await alive(schema, "w"), "its lock is on its new card"
        await store.close()

        async def dead() -> bool:
            return await other.dead_workers() == ["w"]

        await until(dead)
        await other.close()

    async def run() -> None:
        await story(PostgresStore(server().url, schema))

    play(run())
