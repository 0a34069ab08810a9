"""Export of a SQLite file whose jobs move to another store. The file is closed, read to the end, and left with a note.

Closing is one transaction. It requeues every running job (`job_requeued`, reason ``moved``), whose attempt is then
stale in both stores. It writes the note, and puts triggers on every table. After that no process of any release can
write to the file, also if it has the file open. Opening it raises an error that names the new store. Until the move is
complete it can be taken back; only the requeueing remains.

What can fail: there is no such file, or it is moving to another place: `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.machines import JobState
from holdfast.schedules.schedule import stream_of
from holdfast.store import decide
from holdfast.store.limits import LimitRow
from holdfast.store.rows import Job
from holdfast.store.sql.columns import JOB_COLUMNS, LIMIT_COLUMNS, job_of, limits_of
from holdfast.store.sql.event_rows import EVENT_COLUMNS
from holdfast.store.sql.migrate import migrate
from holdfast.store.sql.run_sql import OF_A_JOB
from holdfast.store.sqlite.file_lock import BUSY_SECONDS, FileLock, file_next_to
from holdfast.store.sqlite.transaction import Transaction

T = TypeVar("T")

BATCH = 500  # jobs that are read at once
_TABLES = ("jobs", "events", *OF_A_JOB, "workers", "limits", "budgets", "schedules", "schedule_ends", "schedule_builds")
_VERBS = ("INSERT", "UPDATE", "DELETE")
_SIGNAL_COLUMNS = "job, id, key, payload, at, used"
_EVIDENCE_COLUMNS = "job, node, attempt, number, result, error, at"
# Tables that move unchanged: their columns, and the order in which both sides read them.
ALONG = {
    "past_runs": ("job, run, status, record", "job, run"),
    "progress": ("job, run, said, at", "job, run"),
    "attributes": ("name, value, job", "name, value, job"),
    "exports": ("job, run, number, key, name, kind, media_type, size, value, blob, at", "job, run, number"),
    "blobs": ("job, blob, number, content", "job, blob, number"),
}


class MovedNote(msgspec.Struct, frozen=True):
    """The note of a move in a file: its id, the target, how many jobs were running, and whether it is complete."""

    id: str
    target: str
    requeued: int
    complete: bool

    def __str__(self) -> str:
        if self.complete:
            return f"this store has moved to {self.target}: use that store"
        return (
            f"this store is being moved to {self.target}: run `holdfast migrate-store` again to finish, or with --abort"
            " to take it back"
        )


class JobDump(msgspec.Struct, frozen=True):
    """Some jobs with all their data, as columns, in order."""

    jobs: list[Job]
    events: list[tuple[Any, ...]]
    signals: list[tuple[Any, ...]]
    evidence: list[tuple[Any, ...]]
    along: dict[str, list[tuple[Any, ...]]]


class ScheduleDump(msgspec.Struct, frozen=True):
    """All schedules with their data, as columns: rows, events, ended runs, builds."""

    rows: list[tuple[Any, ...]]
    events: list[tuple[Any, ...]]
    ends: list[tuple[Any, ...]]
    builds: list[tuple[Any, ...]]


def moved_note(connection: apsw.Connection) -> MovedNote | None:
    """Read a file's note of its move; None if it has not moved."""
    row = connection.execute("SELECT id, target, requeued, complete FROM moved").fetchone()
    return MovedNote(row[0], row[1], row[2], complete=bool(row[3])) if row else None


