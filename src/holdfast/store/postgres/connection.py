"""PostgreSQL connections: how they are opened, rolled back and closed, and driver errors in one line.

Our sessions read and write the same under any settings of a role, a database or a server. Text is UTF-8, times have all
their digits, and transactions are READ COMMITTED. Statements are
prepared after some executions, but not through a pooler, which would show them to others.
"""

from __future__ import annotations

import contextlib
import random
import select
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.errors import shown_url
from holdfast.store.postgres.call_timeout import CallWatcher
from holdfast.store.postgres.schema import Connection

SILENCE_SECONDS = 10.0  # how long a server may not reply before its connection is dropped
PREPARE_AFTER = 3  # executions of a statement; to plan one takes longer than to execute it
GIVING_WAY_SECONDS = 0.01  # longest pause before the second try of a batch; doubled for each one after it
CONNECT_SECONDS_MIN = 2  # libpq accepts no shorter limit


def connect(
    url: str, silence_seconds: float = SILENCE_SECONDS, watch: CallWatcher | None = None, *, preparing: bool = True
) -> Connection:
    """Connect, in autocommit mode.

    Args:
        url: of the database.
        silence_seconds: how long a server may not acknowledge anything before TCP drops the connection.
        watch: ends the connection if the server does not reply to the first statements.
        preparing: whether statements may be prepared, if this is a session of its own.

    Raises:
        OperationalError: there is no connection, the URL is not valid, or values would not be read as written.
    """
    limit, probe = max(CONNECT_SECONDS_MIN, int(silence_seconds)), max(1, int(silence_seconds / 3))
    usual: dict[str, Any] = {"application_name": "holdfast", "connect_timeout": limit}
    usual |= {"keepalives_idle": probe, "keepalives_interval": probe, "keepalives_count": 2}
    usual["tcp_user_timeout"] = int(silence_seconds * 1000)
    try:
        chosen = {**usual, **conninfo_to_dict(url), "client_encoding": "UTF8"}
    except psycopg.ProgrammingError as error:
        raise psycopg.OperationalError(str(error)) from error
    connection: Connection = psycopg.connect(**chosen, autocommit=True, prepare_threshold=None)
    try:
        with watch.over(connection, watch.deadline()) if watch is not None else contextlib.nullcontext():
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            _keep_all_text(connection)
            _read_exactly(connection)
            if preparing and is_a_session(connection):
                connection.prepare_threshold = PREPARE_AFTER
    except BaseException:
        connection.close()
        raise
    return connection


def is_a_session(connection: Connection) -> bool:
    """Return whether the server process that replies is the one named when the connection was opened."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] == connection.info.backend_pid


def _keep_all_text(connection: Connection) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise psycopg.OperationalError(
            f"the encoding of the database is {encoding}, which cannot store all text: create a database in UTF8"
        )


def _read_exactly(connection: Connection) -> None:
    """Check that the server sends numbers with all their digits: they are hashed."""
    (digits,) = connection.execute("SELECT current_setting('extra_float_digits')::integer").fetchone()
    if digits > 0:
        return
    if not is_a_session(connection):
        raise psycopg.OperationalError(
            f"extra_float_digits is {digits} for this role, so times would be rounded, and a session through a pooler"
            " cannot set it: ALTER ROLE … SET extra_float_digits = 1"
        )
    connection.execute("SET extra_float_digits = 1")


def has_unread(connection: Connection) -> bool:
    """Return whether there is something to read between two calls. Most likely the server has ended the connection."""
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def rollback_or_close(connection: Connection) -> bool:
    """Roll back a failed transaction; return whether the connection can be used again. If not, close it.

    A connection that ended in the middle of a pipeline may not notice it, and would refuse every later command.
    """
    with contextlib.suppress(psycopg.Error):
        connection.execute("ROLLBACK")
    state = connection.info.transaction_status, connection.info.pipeline_status
    fit = not connection.closed and state == (TransactionStatus.IDLE, PipelineStatus.OFF)
    if not fit:
        connection.close()
    return fit


@contextlib.contextmanager
def rollback_on_error(connection: Connection) -> Iterator[None]:
    """Roll back the transaction if its body raises."""
    try:
        yield
    except BaseException:
        rollback_or_close(connection)
        raise


@contextlib.contextmanager
def pipelined(connection: Connection) -> Iterator[psycopg.Pipeline]:
    """Send statements without waiting for each reply.

    The driver logs a warning if the end of a pipeline fails after an error inside. That happens whenever the server
    refuses a statement, because it refuses the rest of the pipeline, too. This raises the error, so the warning adds
    nothing.
    """
    failure: BaseException | None = None
    try:
        with connection.pipeline() as pipeline:
            try:
                yield pipeline
            except BaseException as error:  # noqa: BLE001 - raised below, outside the pipeline
                failure = error
    except psycopg.Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure


def one_line(error: Exception) -> str:
    """Return an error's message in one line, without the password of a URL in it."""
    return shown_url(" ".join(str(error).split())) or type(error).__name__


def silence(seconds: float) -> str:
    """Return the message of a call that timed out."""
    return f"PostgreSQL did not answer within {seconds:g} s, and the connection was closed: check server and network"


def reason_of(error: Exception) -> str:
    """Return why a value cannot be stored, for its sender.

    The other details of the database are hidden: the position of the row would show how much others write.
    """
    if isinstance(error, psycopg.errors.ProgramLimitExceeded):
        return "a name in it is too long for an index"
    message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return message or str(error)


def milliseconds(seconds: float) -> dict[str, str]:
    """Return a time as the parameter of a statement that sets a limit."""
    return {"milliseconds": str(int(1000 * seconds))}


def back_off(attempt: int) -> None:
    """Sleep before a batch is tried again, so that the conflicting one goes first and the two do not meet again."""
    if attempt:
        time.sleep(random.uniform(0, GIVING_WAY_SECONDS * 2**attempt))  # noqa: S311 - only spreads the tries
