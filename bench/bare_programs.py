"""Bare programs that write what jobs write, without an engine: the limit that a database and the hash chain set.

A bare program seals the same events as jobs of ten steps, writes one row for each event and one for each job, as
durable as the engine writes them, and commits once for all jobs that are at the same step (group commit).
"""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg

from holdfast.machines.event import GENESIS, freeze_plain, seal_frozen
from holdfast.store import Submit
from holdfast.store.decide import submit
from holdfast.store.postgres.schema import migrate as migrate_schema
from holdfast.store.sql.columns import JOB_WRITTEN, job_row
from holdfast.store.sql.event_rows import EVENT_COLUMNS, event_row
from holdfast.store.sql.migrate import migrate

STEPS = 10
_JOB_COLUMNS = ", ".join(JOB_WRITTEN)
_INSERT_EVENT = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_JOB = f"INSERT INTO jobs ({_JOB_COLUMNS}) VALUES ({', '.join('?' * len(JOB_WRITTEN))})"
_GROW_JOB = "UPDATE jobs SET version = ?, head = ?, updated_at = ? WHERE id = ?"
_GROW_JOBS = (
    "UPDATE jobs j SET version = x.version, head = x.head, updated_at = x.at"
    " FROM unnest(%s::bigint[], %s::text[], %s::float8[], %s::text[]) AS x (version, head, at, id) WHERE j.id = x.id"
)


Rows = Sequence[Sequence[Any]]


class Bare(abc.ABC):
    """The program, for any database."""

    @abc.abstractmethod
    def write(self, new: Rows, events: Rows, grown: Rows = ()) -> None:
        """Insert jobs and events, and set the version, head and time of jobs, in one transaction."""

    @abc.abstractmethod
    def commit_number(self, number: int) -> None:
        """Insert a number into a table of its own, in one transaction."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def run(self, jobs: int, concurrency: int) -> None:
        """Write what `jobs` jobs of ten steps write, so many at a time."""
        for first in range(0, jobs, concurrency):
            self._together([f"job-{number:08}" for number in range(first, min(first + concurrency, jobs))])

    def commits_a_second(self, count: int = 300) -> float:
        """Measure commits of one small row each, one after the other."""
        started = time.perf_counter()
        for number in range(count):
            self.commit_number(number)
        return count / (time.perf_counter() - started)

    def insert_many(self, jobs: int) -> None:
        """Create jobs with nothing decided: rows and first events that are ready, in one transaction."""
        row = job_row(submit(Submit(job="j", plugin="b", entry="e", args={}), 1.0, None).job, 2.0)
        frozen = freeze_plain({"args": {}})
        event = event_row(seal_frozen("j", 1, GENESIS, "job_created", frozen, at=1.0, attempt=None), frozen.text)
        self.write([(f"m{n:08}", *row[1:]) for n in range(jobs)], [(f"m{n:08}", *event[1:]) for n in range(jobs)])

    def _together(self, names: list[str]) -> None:
        decided = [submit(Submit(job=name, plugin="b", entry="ten", args={}), time.time(), None) for name in names]
        first = [event_row(*pair) for one in decided for pair in zip(one.events, one.payloads, strict=True)]
        self.write([job_row(one.job, time.time()) for one in decided], first)
        ends = {one.job.id: (one.job.version, one.job.head) for one in decided}
        self._grow(ends, [("job_running", {"worker": "bare"})])
        for number in range(STEPS):
            node = f"s:{number}"
            self._grow(ends, [("node_started", {"node": node, "name": "s", "try": 1, "args": {"n": number}}),
                              ("command_committed", {"node": node, "name": "s", "result": number}),
                              ("node_finished", {"node": node, "result_type": "success"})])  # fmt: skip
        self._grow(ends, [("job_completed", {"result": 45})])

    def _grow(self, ends: dict[str, tuple[int, str]], events: list[tuple[str, dict[str, Any]]]) -> None:
        rows, grown, now = [], [], time.time()
        for name, (version, head) in ends.items():
            for kind, payload in events:
                frozen = freeze_plain(payload)
                event = seal_frozen(name, version + 1, head, kind, frozen, at=now, attempt=1)
                version, head = event.seq, event.hash  # noqa: PLW2901 - the chain moves on
                rows.append(event_row(event, frozen.text))
            ends[name] = (version, head)
            grown.append((version, head, now, name))
        self.write([], rows, grown)


class BareSqlite(Bare):
    """The program on a SQLite file, synchronous=FULL."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        migrate(self._connection, "sqlite")
        self._connection.execute("CREATE TABLE bare (n INTEGER)")

    def write(self, new: Rows, events: Rows, grown: Rows = ()) -> None:
        """Insert and update row by row, with statements that are prepared once."""
        with self._connection:
            self._connection.executemany(_INSERT_JOB, new)
            self._connection.executemany(_INSERT_EVENT, events)
            self._connection.executemany(_GROW_JOB, grown)

    def commit_number(self, number: int) -> None:
        """Insert a number."""
        self._connection.execute("INSERT INTO bare VALUES (?)", (number,))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class BarePostgres(Bare):
    """The program on PostgreSQL: COPY for new rows, and one statement for all that change."""

    def __init__(self, url: str, schema: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True, prepare_threshold=1)
        migrate_schema(self._connection, schema)
        self._connection.execute(f"SET search_path TO {schema}".encode())
        self._connection.execute("CREATE TABLE bare (n bigint)")

    def write(self, new: Rows, events: Rows, grown: Rows = ()) -> None:
        """Copy and update in one transaction."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for table, columns, rows in (("jobs", _JOB_COLUMNS, new), ("events", EVENT_COLUMNS, events)):
                if rows:
                    with cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
                        for row in rows:
                            copy.write_row(row)
            if grown:
                cursor.execute(_GROW_JOBS, [list(column) for column in zip(*grown, strict=True)])

    def commit_number(self, number: int) -> None:
        """Insert a number."""
        self._connection.execute("INSERT INTO bare VALUES (%s)", (number,))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
