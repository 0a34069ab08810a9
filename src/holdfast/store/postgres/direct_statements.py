"""Prepared statements through libpq itself, without the driver's conversions: for the few that are sent most.

They are prepared once per connection, which must be a session. Each is a transaction of its own. The driver takes half
as long again for such a statement, and has no call that sends one and leaves the reply for later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from holdfast.store.postgres.schema import Connection

TEXT, DOUBLE, BYTES = 25, 701, 17  # numbers of types, which are the same on every server
BINARY = 1  # text has this form, too: libpq would cut the other one off at a NUL


class DirectStatements:
    """The direct statements of one connection at a time."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._names: dict[str, bytes] = {}
        self._unread = False  # whether the server has still to reply to a statement

    def settle(self, connection: Connection) -> None:
        """Read the reply to a statement that was only sent; errors in it are ignored.

        Raises:
            OperationalError: the connection has ended, perhaps while it was not used.
        """
        if connection is not self._connection:
            self._connection, self._names, self._unread = connection, {}, False
        pgconn = connection.pgconn
        while self._unread and pgconn.get_result() is not None:
            pass
        self._unread = False
        if pgconn.status == ConnStatus.OK:
            pgconn.consume_input()  # notices that it was ended while nobody used it
        _require(pgconn)

    def execute(self, connection: Connection, sql: str, values: Sequence[bytes], types: Sequence[int]) -> PGresult:
        """Execute a statement after `settle`, and return its result, or the server's error.

        Raises:
            OperationalError: the connection has ended, and whether the statement was executed is unknown.
        """
        name = self._prepared(connection, sql, types)
        result: PGresult = connection.pgconn.exec_prepared(name, values, [BINARY] * len(values), 0)
        _require(connection.pgconn)
        if result.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
            self._names.clear()  # the server may have lost what was prepared
        return result

    def send(
        self, connection: Connection, sql: str, values: Sequence[bytes], types: Sequence[int], *, preparing: bool
    ) -> None:
        """Send a statement, and leave its reply to the next `settle`. Its errors are ignored.

        Through a pooler, it waits for the reply: the pooler may give the server to another client before it is read.

        Args:
            connection: where `settle` was called.
            sql: the statement.
            values: of its parameters.
            types: of its parameters.
            preparing: whether to prepare it; not through a pooler.
        """
        formats = [BINARY] * len(values)
        if not preparing:
            connection.pgconn.exec_params(sql.encode(), values, types, formats, 0)
            return
        connection.pgconn.send_query_prepared(self._prepared(connection, sql, types), values, formats, 0)
        self._unread = True
        connection.pgconn.flush()

    def _prepared(self, connection: Connection, sql: str, types: Sequence[int]) -> bytes:
        """Return the name of a statement. If it cannot be prepared, its execution fails.

        A name stands for one text alone: also on a server that a pooler has changed to unseen.
        """
        if sql not in self._names:
            self._names[sql] = b"holdfast_" + hashlib.sha256(sql.encode()).hexdigest()[:16].encode()
            connection.pgconn.prepare(self._names[sql], sql.encode(), types)
        return self._names[sql]


def _require(pgconn: PGconn) -> None:
    if pgconn.status != ConnStatus.OK:
        raise psycopg.OperationalError(pgconn.error_message.decode(errors="replace"))
