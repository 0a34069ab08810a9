"""A batch of commands on one SQLite connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import apsw
import msgspec

from holdfast.machines import Event, RunRecord
from holdfast.schedules.schedule import Schedule, stream_of
from holdfast.store import commands as c
from holdfast.store.limits import LimitRow
from holdfast.store.request_keys import Known
from holdfast.store.rows import FORGOTTEN_SECONDS, Evidence, Job, PastEvent, Signal, WorkerCard
from holdfast.store.schedule_commands import EndedRun
from holdfast.store.shared_budgets import BudgetRow
from holdfast.store.sql.batch import Batch, Key
from holdfast.store.sql.columns import (
    JOB_CHANGING,
    JOB_COLUMNS,
    JOB_WRITTEN,
    LIMIT_COLUMNS,
    LIMIT_WRITTEN,
    card_row,
    evidence_row,
    job_of,
    job_row,
    limits_of,
    limits_row,
    schedule_of,
    schedule_row,
    signal_of,
    signal_payload,
)
from holdfast.store.sql.event_rows import EVENT_COLUMNS, HISTORY_COLUMNS, EventRow, event_values, events_of, history_of
from holdfast.store.sql.limit_claims import Running, started_at
from holdfast.store.sql.run_sql import OF_A_JOB, export_row
from holdfast.store.sqlite import request_rows
from holdfast.store.sqlite.bulk import inserts, updates
from holdfast.store.sqlite.limits import count_waiting, running_by_group

_INSERT_EVENTS = inserts("events", EVENT_COLUMNS.split(", "))
_INSERT_JOBS = inserts("jobs", JOB_WRITTEN)
_INSERT_ATTRIBUTES = inserts("attributes", ["name", "value", "job"])
_UPDATE_JOBS = updates("jobs", JOB_CHANGING)
_PUT_SCHEDULES = inserts("schedules", ["id", "plugin", "due_at", "row"], replacing=True)
_PUT_ENDS = inserts("schedule_ends", ["schedule", "job", "status", "at"])
_GROW_JOBS = updates("jobs", ["version", "head", "updated_at"])
# The statements name their index. Without it, SQLite scans every queued job: it does not know how many there are.
_CLAIMABLE = (
    "SELECT -priority, due_at, id FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue = ? AND kept_for = ? AND group_name = ''"
    " ORDER BY priority DESC, due_at, id LIMIT ?"
)
_DELAYED = (
    "FROM jobs INDEXED BY jobs_delayed_claims WHERE claimable = 0 AND state = 'queued' AND plugin = ? AND entry = ?"
)
_PRIORITY = (
    f"SELECT priority {_DELAYED} AND queue = ? AND kept_for = ? AND group_name = '' AND priority < ?"
    " ORDER BY priority DESC LIMIT 1"
)
_NOW_DUE = (
    f"SELECT -priority, due_at, id {_DELAYED} AND queue = ? AND kept_for = ? AND group_name = '' AND priority = ?"
    " AND due_at <= ?"
    " ORDER BY due_at, id LIMIT ?"
)
_NEXT_QUEUE = (
    "SELECT queue FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue > ? ORDER BY queue LIMIT 1"
)
_NEXT_DELAYED_QUEUE = f"SELECT queue {_DELAYED} AND queue > ? ORDER BY queue LIMIT 1"
PRIORITY_MAX = 2**62  # above every priority
_HELD = "SELECT id FROM jobs INDEXED BY jobs_leased WHERE lease_until IS NOT NULL AND lease_worker = ? ORDER BY id"
_INSERT_SIGNAL = (
    "INSERT INTO signals (job, id, key, payload, at, place, used) VALUES"
    " (?1, ?2, ?3, ?4, ?5, (SELECT coalesce(max(place), 0) + 1 FROM signals WHERE job = ?1), 0)"
)
_UNUSED = "SELECT id, key FROM signals INDEXED BY signals_unused WHERE job = ? AND used = 0 ORDER BY place"
_READ_UNUSED = _UNUSED.replace("SELECT id, key", "SELECT job, id, key, payload, at")
_INSERT_EVIDENCE = (
    "INSERT INTO evidence (job, node, attempt, number, result, error, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_REPORT = (
    "INSERT INTO workers (name, card, started_at, seen_at, build) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET card = excluded.card, seen_at = excluded.seen_at, build = excluded.build"
)


_FINISHED = (
    "SELECT id FROM jobs AS j {} WHERE state IN ('completed', 'failed', 'cancelled') {}"
    " AND state IN (SELECT value FROM json_each(?1)) AND created_at <= ?2 AND updated_at <= ?2 AND NOT EXISTS"
    " (SELECT 1 FROM jobs AS p WHERE p.id = j.parent AND p.state NOT IN ('completed', 'cancelled')) AND NOT EXISTS"
    " (SELECT 1 FROM jobs AS n WHERE n.id = j.newest AND n.state NOT IN ('completed', 'failed', 'cancelled'))"
    " ORDER BY created_at, id LIMIT ?3"
)
_ALL_FINISHED = _FINISHED.format("INDEXED BY jobs_finished", "")
_SOME_FINISHED = _FINISHED.format("", "AND id IN (SELECT value FROM json_each(?4))")
_REMOVE = [
    f"DELETE FROM {table} WHERE {key} IN (SELECT value FROM json_each(?))"
    for table, key in (*((table, "job") for table in ("events", *OF_A_JOB)), ("jobs", "id"))
]
_KEEP_EXPORT = (
    "INSERT INTO exports (job, run, number, key, name, kind, media_type, size, value, blob, at) VALUES (?1, ?2,"
    " (SELECT coalesce(max(number), 0) + 1 FROM exports WHERE job = ?1 AND run = ?2), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
    " ON CONFLICT (job, run, key) DO NOTHING RETURNING number"
)
_CARRY_EXPORTS = (
    "INSERT INTO exports SELECT job, run + 1, number, key, name, kind, media_type, size, value, blob, at"
    " FROM exports WHERE job = ? AND run = ?"
)
_KNOWN_EXPORT = "SELECT number FROM exports WHERE job = ? AND run = ? AND key = ?"
_PROGRESS = (
    "INSERT INTO progress (job, run, said, at) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (job, run) DO UPDATE SET said = excluded.said, at = excluded.at"
)

_DUE_SCHEDULES = "SELECT id FROM schedules INDEXED BY schedules_due WHERE due_at <= ? ORDER BY due_at, id LIMIT ?"
_ENDED_SCHEDULES = "SELECT DISTINCT schedule FROM (SELECT schedule FROM schedule_ends ORDER BY place LIMIT ?)"
_SCHEDULES_BY_ID = "SELECT row FROM schedules WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
_DROP_ENDS_OF_DELETED = (
    "DELETE FROM schedule_ends WHERE place IN (SELECT place FROM schedule_ends ORDER BY place LIMIT ?)"
    " AND NOT EXISTS (SELECT 1 FROM schedules AS s WHERE s.id = schedule)"
)
_KEYS = (
    "SELECT j.plugin, j.entry, j.idempotency_key, j.id FROM json_each(?) AS x CROSS JOIN jobs j"
    " ON j.plugin = x.value->>0 AND j.entry = x.value->>1 AND j.idempotency_key = x.value->>2"
)
_TAKE_ENDED = (
    "DELETE FROM schedule_ends WHERE schedule IN (SELECT value FROM json_each(?))"
    " RETURNING place, schedule, job, status"
)

PROMOTED_MAX = 1000  # delayed jobs that one transaction finds due; more than that are found by the next
_PUT = f"INSERT OR REPLACE INTO limits ({LIMIT_WRITTEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
# The statements name their index, because SQLite does not know how many jobs there are.
_PROMOTE = (
    "UPDATE jobs SET claimable = 1 WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_delayed"
    f" WHERE claimable = 0 AND state = 'queued' AND due_at <= ? ORDER BY due_at LIMIT {PROMOTED_MAX})"
)
_SINCE = (
    f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_running"
    " WHERE state = 'running' AND queue = ? AND lease_until > ? LIMIT ?"
)
_HEADS = (
    "SELECT -priority, due_at, id FROM jobs INDEXED BY jobs_claimable WHERE claimable = 1 AND plugin = ? AND entry = ?"
    " AND queue = ? AND kept_for = ? AND group_name = ? ORDER BY priority DESC, due_at, id LIMIT ?"
)
_ANY = (
    "SELECT 1 FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue = ? AND kept_for = ? LIMIT 1"
)
_KEPT = (
    "SELECT 1 FROM jobs INDEXED BY jobs_kept WHERE kept_for = ? AND kept_for <> ''"
    " AND status IN ('queued', 'running', 'cancel_requested') LIMIT 1"
)
_STEP = (
    "(SELECT min(group_name) FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ?1 AND entry = ?2 AND queue = ?3 AND kept_for = ?6 AND group_name"
)
# First after the group that was served last, then from the beginning up to it. By steps: the cost does not grow.
_GROUPS = (
    f"WITH RECURSIVE steps(name, lap, n) AS (SELECT {_STEP} > ?4), 0, 1 UNION ALL SELECT {_STEP} >= ''), 1, 1 UNION ALL"
    f" SELECT {_STEP} > s.name), s.lap, s.n + 1 FROM steps s"
    " WHERE s.name IS NOT NULL AND s.n < ?5 AND (s.lap = 0 OR s.name <= ?4))"
    " SELECT DISTINCT name, lap FROM steps WHERE name IS NOT NULL AND (lap = 0 OR name <= ?4)"
)


class Transaction(Batch):
    """One batch of commands; created and used between BEGIN and COMMIT, by one thread."""

    def __init__(self, connection: apsw.Connection, now: float, known: Mapping[str, Job]) -> None:
        super().__init__(now, known)
        self._connection = connection
        self._promoted = False
        self.gone: list[str] = []  # workers that were removed from the list

    def read_rows(self, names: list[str]) -> Iterable[Job]:
        """Read rows; no other process writes until the end of the transaction."""
        sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
        return map(job_of, self._connection.execute(sql, (msgspec.json.encode(names).decode(),)))

    def read_streams(self, names: list[str]) -> dict[str, list[Event]]:
        streams: dict[str, list[Event]] = {name: [] for name in names}
        sql = f"SELECT {EVENT_COLUMNS} FROM events WHERE job IN (SELECT value FROM json_each(?)) ORDER BY job, seq"
        for row in self._connection.execute(sql, (msgspec.json.encode(names).decode(),)):
            streams[row[0]] += events_of(row)
        return streams

    def read_history(self, names: list[str]) -> dict[str, list[PastEvent]]:
        streams: dict[str, list[PastEvent]] = {name: [] for name in names}
        sql = f"SELECT {HISTORY_COLUMNS} FROM events WHERE job IN (SELECT value FROM json_each(?)) ORDER BY job, seq"
        for row in self._connection.execute(sql, (msgspec.json.encode(names).decode(),)):
            streams[row[0]] += history_of(row)
        return streams

    def find_keys(self, keys: list[Key]) -> dict[Key, str]:
        rows = self._connection.execute(_KEYS, (msgspec.json.encode(keys).decode(),))
        return {(plugin, entry, key): name for plugin, entry, key, name in rows}

    def unused(self, job: str) -> dict[str, str]:
        return dict(self._connection.execute(_UNUSED, (job,)))

    def count_unused(self, job: str) -> int:
        row = self._connection.execute("SELECT count(*) FROM signals WHERE job = ? AND used = 0", (job,)).fetchone()
        return int(row[0]) if row else 0

    def read_signal(self, job: str, signal: str) -> Signal:
        sql = "SELECT job, id, key, payload, at FROM signals WHERE job = ? AND id = ?"
        row = self._connection.execute(sql, (job, signal)).fetchone()
        assert row is not None, "its id was read just now"
        return signal_of(row)

    def read_unused(self, job: str) -> list[Signal]:
        return [signal_of(row) for row in self._connection.execute(_READ_UNUSED, (job,))]

    def knows(self, job: str, signal: str) -> bool:
        sql = "SELECT 1 FROM signals WHERE job = ? AND id = ?"
        return self._connection.execute(sql, (job, signal)).fetchone() is not None

    def write_signals(self, kept: list[Signal], used: list[Signal]) -> None:
        """Write signals one by one, so that their places are in order."""
        rows = [(signal.job, signal.id, signal.key, signal_payload(signal), signal.at) for signal in kept]
        self._connection.executemany(_INSERT_SIGNAL, rows)
        names = [(signal.job, signal.id) for signal in used]
        self._connection.executemany("UPDATE signals SET used = 1 WHERE job = ? AND id = ?", names)

    def find_children(self, parents: list[str]) -> dict[str, list[str]]:
        sql = "SELECT id FROM jobs WHERE parent = ? AND state IN ('queued', 'running', 'waiting')"
        return {parent: self._names(sql, (parent,)) for parent in parents}

    def find_claimable(self, command: c.Claim, excluded: list[str]) -> list[str]:
        """Find the first jobs by priority, due time and age, of each entry and queue, and the first of these."""
        rows: list[Any] = []
        builds = self._builds_of(command)
        for plugin, entry in command.entries:
            for queue in {*self._queues(plugin, entry, command.queues)}.difference(excluded):
                for kept_for in builds:
                    place = (plugin, entry, queue, kept_for)
                    rows += self._connection.execute(_CLAIMABLE, (*place, command.limit)).fetchall()
                    rows += self._now_due(place, command.limit)
        return [name for _, _, name in sorted(rows)[: command.limit]]

    def _builds_of(self, command: c.Claim) -> list[str]:
        """Return the builds of a claim that jobs are kept for: each costs two reads per entry and queue."""
        return [name for name in command.builds if not name or self._connection.execute(_KEPT, (name,)).fetchone()]

    def _now_due(self, place: tuple[str, str, str, str], limit: int) -> list[Any]:
        """Return the first jobs, by priority and due time, that have become due since they were queued."""
        rows: list[Any] = []
        priority = PRIORITY_MAX
        while len(rows) < limit and (row := self._connection.execute(_PRIORITY, (*place, priority)).fetchone()):
            (priority,) = row
            rows += self._connection.execute(_NOW_DUE, (*place, priority, self.now, limit - len(rows))).fetchall()
        return rows

    def _queues(self, plugin: str, entry: str, wanted: frozenset[str] | None) -> Iterable[str]:
        """Return the queues that have jobs, by steps through the indexes; the cost does not grow with the jobs."""
        if wanted is not None:
            return wanted
        queues = set()
        for sql in (_NEXT_QUEUE, _NEXT_DELAYED_QUEUE):
            queue = ""
            while row := self._connection.execute(sql, (plugin, entry, queue)).fetchone():
                (queue,) = row
                queues.add(queue)
        return queues

    def find_expired(self, limit: int) -> list[str]:
        sql = "SELECT id FROM jobs WHERE lease_until <= ? ORDER BY lease_until, id LIMIT ?"
        return self._names(sql, (self.now, limit))

    def find_ended(self, limit: int) -> list[str]:
        return self._names("SELECT id FROM jobs WHERE ends_at <= ? ORDER BY ends_at, id LIMIT ?", (self.now, limit))

    def find_held(self, worker: str) -> list[str]:
        return self._names(_HELD, (worker,))

    def find_finished(self, command: c.Purge) -> list[str]:
        states = msgspec.json.encode(sorted(command.states)).decode()
        values = (states, command.before, command.limit)
        if command.jobs is None:
            return self._names(_ALL_FINISHED, values)
        return self._names(_SOME_FINISHED, (*values, msgspec.json.encode(command.jobs).decode()))

    def remove(self, names: list[str]) -> None:
        for statement in _REMOVE:
            self._connection.execute(statement, (msgspec.json.encode(names).decode(),))

    def keep_evidence(self, evidence: Evidence) -> bool:
        return self._connection.execute(_INSERT_EVIDENCE, evidence_row(evidence, self.now)).fetchone() is not None

    def keep_run(self, job: str, number: int, record: RunRecord) -> None:
        sql = "INSERT INTO past_runs (job, run, status, record) VALUES (?, ?, ?, ?)"
        self._connection.execute(sql, (job, number, record.status.value, msgspec.json.encode(record).decode()))
        self._connection.execute(_CARRY_EXPORTS, (job, number))

    def put_attributes(self, rows: list[tuple[str, str, str]]) -> None:
        _INSERT_ATTRIBUTES.run(self._connection, rows)

    def write_audit(self, rows: list[tuple[str, str | None, str, str, str]]) -> None:
        """Add rows to the audit log."""
        request_rows.write_audit(self._connection, rows, self.now)

    def purge_audit(self, command: c.PurgeAudit) -> int:
        return request_rows.purge_audit(self._connection, command.before, command.limit)

    def claim_requests(self, keys: list[tuple[str, str]]) -> Known:
        return request_rows.known_requests(self._connection, [key for key, _ in keys])

    def keep_requests(self, rows: list[tuple[str, str, str]], refused: list[str]) -> None:
        """Keep the answers of requests. Refused ones have left nothing."""
        del refused
        request_rows.keep_requests(self._connection, rows, self.now)

    def put_progress(self, job: str, number: int, progress_json: bytes) -> None:
        self._connection.execute(_PROGRESS, (job, number, progress_json.decode(), self.now))

    def keep_export(self, command: c.KeepExport, number: int) -> int:
        made = self._connection.execute(_KEEP_EXPORT, export_row(command, number, self.now)).fetchone()
        known = made or self._connection.execute(_KNOWN_EXPORT, (command.job, number, command.key)).fetchone()
        assert known is not None, "it was written just now, or was there"
        return int(known[0])

    def put_blob(self, command: c.PutBlob) -> None:
        sql = "INSERT INTO blobs (job, blob, number, content) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        self._connection.execute(sql, (command.job, command.blob, command.number, command.content))

    def put_card(self, card: WorkerCard) -> None:
        self._connection.execute("DELETE FROM workers WHERE seen_at <= ?", (self.now - FORGOTTEN_SECONDS,))
        self._connection.execute(_REPORT, card_row(card, self.now))

    def drop_card(self, worker: str) -> None:
        self._connection.execute("DELETE FROM workers WHERE name = ?", (worker,))
        self.gone.append(worker)

    def write(self, events: list[EventRow], new: list[Job], grown: list[Job], changed: list[Job]) -> None:
        """Write rows, many with each statement."""
        _INSERT_EVENTS.run(self._connection, [event_values(row) for row in events])
        _INSERT_JOBS.run(self._connection, [job_row(job, self.now) for job in new])
        _GROW_JOBS.run(self._connection, [(job.id, job.version, job.head, job.updated_at) for job in grown])
        rows = [(job.id, *job_row(job, self.now)[-len(JOB_CHANGING) :]) for job in changed]
        _UPDATE_JOBS.run(self._connection, rows)

    # Queues with limits, and shared budgets

    def look_again(self, name: str) -> Job | None:
        """Return None: the job was looked for."""
        return self.job(name)

    def read_limits(self) -> Iterable[LimitRow]:
        return map(limits_of, self._connection.execute(f"SELECT {LIMIT_COLUMNS} FROM limits"))

    def put_limits(self, row: LimitRow) -> None:
        self._connection.execute(_PUT, limits_row(row))

    def put_grouped(self, row: LimitRow) -> None:
        """Write a row; no other process writes meanwhile."""
        self.put_limits(row)

    def drop_limits(self, queue: str) -> None:
        self._connection.execute("DELETE FROM limits WHERE queue = ?", (queue,))

    def promote(self) -> None:
        """Mark jobs that have become due, once per transaction, which has one time."""
        if not self._promoted:
            self._connection.execute(_PROMOTE, (self.now,))
            self._promoted = True

    def count_waiting(self, queue: str, most: int) -> int:
        return count_waiting(self._connection, queue, most)

    def running_since(self, queue: str, most: int) -> tuple[int, list[float]]:
        running = sum(running_by_group(self._connection, queue, self.now).values())
        return running, started_at(map(job_of, self._connection.execute(_SINCE, (queue, self.now, most))))

    def look_at(self, command: c.Claim, queues: list[str]) -> Callable[[], dict[str, Running]]:
        return lambda: {
            queue: running_by_group(self._connection, queue, self.now) for queue in queues if self._any(command, queue)
        }

    def _any(self, command: c.Claim, queue: str) -> bool:
        places = ((*pair, queue, kept_for) for pair, kept_for in product(command.entries, self._builds_of(command)))
        return any(self._connection.execute(_ANY, place).fetchone() for place in places)

    def lock_limits(self, queues: list[str], seen: Mapping[str, Running]) -> list[tuple[LimitRow, Running]]:
        """Read the rows; the transaction already excludes other writers."""
        return [(self.limits.row_of(self, queue), dict(seen.get(queue, {}))) for queue in queues]

    def lock_row(self, queue: str) -> LimitRow | None:
        """Read the rows; the transaction already excludes other writers."""
        return self.limits.rows(self).get(queue)

    def find_groups(self, command: c.Claim, row: LimitRow, most: int) -> list[str]:
        """Find groups by steps through the index."""
        groups: set[tuple[int, str]] = set()
        for pair, kept_for in product(command.entries, self._builds_of(command)):
            steps = self._connection.execute(_GROUPS, (*pair, row.queue, row.turn, most, kept_for))
            groups.update((lap, name) for name, lap in steps)
        return [name for _, name in sorted(groups)[:most]]

    def find_heads(self, command: c.Claim, queue: str, wanted: Mapping[str, int]) -> dict[str, list[str]]:
        """Find the first jobs of each entry, and the first of these."""
        heads: dict[str, list[str]] = {}
        for group, count in wanted.items():
            rows: list[Any] = []
            for pair, kept_for in product(command.entries, self._builds_of(command)):
                rows += self._connection.execute(_HEADS, (*pair, queue, kept_for, group, count)).fetchall()
            heads[group] = [name for _, _, name in sorted(rows)[:count]]
        self.load(name for names in heads.values() for name in names)
        return heads

    def lock_budget(self, name: str) -> BudgetRow | None:
        """Read a budget's row; no other process writes meanwhile."""
        row: Any = self._connection.execute(
            "SELECT window_start, spent FROM budgets WHERE name = ?", (name,)
        ).fetchone()
        return BudgetRow(*row) if row is not None else None

    def put_budget(self, name: str, row: BudgetRow) -> None:
        sql = "INSERT OR REPLACE INTO budgets (name, window_start, spent) VALUES (?, ?, ?)"
        self._connection.execute(sql, (name, *row))

    # Schedules

    def peek_rows(self, names: list[str]) -> Iterable[Job]:
        """Read rows; no other process writes meanwhile."""
        return self.read_rows(names)

    def lock_schedule(self, schedule: str) -> Schedule | None:
        if schedule in self.schedules:
            return self.schedules[schedule]
        rows = self._connection.execute("SELECT row FROM schedules WHERE id = ?", (schedule,)).fetchall()
        return schedule_of(rows[0]) if rows else None

    def lock_due_schedules(self, limit: int) -> list[Schedule]:
        self.flush()  # with the runs that have ended in this batch
        names = {*self._names(_DUE_SCHEDULES, (self.now, limit)), *self._names(_ENDED_SCHEDULES, (limit,))}
        if not names:
            return []
        chosen = msgspec.json.encode(sorted(names)).decode()
        rows = self._connection.execute(_SCHEDULES_BY_ID, (chosen,)).fetchall()
        if len(rows) < len(names):
            self._connection.execute(_DROP_ENDS_OF_DELETED, (limit,))
        return [schedule_of(row) for row in rows]

    def lock_declarations(self, plugin: str) -> dict[str, int]:
        sql = "SELECT build, number FROM schedule_builds WHERE plugin = ?"
        return dict(self._connection.execute(sql, (plugin,)))

    def put_build(self, plugin: str, build: str, number: int) -> None:
        sql = "INSERT INTO schedule_builds (plugin, build, number) VALUES (?, ?, ?)"
        self._connection.execute(sql, (plugin, build, number))

    def schedules_of(self, plugin: str) -> list[Schedule]:
        self.flush()
        sql = "SELECT row FROM schedules WHERE plugin = ? ORDER BY id"
        return [schedule_of(row) for row in self._connection.execute(sql, (plugin,))]

    def take_ended(self, schedules: Sequence[str]) -> list[EndedRun]:
        chosen = msgspec.json.encode(schedules).decode()
        rows: list[Any] = self._connection.execute(_TAKE_ENDED, (chosen,)).fetchall()
        return [EndedRun(*row[1:]) for row in sorted(rows)]

    def write_schedules(self, rows: list[Schedule]) -> None:
        _PUT_SCHEDULES.run(self._connection, [schedule_row(row) for row in rows])

    def drop_schedule(self, schedule: str) -> None:
        self.flush()
        self._connection.execute("DELETE FROM schedules WHERE id = ?", (schedule,))
        self._connection.execute("DELETE FROM schedule_ends WHERE schedule = ?", (schedule,))
        self._connection.execute("DELETE FROM events WHERE job = ?", (stream_of(schedule),))

    def write_ended_runs(self, rows: list[EndedRun]) -> None:
        _PUT_ENDS.run(self._connection, [(row.schedule, row.job, row.status, self.now) for row in rows])

    def stand_at_doors(self, queues: list[str]) -> None:
        """Do nothing: no other process writes meanwhile."""

    def _names(self, sql: str, bindings: tuple[Any, ...]) -> list[str]:
        return [name for (name,) in self._connection.execute(sql, bindings)]
