"""Jobs in one SQLite file, for one or many processes of one host.

Acknowledged means on disk: WAL with synchronous=FULL, and an answer is given after the commit. All writing of a process
goes through one thread with one connection, a whole batch in one transaction. Between processes a lock file is taken
before each transaction: SQLite's own waiting is a sleep that is not fair, and somebody starves for seconds. Reads have
a connection of their own and never wait for a writer.

What can go wrong, and what happens then:

- The disk is full, the file read-only, damaged or locked by something else: `StoreUnavailable`, with what to do. The
  transaction was rolled back. The next commit tries again, so that the store works again when the cause is gone.
- The file was made by a newer Holdfast: it is refused when it is opened, and nothing is changed.
- Its jobs have moved to another store: it is refused when it is opened; for those who had it open every write is.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.machines import Event, JobState, RunRecord
from holdfast.machines.runs import run_name
from holdfast.store import commands as c
from holdfast.store.bell import Ear
from holdfast.store.changes import ASKED, EVENTS, PROGRESS, ROOM, WORK
from holdfast.store.filelock import FileLock
from holdfast.store.limits import QueueState
from holdfast.store.looking import (
    Counts,
    ExportRow,
    Filing,
    Place,
    Questions,
    RunFilter,
    counts_of,
    export_of,
    filing_of,
    may_be_past,
    merged,
    newest_of,
    past_of,
    record_of_newest,
)
from holdfast.store.moving_out import moved_note
from holdfast.store.rows import OUTDATED, Evidence, Job, Signal, WorkerCard, rebuilt
from holdfast.store.schema import migrate
from holdfast.store.sql_rows import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    LIMIT_COLUMNS,
    card_of,
    event_of,
    evidence_of,
    job_of,
    limits_of,
    signal_of,
)
from holdfast.store.sqlite_limits import state_of
from holdfast.store.sqlite_transaction import Transaction

__all__ = ["SqliteStore"]

T = TypeVar("T")

_ASK = Questions("?")
ROWS_MAX = 20_000  # rows kept at hand
POLL_SECONDS = 0.02
EVERYTHING = EVENTS | WORK | ASKED | PROGRESS | ROOM

CURES: list[tuple[type[apsw.Error], str]] = [
    (apsw.FullError, "the disk is full: free some space"),
    (apsw.ReadOnlyError, "the file or its directory is read-only: give this user the right to write"),
    (apsw.CantOpenError, "the file cannot be opened: check the path and its rights"),
    (apsw.NotADBError, "the file is not a SQLite database: name another, or move this one away"),
    (apsw.CorruptError, "the file is damaged: stop all workers and restore a backup"),
    (apsw.IOError, "the disk reports an error: check it, and the space on it"),
    (apsw.BusyError, "another program holds the file locked: close it"),
    (apsw.LockedError, "another program holds the file locked: close it"),
]


class SqliteStore:
    """Keeps jobs in a SQLite file; see the module's text."""

    floor_seconds: float | None = None

    def __init__(self, path: str | Path, clock: Clock | None = None, poll_seconds: float = POLL_SECONDS) -> None:
        self._path = Path(path)
        self._poll_seconds = poll_seconds
        self._clock = clock or SystemClock()
        self._notices: list[Callable[[int], None]] = []
        self._reading = threading.Lock()  # one connection for all readers: short reads, from more than one loop
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-writer")
        self._rows: dict[str, Job] = {}  # rows of held jobs, as they are on disk while nobody else writes
        self._rows_version = -1
        self._others = False  # whether another process has committed, and nobody was told of it yet
        self._heard = 0
        self._ear: Ear | None = None
        self._lock = FileLock(self._path.with_name(self._path.name + "-lock"))
        try:
            self._write_connection = self._guard(self._open)
            self._guard(lambda: self._lock.run(lambda: migrate(self._write_connection, "sqlite")))
            self._guard(self._stay_if_not_moved)
            self._rows_version = self._guard(lambda: self._write_connection.pragma("data_version"))
            self._read_connection = self._guard(self._open)
        except BaseException:
            self._writer.shutdown()
            raise

    async def commit(self, batch: Sequence[c.Command]) -> list[Any]:
        """Carry out commands in one transaction; see the protocol."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._commit, batch)

    def commit_blocking(self, batch: Sequence[c.Command]) -> list[Any]:
        """Carry out commands from a thread of one's own."""
        return self._writer.submit(self._commit, batch).result()

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        """Have `notice` called after each commit of this process, and when another has committed."""
        self._notices.append(notice)
        if self._ear is None:
            lock, log = (self._path.with_name(self._path.name + end) for end in ("-lock", "-wal"))
            self._ear = Ear(lock, log, self._listen, self._poll_seconds)
        return lambda: self._notices.remove(notice)

    async def get(self, job: str) -> Job | None:
        """Read one job's row."""
        rows = self._read(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job,))
        return await self._brought_up(job_of(rows[0])) if rows else None

    async def _brought_up(self, row: Job) -> Job:
        """Make a row anew that an older release has left behind its stream."""
        return rebuilt(row, await self.events(row.id)) if row.course is OUTDATED else row

    async def events(self, job: str, after: int = 0) -> list[Event]:
        """Read a job's stream from behind a number."""
        sql = f"SELECT {EVENT_COLUMNS} FROM events WHERE job = ? AND seq > ? ORDER BY seq"
        return [event_of(row) for row in self._read(sql, (job, after))]

    async def inbox(self, job: str) -> list[Signal]:
        """Read the unused signals of a job."""
        sql = "SELECT job, id, key, payload, at FROM signals WHERE job = ? AND used = 0 ORDER BY place"
        return [signal_of(row) for row in self._read(sql, (job,))]

    async def evidence(self, job: str) -> list[Evidence]:
        """Read what came too late."""
        sql = "SELECT job, node, attempt, number, result, error, at FROM evidence WHERE job = ? ORDER BY at, node"
        return [evidence_of(row) for row in self._read(sql, (job,))]

    async def workers(self) -> list[WorkerCard]:
        """Read who is there."""
        return [card_of(row) for row in self._read("SELECT card, started_at, seen_at FROM workers ORDER BY name", ())]

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        plugin: str | None = None,
        entry: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List jobs, newest id first."""
        wanted = {"state = ?": state, "plugin = ?": plugin, "entry = ?": entry, "id < ?": before}
        given = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        sql = f"SELECT {JOB_COLUMNS} FROM jobs {where} ORDER BY id DESC LIMIT ?"
        return [await self._brought_up(job_of(row)) for row in self._read(sql, (*given.values(), limit))]

    async def record(self, job: str, number: int) -> RunRecord | None:
        """Read one run's record."""
        found = await self.records(RunFilter(task_id=job), 1, (job, number + 1))
        return found[0] if found and found[0].run_id == run_name(job, number) else None

    async def records(self, where: RunFilter, limit: int, before: Place | None = None) -> list[RunRecord]:
        """List runs, newest first."""
        rows = [newest_of(row) for row in self._read(*_ASK.newest_runs(where, before, limit))]
        found = [record_of_newest(await self._brought_up(job), said, at) for job, said, at in rows]
        if may_be_past(where):
            found += [past_of(row) for row in self._read(*_ASK.past_runs(where, before, limit))]
        return merged(found, limit)

    async def filing(self, job: str) -> Filing | None:
        """Read what a job is found by."""
        return filing_of(self._read(_ASK.filing, (job,) * 4))

    async def counts(self) -> Counts:
        """Count runs and queues."""
        now = self._clock.now()
        queues, oldest = self._read(_ASK.count_queues, (now,)), self._read(_ASK.oldest_due, (now,))
        return counts_of(self._read(_ASK.count_runs, ()), queues, oldest[0][0])

    async def exports(self, job: str, number: int, after: int, limit: int) -> list[ExportRow]:
        """List what a run has produced."""
        return [export_of(row) for row in self._read(_ASK.exports, (job, number, after, limit))]

    async def blob(self, job: str, blob: str, number: int) -> bytes | None:
        """Read one piece of a blob."""
        rows = self._read(_ASK.blob, (job, blob, number))
        return rows[0][0] if rows else None

    async def limits(self) -> list[QueueState]:
        """Read the limits of queues, and how these stand."""
        rows = self._read(f"SELECT {LIMIT_COLUMNS} FROM limits ORDER BY queue", ())
        now = self._clock.now()
        with self._reading:
            return self._guard(lambda: [state_of(self._read_connection, limits_of(row), now) for row in rows])

    async def requests(self, worker: str) -> c.Leases:
        """Read what was asked of a worker's jobs."""
        sql = (
            "SELECT id, cancel IS NOT NULL, pause FROM jobs INDEXED BY jobs_leased"
            " WHERE lease_until IS NOT NULL AND lease_worker = ? AND (cancel IS NOT NULL OR pause = 1)"
        )
        rows = self._read(sql, (worker,))
        cancel = frozenset(name for name, cancel, _ in rows if cancel)
        return c.Leases(frozenset(), cancel, frozenset(name for name, _, pause in rows if pause))

    async def next_due(self, after: float | None = None) -> float | None:
        """Find the next time at which time alone brings something about."""
        # Left alone, SQLite may walk every job: it does not know how many there are.
        sql = (
            "SELECT min(at) FROM ("
            " SELECT min(due_at) AS at FROM jobs INDEXED BY jobs_delayed"
            "  WHERE claimable = 0 AND state = 'queued' AND due_at > ?"
            " UNION ALL SELECT min(lease_until) FROM jobs INDEXED BY jobs_leased WHERE lease_until IS NOT NULL"
            " UNION ALL SELECT min(ends_at) FROM jobs INDEXED BY jobs_ending WHERE ends_at IS NOT NULL)"
        )
        found: float | None = self._read(sql, (self._clock.now() if after is None else after,))[0][0]
        return found

    async def stirs(self) -> bool:
        """See whether there is anything to do."""
        if self._read("SELECT 1 FROM jobs INDEXED BY jobs_claimable WHERE claimable = 1 LIMIT 1", ()):
            return True
        due = await self.next_due(0.0)
        return due is not None and due <= self._clock.now()

    async def now(self) -> float:
        """Read the host's clock."""
        return self._clock.now()

    def attend(self, worker: str) -> None:
        """Nobody here can tell; a supervisor can."""

    async def dead(self) -> list[str]:
        """Nobody here can tell."""
        return []

    async def close(self) -> None:
        """Close the file."""
        if self._ear is not None:
            await asyncio.to_thread(self._ear.stop)
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write_connection.close)
        self._writer.shutdown()
        self._read_connection.close()
        self._lock.close()

    def changes(self) -> int:
        """Give a number that grows when another process has committed; once somebody has subscribed."""
        return self._heard

    def _listen(self) -> None:
        """Find out whether another process has committed, and tell. The writer knows which commits were its own."""
        if self._writer.submit(self._look).result():
            self._tell(EVERYTHING)

    def _look(self) -> bool:
        try:
            self._see_others()
        except apsw.Error:
            return False  # whoever reads or writes next will be told what is wrong
        others, self._others = self._others, False
        self._heard += others
        return others

    def _see_others(self) -> None:
        version = self._write_connection.pragma("data_version")
        if version != self._rows_version:  # another process has written: what we know may be old
            self._rows.clear()
            self._others = True
            self._rows_version = version

    def _tell(self, change: int) -> None:
        for notice in list(self._notices):
            notice(change)

    def _open(self) -> apsw.Connection:
        # Created by us, so that nobody else can read it from the first moment on.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.close(descriptor)
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(30_000)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "FULL")
        connection.pragma("foreign_keys", "ON")
        return connection

    def _stay_if_not_moved(self) -> None:
        note = moved_note(self._write_connection)
        if note is not None:
            self._write_connection.close()
            raise StoreUnavailable(f"{self._path}: {note}")

    def _commit(self, batch: Sequence[c.Command]) -> list[Any]:
        answers, change = self._guard(lambda: self._lock.run(lambda: self._transact(batch)))
        if change:
            self._lock.ring()
            self._tell(change)
        return answers

    def _transact(self, batch: Sequence[c.Command]) -> tuple[list[Any], int]:
        connection = self._write_connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._see_others()
            transaction = Transaction(connection, self._clock.now(), self._rows)
            answers = transaction.carry_out(batch)
            connection.execute("COMMIT")
        except BaseException:
            self._rows.clear()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._remember(transaction.held())
        return answers, transaction.change

    def _remember(self, touched: dict[str, Job | None]) -> None:
        """Keep the rows of jobs that are held at hand: whoever holds them writes again soon."""
        for name, job in touched.items():
            if job is not None:
                self._rows[name] = job
            else:
                self._rows.pop(name, None)
        if len(self._rows) > ROWS_MAX:
            self._rows.clear()

    def _read(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        with self._reading:
            return self._guard(lambda: self._read_connection.execute(sql, bindings).fetchall())

    def _guard(self, work: Callable[[], T]) -> T:
        """Turn what SQLite and the system say into `StoreUnavailable` with what to do."""
        try:
            return work()
        except apsw.Error as error:
            if isinstance(error, apsw.ConstraintError) and "this store has moved" in str(error):
                raise StoreUnavailable(f"{self._path}: {moved_note(self._write_connection) or error}") from error
            cure = next((text for kind, text in CURES if isinstance(error, kind)), None)
            if cure is None:
                raise
            raise StoreUnavailable(f"{self._path}: {cure} ({error})") from error
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error.strerror}: check the path and its rights") from error
