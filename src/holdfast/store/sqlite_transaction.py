"""One batch of commands on one SQLite connection, inside one transaction.

Rows are loaded once and kept at hand; what is decided is gathered and written in few statements, many rows each. A
command that looks for jobs (a claim, a sweep) first has everything written that was gathered, so that it sees it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import apsw
import msgspec

from holdfast.errors import HoldfastError, UnknownJob
from holdfast.machines import Event, JobState
from holdfast.store import commands as c
from holdfast.store import decide
from holdfast.store.changes import WORK
from holdfast.store.rows import FORGOTTEN_SECONDS, Job, Signal
from holdfast.store.sqlite_rows import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    JOB_WRITTEN,
    card_row,
    event_of,
    event_row,
    evidence_row,
    job_of,
    job_row,
    signal_of,
    signal_payload,
)

__all__ = ["Transaction"]

_INSERT_EVENT = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_JOB = f"INSERT INTO jobs ({', '.join(JOB_WRITTEN)}) VALUES ({', '.join('?' * len(JOB_WRITTEN))})"
# Fixed facts are never written again; `id` comes last, as the key.
_CHANGING = JOB_WRITTEN[JOB_WRITTEN.index("version") :]
_UPDATE_JOB = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _CHANGING)} WHERE id = ?"
_GROW_JOB = "UPDATE jobs SET version = ?, head = ?, updated_at = ? WHERE id = ?"
# Which index is meant is said: left alone, SQLite walks every queued job, for it does not know how many there are.
_CLAIMABLE = (
    "SELECT -priority, due_at, id FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue = ? ORDER BY priority DESC, due_at, id LIMIT ?"
)
_DELAYED = (
    "FROM jobs INDEXED BY jobs_delayed_claims WHERE claimable = 0 AND state = 'queued' AND plugin = ? AND entry = ?"
)
_PRIORITY = f"SELECT priority {_DELAYED} AND queue = ? AND priority < ? ORDER BY priority DESC LIMIT 1"
_NOW_DUE = (
    f"SELECT -priority, due_at, id {_DELAYED} AND queue = ? AND priority = ? AND due_at <= ?"
    " ORDER BY due_at, id LIMIT ?"
)
_NEXT_QUEUE = (
    "SELECT queue FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue > ? ORDER BY queue LIMIT 1"
)
_NEXT_DELAYED_QUEUE = f"SELECT queue {_DELAYED} AND queue > ? ORDER BY queue LIMIT 1"
PRIORITY_MAX = 2**62  # above every priority
_INSERT_SIGNAL = (
    "INSERT INTO signals (job, id, key, payload, at, place, used) VALUES"
    " (?1, ?2, ?3, ?4, ?5, (SELECT coalesce(max(place), 0) + 1 FROM signals WHERE job = ?1), 0)"
)
_FIRST_SIGNAL = (
    "SELECT job, id, key, payload, at FROM signals WHERE job = ? AND key = ? AND used = 0 ORDER BY place LIMIT 1"
)
_INSERT_EVIDENCE = (
    "INSERT INTO evidence (job, node, attempt, number, result, error, at) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_REPORT = (
    "INSERT INTO workers (name, card, started_at, seen_at) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET card = excluded.card, seen_at = excluded.seen_at"
)


class Transaction:
    """The commands of one batch; made and used inside BEGIN and COMMIT, by one thread."""

    def __init__(self, connection: apsw.Connection, now: float, known: Mapping[str, Job]) -> None:
        self._connection = connection
        self._known_rows = known  # rows that are in the database just so: they need not be read
        self._now = now
        self._stored: dict[str, Job | None] = {}  # as the database has it; None: not there
        self._jobs: dict[str, Job] = {}  # as it will be
        self._events: list[tuple[Any, ...]] = []
        self._next: deque[c.Command] = deque()  # what a command brings about for other jobs
        self._changed: set[str] = set()  # jobs of which more is new than where their stream ends
        self._handlers: dict[type, Callable[[Any], Any]] = {
            c.Append: self._append,
            c.Submit: self._submit,
            c.Claim: self._claim,
            c.Renew: self._renew,
            c.Reclaim: self._reclaim,
            c.Expire: self._expire,
            c.Bury: self._bury,
            c.KeepEvidence: self._keep,
            c.Report: self._report,
            c.Leave: self._leave,
        }
        self.change = 0  # what there is to tell; see `holdfast.store.changes`

    def carry_out(self, batch: Sequence[c.Command]) -> list[Any]:
        """Answer every command, in order, and write everything."""
        self._load({name for command in batch if (name := getattr(command, "job", None)) is not None})
        answers = [self._answer(command) for command in batch]
        self._flush()
        return answers

    def _answer(self, command: c.Command) -> Any:
        try:
            answer = self._carry_out(command)
        except HoldfastError as refusal:
            return refusal
        while self._next:
            following = self._next.popleft()
            if self._job(getattr(following, "job", "")) is not None:
                self._carry_out(following)
        return answer

    def _carry_out(self, command: c.Command) -> Any:
        return self._handlers.get(type(command), self._about_one_job)(command)

    def _about_one_job(self, command: Any) -> Any:
        job = self._job(command.job)
        if job is None:
            raise UnknownJob(command.job)
        inbox, known = partial(self._first_signal, command.job), partial(self._is_known, command.job)
        return self._take(decide.decide(command, job, self._now, inbox, known))

    def _append(self, command: c.Append) -> Any:
        job = self._job(command.job)
        if job is None:
            raise UnknownJob(command.job)
        return self._take(decide.append(command, job, self._now, lambda key: self._first_signal(command.job, key)))

    def _submit(self, command: c.Submit) -> Any:
        return self._take(decide.submit(command, self._now, self._existing(command)))

    def held(self) -> dict[str, Job | None]:
        """What has become of the rows that were touched: those of jobs that are held, None for the others."""
        return {name: job if job.state is JobState.RUNNING else None for name, job in self._jobs.items()}

    # Loading

    def _load(self, names: Iterable[str]) -> None:
        missing = []
        for name in names:
            if name in self._known_rows:
                if name not in self._stored:
                    self._stored[name] = self._jobs[name] = self._known_rows[name]
            elif name not in self._stored:
                missing.append(name)
        if not missing:
            return
        self._stored.update(dict.fromkeys(missing))
        sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
        for row in self._connection.execute(sql, (msgspec.json.encode(missing).decode(),)):
            job = job_of(row)
            self._stored[job.id] = self._jobs[job.id] = job

    def _names(self, sql: str, bindings: tuple[Any, ...]) -> list[str]:
        """Run a statement that finds jobs, and load them."""
        names: list[Any] = [name for (name,) in self._connection.execute(sql, bindings)]
        self._load(names)
        return names

    def _job(self, name: str) -> Job | None:
        if name not in self._jobs:
            self._load([name])
        return self._jobs.get(name)

    def _existing(self, command: c.Submit) -> Job | None:
        job = self._job(command.job)
        if job is not None or command.idempotency_key is None:
            return job
        self._flush()
        sql = "SELECT id FROM jobs WHERE plugin = ? AND entry = ? AND idempotency_key = ?"
        found = self._connection.execute(sql, (command.plugin, command.entry, command.idempotency_key)).fetchone()
        return self._job(found[0]) if found else None

    def _first_signal(self, job: str, key: str) -> Signal | None:
        row = self._connection.execute(_FIRST_SIGNAL, (job, key)).fetchone()
        return signal_of(row) if row else None

    def _is_known(self, job: str, signal: str) -> bool:
        sql = "SELECT 1 FROM signals WHERE job = ? AND id = ?"
        return self._connection.execute(sql, (job, signal)).fetchone() is not None

    def _streams(self, names: list[str]) -> dict[str, list[Event]]:
        streams: dict[str, list[Event]] = {name: [] for name in names}
        sql = f"SELECT {EVENT_COLUMNS} FROM events WHERE job IN (SELECT value FROM json_each(?)) ORDER BY job, seq"
        for row in self._connection.execute(sql, (msgspec.json.encode(names).decode(),)):
            streams[row[0]].append(event_of(row))
        return streams

    # Writing

    def _take(self, decision: decide.Decision) -> Any:
        job = decision.job
        self._jobs[job.id] = job
        self._events += map(event_row, decision.events, decision.payloads)
        self.change |= decision.change
        if decision.grew_only:
            return decision.answer
        self._changed.add(job.id)
        for signal in decision.kept:
            said = (signal.job, signal.id, signal.key, signal_payload(signal), signal.at)
            self._connection.execute(_INSERT_SIGNAL, said)
        for signal in decision.used:
            self._connection.execute("UPDATE signals SET used = 1 WHERE job = ? AND id = ?", (signal.job, signal.id))
        self._next += decision.follow
        if decision.orphans is not None:
            self._next += [c.Cancel(name, decision.orphans) for name in self._children(job.id)]
        return decision.answer

    def _children(self, parent: str) -> list[str]:
        """The jobs that this one has started and that have not ended, oldest first."""
        self._flush()
        sql = "SELECT id FROM jobs WHERE parent = ? AND state IN ('queued', 'running', 'waiting') ORDER BY id"
        return self._names(sql, (parent,))

    def _keep(self, command: c.KeepEvidence) -> bool:
        evidence = command.evidence
        if self._job(evidence.job) is None:
            raise UnknownJob(evidence.job)
        return self._connection.execute(_INSERT_EVIDENCE, evidence_row(evidence, self._now)).fetchone() is not None

    def _report(self, command: c.Report) -> None:
        self._connection.execute("DELETE FROM workers WHERE seen_at <= ?", (self._now - FORGOTTEN_SECONDS,))
        self._connection.execute(_REPORT, card_row(command.card, self._now))

    def _leave(self, command: c.Leave) -> None:
        self._connection.execute("DELETE FROM workers WHERE name = ?", (command.worker,))

    def _flush(self) -> None:
        """Write what was gathered: events, new rows, rows that only grew, rows that changed."""
        if self._events:
            self._connection.executemany(_INSERT_EVENT, self._events)
            self._events = []
        new, grown, changed = [], [], []
        for name, job in self._jobs.items():
            stored = self._stored.get(name)
            if stored is job:
                continue
            if stored is None:
                new.append(job_row(job, self._now))
            elif name not in self._changed:
                grown.append((job.version, job.head, job.updated_at, name))
            else:
                columns = job_row(job, self._now)
                changed.append((*columns[-len(_CHANGING) :], name))
            self._stored[name] = job
        self._connection.executemany(_INSERT_JOB, new)
        self._connection.executemany(_GROW_JOB, grown)
        self._connection.executemany(_UPDATE_JOB, changed)
        self._changed.clear()

    # Commands that look for jobs

    def _claim(self, command: c.Claim) -> list[c.Claimed]:
        self._flush()
        found: list[Any] = []
        for plugin, entry in command.entries:
            for queue in self._queues(plugin, entry, command.queues):
                place = (plugin, entry, queue)
                found += self._connection.execute(_CLAIMABLE, (*place, command.limit)).fetchall()
                found += self._now_due(place, command.limit)
        names = [name for _, _, name in sorted(found)[: command.limit]]
        self._load(names)
        for name in names:
            self._take(decide.claim(self._jobs[name], command, self._now))
        self._flush()
        streams = self._streams(names)
        return [c.Claimed(self._jobs[name], streams[name]) for name in names]

    def _now_due(self, place: tuple[str, str, str], limit: int) -> list[Any]:
        """The first jobs, by priority and due time, that were not due when they were queued and are now."""
        found: list[Any] = []
        priority = PRIORITY_MAX
        while len(found) < limit and (row := self._connection.execute(_PRIORITY, (*place, priority)).fetchone()):
            (priority,) = row
            found += self._connection.execute(_NOW_DUE, (*place, priority, self._now, limit - len(found))).fetchall()
        return found

    def _queues(self, plugin: str, entry: str, wanted: frozenset[str] | None) -> Iterable[str]:
        """Which queues have jobs: by steps through the indexes, however many jobs are in them."""
        if wanted is not None:
            return wanted
        found = set()
        for sql in (_NEXT_QUEUE, _NEXT_DELAYED_QUEUE):
            queue = ""
            while row := self._connection.execute(sql, (plugin, entry, queue)).fetchone():
                (queue,) = row
                found.add(queue)
        return found

    def _renew(self, command: c.Renew) -> c.Leases:
        self._load(name for name, _ in command.held)
        lost, cancel, pause = set(), set(), set()
        for name, attempt in command.held:
            job = self._jobs.get(name)
            renewed = decide.renew(job, command, attempt, self._now) if job is not None else None
            if renewed is None:
                lost.add(name)
                continue
            self._jobs[name] = renewed
            self._changed.add(name)
            if renewed.cancel is not None:
                cancel.add(name)
            if renewed.pause:
                pause.add(name)
        return c.Leases(frozenset(lost), frozenset(cancel), frozenset(pause))

    def _reclaim(self, command: c.Reclaim) -> c.Swept:
        sql = "SELECT id FROM jobs WHERE lease_until <= ? ORDER BY lease_until, id LIMIT ?"
        return self._sweep(sql, command.limit, lambda job: decide.reclaim(job, self._now))

    def _expire(self, command: c.Expire) -> c.Swept:
        sql = "SELECT id FROM jobs WHERE ends_at <= ? ORDER BY ends_at, id LIMIT ?"
        return self._sweep(sql, command.limit, lambda job: decide.expire(job, self._now))

    def _sweep(self, sql: str, limit: int, decided: Callable[[Job], decide.Decision | None]) -> c.Swept:
        self._flush()
        names = self._names(sql, (self._now, limit))
        swept = []
        for name in names:
            decision = decided(self._jobs[name])
            if decision is not None:
                self._take(decision)
                swept.append(name)
        return c.Swept(swept)

    def _bury(self, command: c.Bury) -> c.Swept:
        self._flush()
        sql = (
            "SELECT id FROM jobs INDEXED BY jobs_leased WHERE lease_until IS NOT NULL AND lease_worker = ? ORDER BY id"
        )
        names = self._names(sql, (command.worker,))
        for name in names:
            self._jobs[name] = decide.buried(self._jobs[name], self._now)
            self._changed.add(name)
        self._connection.execute("DELETE FROM workers WHERE name = ?", (command.worker,))
        self.change |= WORK if names else 0
        return c.Swept(names)
