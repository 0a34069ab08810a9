"""PostgreSQL does not answer: no call waits without a limit, and nothing is held up on the server for long (L11)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.store import Append, Claim, Renew, SendSignal
from holdfast.store.postgres.store import PostgresStore
from support.postgres import fresh_schema, server
from support.postgres_store import claim, submit
from support.stories import play
from support.wire import BOTH, TO_CLIENT, TO_SERVER, Wire

SILENCE = 1.0
STEP = (("node_started", {"node": "s:0", "name": "s", "try": 1, "args": {}}),)
LONG = 30.0  # that nothing here takes, unless it hangs


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire(server().url)
    yield made
    made.close()


def over(
    wire: Wire, story: Callable[[PostgresStore, PostgresStore], Awaitable[None]], schema: str | None = None
) -> None:
    """Tell a story with two stores in one schema: one over the wire, one beside it."""

    async def run() -> None:
        name = schema or fresh_schema()
        store = PostgresStore(wire.url, name, silence_seconds=SILENCE)
        beside = PostgresStore(server().url, name)
        try:
            await story(store, beside)
        finally:
            wire.heal()
            wire.cut()
            await store.close()
            await beside.close()

    play(run())


async def given_up(work: Awaitable[Any]) -> None:
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
        await work
    assert time.monotonic() - begun < LONG


@pytest.mark.parametrize("held", [BOTH, {TO_SERVER}, {TO_CLIENT}], ids=["both", "to server", "to client"])
def test_every_call_is_given_up_and_the_next_has_a_new_connection(wire: Wire, held: set[str]) -> None:
    async def story(store: PostgresStore, beside: PostgresStore) -> None:
        await store.commit([submit("a")])
        assert await store.get("a") is not None
        broken = store._write_connection, store._read_connection
        wire.hold(*held)
        await given_up(store.commit([submit("b")]))
        await given_up(store.get("a"))
        wire.heal()
        await until_it_answers(store)
        assert not {*broken} & {store._write_connection, store._read_connection}
        assert all(connection is not None and connection.closed for connection in broken)
        await store.commit([submit("c")])
        assert {row.id for row in await beside.jobs()} >= {"a", "c"}

    over(wire, story)


async def until_it_answers(store: PostgresStore) -> None:
    async with asyncio.timeout(LONG):
        while True:
            try:
                await store.commit([])
                await store.now()
            except StoreUnavailable:
                continue
            return


def test_a_heartbeat_is_given_up_too_also_if_another_call_is_under_way(wire: Wire) -> None:
    async def story(store: PostgresStore, beside: PostgresStore) -> None:
        await store.commit([submit("a"), claim()])
        wire.hold(*BOTH)
        under_way = asyncio.create_task(store.commit([submit("b")]))
        await asyncio.sleep(0)
        begun = time.monotonic()
        beat = asyncio.to_thread(store.commit_blocking, [Renew("w", (("a", 1),), 60.0)])
        with pytest.raises(StoreUnavailable):
            await beat
        assert time.monotonic() - begun < LONG
        with pytest.raises(StoreUnavailable):
            await under_way
        row = await beside.get("a")
        assert row is not None
        assert row.attempt == 1

    over(wire, story)


def test_locks_of_a_transaction_that_was_cut_off_do_not_stand_in_the_way_of_others(wire: Wire) -> None:
    """Its client cannot be heard any more, also not that it has given up: the server ends the transaction by itself."""

    async def story(store: PostgresStore, beside: PostgresStore) -> None:
        await store.commit([submit("a")])
        wire.hold(TO_CLIENT)
        cut_off = asyncio.create_task(store.commit([SendSignal("a", "k", 1, "s")]))
        async with asyncio.timeout(LONG):
            while not await locked(beside):  # noqa: ASYNC110 - the server is looked at
                await asyncio.sleep(0.005)
        wire.hold(*BOTH)
        begun = time.monotonic()
        await beside.commit([SendSignal("a", "k", 2, "t")])
        assert time.monotonic() - begun < LONG
        with pytest.raises(StoreUnavailable):
            await cut_off
        assert [signal.id for signal in await beside.inbox("a")] == ["t"]

    over(wire, story)


@pytest.mark.parametrize("held", [BOTH, {TO_SERVER}, {TO_CLIENT}], ids=["both", "to server", "to client"])
def test_a_batch_in_one_trip_is_given_up_while_the_process_goes_on(wire: Wire, held: set[str]) -> None:
    """No other thread waits, also no heartbeat. The event is written once or not at all, and nothing stays locked."""

    async def story(store: PostgresStore, beside: PostgresStore) -> None:
        await store.commit([submit("a"), submit("b")])
        await store.commit([claim(), claim()])
        wire.hold(*held)
        ticks = asyncio.create_task(count())
        await given_up(store.commit([Append("a", 1, STEP)]))
        ticks.cancel()
        assert await ticks > 10
        begun = time.monotonic()
        await beside.commit([SendSignal("a", "k", 1, "s")])
        assert time.monotonic() - begun < LONG
        wire.heal()
        await until_it_answers(store)
        length = len(await beside.events("a"))
        assert length == 3 if held == {TO_CLIENT} else length in {2, 3}
        (answer,) = await store.commit([Append("a", 1, STEP)])
        assert answer.version == length + 1

    over(wire, story)


async def count() -> int:
    """Count how often the event loop gets to run, until this is cancelled."""
    ticks = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0.02)
            ticks += 1
    return ticks


def test_the_locks_of_a_batch_in_one_trip_that_waits_end_with_its_time(wire: Wire) -> None:
    """It has locked one row and waits for another when its client is cut off."""
    schema = fresh_schema()

    async def story(store: PostgresStore, beside: PostgresStore) -> None:
        await store.commit([submit("a"), submit("b")])
        await store.commit([claim(), claim()])
        with psycopg.connect(server().url) as other:
            other.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'b' FOR UPDATE".encode())
            cut_off = asyncio.create_task(store.commit([Append("a", 1, STEP), Append("b", 1, STEP)]))
            async with asyncio.timeout(LONG):
                while not await waiting(beside):  # noqa: ASYNC110 - the server is looked at
                    await asyncio.sleep(0.005)
            wire.hold(*BOTH)
            begun = time.monotonic()
            await beside.commit([SendSignal("a", "k", 1, "s")])
            assert time.monotonic() - begun < LONG
            with pytest.raises(StoreUnavailable):
                await cut_off
        assert [len(await beside.events(name)) for name in "ab"] == [2, 2]

    over(wire, story, schema)


def test_a_session_that_was_reset_waits_no_longer_than_a_call() -> None:
    """Its limits were discarded with its statements, as by a pooler that passes as a session."""
    schema = fresh_schema()

    async def story(store: PostgresStore) -> None:
        await store.commit([submit("a"), claim()])
        for _ in range(5):
            await store.commit([Append("a", 1, STEP)])
        store._writer.submit(lambda: store._connected_for_writing().pgconn.exec_(b"DISCARD ALL")).result()
        await store.commit([Append("a", 1, STEP)])
        with psycopg.connect(server().url) as other:
            other.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'a' FOR UPDATE".encode())
            with pytest.raises(StoreUnavailable):  # the server ends it, or this process
                await store.commit([Append("a", 1, STEP)])
            async with asyncio.timeout(LONG):
                while await waiting(store):  # noqa: ASYNC110 - the server is looked at
                    await asyncio.sleep(0.005)

    async def run() -> None:
        store = PostgresStore(server().url, schema, silence_seconds=SILENCE)
        try:
            await story(store)
        finally:
            await store.close()

    play(run())


async def waiting(store: PostgresStore) -> bool:
    """Whether a session waits for a lock."""
    sql = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%{store._schema}%%'"
    return bool(await store._read(sql, ()))


async def locked(store: PostgresStore) -> bool:
    """Whether a transaction has locked the row of job a, and waits for its client."""
    sql = f"SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%%{store._schema}%%'"
    return bool(await store._read(sql, ()))


def test_a_claim_whose_answer_is_lost_is_not_carried_out_twice(wire: Wire) -> None:
    async def story(store: PostgresStore, beside: PostgresStore) -> None:
        await store.commit([submit("a"), submit("b")])
        wire.hold(TO_CLIENT)
        entries = frozenset({("shop", "checkout")})
        await given_up(store.commit([Claim(worker="w", entries=entries, queues=None, limit=1, lease_seconds=60.0)]))
        wire.heal()
        await until_it_answers(store)
        assert sum(row.attempt for row in await beside.jobs()) <= 1

    over(wire, story)
