"""Batches in one round trip: the server checks what they assume, and writes nothing if it does not hold."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from holdfast.errors import HoldfastError, QueueFull, StaleAttempt, StoreUnavailable, UnknownJob
from holdfast.machines import check
from holdfast.store import (
    Append,
    Cancel,
    Claim,
    Command,
    Pause,
    Reclaim,
    ReleaseLeases,
    Renew,
    Resume,
    SendSignal,
    SetLimits,
    Submitted,
)
from holdfast.store.limits import Limits
from holdfast.store.postgres.clock_estimate import ClockEstimate
from holdfast.store.postgres.listener import Listener
from holdfast.store.postgres.optimistic_batch import OptimisticBatch, Refusals, is_simple
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
    write, written = OptimisticBatch.write_if_current, []

    def seen(batch: OptimisticBatch, connection: Any) -> bool:
        written.append(write(batch, connection))
        return written[-1]

    monkeypatch.setattr(OptimisticBatch, "write_if_current", seen)
    return written


def with_two(work: Pair, schema: str | None = None, monotonic: Callable[[], float] | None = None) -> None:
    """Open two stores, as of two processes. In the end no stream has a fault."""

    async def story() -> None:
        name = schema or fresh_schema()
        here, there = (PostgresStore(server().url, name, monotonic=monotonic) for _ in range(2))
        try:
            await work(here, there)
            for row in await there.jobs(limit=100):
                events = await there.events(row.id)
                assert check(events, head=row.head) == []
                assert [event.at for event in events] == sorted(event.at for event in events)
        finally:
            await here.close()
            await there.close()

    play(story())


def with_two_in_still_time(work: Pair) -> None:
    """Open two stores, while the server's clock stands still: on a busy machine an estimate may be off by too much."""
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        await work(here, there)

    with_two(story, schema, clock.now)


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


def pid_of(store: PostgresStore) -> int:
    assert store._write_connection is not None
    return int(store._write_connection.info.backend_pid)


def end(pid: int) -> None:
    with psycopg.connect(server().url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))


async def waits_for_lock(store: PostgresStore) -> bool:
    asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    with psycopg.connect(server().url, autocommit=True) as looking:
        return looking.execute(asked, (pid_of(store),)).fetchone() == (True,)


