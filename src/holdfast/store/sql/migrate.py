"""Numbered migrations to the newest schema: forward only, each in one transaction.

The database holds the number of the last migration applied (``PRAGMA user_version``). A database with a higher number
than this release knows was made by a newer one. It is refused and does not change.

A migration that added columns is followed by a rebuild of all rows from their streams (SPEC J6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast.errors import StoreUnavailable, TransitionRefused
from holdfast.machines import Event, RunRecord, runs
from holdfast.store.rows import rebuilt
from holdfast.store.sql.columns import JOB_COLUMNS, job_of
from holdfast.store.sql.event_rows import EVENT_COLUMNS, events_of

RUNS = 5  # the migration that added runs to the rows; older rows are rebuilt
BATCH = 500  # jobs read at once

Execute = Callable[[str, Sequence[Any]], list[Any]]


def quoted(schema: str) -> str:
    """Return a schema's name as SQL.

    Raises:
        ValueError: the name would need quotes in every query, or is too long for its channel.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,53}", schema):
        rule = "at most 54 lower-case letters, digits and underscores, and start with no digit"
        raise ValueError(f"the name of a schema must have {rule}, got {schema!r}")
    return schema


def migrations(dialect: str) -> list[tuple[int, str]]:
    """List (number, SQL) in order."""
    folder = files(f"holdfast.store.{dialect}").joinpath("migrations")
    scripts = [(entry.name, entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql")]
    numbered = sorted((int(name[:4]), sql) for name, sql in scripts)
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1)), "numbers run from 1 without gaps"
    return numbered


def number_in(path: str) -> int:
    """Read the number of the last migration applied to a SQLite file, and change nothing; 0 if there is no file.

    Raises:
        StoreUnavailable: the file cannot be read, or is not a database.
    """
    if not Path(path).exists():
        return 0
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            number: int = connection.pragma("user_version")
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreUnavailable(f"{path}: {error}: check the path and its rights") from error
    return number


def too_new(current: int, known: int) -> StoreUnavailable:
    """Return the error for a database of a newer release."""
    return StoreUnavailable(
        f"the database has schema {current}, this release of Holdfast knows {known}: upgrade Holdfast"
    )


def migrate(connection: apsw.Connection, dialect: str) -> None:
    """Apply the missing migrations. The caller keeps other processes out.

    Raises:
        StoreUnavailable: the database is newer than this release.
    """
    steps = migrations(dialect)
    current: int = connection.pragma("user_version")
    if current > len(steps):
        raise too_new(current, len(steps))
    with connection:  # a savepoint: tables, content and number change together, or not at all
        for number, sql in steps[current:]:
            connection.execute(sql)
            connection.pragma("user_version", number)
        if 0 < current < RUNS <= len(steps):
            project(lambda sql, values: connection.execute(sql, values).fetchall(), "?", "", EVENT_COLUMNS)


def project(execute: Execute, mark: str, schema: str, event_columns: str) -> None:
    """Write the run fields and records that each job's stream results in.

    Args:
        execute: executes a statement in a transaction and returns its rows.
        mark: the parameter mark.
        schema: the prefix of a table's name, with its dot.
        event_columns: the columns of an event.
    """
    jobs = f"SELECT {JOB_COLUMNS} FROM {schema}jobs WHERE id > {mark} ORDER BY id LIMIT {BATCH}"
    events = f"SELECT {event_columns} FROM {schema}events WHERE job = {mark} ORDER BY seq"
    update = f"UPDATE {schema}jobs SET course = {mark}, status = {mark} WHERE id = {mark}"
    insert = f"INSERT INTO {schema}past_runs (job, run, status, record) VALUES ({mark}, {mark}, {mark}, {mark})"
    last = ""
    while rows := execute(jobs, (last,)):
        for job in map(job_of, rows):
            stream = [event for row in execute(events, (job.id,)) for event in events_of(row)]
            course = rebuilt(job, stream).course
            execute(update, (msgspec.json.encode(course).decode(), course.status.value, job.id))
            for number, record in enumerate(_ended(stream), 1):
                execute(insert, (job.id, number, record.status.value, msgspec.json.encode(record).decode()))
        last = rows[-1][0]


def _ended(stream: list[Event]) -> list[RunRecord]:
    """Return the runs that another has followed; none for an illegal stream."""
    try:
        return runs(stream)[:-1]
    except TransitionRefused:
        return []
