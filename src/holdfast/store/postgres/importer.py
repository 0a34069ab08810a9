"""Import of another store into a PostgreSQL schema: completely with one commit, or not at all.

Jobs come in batches and are read back and compared, in one transaction. No worker sees a child without its parent, or a
job without its signals. The transaction also writes the move's id, so that a later try knows whether the move has
happened. A process that died may have a commit under way; the next try waits for it first.

What can fail: an id or an idempotency key exists, or a value cannot be stored: `StoreUnavailable`, and nothing was
written. If the commit itself fails, its outcome is unknown; `begin` of the next try finds it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import psycopg

from holdfast.errors import StoreUnavailable
from holdfast.store.limits import LimitRow
from holdfast.store.postgres.connection import connect, one_line
from holdfast.store.postgres.schema import migrate, number_of
from holdfast.store.postgres.statements import Statements
from holdfast.store.sql.columns import JOB_COLUMNS, JOB_WRITTEN, job_of, job_row, limits_row
from holdfast.store.sql.event_rows import EVENT_COLUMNS, EVENT_READ, count_events
from holdfast.store.sql.migrate import quoted
from holdfast.store.sqlite.export import ALONG, JobDump, ScheduleDump

T = TypeVar("T")


class Arrived(msgspec.Struct, frozen=True):
    """The numbers of a finished import."""

    jobs: int = 0
    events: int = 0
    signals: int = 0
    evidence: int = 0


class MovingTarget:
    """The schema during an import: one transaction, which `end` commits."""

    def __init__(self, url: str, schema: str) -> None:
        self._schema = quoted(schema)
        self._arrived = Arrived()
        self._connection = self._guarded(lambda: connect(url))
        try:
            self._guarded(lambda: migrate(self._connection, schema))
            self._connection.autocommit = False
        except BaseException:
            self.close()
            raise

    def begin(self, move: str) -> Arrived | None:
        """Begin, after any other process with the same move; return what this move has imported before, or None."""
        return self._guarded(lambda: self._begin(move))

    def take(self, dump: JobDump) -> None:
        """Write some jobs, and check that they equal those of the source."""
        self._guarded(lambda: self._take(dump))

    def take_limits(self, rows: Iterable[LimitRow]) -> None:
        """Write the limits of queues, in place of the target's for the same names."""
        sql = Statements(self._schema).put_limits.encode()

        def taken() -> None:
            for row in rows:
                self._connection.execute(sql, limits_row(row))

        self._guarded(taken)

    def take_budgets(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write shared budgets. If both stores have one, the newer window counts; for the same window, the sum."""
        sql = (
            f"INSERT INTO {self._schema}.budgets AS b (name, window_start, spent) VALUES (%s, %s, %s)"
            " ON CONFLICT (name) DO UPDATE SET window_start = greatest(b.window_start, excluded.window_start),"
            " spent = CASE WHEN b.window_start > excluded.window_start THEN b.spent"
            " WHEN b.window_start = excluded.window_start THEN b.spent + excluded.spent ELSE excluded.spent END"
        )

        def taken() -> None:
            for row in rows:
                self._connection.execute(sql.encode(), row)

        self._guarded(taken)

    def take_audit(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add the rows of the audit log, under new numbers."""
        sql = Statements(self._schema).audit.encode()

        def taken() -> None:
            for row in rows:
                self._connection.execute(sql, row)

        self._guarded(taken)

    def take_request_keys(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add the keys of executed requests. A key that this store knows stays as it is."""
        sql = f"INSERT INTO {self._schema}.request_keys VALUES (%s, %s, %s, %s) ON CONFLICT (key) DO NOTHING"

        def taken() -> None:
            for row in rows:
                self._connection.execute(sql.encode(), row)

        self._guarded(taken)

    def take_schedules(self, dump: ScheduleDump) -> None:
        """Write the schedules with their streams. A build that this store knows keeps its number."""
        builds = f"INSERT INTO {self._schema}.schedule_builds VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"

        def taken() -> None:
            self._copy("schedules", "id, plugin, due_at, row", dump.rows)
            self._copy("events", EVENT_COLUMNS, dump.events)
            self._copy("schedule_ends", "schedule, job, status, at", dump.ends)
            for row in dump.builds:
                self._connection.execute(builds.encode(), row)

        self._guarded(taken)

    def end(self, move: str, source: str) -> Arrived:
        """Record the move, notify workers, commit."""
        counts = msgspec.structs.astuple(self._arrived)
        sql = f"INSERT INTO {self._schema}.moves VALUES (%s, %s, {self._schema}.clock(), %s, %s, %s, %s)"

        def ended() -> None:
            self._connection.execute(sql.encode(), (move, source, *counts))
            self._connection.execute("SELECT pg_notify(%s, '3:')", (f"holdfast_{self._schema}",))
            self._connection.commit()

        self._guarded(ended)
        return self._arrived

    def close(self) -> None:
        """Close the connection; what was not committed is discarded."""
        self._connection.close()

    def _begin(self, move: str) -> Arrived | None:
        self._connection.rollback()
        self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (number_of(f"holdfast:move:{move}"),))
        sql = f"SELECT jobs, events, signals, evidence FROM {self._schema}.moves WHERE id = %s"
        row = self._connection.execute(sql.encode(), (move,)).fetchone()
        return Arrived(*row) if row is not None else None

    def _take(self, dump: JobDump) -> None:
        clock = self._connection.execute(f"SELECT {self._schema}.clock()".encode()).fetchone()
        assert clock is not None, "a clock gives a time"
        self._copy("jobs", ", ".join(JOB_WRITTEN), [job_row(job, clock[0]) for job in dump.jobs])
        self._copy("events", EVENT_COLUMNS, dump.events)
        signals = [(*signal[:-1], bool(signal[-1])) for signal in dump.signals]
        self._copy("signals", "job, id, key, payload, at, used", signals)  # their places follow this order
        self._copy("evidence", "job, node, attempt, number, result, error, at", dump.evidence)
        for table, (columns, _) in ALONG.items():
            self._copy(table, columns, dump.along[table])
        self._compare(dump, signals)
        came = (len(dump.jobs), sum(map(count_events, dump.events)), len(dump.signals), len(dump.evidence))
        counts = zip(msgspec.structs.astuple(self._arrived), came, strict=True)
        self._arrived = Arrived(*(before + more for before, more in counts))

    def _copy(self, table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        sql = f"COPY {self._schema}.{table} ({columns}) FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def _compare(self, dump: JobDump, signals: list[tuple[Any, ...]]) -> None:
        names = [job.id for job in dump.jobs]
        here: list[list[Any]] = [
            [job_of(row) for row in self._of(names, JOB_COLUMNS, "jobs", "id", "id")],
            self._of(names, EVENT_READ, "events", "job", "job, seq"),
            self._of(names, "job, id, key, payload::text, at, used", "signals", "job", 'job COLLATE "C", place'),
            self._of(names, "job, node, attempt, number, result::text, error, at", "evidence", "job", "job, at, node"),
        ]
        there: list[list[Any]] = [dump.jobs, dump.events, signals, dump.evidence]
        for table, (columns, order) in ALONG.items():
            here.insert(0, self._of(names, columns, table, "job", order))
            there.insert(0, dump.along[table])
        if here[:-1] != there[:-1] or sorted(map(repr, here[-1])) != sorted(map(repr, there[-1])):
            raise StoreUnavailable("the rows read back differ from the rows written: nothing was moved")

    def _of(self, names: list[str], columns: str, table: str, key: str, order: str) -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM {self._schema}.{table} WHERE {key} = ANY(%s) ORDER BY {order}"
        rows: list[tuple[Any, ...]] = self._connection.execute(sql.encode(), (names,)).fetchall()
        return rows

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except psycopg.errors.UniqueViolation as error:
            detail = error.diag.message_detail or str(error)
            raise StoreUnavailable(f"the target already has such a row: {detail} Move into another schema") from error
        except psycopg.DataError as error:
            raise StoreUnavailable(f"PostgreSQL cannot store a value: {one_line(error)}") from error
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"the target: {one_line(error)}: check the server, the URL and the rights of this user"
            ) from error
