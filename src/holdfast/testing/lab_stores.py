"""The stores of a lab, each with the lab's clock.

| kind | where it is | what is left |
|---|---|---|
| `memory` | in the process | nothing |
| `sqlite` | a file in a folder for temporary files | nothing: the folder is removed |
| `postgres` | a new schema of a database that the test names | nothing: the schema is removed |

PostgreSQL has a clock of its own, which all statements of the store read through one function of the schema. In a lab
this function reads a table, and the lab writes its time there before each call.

What can fail: a test process that is killed removes nothing. The names of its schemas begin with `PREFIX`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast.client.store_url import NO_DRIVER, is_postgres, postgres_place
from holdfast.errors import InvalidArguments, StoreUnavailable
from holdfast.store import Store
from holdfast.store.memory import MemoryStore

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.store.postgres.store import PostgresStore

KINDS = ("memory", "sqlite", "postgres")
URL_VARIABLE = "HOLDFAST_TEST_URL"
PREFIX = "holdfast_lab_"
LISTEN_SECONDS = 1.0  # in which the store's listener should be connected


def checked_store(store: object) -> str:
    """Return the kind of a store, or the URL of a PostgreSQL database.

    Raises:
        InvalidArguments: It is neither, or no database was named.
    """
    if isinstance(store, str) and is_postgres(store):
        return store
    if store not in KINDS:
        kinds = ", ".join(map(repr, KINDS))
        raise InvalidArguments("store", f"must be {kinds} or a URL postgresql://…, got {store!r:.80}")
    if store != "postgres":
        return str(store)
    url = os.environ.get(URL_VARIABLE, "")
    if not url:
        cure = f"pass pytest --holdfast-postgres URL, set {URL_VARIABLE}, or use Lab('postgresql://…')"
        raise InvalidArguments("store", f"'postgres' needs the URL of a database for tests: {cure}")
    if not is_postgres(url):
        raise InvalidArguments(URL_VARIABLE, "must begin with postgresql://")
    return url


def open_lab_store(store: str, clock: Clock, count: Callable[[int], None], stack: contextlib.ExitStack) -> Store:
    """Open a new store that goes by a clock.

    Args:
        store: what `checked_store` has returned.
        clock: the lab's clock.
        count: is called with 1 when a call of the store begins, and with -1 when it ends.
        stack: removes the store when it is closed.
    """
    if store == "memory":
        return MemoryStore(clock)
    if store == "sqlite":
        from holdfast.store.sqlite.store import SqliteStore  # noqa: PLC0415 - a backend is imported when it is used

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-lab-"))
        return cast("Store", CountedStore(SqliteStore(Path(folder) / "jobs.db", clock), count))
    return _open_postgres(store, clock, count, stack)


def _open_postgres(url: str, clock: Clock, count: Callable[[int], None], stack: contextlib.ExitStack) -> Store:
    try:
        from holdfast.store.postgres.store import PostgresStore  # noqa: PLC0415 - as above
    except ImportError as error:
        raise InvalidArguments("store", NO_DRIVER) from error
    place, _ = postgres_place(url)
    schema = f"{PREFIX}{uuid.uuid4().hex}"
    store = PostgresStore(place, schema, monotonic=clock.now)
    server_clock = ServerClock(place, schema, clock)
    stack.callback(server_clock.remove)
    server_clock.tell()
    _await_listener(store)
    return cast("Store", CountedStore(store, count, server_clock.tell))


def _await_listener(store: PostgresStore) -> None:
    """Wait until the store listens. Its first notice, which says nothing, must not wake the lab's worker later on."""
    end = time.monotonic() + LISTEN_SECONDS
    while not store.change_count() and time.monotonic() < end:  # through a pooler it never listens
        time.sleep(0.001)


class ServerClock:
    """The clock of one schema of a PostgreSQL database, which shows the lab's time.

    Args:
        url: the database.
        schema: the schema, which the store has created.
        clock: the lab's clock.
    """

    def __init__(self, url: str, schema: str, clock: Clock) -> None:
        import psycopg  # noqa: PLC0415 - needs the extra `postgres`

        from holdfast.store.postgres.connection import connect  # noqa: PLC0415 - as above

        self._clock = clock
        self._schema = schema
        self._told: float | None = None
        self._lock = threading.Lock()
        self._error = psycopg.Error
        self._connection: psycopg.Connection[Any] = connect(url, preparing=False)
        self._execute("SET synchronous_commit = off")
        # In a table: a session in the middle of a transaction would not notice a new function.
        self._execute("CREATE TABLE {schema}.lab_time (at double precision NOT NULL)")
        self._execute("INSERT INTO {schema}.lab_time VALUES (0)")
        self._execute(
            "CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS double precision LANGUAGE sql VOLATILE"
            " AS 'SELECT at FROM {schema}.lab_time'"
        )

    def _execute(self, sql: str, *values: float) -> None:
        self._connection.execute(sql.format(schema=self._schema).encode(), values)

    def tell(self) -> None:
        """Write the lab's time, if it has moved. Any thread may call this."""
        with self._lock:
            now = self._clock.now()
            if now == self._told:
                return
            try:
                self._execute("UPDATE {schema}.lab_time SET at = %s", now)
            except self._error as error:
                raise StoreUnavailable(f"the lab cannot move the time of PostgreSQL: {error}") from error
            self._told = now

    def remove(self) -> None:
        """Remove the schema. Call it after the store is closed."""
        with self._connection as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE".encode())


class CountedStore:
    """A store whose calls are counted while they are under way: its threads are not those of the loop.

    Args:
        store: the store.
        count: see `open_lab_store`.
        before: is called before each call.
    """

    floor_seconds: float | None = None  # there is no other process whose notices may get lost

    def __init__(self, store: Any, count: Callable[[int], None], before: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._count = count
        self._before = before

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        return partial(self._counted, attribute) if inspect.iscoroutinefunction(attribute) else attribute

    async def _counted(self, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        self._before()
        self._count(1)
        try:
            return await call(*args, **kwargs)
        finally:
            self._count(-1)

    def commit_blocking(self, batch: Any) -> Any:
        """Commit a batch from any thread."""
        self._before()
        return self._store.commit_blocking(batch)