def test_new_jobs_and_events_of_running_jobs_take_one_trip(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a", "b")
        trips.clear()
        assert await appended(here, "a", "b") == [3, 3]
        assert await appended(here, "b") == [4]
        await here.commit([Append("a", 1, STEP), Append("a", 1, STEP)])
        (answer,) = await here.commit([submit("c")])
        assert isinstance(answer, Submitted)
        _, child = await here.commit([Append("a", 1, STEP), submit("d", parent="a", parent_key="k", parent_attempt=1)])
        assert isinstance(child, Submitted)
        assert trips == [True] * 5
        assert await versions(there, *"abcd") == [6, 4, 1, 1]
        row = await there.get("c")
        assert row is not None
        assert row.created_at == answer.at

    with_two_in_still_time(story)


def test_whatever_needs_another_row_is_not_simple() -> None:
    done = ("job_completed", {"result": 1})
    assert is_simple([Append("a", 1, STEP), submit("b")])
    assert not is_simple([])
    assert not is_simple([submit("b")] * 1000)
    for command in (
        Append("a", 1, (*STEP, done)),
        Append("a", 1, ()),
        Append("a", 1, STEP, uses=("s",)),
        submit("b", idempotency_key="k"),
        submit("b", group="g"),
        submit("b", attributes={"a": 1}),
        Cancel("a", None),
    ):
        assert not is_simple([Append("a", 1, STEP), command])


def test_a_stale_attempt_writes_nothing(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        await there.commit([ReleaseLeases("w"), Reclaim()])
        await there.commit([Claim(worker="v", entries=ENTRIES, queues=None, limit=1, lease_seconds=60)])
        trips.clear()
        assert await appended(here, "a") == [StaleAttempt]
        assert trips == [False]
        assert await appended(here, "a", attempt=2) == [5]
        assert await versions(there, "a") == [5]

    with_two(story)


def test_a_child_of_a_stale_attempt_is_not_started(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        await there.commit([ReleaseLeases("w"), Reclaim()])
        trips.clear()
        (answer,) = await here.commit([submit("b", parent="a", parent_key="k", parent_attempt=1)])
        assert isinstance(answer, StaleAttempt)
        assert trips == [False]
        assert await there.get("b") is None

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


def test_a_refusal_is_never_decided_from_the_cache(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        await there.commit([ReleaseLeases("w"), Reclaim()])
        await there.commit([Claim(worker="w", entries=ENTRIES, queues=None, limit=1, lease_seconds=60)])
        trips.clear()
        assert await appended(here, "a", attempt=2) == [5]
        assert trips == [], "the cached row has attempt 1"

    with_two(story)


def test_a_lease_is_live_by_the_clock_of_the_server_alone(trips: list[bool]) -> None:
    """The estimate is a little behind: it shows a time at which the lease was live."""
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        await running(here, "a")
        clock.move(59.5)
        assert await appended(here, "a") == [3]
        late = clock.move(0.55)
        here._clock.monotonic = lambda: late - 0.06
        trips.clear()
        assert await appended(here, "a") == [StaleAttempt]
        assert trips == [False]
        assert await versions(there, "a") == [3]

    with_two(story, schema, clock.now)


def test_the_time_is_read_after_the_locks(trips: list[bool]) -> None:
    """A lease that ends while a lock is waited for has ended."""
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        await running(here, "a")
        clock.move(59.99)
        trips.clear()
        with psycopg.connect(server().url) as other:
            other.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'a' FOR UPDATE".encode())
            writing = asyncio.create_task(appended(here, "a"))
            await until(lambda: waits_for_lock(here))
            clock.move(0.02)
            other.rollback()
            assert await writing == [StaleAttempt]
        assert trips == [False]
        assert await versions(there, "a") == [2]

    with_two(story, schema, clock.now)


@pytest.mark.parametrize("off", [-0.11, 0.01])
def test_a_time_that_is_off_is_not_written(trips: list[bool], off: float) -> None:
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        await running(here, "a")
        await running(there, "c")
        clock.move(1)
        here._clock.forget()
        here._clock.read(clock.now() + off)
        trips.clear()
        assert await appended(here, "a") == [3]
        here._clock.forget()
        here._clock.read(clock.now() + off)
        await here.commit([submit("b")])
        assert trips == [False, False]
        assert [(await there.events(name))[-1].at for name in "ab"] == [clock.now()] * 2
        assert await appended(here, "a") == [4]
        assert trips == [False, False, True], "an ordinary transaction has read the time"

    with_two(story, schema, clock.now)


def test_a_job_is_hardly_older_than_one_that_was_started_before_it(trips: list[bool]) -> None:
    """It would be claimed before that one. An event may have a time that is more off."""
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        await running(here, "a")
        clock.move(1)
        for off, is_new in ((0.006, False), (0.006, True), (0.004, True)):
            here._clock.forget()
            here._clock.read(clock.now() - off)
            await here.commit([submit(f"b{off}") if is_new else Append("a", 1, STEP)])
        assert trips[-3:] == [True, False, True]
        ages = [clock.now() - (await there.events(f"b{off}"))[0].at for off in (0.006, 0.004)]
        assert ages == [0.0, pytest.approx(0.004, abs=1e-6)]

    with_two(story, schema, clock.now)


def test_new_jobs_that_are_refused_do_not_keep_events_from_one_trip(trips: list[bool]) -> None:
    async def story(here: PostgresStore, _: PostgresStore) -> None:
        await running(here, "a")
        await here.commit([SetLimits(Limits(queue="default", depth=1000))])
        for number in range(100):
            await here.commit([submit(f"b{number}")])
        trips.clear()
        await appended(here, "a")
        assert trips == [True]

    with_two_in_still_time(story)


def test_the_time_of_a_stream_never_goes_backwards(trips: list[bool]) -> None:
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        await running(here, "a")
        clock.move(1)
        assert await appended(here, "a") == [3]
        here._clock.forget()
        here._clock.read(clock.now() - 0.05)
        trips.clear()
        assert await appended(here, "a") == [4]
        assert trips == [True]
        assert [event.at for event in (await there.events("a"))[2:]] == [clock.now()] * 2

    with_two(story, schema, clock.now)


def test_a_process_that_was_idle_starts_no_job_before_those_of_others(trips: list[bool]) -> None:
    """Else the job would be claimed before one that was there when it was started."""
    schema = fresh_schema()
    clock = ServerClock(schema)

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        clock.take_over()
        for store in (here, there):
            store._clock.monotonic = clock.now  # and the estimate is slower, as it is of a real clock
            await store.commit([])
        clock.move(80)
        await there.commit([submit("b")])
        await here.commit([submit("a")])
        (claims,) = await here.commit([Claim(worker="w", entries=ENTRIES, queues=None, limit=2, lease_seconds=60)])
        first, second = claims.claimed
        assert first.job.created_at <= second.job.created_at
        assert [(await there.events(name))[0].at for name in "ab"] == [clock.now()] * 2
        assert trips == [], "an old estimate costs no trip"

    with_two(story, schema)


def test_an_estimate_is_behind_the_clock_that_it_estimates() -> None:
    seconds = [0.0]
    estimate = ClockEstimate()
    estimate.monotonic = lambda: seconds[0]
    assert estimate.estimate() is None
    estimate.read(1000.0)
    seconds[0] = 0.5
    now = estimate.estimate()
    assert now is not None
    assert 1000.499 <= now < 1000.5
    seconds[0] = 2.5
    assert estimate.estimate() is None, "it may be too far behind"
    estimate.read(1002.5)
    assert estimate.estimate() == 1002.5
    seconds[0] = 3.0
    estimate.read(1002.9)
    now = estimate.estimate()
    assert now is not None
    assert 1002.999 <= now < 1003.0, "a reply that took longer says less"
    estimate.forget()
    assert estimate.estimate() is None
    estimate.read(1000.0)
    assert estimate.estimate() == 1000.0, "also if the server's clock was set back"


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
    """The check concerns the row that the lock is given for, and no row of the batch is written if it fails."""
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


def test_two_processes_that_write_one_stream_never_fork_it(trips: list[bool]) -> None:
    """Both have the row in their caches, as after a pause of one. Each write has its own place in the stream."""

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        dice = random.Random(7)
        await running(here, "a", "b")
        renewal = Renew("w", (("a", 1), ("b", 1)), 60)
        requests: list[Command] = [Pause("a"), Resume("a"), SendSignal("b", "k", None, "s"), renewal]
        places: list[int] = []
        for number in range(60):
            stores = dice.choices([here, there], k=2)
            work = [appended(store, *dice.sample("ab", k=dice.choice((1, 2)))) for store in stores]
            if number % 10 == 0:
                work.append(there.commit([dice.choice(requests)]))
            for answers in (await asyncio.gather(*work))[:2]:
                places += answers
        lengths = await versions(there, "a", "b")
        assert len(places) == sum(lengths) - 2 * 2, "each answer stands for one event"
        for name, length in zip("ab", lengths, strict=True):
            assert [event.seq for event in await there.events(name)] == list(range(1, length + 1))
        assert {True, False} == set(trips)

    with_two(story)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_the_isolation_of_a_role_changes_nothing(isolation: str) -> None:
    schema = fresh_schema()

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        assert here._write_connection is not None
        here._write_connection.execute(f"SET default_transaction_isolation = '{isolation}'".encode())
        with psycopg.connect(server().url) as other:
            other.execute(f"UPDATE {schema}.jobs SET pause = true WHERE id = 'a'".encode())
            writing = asyncio.create_task(appended(here, "a"))
            await until(lambda: waits_for_lock(here))
            other.commit()
            assert await writing == [3]
        assert await appended(here, "a") == [4]
        row = await there.get("a")
        assert row is not None
        assert row.pause

    with_two(story, schema)


def test_a_connection_that_has_ended_meanwhile_costs_nothing() -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        for version in (3, 4, 5):
            end(pid_of(here))
            assert await appended(here, "a") == [version]
        end(pid_of(here))
        assert isinstance((await here.commit([submit("b")]))[0], Submitted)
        assert await versions(there, "a", "b") == [5, 1]

    with_two(story)


def test_a_connection_that_ends_while_a_batch_is_decided_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent yet, so the batch may be executed again."""
    decide = OptimisticBatch.decide

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")

        def ending(batch: OptimisticBatch, commands: Sequence[Command]) -> list[Any] | None:
            answers = decide(batch, commands)
            end(pid_of(here))
            return answers

        monkeypatch.setattr(OptimisticBatch, "decide", ending)
        assert await appended(here, "a") == [3]
        assert isinstance((await here.commit([submit("b"), Append("a", 1, STEP)]))[0], Submitted)
        assert await versions(there, "a", "b") == [4, 1]

    with_two(story)


def test_whether_a_batch_was_written_is_unknown_if_the_connection_ends_meanwhile() -> None:
    schema = fresh_schema()

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a", "b")
        with psycopg.connect(server().url) as other:
            other.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'b' FOR UPDATE".encode())
            writing = asyncio.create_task(appended(here, "a", "b"))
            await until(lambda: waits_for_lock(here))
            end(pid_of(here))
            with pytest.raises(StoreUnavailable, match="check the server and the URL"):
                await writing
        assert await versions(there, "a", "b") == [2, 2]
        assert await appended(here, "a", "b") == [3, 3]

    with_two(story, schema)


def test_a_batch_that_cannot_commit_is_not_taken_for_written(trips: list[bool]) -> None:
    """The server executes a statement before it commits: an error in between is not overlooked."""
    schema = fresh_schema()
    refuse = (
        f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        f" CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {schema}.events DEFERRABLE INITIALLY DEFERRED"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
    )

    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await running(here, "a")
        assert await appended(here, "a") == [3]
        trips.clear()
        with psycopg.connect(server().url, autocommit=True) as other:
            other.execute(refuse.encode())
            with pytest.raises(StoreUnavailable, match="no"):
                await appended(here, "a")
            other.execute(f"DROP TRIGGER refuse ON {schema}.events".encode())
        assert await versions(there, "a") == [3]
        assert await appended(here, "a") == [4], "the cached row is the one that is stored"
        assert trips == [True]

    with_two(story, schema)


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

    with_two_in_still_time(story)


def test_most_batches_are_not_tried_where_each_is_refused(trips: list[bool]) -> None:
    async def story(here: PostgresStore, _: PostgresStore) -> None:
        await here.commit([SetLimits(Limits(queue="default", depth=1000))])
        for number in range(200):
            assert isinstance((await here.commit([submit(f"a{number}")]))[0], Submitted)
        assert 5 < len(trips) < 15
        await here.commit([SetLimits(Limits(queue="default"))])
        trips.clear()
        for number in range(100):
            await here.commit([submit(f"b{number}")])
        assert len(trips) > 30, "one that is written ends it"
        assert all(trips)

    with_two_in_still_time(story)


def test_a_batch_that_is_refused_now_and_then_does_not_keep_the_next_from_one_trip() -> None:
    refusals = Refusals()
    for _ in range(3):
        for written in (False, False, True):
            assert not refusals.skip()
            refusals.count(written=written)


def test_an_id_that_exists_is_the_existing_job(trips: list[bool]) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await here.commit([submit("z")])
        await there.commit([submit("a")])
        trips.clear()
        new, old = await here.commit([submit("b"), submit("a")])
        assert (new.existing, old.existing) == (False, True)
        assert trips == []
        twice = await here.commit([submit("c"), submit("c")])
        assert [answer.existing for answer in twice] == [False, True]
        assert trips == [True]

    with_two_in_still_time(story)


def test_a_new_job_is_told_and_an_event_is_not() -> None:
    schema = fresh_schema()

    async def story(here: PostgresStore, _: PostgresStore) -> None:
        await running(here, "a")
        with psycopg.connect(server().url, autocommit=True) as other:
            other.execute(f"LISTEN holdfast_{schema}".encode())
            assert await appended(here, "a") == [3]
            await here.commit([submit("b")])
            told = [notice.payload.partition(":")[0] for notice in other.notifies(timeout=60, stop_after=1)]
            assert told == ["3"], "an event alone would be a 1"

    with_two(story, schema)


def heard(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the flags of the next notice, or of none if there is none."""
    return [notice.payload.partition(":")[0] for notice in connection.notifies(timeout=60, stop_after=1)]


def listening(schema: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(server().url, autocommit=True)
    connection.execute(f"LISTEN holdfast_{schema}".encode())
    return connection


def test_a_notice_is_sent_before_the_store_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = fresh_schema()
    send, closing = Listener._send_notices, threading.Event()

    def send_late(listener: Listener, connection: Any) -> None:
        if listener._unsent:
            assert closing.wait(60)
        send(listener, connection)

    async def story() -> None:
        here = PostgresStore(server().url, schema)
        await here.commit([submit("a")])
        await until(lambda: is_sending(here))
        monkeypatch.setattr(Listener, "_send_notices", send_late)
        with listening(schema) as other:
            await here.commit([submit("b")])
            closed = asyncio.create_task(here.close())
            await until(lambda: is_stopping(here))
            closing.set()
            await closed
            assert heard(other) == ["3"]

    async def is_stopping(store: PostgresStore) -> bool:
        return store._listener._stopping.is_set()

    play(story())


def test_a_notice_is_sent_before_the_process_ends() -> None:
    schema = fresh_schema()
    code = """
import sys
from holdfast import App
app = App("shop", sys.argv[1])
@app.job
async def greet() -> None: ...
for _ in range(5):
    greet.start()
"""
    url = f"{server().url}?schema={schema}"
    with listening(schema) as other:
        subprocess.run([sys.executable, "-c", code, url], check=True, timeout=120)
        heard_of = "".join(notice.payload for notice in other.notifies(timeout=0))
        assert "3:" in heard_of


def test_commits_in_a_row_share_a_notice(trips: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    send, go = Listener._send_notices, threading.Event()
    go.set()

    def send_later(listener: Listener, connection: Any) -> None:
        if listener._unsent:
            assert go.wait(60)
        send(listener, connection)

    monkeypatch.setattr(Listener, "_send_notices", send_later)

    async def story(here: PostgresStore, _: PostgresStore) -> None:
        await here.commit([submit("first")])
        await until(lambda: is_sending(here))
        await asyncio.to_thread(here._listener.flush, 60)
        go.clear()
        trips.clear()
        with listening(here._schema) as other:
            for number in range(5):
                await here.commit([submit(f"job-{number}")])
            assert trips == [True] * 5
            assert here._listener._unsent
            go.set()
            await asyncio.to_thread(here._listener.flush, 60)
            assert heard(other) == ["3"]
            assert list(other.notifies(timeout=0)) == []

    with_two_in_still_time(story)


def test_a_notice_outlives_the_connection_that_was_to_send_it(
    trips: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, go = Listener._send_notices, threading.Event()

    def send_later(listener: Listener, connection: Any) -> None:
        if listener._unsent:
            assert go.wait(60)
        send(listener, connection)

    async def story(here: PostgresStore, _: PostgresStore) -> None:
        await here.commit([submit("first")])
        await until(lambda: is_sending(here))
        await asyncio.to_thread(here._listener.flush, 60)
        monkeypatch.setattr(Listener, "_send_notices", send_later)
        trips.clear()
        with listening(here._schema) as other:
            await here.commit([submit("second")])
            assert trips == [True]
            assert here._listener.connection is not None
            pid = here._listener.connection.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
            go.set()
            assert heard(other) == ["3"]

    with_two_in_still_time(story)


async def is_sending(store: PostgresStore) -> bool:
    return store._listener._is_sending


def test_a_notice_is_sent_also_while_nothing_can_be_heard() -> None:
    schema = fresh_schema()

    async def story(here: PostgresStore, _: PostgresStore) -> None:
        await here.commit([submit("a")])
        await asyncio.to_thread(here._listener.flush, 60)
        here._listener._is_sending = False  # as without a connection
        with listening(schema) as other:
            await here.commit([submit("b")])
            assert heard(other) == ["3"]

    with_two(story, schema)


def test_a_notice_that_fails_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: PostgresStore, there: PostgresStore) -> None:
        await here.commit([submit("a")])
        for module in ("listener", "store"):
            monkeypatch.setattr(f"holdfast.store.postgres.{module}.NOTIFY", "SELECT 1 / 0, %s::text, %s::text")
        for name, is_sending in (("b", True), ("c", False)):
            here._listener._is_sending = is_sending
            assert isinstance((await here.commit([submit(name)]))[0], Submitted)
            await asyncio.to_thread(here._listener.flush, 60)
        monkeypatch.undo()
        assert isinstance((await here.commit([submit("d")]))[0], Submitted)
        assert await versions(there, *"abcd") == [1, 1, 1, 1]

    with_two(story)


def test_through_a_pooler_there_are_only_ordinary_transactions(trips: list[bool]) -> None:
    async def story() -> None:
        pooler = Pooler()
        here = PostgresStore(pooler.url, fresh_schema())
        await running(here, "a")
        assert await appended(here, "a") == [3]
        await here.commit([submit("b")])
        assert trips == []
        await here.close()
        pooler.shutdown()
        pooler.server_close()

    play(story())