class MovingSource:
    """The file during its move. One process moves it at a time: others wait in `alone`."""

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        if not Path(path).is_file():
            raise StoreUnavailable(f"{path}: there is no such file to move")
        self._clock = clock or SystemClock()
        self._lock = FileLock(file_next_to(path, "-lock"))
        self._movers = FileLock(file_next_to(path, "-move"), None)
        self._connection = apsw.Connection(path)
        self._connection.set_busy_timeout(round(BUSY_SECONDS * 1000))
        try:
            self._connection.pragma("synchronous", "FULL")
            self._lock.run(lambda: migrate(self._connection, "sqlite"))
        except BaseException:
            self.close()
            raise

    def alone(self, work: Callable[[], T]) -> T:
        """Return a context in which no other process moves this file."""
        return self._movers.run(work)

    def note(self) -> MovedNote | None:
        """Read the note."""
        return moved_note(self._connection)

    def shut(self, move: str, target: str) -> MovedNote:
        """Close the file to all processes, unless it is closed for the same target already; return its note.

        Raises:
            StoreUnavailable: it is moving to another place.
        """
        note = self._transacted(lambda: self.note() or self._shut(move, target))
        if note.target != target:
            raise StoreUnavailable(str(note))
        return note

    def batches(self) -> Iterator[JobDump]:
        """Read everything, by id."""
        last = ""
        sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id > ? ORDER BY id LIMIT {BATCH}"
        while jobs := [job_of(row) for row in self._connection.execute(sql, (last,))]:
            last = jobs[-1].id
            names = msgspec.json.encode([job.id for job in jobs]).decode()
            yield JobDump(
                jobs,
                self._of(names, EVENT_COLUMNS, "events", "job, seq"),
                self._of(names, _SIGNAL_COLUMNS, "signals", "job, place"),
                self._of(names, _EVIDENCE_COLUMNS, "evidence", "job, at, node"),
                {table: self._of(names, columns, table, order) for table, (columns, order) in ALONG.items()},
            )

    def schedules(self) -> ScheduleDump:
        """Read all schedules with their streams, and what belongs to them."""
        read = self._connection.execute
        rows = read("SELECT id, plugin, due_at, row FROM schedules ORDER BY id").fetchall()
        streams = msgspec.json.encode([stream_of(row[0]) for row in rows]).decode()  # type: ignore[arg-type]  # - text
        return ScheduleDump(
            rows,
            self._of(streams, EVENT_COLUMNS, "events", "job, seq"),
            read("SELECT schedule, job, status, at FROM schedule_ends ORDER BY place").fetchall(),
            read("SELECT plugin, build, number FROM schedule_builds ORDER BY plugin, build").fetchall(),
        )

    def limits(self) -> list[LimitRow]:
        """Read the limits of queues."""
        rows = self._connection.execute(f"SELECT {LIMIT_COLUMNS} FROM limits ORDER BY queue").fetchall()
        return [limits_of(row) for row in rows]

    def budgets(self) -> list[tuple[Any, ...]]:
        """Read the shared budgets: name, window, millionths spent."""
        return self._connection.execute("SELECT name, window_start, spent FROM budgets ORDER BY name").fetchall()

    def audit(self) -> list[tuple[Any, ...]]:
        """Read the audit log, oldest first, without its numbers."""
        sql = "SELECT at, actor, said, verb, subject, detail FROM audit ORDER BY number"
        return self._connection.execute(sql).fetchall()

    def request_keys(self) -> list[tuple[Any, ...]]:
        """Read the keys of executed requests: key, fingerprint, answer, time."""
        return self._connection.execute("SELECT key, fingerprint, answer, at FROM request_keys").fetchall()

    def leave(self) -> None:
        """Mark the move as complete: the file stays closed permanently."""
        self._transacted(lambda: self._connection.execute("UPDATE moved SET complete = 1"))

    def take_back(self) -> None:
        """Open the file again; for a move of which nothing has arrived."""
        self._transacted(self._open_again)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._lock.close()
        self._movers.close()

    def _of(self, names: str, columns: str, table: str, order: str) -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM {table} WHERE job IN (SELECT value FROM json_each(?)) ORDER BY {order}"
        return self._connection.execute(sql, (names,)).fetchall()

    def _shut(self, move: str, target: str) -> MovedNote:
        now = self._clock.now()
        requeued = _Closing(self._connection, now, {}).end_attempts()
        self._connection.execute("DELETE FROM workers")
        sql = "INSERT INTO moved (only, id, target, at, requeued, complete) VALUES (1, ?, ?, ?, ?, 0)"
        self._connection.execute(sql, (move, target, now, requeued))
        for name, table, verb in _triggers():
            # The trigger itself has the message, so that a process of an older release shows it, too.
            self._connection.execute(
                f"CREATE TRIGGER {name} BEFORE {verb} ON {table} BEGIN"
                " SELECT RAISE(ABORT, 'this store has moved, or is being moved, to another place'); END"
            )
        return MovedNote(move, target, requeued, complete=False)

    def _open_again(self) -> None:
        for name, _, _ in _triggers():
            self._connection.execute(f"DROP TRIGGER IF EXISTS {name}")
        self._connection.execute("DELETE FROM moved WHERE complete = 0")

    def _transacted(self, work: Callable[[], T]) -> T:
        def transact() -> T:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                done = work()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            return done

        return self._lock.run(transact)


class _Closing(Transaction):
    """The last transaction of a store that moves."""

    def end_attempts(self) -> int:
        """Requeue all running jobs, with what follows; return how many."""
        held = self._names("SELECT id FROM jobs WHERE state = ? ORDER BY id", (JobState.RUNNING.value,))
        for name in self._found(held):
            self._take(decide.moved(self.jobs[name], self.now))
        self._drain()
        self.flush()
        return len(held)


def _triggers() -> list[tuple[str, str, str]]:
    return [(f"moved_{table}_{verb.lower()}", table, verb) for table in _TABLES for verb in _VERBS]
