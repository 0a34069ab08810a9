"""A batch of commands on one PostgreSQL connection.

The whole batch is one pipeline: a statement does not wait for a reply that no code reads. So an ordinary batch takes
two round trips, one that locks and reads and one that writes and commits. If a statement fails, the rest fails too.
A claim that follows ends of jobs is searched with the locks. The server then writes the ends while this process decides
the claims.

One statement locks the rows that the batch names, in the order of their names. A claim does the same, and skips rows
that others have locked. Writes use few statements. Each takes one JSON document, or a column in one text, and makes
rows of it, so that there is no round trip per row.

Queue limits: at READ COMMITTED a count holds only while no other transaction can add to it. So a claim locks the rows
of the queues that it takes from, and counts with the next statement, which sees everything committed before. It does
not wait for a rate that another claim has locked: that claim takes the tokens, and this one tries again soon.

A transaction that ends a job and claims another of the same queue does not change the count. It hands the place on, and
does not wait for other such transactions. It keeps counting transactions out, by a lock that it shares with its like
and takes before it reads the time. Otherwise a lease that expires meanwhile would count as a free place there, and be
handed on here. While it has that lock it waits for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg

from holdfast.machines import Event, JobEvent, RunRecord
from holdfast.schedules.schedule import Schedule, stream_of
from holdfast.store import commands as c
from holdfast.store.limits import LimitRow
from holdfast.store.postgres.connection import pipelined
from holdfast.store.postgres.row_cache import RowCache
from holdfast.store.postgres.schema import Connection
from holdfast.store.postgres.statements import Statements
from holdfast.store.request_keys import DROPPED_MAX, KEPT_SECONDS, Known
from holdfast.store.rows import FORGOTTEN_SECONDS, Evidence, Job, PastEvent, Signal, WorkerCard
from holdfast.store.schedule_commands import EndedRun
from holdfast.store.schedule_writes import SCHEDULE_COMMANDS
from holdfast.store.shared_budgets import BudgetRow
from holdfast.store.sql.batch import Batch, Key
from holdfast.store.sql.columns import (
    JOB_CHANGING,
    JOB_COLUMNS,
    JOB_WRITTEN,
    card_row,
    job_of,
    job_row,
    limits_of,
    limits_row,
    schedule_of,
    schedule_row,
    signal_of,
)
from holdfast.store.sql.event_rows import EventRow, events_of, history_of
from holdfast.store.sql.limit_claims import Running, place_of, started_at
from holdfast.store.sql.run_sql import export_row
from holdfast.store.stream_writer import GROWING

PORTION_BYTES = 64 * 1024 * 1024  # of payloads in one statement: the server takes no value over a gigabyte
MARKS = [chr(number) for number in range(30, 0, -1)]  # separators between values that are sent as one text
_COMPLETED, _WAITING = JobEvent.COMPLETED.value, JobEvent.WAITING.value
_ENDS_BADLY = frozenset({JobEvent.FAILED.value, JobEvent.CANCELLED.value})
_ENDS = _ENDS_BADLY | {_COMPLETED}
_LIMITED = (c.Claim, c.Submit, c.SetLimits, c.PauseQueue, *SCHEDULE_COMMANDS)  # commands that need limits
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_JOB_NAMES = JOB_COLUMNS.split(", ")
_JOB_END, _QUEUE = len(_JOB_NAMES), _JOB_NAMES.index("queue")  # in a row of a claim


class Transaction(Batch):
    """One batch of commands; created and used between BEGIN and COMMIT, by one thread.

    Args:
        connection: in a transaction, and in a pipeline: statements are sent when code reads a reply.
        statements: for the schema.
        looking_first: whether to look for jobs before they are created; else an existing id violates the table's key.
        locks: the session locks that this process holds for its workers, for their rows.
        seen: rows that need not be read while no other process has changed them.
        sync: ends a part of the pipeline. The server waits for the next part as for any statement of a transaction: no
            longer than it may be idle in one. Inside a part it would wait, and hold its locks, as long as TCP does.
    """

    sharing_bytes_max = 8192  # the server compresses rows of more than 2 kB

    def __init__(
        self,
        connection: Connection,
        statements: Statements,
        *,
        looking_first: bool,
        locks: Mapping[str, int] | None = None,
        seen: RowCache | None = None,
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(0.0, {})
        self._connection = connection
        self._sql = statements
        self._promoted = False
        self._taken_as_new: set[str] = set()  # ids assumed to be new without a check
        self._kept: frozenset[str] = frozenset()  # queues whose places no other transaction can count meanwhile
        self.rewritten: set[str] = set()  # jobs whose rows are written
        self.writer: str | None = None  # this transaction, as its rows will show it; None if it is not known yet
        self.read_now: dict[str, str] = {}  # jobs whose rows were read, and the transaction that wrote them
        self._row_cache = seen or RowCache()
        self._sync = sync
        self._looking_first = looking_first
        self._locks = locks or {}
        self._claimed_ahead: Any = None  # the reply to a search that was sent before anything was decided
        self._first_events: dict[str, list[PastEvent]] = {}  # of claimed jobs that have no more
        self._schedules_there: set[str] = set()  # schedules whose rows exist, and are locked
        self._asked: dict[tuple[str, str], bool] = {}  # signals that were looked for, and whether they are known

    def prepare(self, batch: Sequence[c.Command]) -> None:
        """Lock the rows that the batch names, read the inboxes that it needs, then the time."""
        names = sorted({name for command in batch for name in self._named(command)})
        signals = [(command.job, command.id) for command in batch if isinstance(command, c.SendSignal)]
        waiting = sorted({command.job for command in batch if isinstance(command, c.Append) and _reads_inbox(command)})
        parents = sorted({parent for command in batch if (parent := _parent_told(command)) is not None})
        fresh = {command.job for command in batch if isinstance(command, c.Submit)} - set(names)
        doors = sorted({command.queue for command in batch if isinstance(command, c.Submit) and not command.parent})
        if doors:  # before any other lock: submissions to a queue with a depth follow one another
            self._connection.execute(self._sql.stand_at_the_door, (doors,))
        lock = self._sql.lock_names if self._row_cache.knows_most(names) else self._sql.lock_rows
        rows = self._connection.execute(lock, (names,)) if names else None
        kept = self._connection.execute(self._sql.keep_places, {"names": names}) if _hands_on(batch) else None
        known = self._look_for(signals) if signals else None
        unused = self._connection.execute(self._sql.unused, (waiting,)) if waiting else None
        counts = self._connection.execute(self._sql.count_unused, (parents,)) if parents else None
        limited = any(isinstance(command, _LIMITED) for command in batch)
        only_locks = lock is self._sql.lock_names and not (doors or kept or known or unused or counts or limited)
        read_clock = self._sql.clock_and_limits if limited else self._sql.clock
        clock = None if only_locks else self._connection.execute(read_clock)
        if batch and isinstance(claim := batch[-1], c.Claim) and not any(map(_may_queue_jobs, batch[:-1])):
            self._claimed_ahead = self._search(claim)  # nothing in the batch can change what it finds
        self._sync()
        self._taken_as_new = fresh
        self._stored.update(dict.fromkeys([*names, *fresh]))
        self._kept = frozenset(queue for queue, _ in kept.fetchall()) if kept is not None else self._kept
        locked = rows.fetchall() if rows is not None else []
        if clock is None and not locked:
            clock = self._connection.execute(self._sql.clock)
        if lock is self._sql.lock_names:
            self.writer = locked[-1][4] if locked else None
            self.now = locked[-1][3] if locked else 0.0
            locked = self._changed_since(locked)
        self._have(locked)
        known_signals = {(job, name) for job, name in known.fetchall()} if known is not None else set()
        self._asked = {signal: signal in known_signals for signal in signals}
        self._have_inboxes(waiting, unused.fetchall() if unused is not None else [])
        self._have_counts(parents, counts.fetchall() if counts is not None else [])
        if clock is not None:  # a reply has one row at least
            times = clock.fetchall()
            self.now = times[0][0]
            if limited:
                self.limits.have(limits_of(row[1:]) for row in times if row[1] is not None)
        self._look_ahead(batch)

    def _look_ahead(self, batch: Sequence[c.Command]) -> None:
        """Read in one go what the commands would read one by one."""
        keys = [
            (command.plugin, command.entry, command.idempotency_key)
            for command in batch
            if isinstance(command, c.Submit) and command.idempotency_key is not None
        ]
        if keys:
            self.look_up(keys)
        failing = [command.job for command in batch if isinstance(command, c.Append) and _fails(command)]
        if failing:
            self.expect_orphans(failing)

    def _named(self, command: c.Command) -> Iterable[str]:
        if isinstance(command, c.Submit):
            fenced = [command.parent] if command.parent is not None and command.parent_attempt is not None else []
            known = command.idempotency_key is not None or self._looking_first
            return [*fenced, command.job] if known else fenced
        if isinstance(command, c.Renew):
            return [name for name, _ in command.held]
        if isinstance(command, c.Append) and _ends(command):
            # The parent and the chain's first job are older, so locked first, in the same order as by a cancel.
            first = command.successor.first if command.successor is not None else None
            return [name for name in (command.job, command.parent, first) if name is not None]
        name = getattr(command, "job", None)
        return (name,) if name is not None else ()

    def _changed_since(self, locked: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Load unchanged rows from the cache, and read the others; all are locked."""
        others = {}
        for name, writer, head, *_ in locked:
            row = self._row_cache.unchanged(name, writer, head)
            if row is None:
                others[name] = writer
            else:
                self._stored[name] = self.jobs[name] = row
        rows = self._all(self._sql.read_rows, (list(others),)) if others else []
        for row in rows:
            self.read_now[row[0]] = others[row[0]]
        return rows

    def _have(self, rows: Iterable[tuple[Any, ...]]) -> list[str]:
        names = []
        for row in rows:
            job = job_of(row)
            names.append(job.id)
            self._at_hand(job)
        self.bring_up(names)
        return names

    def _all(self, sql: str, bindings: Any) -> list[Any]:
        cursor = self._connection.execute(sql, bindings)
        self._sync()
        rows: list[Any] = cursor.fetchall()
        return rows

    def read_rows(self, names: list[str]) -> Iterable[Job]:
        return map(job_of, self._all(self._sql.lock_rows, (names,)))

    def read_streams(self, names: list[str]) -> dict[str, list[Event]]:
        streams: dict[str, list[Event]] = {name: [] for name in names}
        for row in self._all(self._sql.streams, (names,)):
            streams[row[0]] += events_of(row)
        return streams

    def read_history(self, names: list[str]) -> dict[str, list[PastEvent]]:
        streams = {name: self._first_events.get(name, []) for name in names}
        others = [name for name, stream in streams.items() if not stream]
        for row in self._all(self._sql.histories, (others,)) if others else ():
            streams[row[0]] += history_of(row)
        return streams

    def find_keys(self, keys: list[Key]) -> dict[Key, str]:
        keys_json = _encode([{"plugin": plugin, "entry": entry, "key": key} for plugin, entry, key in keys]).decode()
        return {(plugin, entry, key): name for plugin, entry, key, name in self._all(self._sql.keys, (keys_json,))}

    def _look_for(self, signals: list[tuple[str, str]]) -> Any:
        jobs, names = [job for job, _ in signals], [name for _, name in signals]
        return self._connection.execute(self._sql.known_signals, (jobs, names))

    def _have_inboxes(self, jobs: list[str], rows: Iterable[tuple[str, str, str]]) -> None:
        by_job: dict[str, dict[str, str]] = {job: {} for job in jobs}
        for job, name, key in rows:
            by_job[job][name] = key
        for job, unused in by_job.items():
            self.inbox(job).have_read(unused)

    def _have_counts(self, jobs: list[str], rows: Iterable[tuple[str, int]]) -> None:
        counts = dict(rows)
        for job in jobs:
            if job not in self._inboxes:
                self.inbox(job).have_read(count=counts.get(job, 0))

    def unused(self, job: str) -> dict[str, str]:
        return {name: key for _, name, key in self._all(self._sql.unused, ([job],))}

    def count_unused(self, job: str) -> int:
        rows = self._all(self._sql.count_unused, ([job],))
        return int(rows[0][1]) if rows else 0

    def read_signal(self, job: str, signal: str) -> Signal:
        (row,) = self._all(self._sql.read_signal, (job, signal))
        return signal_of(row)

    def read_unused(self, job: str) -> list[Signal]:
        return [signal_of(row) for row in self._all(self._sql.read_unused, (job,))]

    def knows(self, job: str, signal: str) -> bool:
        """Return whether a signal's id is known.

        A child's end is signalled once, under its own id. It is looked up only if that has failed: then an operator has
        sent a signal with this id.
        """
        if self._follows and not self._looking_first:
            return False
        if (job, signal) not in self._asked:
            self._asked[job, signal] = bool(self._look_for([(job, signal)]).fetchall())
        return self._asked[job, signal]

    def write_signals(self, kept: list[Signal], used: list[Signal]) -> None:
        """Write signals with few statements, in the order in which they came."""
        rows = [(signal.job, signal.id, signal.key, signal.at, _encode(signal.payload).decode()) for signal in kept]
        for portion in _portions(rows, lambda row: len(row[-1])):
            columns = map(list, zip(*portion, strict=True))
            self._connection.execute(self._sql.insert_signals, list(columns))
        if used:
            names = [signal.job for signal in used], [signal.id for signal in used]
            self._connection.execute(self._sql.use_signals, names)

    def find_children(self, parents: list[str]) -> dict[str, list[str]]:
        by_parent: dict[str, list[str]] = {}
        for parent, name in self._all(self._sql.children, (parents,)):
            by_parent.setdefault(parent, []).append(name)
        return by_parent

    def find_claimable(self, command: c.Claim, excluded: list[str]) -> list[str]:
        """Find and lock the first jobs by priority, due time and age; skip rows that others have locked."""
        ahead, self._claimed_ahead = self._claimed_ahead, None
        cursor = ahead
        if cursor is None:
            cursor = self._search(command)
            self._sync()
        rows = [row for row in cursor.fetchall() if row[_QUEUE] not in excluded]
        if ahead is not None and rows:
            self.now = rows[-1][-1]  # after the locks
        for row in rows:
            if row[_JOB_END] is not None:
                self._first_events[row[0]] = history_of(row[_JOB_END:-1])
        return self._have([row[:_JOB_END] for row in rows])

    def _search(self, command: c.Claim) -> Any:
        """Send what finds and locks the jobs that a claim takes of queues without limits."""
        self.promote()
        queues = sorted(command.queues) if command.queues is not None else None
        return self._connection.execute(
            self._sql.claim, {**entries_of(command), "queues": queues, "limit": command.limit}
        )

    def find_expired(self, limit: int) -> list[str]:
        return self._have(self._all(self._sql.expired, (self.now, limit)))

    def find_ended(self, limit: int) -> list[str]:
        return self._have(self._all(self._sql.ended, (self.now, limit)))

    def find_held(self, worker: str) -> list[str]:
        return self._have(self._all(self._sql.held, (worker,)))

    def find_finished(self, command: c.Purge) -> list[str]:
        """Find and lock the jobs that a purge removes; skip rows that others have locked."""
        values: dict[str, Any] = {"states": sorted(command.states), "before": command.before, "limit": command.limit}
        if command.jobs is None:
            return [name for (name,) in self._all(self._sql.finished, values)]
        return [name for (name,) in self._all(self._sql.finished_among, {**values, "jobs": list(command.jobs)})]

    def remove(self, names: list[str]) -> None:
        """Remove jobs completely, in one round trip."""
        with pipelined(self._connection):
            for statement in self._sql.remove:
                self._connection.execute(statement.encode(), (names,))

    def keep_evidence(self, evidence: Evidence) -> bool:
        identity = evidence.job, evidence.node, evidence.attempt, evidence.number
        result = _encode(evidence.result).decode()
        cursor = self._connection.execute(self._sql.keep_evidence, (*identity, result, evidence.error, self.now))
        return cursor.fetchone() is not None

    def keep_run(self, job: str, number: int, record: RunRecord) -> None:
        values = (job, number, record.status.value, _encode(record).decode())
        self._connection.execute(self._sql.keep_run, values)
        self._connection.execute(self._sql.carry_exports, (job, number))

    def put_attributes(self, rows: list[tuple[str, str, str]]) -> None:
        self._connection.execute(self._sql.put_attributes, tuple(map(list, zip(*rows, strict=True))))

    def write_audit(self, rows: list[tuple[str, str | None, str, str, str]]) -> None:
        """Add rows to the audit log."""
        for row in rows:
            self._connection.execute(self._sql.audit, (self.now, *row))

    def purge_audit(self, command: c.PurgeAudit) -> int:
        return len(self._all(self._sql.purge_audit, (command.limit, command.before)))

    def claim_requests(self, keys: list[tuple[str, str]]) -> Known:
        """Insert the keys, so that another transaction with one of them waits, and return those that were known."""
        names = [key for key, _ in keys]
        claimed = {
            key for (key,) in self._all(self._sql.claim_requests, (names, [fingerprint for _, fingerprint in keys]))
        }
        if len(claimed) == len(names):
            return {}
        rows = self._all(self._sql.known_requests, ([name for name in names if name not in claimed],))
        return {key: (fingerprint, answer) for key, fingerprint, answer in rows}

    def keep_requests(self, rows: list[tuple[str, str, str]], refused: list[str]) -> None:
        """Keep the answers of requests, and free the keys of refused ones."""
        if rows:
            values = [key for key, _, _ in rows], [answer for _, _, answer in rows]
            self._connection.execute(self._sql.keep_requests, values)
        if refused:
            self._connection.execute(self._sql.free_requests, (refused,))
        self._connection.execute(self._sql.drop_requests, (self.now - KEPT_SECONDS, DROPPED_MAX))

    def put_progress(self, job: str, number: int, progress_json: bytes) -> None:
        self._connection.execute(self._sql.progress, (job, number, progress_json.decode(), self.now))

    def keep_export(self, command: c.KeepExport, number: int) -> int:
        inserted = self._all(self._sql.keep_export, export_row(command, number, self.now))
        known = inserted or self._all(self._sql.known_export, (command.job, number, command.key))
        return int(known[0][0])

    def put_blob(self, command: c.PutBlob) -> None:
        values = (command.job, command.blob, command.number, command.content)
        self._connection.execute(self._sql.put_blob, values)

    def put_card(self, card: WorkerCard) -> None:
        self._connection.execute(self._sql.forget, (self.now - FORGOTTEN_SECONDS,))
        self._connection.execute(self._sql.report, (*card_row(card, self.now), self._locks.get(card.name)))

    def drop_card(self, worker: str) -> None:
        self._connection.execute(self._sql.leave, (worker,))

    def write(self, events: list[EventRow], new: list[Job], grown: list[Job], changed: list[Job]) -> None:
        """Write all rows with one statement, unless they are too large; only the transaction's end waits for it."""
        jobs = self.job_columns(new, grown, changed)
        portions = event_columns(events)
        first = next(portions, {})
        self._connection.execute(self._sql.write_rows(tuple(jobs), events=bool(first)), {**jobs, **first})
        for portion in portions:
            self._connection.execute(self._sql.insert_events, portion)

    def job_columns(self, new: list[Job], grown: list[Job], changed: list[Job]) -> dict[str, str]:
        """Return rows to be written as JSON, by kind; kinds of which there are none are missing."""
        self.rewritten.update(job.id for jobs in (new, grown, changed) for job in jobs)
        columns = {}
        if new:
            columns["new"] = self._rows(new)
        if grown:
            rows = [{"id": j.id, "version": j.version, "head": j.head, "updated_at": j.updated_at} for j in grown]
            columns["grown"] = _encode(rows).decode()
        if changed:
            columns["changed"] = self._changes(changed)
        return columns

    def _rows(self, jobs: list[Job]) -> str:
        return _encode([dict(zip(JOB_WRITTEN, job_row(job, self.now), strict=True)) for job in jobs]).decode()

    def _changes(self, jobs: list[Job]) -> str:
        """Return rows without the fixed columns. Missing values are NULL."""
        first = len(JOB_WRITTEN) - len(JOB_CHANGING)
        rows = []
        for job in jobs:
            columns = zip(JOB_CHANGING, job_row(job, self.now)[first:], strict=True)
            row = {name: value for name, value in columns if value is not None}
            row["id"] = job.id
            rows.append(row)
        return _encode(rows).decode()

    # Queues with limits, and shared budgets

    def look_again(self, name: str) -> Job | None:
        """Look for a job by its id; most batches leave that to the table's key."""
        if self.jobs.get(name) is None:
            self._stored.pop(name, None)
            for job in self.read_rows([name]):
                self._at_hand(job)
        return self.job(name)

    def _at_hand(self, job: Job) -> None:
        """Load a row that was found.

        Raises:
            UniqueViolation: the job was assumed to be new, and exists, as the table's key would show. The batch has
                already decided without it.
        """
        if self._stored.get(job.id) is None:
            if job.id in self._taken_as_new:
                raise psycopg.errors.UniqueViolation(f"the job {job.id} is there already")
            self._stored[job.id] = self.jobs[job.id] = job

    def read_limits(self) -> Iterable[LimitRow]:
        return map(limits_of, self._connection.execute(self._sql.limits).fetchall())

    def put_limits(self, row: LimitRow) -> None:
        self._connection.execute(self._sql.put_limits, limits_row(row))

    def put_grouped(self, row: LimitRow) -> None:
        """Write that a queue has groups, and nothing else of its row."""
        self._connection.execute(self._sql.put_grouped, limits_row(row))

    def drop_limits(self, queue: str) -> None:
        self._connection.execute(self._sql.drop_limits, (queue,))

    def lock_budget(self, name: str) -> BudgetRow | None:
        """Lock and return a budget's row; an empty one if there was none."""
        row: Any = self._connection.execute(self._sql.lock_budget, (name,)).fetchone()
        if row is None:
            self._connection.execute(self._sql.open_budget, (name,))
            row = self._connection.execute(self._sql.lock_budget, (name,)).fetchone()
        return BudgetRow(*row)

    def put_budget(self, name: str, row: BudgetRow) -> None:
        self._connection.execute(self._sql.put_budget, (*row, name))

    def promote(self) -> None:
        """Mark jobs that have become due, once per transaction."""
        if not self._promoted:
            self._connection.execute(self._sql.promote, (self.now or None,))
            self._promoted = True

    def count_waiting(self, queue: str, most: int) -> int:
        """Count the jobs that are due and wait, then read the time, so that a new job comes after them."""
        counted = self._connection.execute(self._sql.waiting, (queue, most))
        clock = self._connection.execute(self._sql.clock)
        waiting = int(counted.fetchone()[0])
        self.now = clock.fetchone()[0]
        return waiting

    def running_since(self, queue: str, most: int) -> tuple[int, list[float]]:
        counted = self._connection.execute(self._sql.running, ([queue],))
        rows = self._connection.execute(self._sql.running_rows, (queue, self.now, most))
        running = sum(count for _, _, count in counted.fetchall())
        return running, started_at(map(job_of, rows.fetchall()))

    def look_at(self, command: c.Claim, queues: list[str]) -> Callable[[], dict[str, Running]]:
        """Ask which queues have jobs to take, without a lock: where there is no room, no claim waits."""
        values = {**entries_of(command), "wanted": queues}
        cursor = self._connection.execute(self._sql.look_at, values)
        return lambda: by_queue(cursor.fetchall())

    def lock_limits(self, queues: list[str], seen: Mapping[str, Running]) -> list[tuple[LimitRow, Running]]:
        """Lock rows in the order of their names, then read the time, then count. Places handed on need none of it."""
        if not self._kept:
            return self._count(queues)
        left = {queue: room for queue in queues if (room := self._left_in(queue)) > 0}
        seen_room = {queue: self._limit_of(queue) - sum(seen.get(queue, {}).values()) for queue in left}
        locked = self._count([queue for queue in queues if queue not in left or seen_room[queue] > left[queue]])
        counted = {row.queue for row, _ in locked}
        handed = {queue: min(left[queue], seen_room[queue]) for queue in left if queue not in counted}
        return locked + [
            (self.limits.row_of(self, queue), {"": self._limit_of(queue) - room}) for queue, room in handed.items()
        ]

    def _limit_of(self, queue: str) -> int:
        return self.limits.row_of(self, queue).limits.concurrency or 0

    def _left_in(self, queue: str) -> int:
        """Return how many places of a queue this transaction has freed and may take again."""
        row = self.limits.row_of(self, queue)
        plain = row.limits.rate is None and row.limits.group_concurrency is None and not row.grouped
        return self.limits.places.free(queue) if queue in self._kept and plain and row.limits.concurrency else 0

    def _count(self, queues: list[str]) -> list[tuple[LimitRow, Running]]:
        """Count the running jobs of queues while other counts are locked out, in one round trip.

        The time is read again where a lease may have ended since. Otherwise a place handed on begins when the other
        job ends.
        """
        if not queues:
            return []
        waited_for = [
            queue for queue in queues if not self._kept and self.limits.row_of(self, queue).limits.rate is None
        ]
        tried = [queue for queue in queues if queue not in waited_for]
        rows = [self._connection.execute(self._sql.take_limits, (waited_for,))] if waited_for else []
        rows += [self._connection.execute(self._sql.try_limits, (tried,))] if tried else []
        later = not self._kept or any(_counts(self.limits.row_of(self, queue)) for queue in queues)
        clock = self._connection.execute(self._sql.clock) if later else None
        counted = self._connection.execute(self._sql.running, (queues,))
        locked = [limits_of(row[:-1]) for cursor in rows for row in cursor.fetchall() if row[-1]]  # locked, and alone
        self.now = clock.fetchone()[0] if clock is not None else self.now
        running = by_queue(counted.fetchall())
        # The row may be from a later time than this transaction's: its token may not have existed yet.
        return [(row, running.get(row.queue, {})) for row in locked if later or row.tokens_at <= self.now]

    def lock_row(self, queue: str) -> LimitRow | None:
        """Wait until no claim takes from a queue, then read the time."""
        rows = self._connection.execute(self._sql.lock_limits, ([queue],))
        clock = self._connection.execute(self._sql.clock)
        locked = [limits_of(row) for row in rows.fetchall()]
        self.now = clock.fetchone()[0]
        return locked[0] if locked else None

    # Schedules

    def peek_rows(self, names: list[str]) -> Iterable[Job]:
        return map(job_of, self._all(self._sql.peek_rows, (names,)))

    def lock_schedule(self, schedule: str) -> Schedule | None:
        """Lock a row, then read the time."""
        rows = self._locked_schedules(self._sql.lock_schedule, (schedule,))
        return rows[0] if rows else None

    def lock_due_schedules(self, limit: int) -> list[Schedule]:
        """Lock rows in the order of their ids, then read the time; skip rows that others have locked."""
        rows = self._locked_schedules(self._sql.lock_due_schedules, {"limit": limit})
        self._connection.execute(self._sql.drop_ends_of_deleted, (limit,))
        return rows

    def _locked_schedules(self, sql: str, values: Any) -> list[Schedule]:
        self.flush()  # with the runs that have ended in this batch; and events that are buffered have one time
        rows = self._connection.execute(sql, values)
        clock = self._connection.execute(self._sql.clock)
        self._sync()
        locked = [schedule_of(row) for row in rows.fetchall()]
        self.now = clock.fetchone()[0]
        self._schedules_there.update(row.id for row in locked)
        return locked

    def lock_declarations(self, plugin: str) -> dict[str, int]:
        self._connection.execute(self._sql.lock_declarations, (plugin,))
        return dict(self._all(self._sql.schedule_builds, (plugin,)))

    def put_build(self, plugin: str, build: str, number: int) -> None:
        self._connection.execute(self._sql.put_build, (plugin, build, number))

    def schedules_of(self, plugin: str) -> list[Schedule]:
        return self._locked_schedules(self._sql.schedules_of, (plugin,))

    def take_ended(self, schedules: Sequence[str]) -> list[EndedRun]:
        return [EndedRun(*row[1:]) for row in sorted(self._all(self._sql.take_ended, (list(schedules),)))]

    def write_schedules(self, rows: list[Schedule]) -> None:
        """Write rows. If another transaction has created one meanwhile, the batch is executed again."""
        known = [schedule_row(row) for row in rows if row.id in self._schedules_there]
        new = [schedule_row(row) for row in rows if row.id not in self._schedules_there]
        if known:
            self._connection.execute(self._sql.put_schedules, _schedules(known))
        if new:
            self._connection.execute(self._sql.create_schedules, _schedules(new))
        self._schedules_there.update(row.id for row in rows)

    def drop_schedule(self, schedule: str) -> None:
        self.flush()
        for statement in self._sql.drop_schedule:
            self._connection.execute(statement, (schedule,))
        self._connection.execute(self._sql.drop_stream, (stream_of(schedule),))
        self._schedules_there.discard(schedule)

    def write_ended_runs(self, rows: list[EndedRun]) -> None:
        columns = [row.schedule for row in rows], [row.job for row in rows], [row.status for row in rows]
        self._connection.execute(self._sql.put_ended_runs, (self.now, *columns))

    def stand_at_doors(self, queues: list[str]) -> None:
        self._connection.execute(self._sql.stand_at_the_door, (queues,))

    def find_groups(self, command: c.Claim, row: LimitRow, most: int) -> list[str]:
        """Find groups by steps through the index."""
        values = {**entries_of(command), "queue": row.queue, "turn": row.turn, "most": most}
        return [name for _, name in self._connection.execute(self._sql.groups, values).fetchall()]

    def find_heads(self, command: c.Claim, queue: str, wanted: Mapping[str, int]) -> dict[str, list[str]]:
        """Find and lock the first jobs of each group and entry, and the first of these."""
        values = {**entries_of(command), "queue": queue, "groups": list(wanted), "counts": list(wanted.values())}
        jobs = [job_of(row) for row in self._connection.execute(self._sql.heads, values).fetchall()]
        heads: dict[str, list[str]] = {group: [] for group in wanted}
        for job in sorted(jobs, key=place_of):
            names = heads[job.group or ""]
            if len(names) < wanted[job.group or ""]:
                names.append(job.id)
            self._at_hand(job)
        self.bring_up([job.id for job in jobs])
        return heads


