"""Batches in one round trip: the server checks what they assume, and writes nothing if it does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from holdfast.errors import HoldfastError, QueueFull, StaleAttempt, StoreUnavailable, UnknownJob
from holdfast.machines import check
from holdfast.store import Append, Cancel, Claim, Pause, Reclaim, ReleaseLeases, Renew, SetLimits, Submitted
from holdfast.store.limits import Limits
from holdfast.store.postgres.direct_statements import DirectStatements
from holdfast.store.postgres.known_rows import KnownRows
from holdfast.store.postgres.store import PostgresStore
from support.pooler import Pooler
from support.postgres import ServerClock, fresh_schema, server
from support.postgres_store import ENTRIES, submit
from support.stories import play, until

STEP = (("node_started", {"node": "s:0", "name": "s", "try": 1, "args": {}}),)
Pair = Callable[[PostgresStore, PostgresStore], Awaitable[None]]


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each batch that was sent in one trip, whether it was written."""
    write, written = KnownRows.write, []

    def seen(rows: KnownRows, *sent: Any) -> bool:
        written.append(write(rows, *sent))
        return written[-1]

    monkeypatch.setattr(KnownRows, "write", seen)
    return written


def with_two(work: Pair, schema: str | None = None) -> None:
    """Open two stores, as of two processes, where jobs run; the first one holds them. In the end all streams hold."""

    async def story() -> None:
        name = schema or fresh_schema()
        here, there = (PostgresStore(server().url, name) for _ in range(2))
        try:
            await work(here, there)
            for row in await there.jobs(limit=100):
                assert check(await there.events(row.id), head=row.head) == []
        finally:
            await here.close()
            await there.close()

    play(story())


async def running(store: PostgresStore, *names: str) -> None:
    """Start jobs and claim them."""
    await store.commit([submit(name) for name in names])
    (claims,) = await store.commit(
        [Claim(worker="w", entries=ENTRIES, queues=None, limit=len(names), lease_seconds=60)]
    )
    assert len(claims) == len(names)


async def appended(store: PostgresStore, *names: str, attempt: int = 1) -> list[Any]:
    """Append an event to each; return the versions, or the types of the errors."""
    answers = await store.commit([Append(name, attempt, STEP) for name in names])
    return [type(answer) if isinstance(answer, HoldfastError) else answer.version for answer in answers]


async def versions(store: PostgresStore, *names: str) -> list[int]:
    return [(await store.versions([name]))[name][0] for name in names]


