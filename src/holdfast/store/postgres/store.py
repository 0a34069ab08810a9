"""The PostgreSQL store: jobs for workers on any number of hosts, which share only the database.

Acknowledged means committed by the server, with its own `synchronous_commit`. All writes of a process go through one
connection, a whole batch in one transaction at READ COMMITTED. A thread of its own writes for loops, and for the main
thread. In other threads a blocking call writes by itself, if no other thread is writing. A transaction locks the rows
first, then reads the time, which is the server's. The commonest batches are decided before that, and checked under the
locks (`optimistic_batch`). Reads have their own connection; a third one listens. Only listening depends on the state of
a session, so the other two may use a pooler in transaction mode.

What can fail:

- The server is down, or ends a connection during a commit: `StoreUnavailable`, and the outcome is unknown. The next
  call connects again. If the connection ends before the COMMIT, or before an optimistic batch is sent, the batch is
  executed again on a new one.
- The server's host vanishes, or a proxy drops all packets: every call times out after `silence_seconds`, and its
  connection is closed (`call_timeout`). The server ends the rest of the transaction after the same time, so that its
  locks do not block others.
- Two transactions conflict (a deadlock, a key that both create): the batch is executed again, a little later each time.
- The database cannot store a value (a name with a NUL, or too long for an index), and the batch fails. It is executed
  again command by command, and only the command with the value is refused.
- A notice is lost: a waiting process polls at least every `floor_seconds`. A notice follows its commit in a transaction
  of its own that waits for no disk, most often on the connection of the listener. The server lets one notifying
  transaction at a time commit, in the whole cluster. With the notice inside, commits of many processes would follow one
  another, each with its own flush.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg

from holdfast.errors import HoldfastError, InvalidArguments, StoreUnavailable
from holdfast.schedules.outcome import TickOutcome
from holdfast.schedules.schedule import Schedule
from holdfast.store import commands as c
from holdfast.store.audit import unwrapped
from holdfast.store.commands import EVENTS, WORK
from holdfast.store.limits import COUNTED_MAX, QueueState, queue_state
from holdfast.store.postgres.call_timeout import CallTimeout, CallWatcher
from holdfast.store.postgres.clock_estimate import ClockEstimate
from holdfast.store.postgres.connection import (
    SILENCE_SECONDS,
    back_off,
    connect,
    has_unread,
    is_a_session,
    milliseconds,
    one_line,
    pipelined,
    reason_of,
    rollback_on_error,
    rollback_or_close,
    silence,
)
from holdfast.store.postgres.listener import NOTIFY, Listener, lock_key
from holdfast.store.postgres.optimistic_batch import OptimisticBatch, Refusals, has_new_job, is_simple
from holdfast.store.postgres.row_cache import RowCache
from holdfast.store.postgres.schema import Connection, migrate, require
from holdfast.store.postgres.statements import Statements
from holdfast.store.postgres.transaction import Transaction, by_queue
from holdfast.store.request_keys import without_keys
from holdfast.store.run_queries import marks_in
from holdfast.store.signal_handlers import is_interruptible
from holdfast.store.sql.columns import limits_of
from holdfast.store.sql.event_rows import events_of
from holdfast.store.sql.migrate import quoted
from holdfast.store.sql.reads import SqlReads
from holdfast.store.sql.run_sql import MARKED
from holdfast.store.sql.tick_events import newest_of_streams, outcomes_by_schedule, tick_event_of

T = TypeVar("T")

TRIES = 6  # of a batch that conflicts with another, before it fails
FLOOR_SECONDS = 1.0
PURGE_SECONDS = 300.0  # that a purge may take
PATIENCE_SECONDS = 0.6  # how long a session lock may be missing before its worker counts as dead

_CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.UniqueViolation,
    psycopg.errors.LockNotAvailable,
)
# A pooler that passes as a session has changed servers between two transactions, or a program has discarded statements.
_NOT_PREPARED = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)
_CANNOT_BE_STORED = (psycopg.DataError, psycopg.errors.ProgramLimitExceeded, UnicodeEncodeError)


class PostgresStore(SqlReads):
    """A store in one schema of a PostgreSQL database; see the module's docstring.

    Args:
        url: the database's URL, as libpq reads it.
        schema: the schema of the tables.
        migrating: whether opening the store migrates the schema. Otherwise the schema must be up to date, as for a role
            that may not create tables.
        silence_seconds: how long a call may take before it times out.
        monotonic: a clock that is exactly as fast as the server's, as in a test; see `ClockEstimate`.
    """

    floor_seconds: float | None = FLOOR_SECONDS

    def __init__(
        self,
        url: str,
        schema: str = "holdfast",
        *,
        migrating: bool = True,
        silence_seconds: float = SILENCE_SECONDS,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._url = url
        self._watch = CallWatcher(silence_seconds)
        self._schema = quoted(schema)
        self._sql = Statements(self._schema)
        super().__init__(self._sql.reads)
        self._notices: list[Callable[[int], None]] = []
        self._write_connection: Connection | None = None
        self._read_connection: Connection | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-writer")
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-reader")
        self._listener = Listener(self._connect, self._schema, self._tell, self._watch)
        self._row_cache = RowCache()
        self._clock = ClockEstimate(monotonic)
        self._refusals = {"new jobs": Refusals(), "events": Refusals()}  # of optimistic batches with these
        self._suspects: dict[str, tuple[float, float]] = {}  # workers whose lock is missing: last seen, and since when
        self._locked: set[str] = set()  # workers whose session lock the connection that writes has
        self._is_a_session: bool | None = None  # whether that connection may hold locks; None is not known
        self._limited_seconds: float | None = None  # how long a statement of that session may take, if it is one
        self._preparing = True  # whether statements may be prepared; not through some poolers
        self._committing = False  # whether COMMIT was sent and not answered yet
        self._commit_reply: psycopg.Cursor[Any] | None = None  # of the last COMMIT that was sent
        self._closing = threading.Lock()
        self._writing = threading.Lock()  # while the connection that writes is used, or closed for good
        self._is_shut = False
        self._process = os.getpid()  # a forked child must not use the connection
        try:
            self._write_connection = self._guard(self._connect)
            prepare = migrate if migrating else require
            self._guard(lambda: prepare(self._connected_for_writing(), schema))
        except BaseException:
            self._shut()
            raise
        self._listener.start()

    async def commit(self, batch: Sequence[c.Command]) -> list[Any]:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._commit, batch)

    def commit_blocking(self, batch: Sequence[c.Command]) -> list[Any]:
        answers = None
        if not self._writing.locked() and not is_interruptible():
            answers = self._commit_here(batch)
        if answers is None:
            answers = self._commit_in_writer(batch)
        if any(isinstance(command, c.PutWorker) for command in batch):
            self._listener.wake()  # record the lock of a worker that has just reported
        return answers

    def _commit_in_writer(self, batch: Sequence[c.Command]) -> list[Any]:
        future = self._writer.submit(self._commit, batch)
        try:
            return future.result(2 * self._watch.seconds)  # one call that is under way, and then this one
        except TimeoutError as error:
            if future.done():
                raise
            future.cancel()
            raise StoreUnavailable(silence(self._watch.seconds)) from error

    def _commit_here(self, batch: Sequence[c.Command]) -> list[Any] | None:
        """Commit in the calling thread, because to wake another one takes long; return None if that one has to refuse.

        Not in the main thread: Ctrl-C there must not wait for the server, and the driver may lose it.
        """
        with self._writing:
            if self._is_shut:
                return None
            answers, change = self._commit_alone(batch)
        if change:
            self._tell(change)
        return answers

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        """Call `notice` after each commit of this process, and when another process notifies of one."""
        self._notices.append(notice)
        return lambda: self._notices.remove(notice)

    async def versions(self, jobs: Sequence[str]) -> dict[str, Any]:
        """Read the versions of jobs."""
        rows = await self._read(self._reads.versions.format("= ANY(%s)"), (list(jobs),))
        return {name: (version, at) for name, version, at in rows}

    async def marks(self, jobs: Sequence[str]) -> dict[str, dict[str, bool]]:
        """Read the marked changes of jobs."""
        rows = await self._read_many(self._reads.marks.format("= ANY(%s)"), (list(jobs), MARKED), events_of)
        return marks_in(event for row in rows for event in row)

    async def outcomes(self, schedules: Sequence[Schedule], limit: int) -> dict[str, list[TickOutcome]]:
        """Read what happened to the newest ticks of schedules."""
        sql = self._reads.outcomes.format(self._sql.outcome_marks)
        streams = newest_of_streams(schedules, limit)
        bindings = ([stream for stream, _ in streams], [after for _, after in streams])
        return outcomes_by_schedule(schedules, await self._read_many(sql, bindings, tick_event_of), limit)

    async def limits(self) -> list[QueueState]:
        now = await self.now()
        rows = await self._read(self._sql.look_on, {"most": COUNTED_MAX, "now": now})
        running = by_queue(await self._read(self._sql.running, ([row[0] for row in rows],)) if rows else [])
        queues = [(limits_of(row[:-1]), row[-1]) for row in rows]
        return [queue_state(row, running.get(row.queue, {}), waiting, now) for row, waiting in queues]

    async def next_due(self, after: float | None = None) -> float | None:
        due_at: float | None = (await self._read(self._sql.next_due, (after,)))[0][0]
        return due_at

    async def has_work(self) -> bool:
        """Return whether there is work now, with one read."""
        return bool((await self._read(self._sql.has_work, (0.0,)))[0][0])

    async def now(self) -> float:
        """Read the server's clock."""
        time: float = (await self._read(self._sql.clock, ()))[0][0]
        return time

    def change_count(self) -> int:
        """Return a number that grows with each notice of another process."""
        return self._listener.heard

    def hold_liveness_lock(self, worker: str) -> None:
        """Hold a session lock, so that other processes notice when this one dies. The listening connection holds it."""
        self._listener.hold(worker)

    async def dead_workers(self) -> list[str]:
        """Return workers whose session lock has been missing for a while: their process, or its host, has died.

        The connections of the heartbeat and of the listener both hold the lock. A missing lock is not proof at once,
        because a worker that lost both takes it again. A report meanwhile shows that the worker lives. The caller gets
        a notice to look again when the time is over.
        """
        rows = await self._read(self._sql.dead_workers, ())
        missing = {name: seen_at for name, seen_at in rows if name not in self._listener.workers}  # ours are alive
        loop = asyncio.get_running_loop()
        suspects = {}
        for name, seen_at in missing.items():
            before = self._suspects.get(name)
            suspects[name] = before if before is not None and before[0] == seen_at else (seen_at, loop.time())
        if any(self._suspects.get(name) != suspect for name, suspect in suspects.items()):
            loop.call_later(PATIENCE_SECONDS, self._tell, WORK)
        self._suspects = suspects
        return sorted(name for name, (_, since) in suspects.items() if loop.time() - since >= PATIENCE_SECONDS)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._shut)

    # Machinery

    def _connect(self) -> Connection:
        return connect(self._url, self._watch.seconds, self._watch, preparing=self._preparing)

    def _stop_preparing(self) -> None:
        """Use no prepared statements from now on: the server does not have those of this process."""
        self._preparing = False
        for connection in (self._write_connection, self._read_connection):
            if connection is not None:
                connection.prepare_threshold = None

    def _connected_for_writing(self) -> Connection:
        if self._write_connection is None or self._write_connection.closed:
            self._write_connection = self._connect()
            self._row_cache.forget()
            self._clock.forget()
            self._locked, self._is_a_session, self._limited_seconds = set(), None, None
        return self._write_connection

    def _hold_locks(self, connection: Connection) -> None:
        """Hold the session locks of this process's workers on this connection, too, which their heartbeats use.

        So a worker does not count as dead because its other connection was lost and cannot be opened again (L10).
        """
        missing = self._listener.workers - self._locked
        for worker in missing if self._is_a_session else ():
            connection.execute("SELECT pg_try_advisory_lock_shared(%s)", (lock_key(self._schema, worker),))
        self._locked |= missing

    def _set_up_session(self, connection: Connection) -> None:
        """Limit how long the server waits in a transaction, once. Through a pooler, each transaction has to say it.

        If this process or its network dies in the middle of a transaction, its locks must not outlive it for long.
        """
        if self._is_a_session is None:
            self._is_a_session = is_a_session(connection)
        if self._is_a_session and self._limited_seconds is None:
            connection.execute(self._sql.set_up_session, milliseconds(self._watch.seconds))
            self._limited_seconds = self._watch.seconds

    def _limits(self, seconds: float) -> bool:
        """Return whether the session itself limits statements to this time. One that lost its statements may not."""
        return self._preparing and self._limited_seconds == seconds

    def _connected_for_reading(self) -> Connection:
        if self._read_connection is None or self._read_connection.closed:
            self._read_connection = self._connect()
        return self._read_connection

    def _commit(self, batch: Sequence[c.Command]) -> list[Any]:
        with self._writing:
            answers, change = self._commit_alone(batch)
        if change:
            self._tell(change)
        return answers

    def _commit_alone(self, batch: Sequence[c.Command]) -> tuple[list[Any], int]:
        """Execute a batch; return the results, and what has changed."""
        if os.getpid() != self._process:
            raise StoreUnavailable("this store was opened before fork(), by the parent process: open a new one here")
        try:
            return self._guard(lambda: self._persist(batch))
        except _NotStorable as refusal:
            return self._one_by_one(batch, refusal)

    def _one_by_one(self, batch: Sequence[c.Command], why: Exception) -> tuple[list[Any], int]:
        """Execute a batch command by command, and refuse only the one with a value that cannot be stored."""
        if len(batch) == 1:
            what = type(unwrapped(without_keys(batch))[0]).__name__.lower()
            return [InvalidArguments(what, f"the database cannot store it: {one_line(why)}")], 0
        answers, changes = [], 0
        for command in batch:
            answer, change = self._commit_alone([command])
            answers += answer
            changes |= change
        return answers, changes

    def _persist(self, batch: Sequence[c.Command]) -> tuple[list[Any], int]:
        last: Exception | None = None
        purges = any(
            isinstance(command, c.Purge) for command in unwrapped(without_keys(batch))
        )  # it may take long; no lease depends on it
        seconds = PURGE_SECONDS if purges else self._watch.seconds
        deadline = time.monotonic() + seconds
        for attempt in range(TRIES):
            connection, self._committing = self._connected_for_writing(), False
            try:
                with self._watch.over(connection, deadline), rollback_on_error(connection):
                    self._set_up_session(connection)
                    self._hold_locks(connection)
                    written = self._write_optimistically(connection, batch) if attempt == 0 else None
                    return written or self._transact(connection, batch, seconds, looking_first=attempt > 0)
            except _NOT_PREPARED as error:
                self._stop_preparing()
                last = error
            except _CONFLICTS as error:
                back_off(attempt)
                last = error
            except psycopg.OperationalError as error:
                if self._committing or not connection.closed or isinstance(error, CallTimeout):
                    raise
                last = error  # the connection ended before the COMMIT
        raise StoreUnavailable(f"the write conflicted with others {TRIES} times: {last}: try again")

    def _write_optimistically(self, connection: Connection, batch: Sequence[c.Command]) -> tuple[list[Any], int] | None:
        """Execute a batch in one round trip; return None if only an ordinary transaction can do it.

        Through a pooler the server would not limit how long it waits for a lock. Where something is unread, the
        connection has most likely ended. An ordinary transaction can still begin again then. To decide a large batch
        takes milliseconds, so this is looked at last.
        """
        now, refusals = self._clock.estimate(), self._refusals["new jobs" if has_new_job(batch) else "events"]
        if now is None or not self._limits(self._watch.seconds) or not is_simple(batch) or refusals.skip():
            return None
        optimistic = OptimisticBatch(self._sql, self._row_cache, now)
        answers = optimistic.decide(batch)
        if answers is None or has_unread(connection):
            return None
        self._committing = True  # from here on the outcome is unknown until the server replies
        written = optimistic.write_if_current(connection)
        self._committing = False
        refusals.count(written=written)
        if not written:
            self._clock.forget()
            return None
        self._clock.read(optimistic.now)
        self._row_cache.remember(optimistic.held(), optimistic.rewritten, optimistic.writer or "")
        if _is_told(optimistic):
            self._notify(connection, optimistic.change)
        return answers, optimistic.change

    def _notify(self, connection: Connection, change: int) -> None:
        """Send a notice of a commit: by the listener, if it can. If this fails, it is lost, and the others poll."""
        if not self._listener.send(change):
            with contextlib.suppress(psycopg.Error), rollback_on_error(connection):
                connection.execute(NOTIFY, self._listener.message(change))

    def _transact(
        self, connection: Connection, batch: Sequence[c.Command], seconds: float, *, looking_first: bool
    ) -> tuple[list[Any], int]:
        with self._pipelined(connection) as pipeline:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")  # not the role's default
            if not self._limits(seconds):
                connection.execute(self._sql.limit_transaction, milliseconds(seconds))
            locks, seen = self._listener.locks, self._row_cache
            transaction = Transaction(
                connection, self._sql, looking_first=looking_first, locks=locks, seen=seen, sync=pipeline.sync
            )
            answers = transaction.carry_out(batch)
            held = transaction.held()
            named = transaction.writer is not None or not any(held.values())
            unknown = None if named else connection.execute(self._sql.writer)
            self._committing = True  # from here on the outcome is unknown until the server replies
            notice = self._listener.message(transaction.change)
            self._commit_reply = connection.execute("COMMIT")
            if _is_told(transaction):
                connection.execute(NOTIFY, notice)  # begins another transaction
        writer = transaction.writer or ""
        if unknown is not None:
            writer = str(unknown.fetchone()[0])
        seen.remember(held, transaction.rewritten, writer, transaction.read_now)
        self._clock.read(transaction.now)
        return answers, transaction.change

    @contextlib.contextmanager
    def _pipelined(self, connection: Connection) -> Iterator[psycopg.Pipeline]:
        """Send a transaction and its notice as a pipeline. An error after the commit concerns only the notice."""
        self._commit_reply = None
        try:
            with pipelined(connection) as pipeline:
                yield pipeline
        except psycopg.Error:
            if not self._is_committed():
                raise
            rollback_or_close(connection)  # the notice is lost, and the others poll

    def _is_committed(self) -> bool:
        return self._commit_reply is not None and self._commit_reply.statusmessage == "COMMIT"

    async def _read(self, sql: str, bindings: Any) -> list[Any]:
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._fetch, sql, bindings)

    def _fetch(self, sql: str, bindings: Any) -> list[Any]:
        deadline = self._watch.deadline()

        def fetch() -> list[Any]:
            connection = self._connected_for_reading()
            try:
                with self._watch.over(connection, deadline), rollback_on_error(connection):
                    rows: list[Any] = connection.execute(sql, bindings).fetchall()
            except _NOT_PREPARED:
                self._stop_preparing()
                raise  # and is repeated, as every read that fails
            return rows

        try:
            return self._guard(fetch)
        except _NotStorable:
            return []  # no row has a name that cannot be stored
        except StoreUnavailable as error:
            if isinstance(error.__cause__, CallTimeout):
                raise
            return self._guard(fetch)  # the connection ended meanwhile; a read may be repeated

    def _tell(self, change: int) -> None:
        for notice in list(self._notices):
            notice(change)

    def _guard(self, work: Callable[[], T]) -> T:
        """Turn errors of the driver into `StoreUnavailable` with what to do."""
        try:
            return work()
        except _CANNOT_BE_STORED as error:
            raise _NotStorable(reason_of(error)) from error
        except CallTimeout as error:
            raise StoreUnavailable(silence(self._watch.seconds)) from error
        except psycopg.OperationalError as error:
            raise StoreUnavailable(
                f"PostgreSQL cannot be reached: {one_line(error)}: check the server and the URL"
            ) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            cure = "use the URL of the primary server, or wait until this server accepts writes"
            raise StoreUnavailable(f"PostgreSQL is read-only: {one_line(error)}: {cure}") from error
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"PostgreSQL refused the call: {one_line(error)}: check the rights of this user"
            ) from error

    def _shut(self) -> None:
        with self._closing:
            self._listener.stop()
            self._is_shut = True
            for pool in (self._writer, self._reader):
                pool.shutdown()
            with self._writing:
                for connection in (self._write_connection, self._read_connection):
                    if connection is not None:
                        connection.close()
            self._watch.stop()


def _is_told(transaction: Transaction) -> bool:
    """Return whether other processes get a notice of a transaction. Nobody waits for events that only grow a stream."""
    return bool(transaction.change & ~EVENTS) or transaction.ended


class _NotStorable(HoldfastError):
    """A value that the database cannot store."""
