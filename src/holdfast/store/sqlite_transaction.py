"""One batch of commands on one SQLite connection, inside one transaction.

Rows are loaded once and kept at hand; what is decided is gathered and written in few statements, many rows each. A
command that looks for jobs (a claim, a sweep) first has everything written that was gathered, so that it sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.errors import HoldfastError, UnknownJob
from holdfast.machines import Event
from holdfast.store import commands as c
from holdfast.store import decide
from holdfast.store.rows import Job, Signal
from holdfast.store.sqlite_rows import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    JOB_WRITTEN,
    event_of,
    event_row,
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
_INSERT_SIGNAL = (
    "INSERT INTO signals (job, id, key, payload, at, place, used) VALUES"
    " (?1, ?2, ?3, ?4, ?5, (SELECT coalesce(max(place), 0) + 1 FROM signals WHERE job = ?1), 0)"
)
_FIRST_SIGNAL = (
    "SELECT job, id, key, payload, at FROM signals WHERE job = ? AND key = ? AND used = 0 ORDER BY place LIMIT 1"
)


class Transaction:
    """The commands of one batch; made and used inside BEGIN and COMMIT, by one thread."""

    def __init__(self, connection: apsw.Connection, now: float) -> None:
        self._connection = connection
        self._now = now
        self._stored: dict[str, Job | None] = {}  # as the database has it; None: not there
        self._jobs: dict[str, Job] = {}  # as it will be
        self._events: list[Event] = []
        self._changed: set[str] = set()  # jobs of which more is new than where their stream ends
        self.wrote = False  # whether a worker may want to know: an event was written, or a pause was asked for

    def carry_out(self, batch: Sequence[c.Command]) -> list[Any]:
        """Answer every command, in order, and write everything."""
        self._load({name for command in batch if (name := getattr(command, "job", None)) is not None})
        answers = [self._answer(command) for command in batch]
        self._flush()
        self.wrote = self.wrote or any(isinstance(command, c.Pause) for command in batch)
        return answers

    def _answer(self, command: c.Command) -> Any:
        try:
            return self._carry_out(command)
        except HoldfastError as refusal:
            return refusal

    def _carry_out(self, command: c.Command) -> Any:
        match command:
            case c.Submit():
                return self._take(decide.submit(command, self._now, self._existing(command)))
            case c.Claim():
                return self._claim(command)
            case c.Renew():
                return self._renew(command)
            case c.Reclaim():
                sql = "SELECT id FROM jobs WHERE lease_until <= ? ORDER BY lease_until, id LIMIT ?"
                return self._sweep(sql, command.limit, lambda job: decide.reclaim(job, self._now))
            case c.Expire():
                sql = "SELECT id FROM jobs WHERE ends_at <= ? ORDER BY ends_at, id LIMIT ?"
                return self._sweep(sql, command.limit, lambda job: decide.expire(job, self._now))
            case c.Bury():
                return self._bury(command)
            case _:
                job = self._job(command.job)
                if job is None:
                    raise UnknownJob(command.job)
                inbox = self._inbox(command.job)
                return self._take(decide.decide(command, job, self._now, inbox, self._known(command.job)))

    # Loading

    def _load(self, names: Iterable[str]) -> None:
        missing = [name for name in names if name not in self._stored]
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

    def _inbox(self, job: str) -> Callable[[str], Signal | None]:
        def first(key: str) -> Signal | None:
            row = self._connection.execute(_FIRST_SIGNAL, (job, key)).fetchone()
            return signal_of(row) if row else None

        return first

    def _known(self, job: str) -> Callable[[str], bool]:
        sql = "SELECT 1 FROM signals WHERE job = ? AND id = ?"
        return lambda name: self._connection.execute(sql, (job, name)).fetchone() is not None

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
        if not decision.grew_only:
            self._changed.add(job.id)
        self._events += decision.events
        for signal in decision.kept:
            said = (signal.job, signal.id, signal.key, signal_payload(signal), signal.at)
            self._connection.execute(_INSERT_SIGNAL, said)
        for signal in decision.used:
            self._connection.execute("UPDATE signals SET used = 1 WHERE job = ? AND id = ?", (signal.job, signal.id))
        for told in decision.follow:
            if self._job(told.job) is not None:
                self._carry_out(told)
        return decision.answer

    def _flush(self) -> None:
        """Write what was gathered: events, new rows, rows that only grew, rows that changed."""
        if self._events:
            self.wrote = True
            self._connection.executemany(_INSERT_EVENT, map(event_row, self._events))
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
        promote = "UPDATE jobs SET claimable = 1 WHERE claimable = 0 AND state = 'queued' AND due_at <= ?"
        self._connection.execute(promote, (self._now,))
        found: list[Any] = []
        sql = (
            "SELECT -priority, due_at, id FROM jobs WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue = ?"
            " ORDER BY priority DESC, due_at, id LIMIT ?"
        )
        for plugin, entry in command.entries:
            for queue in self._queues(plugin, entry, command.queues):
                found += self._connection.execute(sql, (plugin, entry, queue, command.limit)).fetchall()
        names = [name for _, _, name in sorted(found)[: command.limit]]
        self._load(names)
        for name in names:
            self._take(decide.claim(self._jobs[name], command, self._now))
        self._flush()
        streams = self._streams(names)
        return [c.Claimed(self._jobs[name], streams[name]) for name in names]

    def _queues(self, plugin: str, entry: str, wanted: frozenset[str] | None) -> Iterable[str]:
        """Which queues have claimable jobs: by steps through the index, however many jobs are in it."""
        if wanted is not None:
            yield from wanted
            return
        sql = (
            "SELECT queue FROM jobs WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue > ?"
            " ORDER BY queue LIMIT 1"
        )
        queue = ""
        while found := self._connection.execute(sql, (plugin, entry, queue)).fetchone():
            (queue,) = found
            yield queue

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
        sql = "SELECT id FROM jobs WHERE lease_until IS NOT NULL AND lease_worker = ? ORDER BY id"
        names = self._names(sql, (command.worker,))
        for name in names:
            self._jobs[name] = decide.buried(self._jobs[name], self._now)
            self._changed.add(name)
        return c.Swept(names)
