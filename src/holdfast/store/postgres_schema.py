"""Brings a PostgreSQL schema up to date: numbered migrations, forward only, each in one transaction.

One process at a time migrates, under an advisory lock of the transaction. Nobody waits long for a table that others
use: `lock_timeout` ends the try, and the next open tries again. A schema with a higher number than this release knows
was made by a newer one: it is refused and left alone.
"""

from __future__ import annotations

import hashlib
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.store.schema import migrations, quoted

__all__ = ["Connection", "migrate", "number_of", "quoted", "schema_number"]

LOCK_TIMEOUT_MS = 5000

# A psycopg.Connection. Its own type wants statements as literals; ours hold a schema's name, which `quoted` checked.
Connection = Any


def number_of(text: str) -> int:
    """Make a number for an advisory lock from a text: 63 bits, so that it reads the same in every client."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def schema_number(connection: Connection, schema: str) -> int:
    """Read the number of the last migration applied; 0 if there is none."""
    found = connection.execute("SELECT to_regclass(%s)", (f"{schema}.migrations",)).fetchone()
    if found is None or found[0] is None:
        return 0
    row = connection.execute(f"SELECT max(number) FROM {schema}.migrations").fetchone()
    return int(row[0] or 0) if row is not None else 0


def migrate(connection: Connection, schema: str) -> list[int]:
    """Apply what is missing; the numbers of what was applied.

    Raises:
        StoreUnavailable: the schema is newer than this release.
    """
    schema = quoted(schema)
    steps = migrations("postgres")
    current = schema_number(connection, schema)
    if current == len(steps):
        return []
    if current > len(steps):
        raise StoreUnavailable(
            f"the database has schema {current}, this release of Holdfast knows {len(steps)}: upgrade Holdfast"
        )
    applied = []
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (number_of(f"holdfast:migrate:{schema}"),))
        connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {schema}.migrations"
            " (number integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"
        )
        current = schema_number(connection, schema)  # somebody may have been faster
        for number, sql in steps[current:]:
            connection.execute(sql.replace("{schema}", schema))
            connection.execute(f"INSERT INTO {schema}.migrations (number) VALUES (%s)", (number,))
            applied.append(number)
    return applied
