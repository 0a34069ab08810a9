"""Migrations of a PostgreSQL schema: numbered, forward only, each in one transaction.

One process at a time migrates, under an advisory lock of the transaction. It does not wait long for a table in use:
`lock_timeout` ends the try, and the next open tries again. A schema with a higher number than this release knows was
made by a newer one. It is refused and does not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import psycopg

from holdfast.errors import StoreUnavailable
from holdfast.store.sql.event_rows import EVENT_READ
from holdfast.store.sql.migrate import RUNS, migrations, project, quoted, too_new

LOCK_TIMEOUT_MS = 5000

# A psycopg.Connection. Its own type demands literal statements; ours hold a schema's name, which `quoted` has checked.
Connection = Any


def number_of(text: str) -> int:
    """Return the number of an advisory lock for a text: 63 bits, so that every client reads it alike."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def schema_number(connection: Connection, schema: str) -> int:
    """Read the number of the last migration applied; 0 if there is none."""
    table = connection.execute("SELECT to_regclass(%s)", (f"{schema}.migrations",)).fetchone()
    if table is None or table[0] is None:
        return 0
    row = connection.execute(f"SELECT max(number) FROM {schema}.migrations").fetchone()
    return int(row[0] or 0) if row is not None else 0


def migrate(connection: Connection, schema: str) -> list[int]:
    """Apply the missing migrations; return their numbers. If none is missing, no privilege is needed.

    Raises:
        StoreUnavailable: the schema is newer than this release, or others use its tables for too long.
    """
    schema = quoted(schema)
    if missing(connection, schema) == []:
        return []
    applied = []
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (number_of(f"holdfast:migrate:{schema}"),))
            connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            _create(connection, schema)
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {schema}.migrations"
                " (number integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"
            )
            for number, sql in missing(connection, schema):  # read again: another process may have migrated
                connection.execute(sql.replace("{schema}", schema))
                connection.execute(f"INSERT INTO {schema}.migrations (number) VALUES (%s)", (number,))
                applied.append(number)
            if RUNS in applied and applied[0] > 1:
                project(lambda sql, values: _rows(connection, sql, values), "%s", f"{schema}.", EVENT_READ)
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"a migration waited {LOCK_TIMEOUT_MS} ms for a table that others use, and was rolled back:"
            " nothing has changed, try again"
        ) from error
    return applied


def _create(connection: Connection, schema: str) -> None:
    try:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    except psycopg.errors.SyntaxError as error:
        raise StoreUnavailable(f"the schema name {schema} is an SQL keyword: choose another in the URL") from error


def _rows(connection: Connection, sql: str, values: Sequence[Any]) -> list[Any]:
    done = connection.execute(sql, values)
    return list(done.fetchall()) if done.description is not None else []


def missing(connection: Connection, schema: str) -> list[tuple[int, str]]:
    """List the missing migrations of a schema; change nothing.

    Raises:
        StoreUnavailable: the schema is newer than this release.
    """
    steps = migrations("postgres")
    current = schema_number(connection, quoted(schema))
    if current > len(steps):
        raise too_new(current, len(steps))
    return steps[current:]


def require(connection: Connection, schema: str) -> None:
    """Check that no migration is missing, for a process that must not migrate.

    Raises:
        StoreUnavailable: the schema is older or newer than this release.
    """
    lacking = [number for number, _ in missing(connection, schema)]
    if lacking:
        raise StoreUnavailable(
            f"the schema {schema} lacks the migrations {lacking}: run `holdfast migrate` as the role that owns it"
        )
