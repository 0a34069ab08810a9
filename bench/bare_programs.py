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
_EVENT_COUNT = len(EVENT_COLUMNS.split(","))


class Bare(abc.ABC):
    """The program, for any database."""

    mark = "?"  # how a statement names a parameter

    def __init__(self) -> None:
        marks = self.mark
        self._insert_event = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({', '.join([marks] * _EVENT_COUNT)})"
        self._insert_job = f"INSERT INTO jobs ({_JOB_COLUMNS}) VALUES ({', '.join([marks] * len(JOB_WRITTEN))})"
        self._grow_job = f"UPDATE jobs SET version = {marks}, head = {marks}, updated_at = {marks} WHERE id = {marks}"

    @abc.abstractmethod
    def write(self, statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        """Execute each statement for its rows, and commit."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def run(self, jobs: int, concurrency: int) -> None:
        """Write what `jobs` jobs of ten steps write, so many at a time."""
        for first in range(0, jobs, concurrency):
            self._together([f"job-{number:08}" for number in range(first, min(first + concurrency, jobs))])

    def commits_a_second(self, count: int = 300) -> float:
        """Measure commits of one small row each, one after the other."""
        self.write([("CREATE TABLE IF NOT EXISTS bare (n bigint)", [()])])
        started = time.perf_counter()
        for number in range(count):
            self.write([(f"INSERT INTO bare VALUES ({self.mark})", [(number,)])])
        return count / (time.perf_counter() - started)

    def insert_many(self, jobs: int) -> None:
        """Create jobs with nothing decided: rows and first events that are ready, in one transaction."""
        row = job_row(submit(Submit(job="j", plugin="b", entry="e", args={}), 1.0, None).job, 2.0)
        frozen = freeze_plain({"args": {}})
        event = event_row(seal_frozen("j", 1, GENESIS, "job_created", frozen, at=1.0, attempt=None), frozen.text)
        self.write([(self._insert_job, [(f"m{n:08}", *row[1:]) for n in range(jobs)]),
                    (self._insert_event, [(f"m{n:08}", *event[1:]) for n in range(jobs)])])  # fmt: skip

    def _together(self, names: list[str]) -> None:
        decided = [submit(Submit(job=name, plugin="b", entry="ten", args={}), time.time(), None) for name in names]
        first = [event_row(*pair) for one in decided for pair in zip(one.events, one.payloads, strict=True)]
        self.write([(self._insert_job, [job_row(one.job, time.time()) for one in decided]),
                    (self._insert_event, first)])  # fmt: skip
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
        self.write([(self._insert_event, rows), (self._grow_job, grown)])


class BareSqlite(Bare):
    """The program on a SQLite file, synchronous=FULL."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        migrate(self._connection, "sqlite")

    def write(self, statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        """Execute each statement for its rows, and commit."""
        with self._connection:
            for statement, rows in statements:
                self._connection.executemany(statement, rows)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class BarePostgres(Bare):
    """The program on PostgreSQL: prepared statements, and all that a transaction writes in one round trip."""

    mark = "%s"

    def __init__(self, url: str, schema: str) -> None:
        super().__init__()
        self._connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True, prepare_threshold=1)
        migrate_schema(self._connection, schema)
        self._connection.execute(f"SET search_path TO {schema}".encode())

    def write(self, statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        """Execute each statement for its rows, and commit."""
        if sum(len(rows) for _, rows in statements) == 1:
            ((statement, (row,)),) = statements
            self._connection.execute(statement.encode(), row, prepare=True)
            return
        with self._connection.pipeline(), self._connection.transaction(), self._connection.cursor() as cursor:
            for statement, rows in statements:
                cursor.executemany(statement.encode(), rows)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
