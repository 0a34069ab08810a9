"""Job creation in the caller's own transaction. The job is committed, visible and rolled back with it.

The module executes one statement on the caller's connection: a call of the function `insert_job` in the database. It
never commits, rolls back or aborts the transaction. If the idempotency key belongs to other arguments, the call raises
`IdempotencyConflict` and the transaction stays usable. Due times and deadlines count from the server's time.

What can fail: the app does not use PostgreSQL, the connection type is unknown, or it is async in a blocking call. Then
the call raises `InvalidArguments` and sends nothing. Errors of the driver reach the caller unchanged.
"""

from __future__ import annotations

from typing import Any

from holdfast.client.store_url import is_postgres, postgres_place
from holdfast.errors import IdempotencyConflict, InvalidArguments, QueueFull
from holdfast.machines.event import freeze_plain
from holdfast.store import Submit
from holdfast.store.limits import RETRY_SECONDS
from holdfast.store.sql.migrate import quoted

__all__ = ["astart", "start"]

# Keyed by package and class name, so that this module imports no driver that the caller does not use.
_BLOCKING = {
    ("psycopg", "Connection"): "psycopg",
    ("sqlalchemy", "Connection"): "sqlalchemy",
    ("sqlalchemy", "Session"): "sqlalchemy",
    ("sqlalchemy", "scoped_session"): "sqlalchemy",
}
_ASYNC = {
    ("psycopg", "AsyncConnection"): "psycopg",
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy",
}
_TYPES = {
    "id": "text",
    "plugin": "text",
    "entry": "text",
    "args": "text",
    "queue": "text",
    "priority": "bigint",
    "delay": "double precision",
    "deadline": "double precision",
    "max_attempts": "bigint",
    "key": "text",
    "attributes": "text",
    "group_name": "text",
    "budget": "text",
    "given_args": "text",
    "given_attributes": "text",
}


def start(submit: Submit, url: str, connection: Any) -> str:
    """Create a job over a blocking connection and return its id. The times of `submit` are seconds from now."""
    if _kind(connection, _ASYNC) is not None:
        raise InvalidArguments("connection", f"{_name(connection)} is asynchronous: await `astart` with it")
    values = _values(submit)
    if _known(connection, _BLOCKING) == "psycopg":
        with connection.cursor(row_factory=_row) as cursor:
            cursor.execute(_statement(url, "%({})s").encode(), values)
            return _outcome(submit, cursor.fetchone())
    from sqlalchemy import text  # noqa: PLC0415 - only a caller of SQLAlchemy has it installed

    return _outcome(submit, connection.execute(text(_statement(url, ":{}")), values).one())


async def astart(submit: Submit, url: str, connection: Any) -> str:
    """Create a job over an async connection and return its id. The times of `submit` are seconds from now."""
    if _kind(connection, _BLOCKING) is not None:
        raise InvalidArguments(
            "connection", f"{_name(connection)} blocks the loop: call `start` with it, in its thread"
        )
    values, kind = _values(submit), _known(connection, _ASYNC)
    if kind == "psycopg":
        async with connection.cursor(row_factory=_row) as cursor:
            await cursor.execute(_statement(url, "%({})s").encode(), values)
            return _outcome(submit, await cursor.fetchone())
    if kind == "asyncpg":
        return _outcome(submit, await connection.fetchrow(_statement(url, "${number}"), *values.values()))
    from sqlalchemy import text  # noqa: PLC0415 - only a caller of SQLAlchemy has it installed

    return _outcome(submit, (await connection.execute(text(_statement(url, ":{}")), values)).one())


def _statement(url: str, mark: str) -> str:
    """Return the SQL call with placeholders in the style of the driver."""
    if not is_postgres(url):
        raise InvalidArguments("connection", f"the app's jobs are in {url.partition(':')[0]}, not in PostgreSQL")
    schema = quoted(postgres_place(url)[1].get("schema", "holdfast"))
    marks = (mark.format(name, number=number) for number, name in enumerate(_TYPES, 1))
    values = ", ".join(f"CAST({value} AS {kind})" for value, kind in zip(marks, _TYPES.values(), strict=True))
    return f"SELECT job, outcome FROM {schema}.insert_job({values})"


def _values(submit: Submit) -> dict[str, Any]:
    args = freeze_plain(submit.args)
    attributes = freeze_plain(submit.attributes) if submit.attributes else None
    return {
        "id": submit.job,
        "plugin": submit.plugin,
        "entry": submit.entry,
        "args": args.canonical.decode(),
        "queue": submit.queue,
        "priority": submit.priority,
        "delay": submit.due_at,
        "deadline": submit.deadline,
        "max_attempts": submit.max_attempts,
        "key": submit.idempotency_key,
        "attributes": attributes.canonical.decode() if attributes is not None else None,
        "group_name": submit.group,
        "budget": freeze_plain(submit.budget).canonical.decode() if submit.budget else None,
        "given_args": args.text.decode(),
        "given_attributes": attributes.text.decode() if attributes is not None else None,
    }


def _outcome(submit: Submit, row: Any) -> str:
    job, outcome = row
    if outcome == "conflict":
        raise IdempotencyConflict(submit.idempotency_key or submit.job, job)
    if outcome == "full":
        raise QueueFull(submit.queue, int(job), RETRY_SECONDS[0])
    return str(job)


def _row(cursor: Any) -> Any:
    """Return rows as tuples, whatever row factory the caller's connection has."""
    del cursor
    return tuple


def _known(connection: Any, known: dict[tuple[str, str], str]) -> str:
    kind = _kind(connection, known)
    if kind is None:
        raise InvalidArguments(
            "connection",
            f"{_name(connection)} is none of psycopg, asyncpg or SQLAlchemy;"
            " a job's own argument of this name is passed by position",
        )
    return kind


def _kind(connection: Any, known: dict[tuple[str, str], str]) -> str | None:
    places = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__)
    return next((known[place] for place in places if place in known), None)


def _name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
