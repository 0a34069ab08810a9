"""The reads of both SQL stores, written once. A backend gives the statements, and a method that executes one.

The contract of each read is in `holdfast.store.protocol`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.machines import Event, JobState, RunRecord
from holdfast.machines.run_projection import run_name
from holdfast.schedules.schedule import Schedule
from holdfast.store.audit import AuditRow
from holdfast.store.commands import Leases
from holdfast.store.rows import OUTDATED, Evidence, Job, Signal, WorkerCard, rebuilt
from holdfast.store.run_queries import (
    BuildCounts,
    Counts,
    EndedJob,
    ExportRow,
    IndexEntries,
    RecordCounts,
    RunCursor,
    RunFilter,
    Window,
    WindowCounts,
    build_counts_of,
    counts_of,
    merged,
)
from holdfast.store.sql.columns import card_of, evidence_of, job_of, schedule_of, signal_of
from holdfast.store.sql.event_rows import EVENT_COLUMNS, SHARING_MAX, events_of
from holdfast.store.sql.run_sql import (
    WAITING,
    ReadSql,
    audit_row_of,
    export_of,
    index_entries_of,
    may_be_past,
    newest_of,
    past_of,
    record_of_newest,
    window_counts_of,
)

T = TypeVar("T")
Run = tuple[RunCursor, RunRecord]

EVENT_WIDTH = EVENT_COLUMNS.count(",") + 1
FEW = 16  # rows that a store may read on the loop
NO_LIMIT = 2**62  # both databases accept it as a LIMIT


class SqlReads(ABC):
    """The reads of a store. Each executes its statements through `_read`.

    Args:
        statements: the statements in the backend's dialect.
    """

    def __init__(self, statements: ReadSql) -> None:
        self._reads = statements

    @abstractmethod
    async def _read(self, sql: str, bindings: Any) -> list[Any]:
        """Execute a statement and return its rows."""

    async def _read_many(self, sql: str, bindings: Any, build: Callable[[Any], T], *, few: bool = False) -> list[T]:
        """Read rows and build their objects. A backend may do both in a thread, unless the rows are few."""
        del few
        return [build(row) for row in await self._read(sql, bindings)]

    @abstractmethod
    async def now(self) -> float:
        """Read the store's clock."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources."""

    async def get(self, job: str) -> Job | None:
        rows = await self._read(self._reads.job, (job,))
        return await self._up_to_date(job_of(rows[0])) if rows else None

    async def _up_to_date(self, row: Job) -> Job:
        """Rebuild a row that an older release has not kept up to date with its stream."""
        return rebuilt(row, await self.events(row.id)) if row.course is OUTDATED else row

    async def events(self, job: str, after: int = 0, limit: int | None = None) -> list[Event]:
        count = NO_LIMIT if limit is None else limit
        bindings = (job, after, after + count + SHARING_MAX)
        rows = await self._read_many(self._reads.events, bindings, events_of, few=count <= FEW)
        events = [event for row in rows for event in row]
        if limit is None and after == 0:
            return events
        return [event for event in events if after < event.seq <= after + count]

    async def last_event(self, job: str) -> Event | None:
        rows = await self._read(self._reads.last_events, (job,))
        return events_of(rows[0])[-1] if rows else None

    async def inbox(self, job: str) -> list[Signal]:
        return [signal_of(row) for row in await self._read(self._reads.inbox, (job,))]

    async def evidence(self, job: str, after: int = 0, limit: int | None = None) -> list[Evidence]:
        bindings = (job, NO_LIMIT if limit is None else limit, after)
        return await self._read_many(self._reads.evidence, bindings, evidence_of)

    async def audit(self, before: int | None, limit: int) -> list[AuditRow]:
        return await self._read_many(self._reads.audit, (NO_LIMIT if before is None else before, limit), audit_row_of)

    async def schedule(self, schedule: str) -> Schedule | None:
        rows = await self._read(self._reads.schedule, (schedule,))
        return schedule_of(rows[0]) if rows else None

    async def schedules(self, after: str | None = None, limit: int = 100) -> list[Schedule]:
        return await self._read_many(self._reads.schedules, (after or "", limit), schedule_of)

    async def workers(self) -> list[WorkerCard]:
        return [card_of(row) for row in await self._read(self._reads.workers, ())]

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        plugin: str | None = None,
        entry: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        filters = {"state =": state, "plugin =": plugin, "entry =": entry, "id <": before}
        used = {condition: str(value) for condition, value in filters.items() if value is not None}
        statement, bindings = self._reads.jobs(list(used)), (*used.values(), limit)
        rows = await self._read_many(statement, bindings, job_of, few=limit <= FEW)
        return [await self._up_to_date(row) for row in rows]

    async def record(self, job: str, number: int) -> RunRecord | None:
        where, before, name = RunFilter(task_id=job), (job, number + 1), run_name(job, number)
        for read in (self._newest_runs, self._past_runs):  # most runs are the newest of their job
            for _, record in await read(where, 1, before):
                if record.run_id == name:
                    return record
        return None

    async def outcome(self, job: str, number: int) -> tuple[RunRecord, Event | None] | None:
        """Read the record of a run, and with it the event that ended it, if it is the newest of its job."""
        rows = await self._read(self._reads.outcome, (job,))
        if rows:
            of_run, of_event = rows[0][:-EVENT_WIDTH], rows[0][-EVENT_WIDTH:]
            row, progress_json, at = newest_of(of_run)
            row = await self._up_to_date(row)
            if row.run == number:
                _, record = record_of_newest(row, progress_json, at)
                return record, events_of(of_event)[-1] if of_event[0] is not None else None
        past = await self.record(job, number)
        return (past, None) if past is not None else None

    async def records(self, where: RunFilter, limit: int, before: RunCursor | None = None) -> list[RunRecord]:
        runs = await self._newest_runs(where, limit, before)
        if may_be_past(where):
            runs += await self._past_runs(where, limit, before)
        return merged(runs, limit, oldest_first=where.oldest_first)

    async def _newest_runs(self, where: RunFilter, limit: int, before: RunCursor | None) -> list[Run]:
        few = where.task_id is not None  # any other filter may have to pass over many rows
        rows = await self._read_many(*self._reads.newest_runs(where, before, limit), newest_of, few=few)
        return [record_of_newest(await self._up_to_date(job), progress_json, at) for job, progress_json, at in rows]

    async def _past_runs(self, where: RunFilter, limit: int, before: RunCursor | None) -> list[Run]:
        few = where.task_id is not None
        return await self._read_many(*self._reads.past_runs(where, before, limit), past_of, few=few)

    async def count_records(self, where: RunFilter, limit: int, before: str | None = None) -> RecordCounts:
        rows = await self._read_many(*self._reads.count_newest(where, before, limit), tuple)
        seen = sum(row[1] for row in rows)
        oldest = min((row[3] for row in rows), default=None) if seen >= limit else None
        runs = Counter({status: fitting for status, _, fitting, _ in rows if fitting})
        if may_be_past(where):
            for status, number in await self._read_many(*self._reads.count_past(where, before, oldest), tuple):
                runs[status] += number
        return RecordCounts(dict(runs), oldest)

    async def questions(self, *, group: str | None = None, after: str | None = None, limit: int = 100) -> list[Job]:
        rows: list[Job] = []
        for status in WAITING:
            rows += await self._read_many(*self._reads.questions(status, group, after, limit), job_of)
        return [await self._up_to_date(row) for row in sorted(rows, key=lambda job: job.id)[:limit]]

    async def kept_builds(self) -> list[str]:
        return [name for (name,) in await self._read(self._reads.kept_builds, ())]

    async def kept_jobs(self, build: str, after: str | None = None, limit: int = 100) -> list[Job]:
        rows = await self._read_many(self._reads.kept_jobs, (build, after or "", limit), job_of)
        return [await self._up_to_date(row) for row in rows]

    async def ended_jobs(
        self, before: float, after: tuple[float, str] | None = None, limit: int = 1000
    ) -> list[EndedJob]:
        place = after if after is not None else (-1.0, "")
        return await self._read_many(self._reads.ended_jobs, (before, *place, limit), lambda row: EndedJob(*row))

    async def build_counts(self) -> BuildCounts:
        return build_counts_of(await self._read_many(self._reads.build_counts, (), tuple))

    async def open_jobs(self, before: str | None = None, limit: int = 100) -> list[Job]:
        rows = await self._read_many(*self._reads.open_jobs(before, limit), job_of, few=limit <= FEW)
        return [await self._up_to_date(row) for row in rows]

    async def index_entries(self, job: str) -> IndexEntries | None:
        return index_entries_of(await self._read(self._reads.index_entries, (job,) * 4))

    async def counts(self) -> Counts:
        now = await self.now()
        queues = await self._read_many(self._reads.count_queues, (now,), tuple)
        oldest = await self._read_many(self._reads.oldest_due, (now,), tuple)
        tick = await self._read(self._reads.oldest_tick, (now,))
        return counts_of(await self._read_many(self._reads.count_runs, (), tuple), queues, oldest[0][0], tick[0][0])

    async def window_counts(self, window: Window) -> WindowCounts:
        return window_counts_of(await self._read_many(*self._reads.window_counts(window), tuple))

    async def exports(self, job: str, number: int, after: int, limit: int) -> list[ExportRow]:
        bindings = (job, number, after, limit)
        return await self._read_many(self._reads.exports, bindings, export_of, few=limit <= FEW)

    async def blob(self, job: str, blob: str, number: int) -> bytes | None:
        rows = await self._read(self._reads.blob, (job, blob, number))
        return bytes(rows[0][0]) if rows else None

    async def requests_for(self, worker: str) -> Leases:
        rows = await self._read(self._reads.requests_for, (worker,))
        cancel = frozenset(job for job, cancel, _, _ in rows if cancel)
        pause = frozenset(job for job, _, pause, _ in rows if pause)
        return Leases(frozenset(), cancel, pause, frozenset(job for job, _, _, signalled in rows if signalled))