def _counts(row: LimitRow) -> bool:
    return row.limits.concurrency is not None or row.limits.group_concurrency is not None


def entries_of(command: c.Claim) -> dict[str, list[str]]:
    """Return a claim's entries as parameters."""
    pairs = sorted(command.entries)
    plugins, entries = [plugin for plugin, _ in pairs], [entry for _, entry in pairs]
    return {"plugins": plugins, "entries": entries, "builds": list(command.builds)}


def by_queue(rows: Iterable[tuple[str, str | None, int]]) -> dict[str, Running]:
    """Return running jobs by queue and group, from rows of counts."""
    running: dict[str, Running] = {}
    for queue, group, count in rows:
        by_group = running.setdefault(queue, {})
        if group is not None:
            by_group[group] = count
    return running


def _hands_on(batch: Sequence[c.Command]) -> bool:
    """Return whether a batch only ends jobs and then claims others, and so may hand places on."""
    *before, last = batch or (None,)
    return (
        isinstance(last, c.Claim)
        and all(
            isinstance(command, c.Append) and not _fails(command) and not _reads_inbox(command) for command in before
        )
        and any(
            command.events and command.events[-1][0] == _COMPLETED
            for command in before
            if isinstance(command, c.Append)
        )
    )


def _may_queue_jobs(command: c.Command) -> bool:
    """Return whether a command may change which jobs can be claimed. An end may wake a parent, or cancel children."""
    if not isinstance(command, c.Append) or command.successor is not None:
        return True
    return any(kind not in GROWING and (kind != _COMPLETED or command.parent is not None) for kind, _ in command.events)


