"""Jobs started in the caller's own transaction: committed with it, rolled back with it, whatever the driver."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import App, Limits, RunHandle
from holdfast.errors import IdempotencyConflict, InvalidArguments, QueueFull, UnknownJob
from support.postgres import fresh_schema, server

Commit = Callable[[], Awaitable[Any]]
Opened = AbstractAsyncContextManager[tuple[Any, Commit, Commit]]


@pytest.fixture
def app() -> Iterator[App]:
    made = App("shop", f"{server().url}?schema={fresh_schema()}")

    @made.job(max_attempts=3, deadline="1h")
    async def checkout(sku: str, cents: float = 0.5) -> str:
        return f"{sku}:{cents}"

    made.verify()  # opened, and so made
    yield made
    made.close()


def now(work: Callable[[], Any]) -> Commit:
    """A plain call, as something to wait for."""

    async def done() -> Any:
        return work()

    return done


@asynccontextmanager
async def with_psycopg() -> Any:
    with psycopg.connect(server().url, row_factory=dict_row) as connection:
        yield connection, now(connection.commit), now(connection.rollback)


@asynccontextmanager
async def with_async_psycopg() -> Any:
    async with await psycopg.AsyncConnection.connect(server().url, row_factory=dict_row) as connection:
        yield connection, connection.commit, connection.rollback


@asynccontextmanager
async def with_asyncpg() -> Any:
    async with asyncpg.create_pool(server().url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transactions = [connection.transaction()]
        await transactions[0].start()

        async def ended(how: str) -> None:
            await getattr(transactions.pop(), how)()
            transactions.append(connection.transaction())
            await transactions[0].start()

        yield connection, lambda: ended("commit"), lambda: ended("rollback")
        await transactions[0].rollback()


def engine_url(driver: str) -> str:
    return server().url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def with_session() -> Any:
    engine = sa.create_engine(engine_url("psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        yield session, now(session.commit), now(session.rollback)


@asynccontextmanager
async def with_connection() -> Any:
    engine = sa.create_engine(engine_url("psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection, now(connection.commit), now(connection.rollback)


def with_async_session(driver: str) -> Callable[[], Opened]:
    @asynccontextmanager
    async def opened() -> Any:
        async with AsyncSession(create_async_engine(engine_url(driver), poolclass=NullPool)) as session:
            yield session, session.commit, session.rollback

    return opened


@asynccontextmanager
async def with_async_connection() -> Any:
    async with create_async_engine(engine_url("asyncpg"), poolclass=NullPool).connect() as connection:
        yield connection, connection.commit, connection.rollback


PLAIN = {"psycopg": with_psycopg, "session": with_session, "connection": with_connection}
ASYNC = {
    "async psycopg": with_async_psycopg,
    "asyncpg": with_asyncpg,
    "async session over asyncpg": with_async_session("asyncpg"),
    "async session over psycopg": with_async_session("psycopg"),
    "async connection": with_async_connection,
}


@pytest.mark.parametrize("driver", [*PLAIN, *ASYNC])
def test_a_job_is_committed_or_rolled_back_with_the_callers_transaction(app: App, driver: str) -> None:
    opened: Callable[[], Any] = {**PLAIN, **ASYNC}[driver]

    async def started(*args: Any, **options: Any) -> RunHandle:
        known = ("key", "delay", "budget")
        job = app.entry("checkout").options(**{name: options[name] for name in known if name in options})
        if driver in ASYNC:
            return await app.astart(job, *args, connection=options["connection"])
        return app.start(job, *args, connection=options["connection"])

    async def story() -> str:
        async with opened() as (connection, commit, rollback):
            lost = await started("A0", connection=connection)
            await rollback()
            kept = await started("Ä1", 1e23, connection=connection, key="k")
            with pytest.raises(UnknownJob):
                await app.aget(kept.id)  # nobody else sees it yet
            assert (await started("Ä1", 1e23, connection=connection, key="k")).id == kept.id
            with pytest.raises(IdempotencyConflict) as refusal:
                await started("B", connection=connection, key="k")
            assert (refusal.value.key, refusal.value.job) == ("k", kept.id)
            late = await started("C", connection=connection, delay="1d", budget={"tokens": 7, "usd": 0.1})
            await commit()  # a conflict has not spoilt the transaction
            with pytest.raises(UnknownJob):
                await app.aget(lost.id)
            row = await app.store().get(late.id)
            assert row is not None
            assert 86_390 < row.due_at - row.created_at < 86_410
            assert row.deadline is not None
            assert 3_590 < row.deadline - row.created_at < 3_610
            assert row.max_attempts == 3
            created = (await app.store().events(late.id))[0]
            assert created.payload["budget"] == {"tokens": 7_000_000, "usd": 100_000}
            return kept.id

    kept = asyncio.run(story())
    assert app.entry("checkout").options(key="k").start("Ä1", 1e23).id == kept
    app.worker().run(until_idle=True)
    assert RunHandle(app, kept).result(60) == "Ä1:1e+23"
    assert app.verify() == {}


def test_the_connection_may_be_an_option_of_the_job(app: App) -> None:
    job = app.entry("checkout")
    with psycopg.connect(server().url) as connection:
        first = job.options(connection=connection, key="k").start("A")
        assert job.options(key="k").start("A", connection=connection).id == first.id
    assert app.get(first.id).status == "queued"


def test_a_committed_job_wakes_a_waiting_worker_at_once(app: App) -> None:
    """The worker's own floor is a second: only the notice brings the job so soon."""

    async def story() -> float:
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        first = await app.astart("checkout", "A")
        await first.aresult(60)
        waits: list[float] = []
        while not waits or (waits[-1] >= 0.5 and len(waits) < 10):  # a machine that stood still says nothing of it
            async with await psycopg.AsyncConnection.connect(server().url) as connection:
                run = await app.astart("checkout", "A", connection=connection)
            await run.aresult(60)
            events = await run.aevents()
            waits.append(events[1].at - events[0].at)
        worker.stop()
        await working
        return min(waits)

    assert asyncio.run(story()) < 0.5


