"""A PostgreSQL store that is only read: it sends SELECT alone, in a session that refuses to write.

A role with the right to SELECT is enough. Nothing is migrated, listened for or locked.

What can fail: the server cannot be reached, or the schema is not that of this release: `StoreUnavailable`.
"""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.errors import StoreUnavailable
from holdfast.store.postgres.connection import connect, is_a_session, one_line
from holdfast.store.postgres.schema import Connection, require
from holdfast.store.postgres.statements import Statements
from holdfast.store.sql.migrate import quoted
from holdfast.store.sql.reads import SqlReads


class PostgresReader(SqlReads):
    """The reads of a store in one schema of a PostgreSQL database; see the module's docstring."""

    def __init__(self, url: str, schema: str = "holdfast") -> None:
        self._url = url
        self._sql = Statements(quoted(schema))
        super().__init__(self._sql.reads)
        try:
            self._connection = self._connect()
            require(self._connection, schema)
        except psycopg.Error as error:
            raise _unavailable(error) from error

    def _connect(self) -> Connection:
        connection = connect(self._url)
        if is_a_session(connection):  # through a pooler, the setting would reach the transactions of others
            connection.execute("SET default_transaction_read_only = on")
        return connection

    async def _read(self, sql: str, bindings: Any) -> list[Any]:
        try:
            if self._connection.closed:
                self._connection = self._connect()
            rows: list[Any] = self._connection.execute(sql, bindings).fetchall()
        except psycopg.Error as error:
            raise _unavailable(error) from error
        return rows

    async def now(self) -> float:
        """Read the server's clock."""
        time: float = (await self._read(self._sql.clock, ()))[0][0]
        return time

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _unavailable(error: psycopg.Error) -> StoreUnavailable:
    return StoreUnavailable(f"PostgreSQL cannot be read: {one_line(error)}: check the server, the URL and the rights")
