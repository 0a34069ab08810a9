"""How a connection is made, what is done with one that has failed, and how what a driver says is told in one line.

Whatever a role, a database or a server sets for its sessions, ours read and write the same: text is UTF-8, times have
all their digits, transactions are READ COMMITTED, and nothing is prepared that a pooler would show to somebody else.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.store.postgres_schema import Connection

__all__ = ["connect", "in_a_line", "is_a_session", "leave"]

SILENCE_SECONDS = 15  # how long a server may not acknowledge anything before its connection is given up


def connect(url: str) -> Connection:
    """Connect, in autocommit mode.

    Raises:
        OperationalError: there is no connection, or the URL makes no sense, or not everything would be read as written.
    """
    usual: dict[str, Any] = {"application_name": "holdfast", "connect_timeout": 10}
    usual |= {"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 2}
    usual["tcp_user_timeout"] = SILENCE_SECONDS * 1000
    try:
        chosen = {**usual, **conninfo_to_dict(url), "client_encoding": "UTF8"}
    except psycopg.ProgrammingError as error:
        raise psycopg.OperationalError(str(error)) from error
    connection: Connection = psycopg.connect(**chosen, autocommit=True, prepare_threshold=None)
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        _keep_all_text(connection)
        _read_exactly(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def is_a_session(connection: Connection) -> bool:
    """Whether the server process that was named when the connection was made is the one that answers."""
    found = connection.execute("SELECT pg_backend_pid()").fetchone()
    return found is not None and found[0] == connection.info.backend_pid


def _keep_all_text(connection: Connection) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise psycopg.OperationalError(f"the database is kept in {encoding}, not all text fits: create one in UTF8")


def _read_exactly(connection: Connection) -> None:
    """See that numbers are sent with all their digits: hashes are made of them."""
    (digits,) = connection.execute("SELECT current_setting('extra_float_digits')::integer").fetchone()
    if digits > 0:
        return
    if not is_a_session(connection):
        raise psycopg.OperationalError(
            f"extra_float_digits is {digits} for this role, so times would be read rounded, and behind a pooler no"
            " session can set it: ALTER ROLE … SET extra_float_digits = 1"
        )
    connection.execute("SET extra_float_digits = 1")


def leave(connection: Connection) -> bool:
    """Leave a transaction that has failed. Whether the connection is fit for another; if it is not, it is closed.

    One that was ended in the middle of a pipeline may not know it, and would refuse every command from then on.
    """
    with contextlib.suppress(psycopg.Error):
        connection.execute("ROLLBACK")
    state = connection.info.transaction_status, connection.info.pipeline_status
    fit = not connection.closed and state == (TransactionStatus.IDLE, PipelineStatus.OFF)
    if not fit:
        connection.close()
    return fit


def in_a_line(error: Exception) -> str:
    """Give what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