def test_what_is_no_connection_for_it_is_refused_before_anything_is_sent(app: App) -> None:
    async def in_loop(connection: Any) -> None:
        await app.astart("checkout", "A", connection=connection)

    async def asynchronous() -> None:
        async with await psycopg.AsyncConnection.connect(server().url) as connection:
            with pytest.raises(InvalidArguments, match="await `astart` with it"):
                app.start("checkout", "A", connection=connection)

    asyncio.run(asynchronous())
    with psycopg.connect(server().url) as connection:
        with pytest.raises(InvalidArguments, match="is blocking: call `start`"):
            asyncio.run(in_loop(connection))
        with pytest.raises(InvalidArguments, match="cents"):
            app.start("checkout", "A", "much", connection=connection)
        elsewhere = App("shop", "memory:")
        elsewhere.job(name="checkout")(lambda sku: sku)
        with pytest.raises(InvalidArguments, match="the app's jobs are in memory, not in PostgreSQL"):
            elsewhere.start("checkout", "A", connection=connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with closing(sqlite3.connect(":memory:")) as other:
        wrongs: list[Any] = [other, "db1", object()]
    for wrong in wrongs:
        with pytest.raises(InvalidArguments, match="is not a connection of psycopg, asyncpg or SQLAlchemy"):
            app.start("checkout", "A", connection=wrong)
        with pytest.raises(InvalidArguments, match="is not a connection of psycopg, asyncpg or SQLAlchemy"):
            asyncio.run(in_loop(wrong))
    assert app.list() == []


def test_a_group_and_a_full_queue_are_the_same_in_the_callers_transaction(app: App) -> None:
    work = app.job(name="grouped")(lambda: None)
    app.set_limits(Limits(queue="default", depth=1))
    with psycopg.connect(server().url) as connection:
        handle = app.start(work.options(group="acme"), connection=connection)
        with pytest.raises(QueueFull) as full:
            app.start(work, connection=connection)
        assert (full.value.queue, full.value.depth) == ("default", 1)
    row = app.block(app.store().get(handle.id))
    assert row is not None
    assert row.group == "acme"
    assert app.verify() == {}
    app.clear_limits("default")
    app.worker().run(until_idle=True)
    assert app.get(handle.id).status == "succeeded"
