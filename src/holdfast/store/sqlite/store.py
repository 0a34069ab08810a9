"""The SQLite store: jobs in one file, for one or many processes of one host.

Acknowledged means on disk: WAL with synchronous=FULL, and `commit` returns after the COMMIT. All writes of a process go
through one connection, a whole batch in one transaction. A thread of its own writes for loops, and for callers that
would have to wait; else a blocking call writes in its caller's thread. A transaction takes a lock file first, because
SQLite's own wait is a sleep: it is not fair, and a process could starve for seconds. Reads have their own connection
and never wait for a writer. Reads that can be long have another one, and a thread, so that a loop is never held by
them. Other programs may read, write and copy the file meanwhile.

What can fail:

- The disk is full, or the file is read-only, damaged or locked by another program: `StoreUnavailable`, with what to do.
  The transaction was rolled back. The next commit tries again, so the store works again when the cause is gone.
- A file of the database was deleted or replaced: `StoreReplaced`, before anything is acknowledged. A commit counts only
  if its log is still the log of the file.
- A process that was stopped holds the lock file: `StoreUnavailable` after `busy_seconds`.
- A newer Holdfast made the file: opening it is refused, and nothing changes.
- Its jobs have moved to another store: opening it is refused. A process that has it open cannot write any more.
- The process forks: the store closes its connections first, and opens them again when they are needed; see
  `fork_guard`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.schedules.outcome import TickOutcome
from holdfast.schedules.schedule import Schedule
from holdfast.store import commands as c
from holdfast.store.commands import EVERYTHING
from holdfast.store.limits import QueueState
from holdfast.store.rows import Job
from holdfast.store.run_queries import marks_in
from holdfast.store.signal_handlers import may_run_handlers
from holdfast.store.sql.columns import LIMIT_COLUMNS, limits_of
from holdfast.store.sql.event_rows import events_of
from holdfast.store.sql.migrate import migrate
from holdfast.store.sql.reads import SqlReads
from holdfast.store.sql.run_sql import MARKED, ReadSql
from holdfast.store.sql.tick_events import newest_of_streams, outcomes_by_schedule, tick_event_of
from holdfast.store.sqlite.commit_watcher import CommitWatcher
from holdfast.store.sqlite.database_files import DatabaseFiles, connect
from holdfast.store.sqlite.error_text import guarded
from holdfast.store.sqlite.export import moved_note
from holdfast.store.sqlite.file_lock import (
    BUSY_SECONDS,
    CLOSED,
    FORKED,
    FileLock,
    WriteThread,
    fcntl,
    file_next_to,
)
from holdfast.store.sqlite.file_watcher import FileWatcher
from holdfast.store.sqlite.fork_guard import leak, open_stores
from holdfast.store.sqlite.limits import state_of
from holdfast.store.sqlite.liveness import LivenessLocks
from holdfast.store.sqlite.transaction import Transaction

T = TypeVar("T")

_SIGNALLED = "EXISTS (SELECT 1 FROM signals INDEXED BY signals_unused WHERE job = jobs.id AND used = 0)"
READS = ReadSql(
    "?",
    requests_for=f"SELECT id, cancel IS NOT NULL, pause, {_SIGNALLED} FROM jobs INDEXED BY jobs_leased"
    f" WHERE lease_until IS NOT NULL AND lease_worker = ? AND (cancel IS NOT NULL OR pause = 1 OR {_SIGNALLED})",
    # It names its index: SQLite would take that of the order of arrival, which has every signal that was used.
    unused="signals INDEXED BY signals_unused WHERE used = 0",
    past_end="json_extract(r.record, '$.finished_at')",
    started="CASE WHEN course = '' THEN NULL ELSE json_extract(course, '$.started_at') END",
    build="CASE WHEN course = '' THEN NULL ELSE json_extract(course, '$.build') END",
    started_run="json_extract(e.payload, '$.job')",
    whole="CAST({} AS INTEGER)",
    by_build=" INDEXED BY jobs_kept",  # SQLite does not know how many jobs there are
)
ROWS_MAX = 20_000  # cached rows
POLL_SECONDS = 0.02
LOCKS = 4  # that a fork takes
NO_VERSION = -1  # of cached rows: the next transaction drops them

Committed = tuple[list[Any], Transaction]  # the results of a batch, and the transaction that was committed


class SqliteStore(SqlReads):
    """A store in a SQLite file; see the module's docstring."""

    floor_seconds: float | None = None

    def __init__(
        self,
        path: str | Path,
        clock: Clock | None = None,
        poll_seconds: float = POLL_SECONDS,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        super().__init__(READS)
        self._path = Path(path).absolute()  # the process may change its directory
        self._lock_path = file_next_to(self._path, "-lock")
        self._poll_seconds = poll_seconds
        self._busy_seconds = busy_seconds
        self._clock = clock or SystemClock()
        self._notices: list[Callable[[int], None]] = []
        self._writing = threading.Lock()  # while the connection that writes is used, opened or closed
        self._reading = threading.Lock()  # one connection for all readers: short reads, from more than one loop
        self._reading_aside = threading.Lock()  # the connection of long reads
        self._aside_connection: apsw.Connection | None = None
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-reader")  # no thread until used
        self._rows: dict[str, Job] = {}  # rows of running jobs; equal to those on disk while no other process writes
        self._rows_version = NO_VERSION
        self._others = False  # whether another process has committed and no notice was sent yet
        self._own_mark: object = None  # the mark of the files after this store's last commit
        self._told_mark: object = object()  # and that of the last one of another process that was notified; none yet
        self._heard = 0
        self._watcher: CommitWatcher | None = None
        self._connections: list[apsw.Connection] = []
        self._refusal: str | None = None  # why it cannot be used any more
        self._paused: list[threading.Lock] = []  # held by a fork that is under way
        self._liveness = LivenessLocks(file_next_to(self._path, "-workers"))
        self._lock = FileLock(self._lock_path, busy_seconds)  # of the thread that writes
        self._lock_here = FileLock(self._lock_path)  # of other threads, one at a time; the two exclude each other
        self._files = self._guard(lambda: DatabaseFiles.attach(self._path))
        self._writer = WriteThread(self._lock, partial(guarded, self._path))  # holds no reference to the store
        with self._writing:
            open_stores[id(self)] = self  # a fork waits from here on
            try:
                self._guard(self._open_first)
            except BaseException:
                self._refusal = CLOSED
                self._writer.stop()
                self._detach()
                raise

    def _open_first(self) -> None:
        """Open the connections, and migrate the database to this release's schema.

        A new file gets its log under the lock. SQLite lets processes that do this at the same time wait for each other.
        """
        self._write_connection = self._lock.run(self._open)
        self._writer.run(lambda: self._guard(lambda: migrate(self._write_connection, "sqlite")), lambda _: None)
        self._stay_if_not_moved()
        self._rows_version = self._write_connection.pragma("data_version")
        self._read_connection = self._open()
        self._files.hold()

    async def commit(self, batch: Sequence[c.Command]) -> list[Any]:
        return await self._writer.arun(lambda: self._transact(batch), self._ring_and_tell)

    def commit_blocking(self, batch: Sequence[c.Command]) -> list[Any]:
        try:
            done = None if self._writing.locked() or may_run_handlers() else self._commit_here(batch)
            if done is None:
                return self._writer.run(lambda: self._transact(batch), self._ring_and_tell)
            return self._tell_of(done)
        except Exception:
            raise
        except BaseException:  # it was interrupted, perhaps between the COMMIT and the notice
            self._tell(EVERYTHING)
            raise

    def _commit_here(self, batch: Sequence[c.Command]) -> Committed | None:
        """Commit in the calling thread; return None if it would have to wait for another thread, process or program.

        Through the thread that writes, a start takes a fifth longer. Ctrl-C may interrupt this after any call. So the
        lock is taken and released by the system's function itself.
        """
        with self._writing:
            if self._refusal is not None or fcntl is None:
                return None
            try:
                descriptor = self._lock_here.descriptor()
            except OSError:
                return None  # the thread that writes says why
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                done = self._guard(lambda: self._transact_alone(batch, busy_seconds=0.0))
            except OSError:  # another has the lock
                return None
            except StoreUnavailable as error:
                if isinstance(error.__cause__, apsw.BusyError):
                    return None
                raise
            finally:
                try:  # noqa: SIM105 - an interrupt could end `suppress`, which is Python code, before the call
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                except OSError:
                    pass  # the system has no locks for this file
            if done[1].change:
                self._lock_here.ring()
        return done

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        """Call `notice` after each commit of this process, and when another process has committed."""
        self._notices.append(notice)
        if self._watcher is None:
            watch = FileWatcher(self._files, self._liveness, self._tell)
            self._watcher = CommitWatcher(
                self._lock_path,
                self._files.commit_mark,
                self._look,
                self._poll_seconds,
                watch.look,
                self._hear,
            )
        return lambda: self._notices.remove(notice)

    async def versions(self, jobs: Sequence[str]) -> dict[str, Any]:
        """Read the versions of jobs."""
        sql = READS.versions.format("IN (SELECT value FROM json_each(?))")
        rows = await self._read(sql, (msgspec.json.encode(list(jobs)).decode(),))
        return {name: (version, at) for name, version, at in rows}

    async def marks(self, jobs: Sequence[str]) -> dict[str, dict[str, bool]]:
        """Read the marked changes of jobs."""
        bindings = (msgspec.json.encode(list(jobs)).decode(), MARKED)
        rows = await self._read_many(READS.marks.format("IN (SELECT value FROM json_each(?))"), bindings, events_of)
        return marks_in(event for row in rows for event in row)

    async def outcomes(self, schedules: Sequence[Schedule], limit: int) -> dict[str, list[TickOutcome]]:
        """Read what happened to the newest ticks of schedules."""
        sql = READS.outcomes.format("(SELECT value ->> 0 AS stream, value ->> 1 AS after FROM json_each(?)) s")
        streams = msgspec.json.encode(newest_of_streams(schedules, limit)).decode()
        return outcomes_by_schedule(schedules, await self._read_many(sql, (streams,), tick_event_of), limit)

    async def limits(self) -> list[QueueState]:
        rows = await self._read(f"SELECT {LIMIT_COLUMNS} FROM limits ORDER BY queue", ())
        now = self._clock.now()
        if not rows:
            return []
        return await self._long_read(lambda read: [state_of(read, limits_of(row), now) for row in rows])

    async def next_due(self, after: float | None = None) -> float | None:
        # Without the hint, SQLite may scan every job: it does not know how many there are.
        sql = (
            "SELECT min(at) FROM ("
            " SELECT min(due_at) AS at FROM jobs INDEXED BY jobs_delayed"
            "  WHERE claimable = 0 AND state = 'queued' AND due_at > ?"
            " UNION ALL SELECT min(lease_until) FROM jobs INDEXED BY jobs_leased WHERE lease_until IS NOT NULL"
            " UNION ALL SELECT min(ends_at) FROM jobs INDEXED BY jobs_ending WHERE ends_at IS NOT NULL"
            " UNION ALL SELECT min(due_at) FROM schedules INDEXED BY schedules_due WHERE due_at IS NOT NULL"
            " UNION ALL SELECT at FROM (SELECT at FROM schedule_ends ORDER BY place LIMIT 1))"
        )
        due_at: float | None = (await self._read(sql, (self._clock.now() if after is None else after,)))[0][0]
        return due_at

    async def has_work(self) -> bool:
        if await self._read("SELECT 1 FROM jobs INDEXED BY jobs_claimable WHERE claimable = 1 LIMIT 1", ()):
            return True
        due = await self.next_due(0.0)
        return due is not None and due <= self._clock.now()

    async def now(self) -> float:
        """Read the host's clock."""
        return self._clock.now()

    def hold_liveness_lock(self, worker: str) -> None:
        """Hold a lock file, so that other processes notice when this one dies; see `LivenessLocks`."""
        with contextlib.suppress(StoreUnavailable):
            if worker in self._liveness.dead_workers():  # one of this name was killed: its file is replaced
                self.commit_blocking([c.ReleaseLeases(worker)])
            self._guard(lambda: self._liveness.hold_liveness_lock(worker))

    async def dead_workers(self) -> list[str]:
        """Find workers whose lock the kernel has released."""
        return self._liveness.dead_workers()

    async def close(self) -> None:
        """Close the files; the last process to do so moves the log's content to the database."""
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        if self._refusal is not None:
            return
        self._refusal = CLOSED
        self._writer.stop()
        self._aside.shutdown(wait=False, cancel_futures=True)
        if self._watcher is not None:
            self._watcher.stop()
        with self._writing:
            self._lock_here.close()
            self._detach()

    def _detach(self) -> None:
        self._liveness.close()
        with self._reading, self._reading_aside:
            if not self._connections:  # closed by a fork: the log still goes to the database
                with contextlib.suppress(apsw.Error, OSError, StoreUnavailable):
                    self._open_again()
            self._files.detach(self._connections)
            self._connections.clear()
        open_stores.pop(id(self), None)

    def before_fork(self, seconds: float) -> None:
        """Close the connections, if reads and transactions end in time. New ones wait until the fork is done."""
        if self._writer.is_current():
            return  # the thread would wait for itself
        deadline = time.monotonic() + seconds
        for lock in (self._writing, self._reading, self._reading_aside, self._liveness.changing):
            if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                self._paused.append(lock)
        if len(self._paused) == LOCKS:
            while self._connections:
                connection = self._connections.pop()
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # the log stays, and is read again
                connection.close()

    def after_fork_in_parent(self) -> None:
        """Resume reads and writes; the first of each opens its connection."""
        while self._paused:
            self._paused.pop().release()

    def after_fork_in_child(self) -> None:
        """Disable this store in the child; its files belong to the parent."""
        self._refusal = FORKED
        if len(self._paused) < LOCKS or self._files.is_in_transaction():
            self._files.carry_over()
        for connection in self._connections:
            leak(connection)
        if self._watcher is not None:
            self._watcher.forget()
        self._writing, self._reading, self._reading_aside = threading.Lock(), threading.Lock(), threading.Lock()
        self._paused, self._watcher = [], None

    def change_count(self) -> int:
        """Return a number that grows when another process has committed, after the first subscription."""
        return self._heard

    # Commits of other processes. The thread of the watcher calls these.

    def _hear(self) -> bool:
        """Notify subscribers if another process has committed. The last commit is known without the database."""
        mark = self._files.commit_mark()
        if not isinstance(mark, bytes):
            return self._look()
        if is_new := mark != self._own_mark:
            self._told_mark = mark
        return self._tell_of_others(found=is_new)

    def _look(self) -> bool:
        """Notify subscribers if another process has committed. The writer knows which commits were its own."""
        with contextlib.suppress(CancelledError, StoreUnavailable):  # the store is being closed
            self._writer.submit(self._check_version).result()
        return self._tell_of_others(found=False)

    def _tell_of_others(self, *, found: bool) -> bool:
        # Cleared before subscribers read: what the writer notices from here on is told again.
        noticed, self._others = self._others, False
        if found or noticed:
            self._heard += 1
            self._tell(EVERYTHING)
        return found or noticed

    def _check_version(self) -> None:
        with contextlib.suppress(apsw.Error, OSError, StoreUnavailable), self._writing:  # a later call raises the error
            self._see_others(self._writable())

    def _see_others(self, connection: apsw.Connection) -> None:
        version = connection.pragma("data_version")
        if version != self._rows_version:  # another process has written: the cache may be stale
            self._rows.clear()
            self._others = self._others or self._files.commit_mark() != self._told_mark
            self._rows_version = version

    def _tell(self, change: int) -> None:
        for notice in list(self._notices):
            notice(change)

    def _open(self) -> apsw.Connection:
        self._connections.append(connect(self._path, self._busy_seconds))
        return self._connections[-1]

    def _writable(self) -> apsw.Connection:
        """Return the connection that writes, opened again after a fork; under its lock."""
        if self._write_connection not in self._connections:
            self._write_connection = self._open_again()
            self._rows.clear()
            self._rows_version = NO_VERSION  # others may have written meanwhile
        return self._write_connection

    def _readable(self) -> apsw.Connection:
        """Return the connection that reads, opened again after a fork; under its lock."""
        if self._refusal is not None:
            raise StoreUnavailable(f"{self._path}: {self._refusal}")
        if self._read_connection not in self._connections:
            self._read_connection = self._open_again()
        return self._read_connection

    def _open_again(self) -> apsw.Connection:
        self._files.expect_again()
        self._files.check()  # before SQLite makes a log next to a replaced file
        connection = connect(self._path, self._busy_seconds)
        try:
            self._files.hold()
            self._files.check()
        except BaseException:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
            raise
        self._connections.append(connection)
        return connection

    def _stay_if_not_moved(self) -> None:
        note = moved_note(self._write_connection)
        if note is not None:
            raise StoreUnavailable(f"{self._path}: {note}")

    def _ring_and_tell(self, done: Committed) -> list[Any]:
        """Notify other processes and this one of a commit, after the lock was released; return the results."""
        if done[1].change:
            self._lock.ring()
        return self._tell_of(done)

    def _tell_of(self, done: Committed) -> list[Any]:
        """Notify this process of a commit; return the results."""
        answers, transaction = done
        if transaction.change:
            self._tell(transaction.change)
        for worker in transaction.gone:
            self._liveness.leave(worker)
        return answers

    def _transact(self, batch: Sequence[c.Command]) -> Committed:
        with self._writing:
            return self._guard(lambda: self._transact_alone(batch, self._busy_seconds))

    def _transact_alone(self, batch: Sequence[c.Command], busy_seconds: float) -> Committed:
        """Execute a batch in one transaction, under the locks.

        An interrupt may come at any line. So the cached rows have no version until they equal those on disk again.
        """
        connection = self._writable()
        self._files.check()  # else SQLite may move the log of another file into this one
        try:
            self._begin(connection, busy_seconds)
            self._see_others(connection)
            version, self._rows_version = self._rows_version, NO_VERSION
            transaction = Transaction(connection, self._clock.now(), self._rows)
            answers = transaction.carry_out(batch)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # at once: others cannot write until then
                connection.execute("ROLLBACK")
            raise
        self._remember(transaction.held())
        self._rows_version = version
        self._own_mark = self._mark_of_own_commit(connection)
        self._files.check()  # only then the commit counts
        return answers, transaction

    def _begin(self, connection: apsw.Connection, busy_seconds: float) -> None:
        if connection.in_transaction:  # the last one was interrupted twice
            connection.execute("ROLLBACK")
        connection.set_busy_timeout(round(busy_seconds * 1000))
        connection.execute("BEGIN IMMEDIATE")
        connection.set_busy_timeout(round(self._busy_seconds * 1000))

    def _mark_of_own_commit(self, connection: apsw.Connection) -> object:
        """Return the mark of the last commit; None if it may be that of another program, after our own."""
        mark = self._files.commit_mark()
        with contextlib.suppress(apsw.Error):  # our commit is on disk, whatever the file says now
            if connection.pragma("data_version") == self._rows_version:
                return mark
        return None

    def _remember(self, touched: dict[str, Job | None]) -> None:
        """Cache the rows of running jobs: their holder writes again soon."""
        for name, job in touched.items():
            if job is not None:
                self._rows[name] = job
            else:
                self._rows.pop(name, None)
        if len(self._rows) > ROWS_MAX:
            self._rows.clear()

    async def _read(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        with self._reading:
            return self._guard(lambda: self._fetch(sql, bindings))

    async def _read_many(
        self, sql: str, bindings: Sequence[Any], build: Callable[[Any], T], *, few: bool = False
    ) -> list[T]:
        if few:
            return [build(row) for row in await self._read(sql, bindings)]
        return await self._long_read(lambda read: [build(row) for row in read.execute(sql, bindings).fetchall()])

    async def _long_read(self, work: Callable[[apsw.Connection], T]) -> T:
        def alone() -> T:
            with self._reading_aside:
                return self._guard(lambda: work(self._readable_aside()))

        if self._refusal is not None:  # the thread has ended
            raise StoreUnavailable(f"{self._path}: {self._refusal}")
        return await asyncio.get_running_loop().run_in_executor(self._aside, alone)

    def _readable_aside(self) -> apsw.Connection:
        """Return the connection of long reads, opened when it is needed first; under its lock."""
        if self._refusal is not None:
            raise StoreUnavailable(f"{self._path}: {self._refusal}")
        if self._aside_connection is None or self._aside_connection not in self._connections:
            self._aside_connection = self._open_again()
        self._files.check()
        return self._aside_connection

    def _fetch(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        connection = self._readable()
        self._files.check()
        return connection.execute(sql, bindings).fetchall()

    def _guard(self, work: Callable[[], T]) -> T:
        return guarded(self._path, work, lambda: moved_note(self._write_connection))

    def __del__(self) -> None:
        """Close the store if the caller has not."""
        if hasattr(self, "_writer"):
            self._shut()


@atexit.register
def _close_all() -> None:
    """Close open stores at the end of the process, so that the log goes to the database."""
    for store in list(open_stores.values()):
        if isinstance(store, SqliteStore):
            store._shut()  # noqa: SLF001 - of this module