def test_new_jobs_and_events_of_running_jobs_take_one_trip(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a", "b")
        trips.clear()
        assert await appended(here, "a", "b") == [3, 3]
        assert await appended(here, "b") == [4]
        await here.commit([Append("a", 1, STEP), Append("a", 1, STEP)])
        (answer,) = await here.commit([submit("c")])
        assert isinstance(answer, Submitted)
        assert trips == [True] * 4
        assert await versions(there, "a", "b", "c") == [5, 4, 1]
        row = await there.get("c")
        assert row is not None
        assert row.created_at == answer.at

    with_two(story)


def test_a_stale_attempt_writes_nothing(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        await there.commit([ReleaseLeases("w"), Reclaim()])
        await there.commit([Claim(worker="v", entries=ENTRIES, queues=None, limit=1, lease_seconds=60)])
        trips.clear()
        assert await appended(here, "a") == [StaleAttempt]
        assert trips == [False]
        assert await appended(here, "a", attempt=2) == [5]
        assert await versions(there, "a") == [4 + 1]

    with_two(story)


def test_only_the_stale_one_of_many_is_refused(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, *"abcd")
        await there.commit([Append("c", 1, (("job_requeued", {"reason": "worker_shutdown"}),))])
        trips.clear()
        assert await appended(here, *"abcd") == [3, 3, StaleAttempt, 3]
        assert trips == [False]
        assert await versions(there, *"abcd") == [3, 3, 3, 3]
        assert await appended(here, *"abd") == [4, 4, 4]
        assert trips == [False, True]

    with_two(story)


def test_a_lease_is_live_by_the_clock_of_the_server_alone(trips: list[bool]) -> None:
    """The estimate is a little behind: it shows a time at which the lease was live."""
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        here._clock.monotonic, here._clock.drift = clock.now, 0
        await running(here, "a")
        clock.move(59.5)
        assert await appended(here, "a") == [3]
        late = clock.move(0.55)
        here._clock.monotonic = lambda: late - 0.06
        trips.clear()
        assert await appended(here, "a") == [StaleAttempt]
        assert trips == [False]
        assert await versions(there, "a") == [3]

    with_two(story, schema)


@pytest.mark.parametrize("off", [-0.11, 0.01])
def test_a_time_that_is_off_is_not_written(trips: list[bool], off: float) -> None:
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        await running(here, "a")
        clock.move(1)  # the time of the last event is in the past
        here._clock.monotonic, here._clock.drift = clock.now, 0
        here._clock.read(clock.now() + off)
        trips.clear()
        assert await appended(here, "a") == [3]
        here._clock.read(clock.now() + off)
        await here.commit([submit("b")])
        assert trips == [False, False]
        assert [(await there.events(name))[-1].at for name in "ab"] == [clock.now()] * 2
        assert await appended(here, "a") == [4]
        assert trips == [False, False, True], "an ordinary transaction has read the time"

    with_two(story, schema)


def test_requests_of_other_processes_are_seen(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a", "b")
        await there.commit([Pause("a"), Cancel("b", "no more")])
        trips.clear()
        assert await appended(here, "a") == [3]
        assert await appended(here, "b") == [4]  # the request is an event
        assert trips == [False, False]
        (leases,) = await here.commit([Renew("w", (("a", 1), ("b", 1)), 60)])
        assert (leases.pause, leases.cancel) == ({"a"}, {"b"})

    with_two(story)


def test_a_job_that_was_removed_is_unknown(trips: list[bool]) -> None:
    schema = fresh_schema()

    async def story(here: PostgresStore, _: PostgresStore) -> None:
        await running(here, "a", "b")
        with psycopg.connect(server().url, autocommit=True) as other:
            other.execute(f"DELETE FROM {schema}.jobs WHERE id = 'a'".encode())
        trips.clear()
        assert await appended(here, "a", "b") == [UnknownJob, 3]
        assert trips == [False]
        with psycopg.connect(server().url, autocommit=True) as other:
            other.execute(f"DELETE FROM {schema}.events WHERE job = 'a'".encode())

    with_two(story, schema)


@pytest.mark.parametrize("change", ["head = head", "pause = true", "lease_until = 0", "attempt = 2"])
def test_what_changes_while_its_lock_is_waited_for_is_checked(trips: list[bool], change: str) -> None:
    """The checks concern the row that the lock is given for, and no row of the batch is written if one fails."""
    schema = fresh_schema()
    fits = change in {"head = head", "pause = true"}

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a", "b")
        trips.clear()
        with psycopg.connect(server().url) as other:
            other.execute(f"UPDATE {schema}.jobs SET {change} WHERE id = 'b'".encode())
            writing = asyncio.create_task(appended(here, "a", "b"))
            await until(lambda: waits_for_lock(here))
            other.commit()
            assert await writing == [3, 3 if fits else StaleAttempt]
        assert trips == [False]
        assert await versions(there, "a", "b") == [3, 3 if fits else 2]

    with_two(story, schema)


def test_a_lock_that_changes_nothing_is_waited_for(trips: list[bool]) -> None:
    schema = fresh_schema()

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a", "b")
        trips.clear()
        with psycopg.connect(server().url) as other:
            other.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'b' FOR UPDATE".encode())
            writing = asyncio.create_task(appended(here, "a", "b"))
            await until(lambda: waits_for_lock(here))
            other.rollback()
            assert await writing == [3, 3]
        assert await versions(there, "a", "b") == [3, 3]

    with_two(story, schema)


async def waits_for_lock(store: PostgresStore) -> bool:
    assert store._write_connection is not None
    asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    with psycopg.connect(server().url, autocommit=True) as looking:
        return looking.execute(asked, (store._write_connection.info.backend_pid,)).fetchone() == (True,)


def test_whether_a_batch_was_written_is_unknown_if_the_connection_ends_meanwhile() -> None:
    schema = fresh_schema()

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a", "b")
        with psycopg.connect(server().url) as other:
            other.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'b' FOR UPDATE".encode())
            writing = asyncio.create_task(appended(here, "a", "b"))
            await until(lambda: waits_for_lock(here))
            assert here._write_connection is not None
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (here._write_connection.info.backend_pid,))
            with pytest.raises(StoreUnavailable, match="check the server and the URL"):
                await writing
        assert await versions(there, "a", "b") == [2, 2]
        assert await appended(here, "a", "b") == [3, 3]

    with_two(story, schema)


def test_a_connection_that_ends_after_the_commit_is_not_used_to_commit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    execute = DirectStatements.execute

    def ended(direct: DirectStatements, connection: Any, *sent: Any) -> Any:
        execute(direct, connection, *sent)
        monkeypatch.undo()
        with psycopg.connect(server().url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
        return execute(direct, connection, *sent)  # the reply is lost

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        monkeypatch.setattr(DirectStatements, "execute", ended)
        with pytest.raises(StoreUnavailable):
            await appended(here, "a")
        assert await versions(there, "a") == [3]

    with_two(story)


def test_a_queue_with_a_depth_is_counted(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await here.commit([submit("a")])
        await there.commit([SetLimits(Limits(queue="default", depth=2))])
        trips.clear()
        answers = [(await here.commit([submit(name)]))[0] for name in "bc"]
        assert [type(answer) for answer in answers] == [Submitted, QueueFull]
        assert trips == [False, False]
        await there.commit([SetLimits(Limits(queue="default", concurrency=1))])
        assert [type(answer) for answer in await here.commit([submit("c")])] == [Submitted]
        assert trips == [False, False, True]

    with_two(story)


def test_an_id_that_exists_is_the_existing_job(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await here.commit([submit("z")])
        await there.commit([submit("a")])
        trips.clear()
        new, old = await here.commit([submit("b"), submit("a")])
        assert (new.existing, old.existing) == (False, True)
        assert trips == [False]

    with_two(story)


def test_no_statement_is_prepared_through_a_pooler(trips: list[bool]) -> None:
    async def story() -> None:
        pooler = Pooler()
        schema = fresh_schema()
        here = PostgresStore(f"{pooler.url}", schema)
        await running(here, "a")
        assert await appended(here, "a") == [3]
        with psycopg.connect(server().url, autocommit=True) as other:
            other.execute(f"LISTEN holdfast_{schema}".encode())
            await here.commit([submit("b")])
            assert [notice.payload.partition(":")[0] for notice in other.notifies(timeout=60, stop_after=1)] == ["3"]
        assert trips == []
        assert here._write_connection is not None
        await here.now()
        prepared = "SELECT count(*) FROM pg_prepared_statements"
        here._direct.settle(here._write_connection)
        assert here._write_connection.execute(prepared).fetchone() == (0,)
        await here.close()
        pooler.shutdown()
        pooler.server_close()

    play(story())