def _fails(command: c.Append) -> bool:
    return any(kind in _ENDS_BADLY for kind, _ in command.events)


def _ends(command: c.Append) -> bool:
    return any(kind in _ENDS for kind, _ in command.events)


def _parent_told(command: c.Command) -> str | None:
    return command.parent if isinstance(command, c.Append) and command.parent is not None and _ends(command) else None


def _reads_inbox(command: c.Append) -> bool:
    return command.successor is not None or any(kind == _WAITING for kind, _ in command.events)


def _portions(values: list[T], size_of: Callable[[T], int]) -> list[list[T]]:
    """Return values in portions that one statement can take, in order."""
    portions: list[list[T]] = []
    size = first = 0
    for place, value in enumerate(values):
        if size + size_of(value) > PORTION_BYTES and place > first:
            portions.append(values[first:place])
            size, first = 0, place
        size += size_of(value)
    return [*portions, values[first:]] if values else []


def event_columns(rows: list[EventRow]) -> Iterator[dict[str, Any]]:
    """Yield rows of events as the parameters of a statement, or of several if they are too large for one."""
    yield from map(_events, _portions(rows, lambda row: len(row[3])))


def _events(rows: list[EventRow]) -> dict[str, Any]:
    """Return rows of events as columns: each in one text with a mark between the values. It is fast."""
    jobs, seqs, types, payloads, attempts, times, schemas, prevs, hashes = zip(*rows, strict=True)
    mark = _mark(jobs, types)
    return {
        "mark": mark,
        "jobs": mark.join(jobs),
        "seqs": mark.join(map(str, seqs)),
        "types": mark.join(types),
        "payloads": mark.encode().join(payloads).decode(),
        "attempts": mark.join(["" if attempt is None else str(attempt) for attempt in attempts]),
        "at": times[0],  # all events of one transaction have one time and one schema
        "schema": schemas[0],
        "prevs": bytes.fromhex("".join(prevs)),
        "hashes": mark.join(hashes),
    }


def _schedules(rows: list[tuple[Any, ...]]) -> dict[str, str]:
    """Return rows of schedules as columns, as `_events` does: to quote them in a list takes half of a tick's time."""
    ids, plugins, due, texts = zip(*rows, strict=True)
    mark = _mark(ids, plugins)
    times = ["" if at is None else repr(at) for at in due]
    columns = {"ids": ids, "plugins": plugins, "due": times, "rows": texts}
    return {"mark": mark, **{name: mark.join(column) for name, column in columns.items()}}


def _mark(*names: tuple[str, ...]) -> str:
    """Return a control character that is in none of the names. JSON has none outside of an escape."""
    text = "".join(["".join(column) for column in names])
    for mark in MARKS:
        if mark not in text:
            return mark
    raise psycopg.DataError("the names contain every control character that could separate them")
