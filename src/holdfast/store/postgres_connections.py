"""What is done with a connection that has failed, and how what a driver says is told in one line."""

from __future__ import annotations

import contextlib

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from holdfast.store.postgres_schema import Connection

__all__ = ["in_a_line", "leave"]


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
