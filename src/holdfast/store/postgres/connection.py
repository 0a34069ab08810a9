"""How a connection is made, what is done with one that has failed, and how what a driver says is told in one line.

Whatever a role, a database or a server sets for its sessions, ours read and write the same: text is UTF-8, times have
all their digits, transactions are READ COMMITTED, and nothing is prepared that a pooler would show to somebody else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.store.postgres.call_timeout import Watch
from holdfast.store.postgres.schema import Connection

__all__ = [
    "SILENCE_SECONDS",
    "connect",
    "is_a_session",
    "one_line",
    "pipelined",
    "rollback_on_error",
    "rollback_or_close",
]

SILENCE_SECONDS = 10.0  # how long a server may not answer before its connection is given up
CONNECT_SECONDS_MIN = 2  # libpq takes no shorter limit


def connect(url: str, silence_seconds: float = SILENCE_SECONDS, watch: Watch | None = None) -> Connection:
    """Connect, in autocommit mode.

    Args:
        url: of the database.
        silence_seconds: how long a server may not acknowledge anything before TCP gives the connection up.
        watch: ends the connection if the first questions are not answered.

    Raises:
        OperationalError: there is no connection, or the URL makes no sense, or not everything would be read as written.
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


def rollback_or_close(connection: Connection) -> bool:
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


@contextlib.contextmanager
def rollback_on_error(connection: Connection) -> Iterator[None]:
    """Leave the transaction if what is done in it fails."""
    try:
        yield
    except BaseException:
        rollback_or_close(connection)
        raise


@contextlib.contextmanager
def pipelined(connection: Connection) -> Iterator[psycopg.Pipeline]:
    """Send statements without waiting for each answer.

    The driver logs a warning if the end of a pipeline fails after an error inside. It does whenever the server has
    refused a statement: the rest of the pipeline is refused, too. The error is raised from here, so that says nothing.
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
    """Give what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
