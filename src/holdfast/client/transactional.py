"""Job creation in the caller's own transaction. The job is committed, visible and rolled back with it.

The module executes one statement on the caller's connection: a call of the function `insert_job` in the database. It
never commits, rolls back or aborts the transaction. If the idempotency key belongs to other arguments, the call raises
`IdempotencyConflict` and the transaction stays usable. Due times and deadlines count from the server's time.

What can fail: the app does not use PostgreSQL, the connection type is unknown, or it is async in a blocking call. Then
the call raises `InvalidArguments` and sends nothing. Errors of the driver reach the caller unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from holdfast.client.store_url import is_postgres, postgres_place
from holdfast.errors import IdempotencyConflict, InvalidArguments, QueueFull
from holdfast.machines.event import freeze_plain
from holdfast.store import Submit
from holdfast.store.limits import RETRY_SECONDS
from holdfast.store.sql.migrate import quoted

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


def _json(field: str, form: str) -> Callable[[Submit], str | None]:
    """Return a reader of a field as JSON: `canonical`, or the `text` with the caller's order of keys."""

    def read(submit: Submit) -> str | None:
        value = getattr(submit, field)
        frozen = freeze_plain(value) if value or field == "args" else None
        return getattr(frozen, form).decode() if frozen is not None else None

    return read


_PARAMETERS: dict[str, tuple[str, Callable[[Submit], Any]]] = {  # of insert_job, in order: type and value
    "id": ("text", attrgetter("job")),
    "plugin": ("text", attrgetter("plugin")),
    "entry": ("text", attrgetter("entry")),
    "args": ("text", _json("args", "canonical")),
    "queue": ("text", attrgetter("queue")),
    "priority": ("bigint", attrgetter("priority")),
    "delay": ("double precision", attrgetter("due_at")),
    "deadline": ("double precision", attrgetter("deadline")),
    "max_attempts": ("bigint", attrgetter("max_attempts")),
    "key": ("text", attrgetter("idempotency_key")),
    "attributes": ("text", _json("attributes", "canonical")),
    "group_name": ("text", attrgetter("group")),
    "budget": ("text", _json("budget", "canonical")),
    "given_args": ("text", _json("args", "text")),
    "given_attributes": ("text", _json("attributes", "text")),
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
        raise InvalidArguments("connection", f"{_name(connection)} is blocking: call `start` with it in a thread")
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
    marks = (mark.format(name, number=number) for number, name in enumerate(_PARAMETERS, 1))
    values = ", ".join(f"CAST({mark} AS {kind})" for mark, (kind, _) in zip(marks, _PARAMETERS.values(), strict=True))
    return f"SELECT job, outcome FROM {schema}.insert_job({values})"


def _values(submit: Submit) -> dict[str, Any]:
    return {name: value(submit) for name, (_, value) in _PARAMETERS.items()}


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
            f"{_name(connection)} is not a connection of psycopg, asyncpg or SQLAlchemy;"
            " a job's own argument of this name is passed by position",
        )
    return kind


def _kind(connection: Any, known: dict[tuple[str, str], str]) -> str | None:
    places = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__)
    return next((known[place] for place in places if place in known), None)


def _name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
