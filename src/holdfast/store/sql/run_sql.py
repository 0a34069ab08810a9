"""SQL of the reads of a store: the same for every SQL backend but for its parameter marks.

Runs are listed by the job's id and the run's number, newest first. The newest run of a job is in its row. Runs that
ended and were followed by another are kept as records beside it, and are few. The names in a statement are fixed here.
Values go in as parameters only.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.machines import TERMINAL_RUN_STATUSES, RunRecord, RunStatus
from holdfast.machines.keys import BUDGET_KEY, CHANGED, DEPLOY, DOUBT_KEY, HUMAN
from holdfast.schedules.outcome import KINDS
from holdfast.store.audit import AuditRow
from holdfast.store.commands import KeepExport
from holdfast.store.rows import Job
from holdfast.store.run_queries import (
    ExportRow,
    IndexEntries,
    RunCursor,
    RunFilter,
    WaitCount,
    Window,
    WindowCounts,
    attribute_text,
    with_progress,
)
from holdfast.store.sql.columns import JOB_COLUMNS, job_of
from holdfast.store.sql.event_rows import EVENT_COLUMNS

# Tables of a job other than its row and its stream. They are removed and moved with it.
OF_A_JOB = ("signals", "evidence", "past_runs", "progress", "attributes", "exports", "blobs")
# Statuses of a run that another follows (R4): every failure of its job, also a deadline during a cancel.
PAST = frozenset({RunStatus.FAILED, RunStatus.TIMEOUT, RunStatus.CANCELED})
ENDED = {status.value for status in TERMINAL_RUN_STATUSES}

# What the column `wait` of a job contains that a person has to answer.
PEOPLE = (f'%"wait_type":"{HUMAN}"%', f'%"wait_type":"{DEPLOY}"%', f'%"{DOUBT_KEY}%', f'%"{BUDGET_KEY}"%')
MARKED = f'%"{CHANGED}%'  # in the payload of an event that records a side of a change, or of another one by chance
WAITING = (RunStatus.RUNNING, RunStatus.CANCEL_REQUESTED)  # statuses of runs whose code may wait

SEEN, WAIT, END = range(3)  # kinds of rows of `window_counts`

_FILTERED = "id, status, plugin, entry, queue, group_name, idempotency_key, created_at, updated_at, parent, state, wait"
OPEN = ("queued", "running", "cancel_requested")  # statuses of runs that have not ended
_IS_OPEN = "status IN ('queued', 'running', 'cancel_requested')"  # as in an index
_ID_PLACE = JOB_COLUMNS.split(", ").index("id") + 1
_EXPORT_COLUMNS = ExportRow.__struct_fields__
LAST = 2**62  # after every row of the audit log

_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(RunRecord).decode


class ReadSql:
    """The statements of one backend's reads.

    Args:
        mark: its parameter mark.
        requests_for: the statement for requests to a worker's jobs, which names an index of the backend.
        unused: the table of signals, with the condition that they were not used, as in the index.
        as_text: the cast from its JSON type to text, if it has such a type.
        past_end: the expression for the end of an earlier run ``r``, which is in its record.
        started: the expression for the start of a job's newest run, which is in its course.
        whole: the expression for a number without its fraction, with a place for it.
        schema: the prefix of a table's name, with its dot.
        build: the expression for the build that ran a job last, which is in its course.
        started_run: the expression for the job that an event ``e`` of a schedule has started.
        by_build: the hint to use the index of jobs that are kept for a build, if the backend needs one.
    """

    def __init__(  # noqa: PLR0913 - what differs between the backends
        self,
        mark: str,
        *,
        requests_for: str,
        unused: str,
        past_end: str,
        started: str,
        build: str,
        started_run: str,
        whole: str,
        as_text: str = "",
        schema: str = "",
        by_build: str = "",
    ) -> None:
        self._past_end, self._started, self._whole = past_end, started, whole
        self.requests_for = requests_for
        self.job = f"SELECT {JOB_COLUMNS} FROM {schema}jobs WHERE id = {mark}"
        event_columns = EVENT_COLUMNS.replace("payload", f"payload{as_text}")
        self.events = (
            f"SELECT {event_columns} FROM {schema}events WHERE job = {mark} AND seq > {mark} AND seq < {mark}"
            " ORDER BY seq"
        )
        self.last_events = f"SELECT {event_columns} FROM {schema}events WHERE job = {mark} ORDER BY seq DESC LIMIT 1"
        self.outcome = _outcome(mark, schema, event_columns)
        self.inbox = f"SELECT job, id, key, payload{as_text}, at FROM {unused} AND job = {mark} ORDER BY place"
        self.evidence = (
            f"SELECT job, node, attempt, number, result{as_text}, error, at FROM {schema}evidence"
            f" WHERE job = {mark} ORDER BY at, node, attempt, number LIMIT {mark} OFFSET {mark}"
        )
        self.workers = f"SELECT card, started_at, seen_at, build FROM {schema}workers ORDER BY name"
        self._mark = mark
        self._schema = schema
        open_jobs = f"{schema}jobs WHERE {_IS_OPEN}"
        self.count_runs = (
            f"SELECT status, count(*) FROM {open_jobs} GROUP BY status UNION ALL SELECT status, count(*)"
            f" FROM {schema}jobs WHERE status IN ('succeeded', 'failed', 'canceled', 'timeout') GROUP BY status"
        )
        self.count_queues = (
            f"SELECT queue, CASE WHEN state = 'queued' AND due_at > {mark} THEN 'delayed' ELSE state END, count(*)"
            f" FROM {open_jobs} GROUP BY 1, 2"
        )
        self.oldest_due = f"SELECT min(due_at) FROM {open_jobs} AND state = 'queued' AND due_at <= {mark}"
        self.exports = (
            f"SELECT {', '.join(_EXPORT_COLUMNS)} FROM {schema}exports"
            f" WHERE job = {mark} AND run = {mark} AND number > {mark} ORDER BY number LIMIT {mark}"
        )
        self.index_entries = (  # one statement, which reads one snapshot
            f"SELECT 'job', CASE WHEN course = '' THEN NULL ELSE status END, ends_at, 0 FROM {schema}jobs"
            f" WHERE id = {mark} UNION ALL"
            f" SELECT 'past', status, run, 0 FROM {schema}past_runs WHERE job = {mark} UNION ALL"
            f" SELECT name, value, 0, 1 FROM {schema}attributes WHERE job = {mark} UNION ALL"
            f" SELECT 'exports', CAST(CASE WHEN count(*) = max(number) THEN count(*) ELSE -1 END AS text), run, 0"
            f" FROM {schema}exports WHERE job = {mark} GROUP BY run"
        )
        self.versions = (
            f"SELECT j.id, j.version, p.at FROM {schema}jobs j"
            f" LEFT JOIN {schema}progress p ON p.job = j.id AND p.run = j.run WHERE j.id {{}}"
        )
        self.audit = (
            f"SELECT number, at, actor, said, verb, subject, CAST(detail AS text) FROM {schema}audit"
            f" WHERE number < {mark} ORDER BY number DESC LIMIT {mark}"
        )
        self.blob = f"SELECT content FROM {schema}blobs WHERE job = {mark} AND blob = {mark} AND number = {mark}"
        self.marks = f"SELECT {event_columns} FROM {schema}events WHERE job {{}} AND payload{as_text} LIKE {mark}"
        self._of_builds(mark, schema, build, by_build)
        self._of_retention(mark, schema)
        self._of_schedules(mark, schema, as_text, started_run)

    def _of_retention(self, mark: str, schema: str) -> None:
        self.ended_jobs = (
            f"SELECT id, created_at, updated_at, plugin, entry, state FROM {schema}jobs WHERE state IN ('completed',"
            f" 'failed', 'cancelled') AND created_at <= {mark} AND (created_at, id) > ({mark}, {mark})"
            f" ORDER BY created_at, id LIMIT {mark}"
        )

    def _of_schedules(self, mark: str, schema: str, as_text: str, started_run: str) -> None:
        self.schedule = f"SELECT row FROM {schema}schedules WHERE id = {mark}"
        self.schedules = f"SELECT row FROM {schema}schedules WHERE id > {mark} ORDER BY id LIMIT {mark}"
        # With a place for the streams, each with the number of the event before the first that is read.
        self.outcomes = (
            f"SELECT e.job, e.type, e.payload{as_text}, e.at, (SELECT j.status FROM {schema}jobs j"
            f" WHERE j.id = {started_run}) FROM {{}} JOIN {schema}events e ON e.job = s.stream AND e.seq > s.after"
            f" WHERE e.type IN ({', '.join(map(repr, KINDS))}) ORDER BY e.job, e.seq DESC"
        )
        self.oldest_tick = f"SELECT min(due_at) FROM {schema}schedules WHERE due_at <= {mark}"

    def _of_builds(self, mark: str, schema: str, build: str, by_build: str) -> None:
        kept = (
            f"SELECT kept_for FROM {schema}jobs{by_build} WHERE kept_for > {{}} AND kept_for <> ''"
            f" AND {_IS_OPEN} ORDER BY kept_for LIMIT 1"
        )
        self.kept_builds = (  # by steps through the index
            f"WITH RECURSIVE builds(name) AS (SELECT ({kept.format(chr(39) * 2)}) UNION ALL"
            f" SELECT ({kept.format('builds.name')}) FROM builds WHERE builds.name IS NOT NULL)"
            " SELECT name FROM builds WHERE name IS NOT NULL"
        )
        self.kept_jobs = (
            f"SELECT {JOB_COLUMNS} FROM {schema}jobs WHERE kept_for = {mark} AND kept_for <> '' AND id > {mark}"
            f" AND {_IS_OPEN} ORDER BY id LIMIT {mark}"
        )
        self.build_counts = (  # one statement, which reads one snapshot
            f"SELECT 'waiting', {build}, count(*), min(id) FROM {schema}jobs WHERE {_IS_OPEN}"
            f" AND state IN ('queued', 'waiting') GROUP BY 2 UNION ALL"
            f" SELECT 'running', lease_worker, count(*), min(id) FROM {schema}jobs WHERE state = 'running'"
            f" GROUP BY lease_worker UNION ALL"
            f" SELECT 'kept', kept_for, count(*), min(id) FROM {schema}jobs{by_build} WHERE kept_for <> ''"
            f" AND {_IS_OPEN} GROUP BY kept_for"
        )

    def open_jobs(self, before: str | None, limit: int) -> tuple[str, list[Any]]:
        """Return the statement and values that list jobs which have not ended, newest first.

        Each status is listed by itself: its index has the order of the listing, so only one page is read.
        """
        older = f" AND id < {self._mark}" if before is not None else ""
        parts = [
            f"SELECT * FROM (SELECT {JOB_COLUMNS} FROM {self._schema}jobs WHERE status = '{status}'{older}"
            f" ORDER BY id DESC LIMIT {self._mark}) s{number}"
            for number, status in enumerate(OPEN)
        ]
        of_part = [limit] if before is None else [before, limit]
        return f"{' UNION ALL '.join(parts)} ORDER BY {_ID_PLACE} DESC LIMIT {self._mark}", [*of_part * 3, limit]

    def jobs(self, conditions: list[str]) -> str:
        """Return the statement that lists jobs; each condition lacks its value."""
        where = f"WHERE {' AND '.join(f'{condition} {self._mark}' for condition in conditions)}" if conditions else ""
        return f"SELECT {JOB_COLUMNS} FROM {self._schema}jobs {where} ORDER BY id DESC LIMIT {self._mark}"

    def newest_runs(self, where: RunFilter, before: RunCursor | None, limit: int) -> tuple[str, list[Any]]:
        """Return the statement and values that list newest runs, each with its progress.

        Of several statuses, each is listed by itself: its index has the order of the listing, so only one page is read.
        """
        statuses = _statuses(where) or []
        if not statuses[1:] or where.attributes or where.task_id is not None or where.parent is not None:
            return self._newest_runs(where, before, limit)
        parts: list[str] = []
        values: list[Any] = []
        for number, status in enumerate(statuses):
            sql, of_part = self._newest_runs(msgspec.structs.replace(where, status=(status,)), before, limit)
            parts.append(f"SELECT * FROM ({sql}) s{number}")
            values += of_part
        order = "ASC" if where.oldest_first else "DESC"
        return f"{' UNION ALL '.join(parts)} ORDER BY {_ID_PLACE} {order} LIMIT {self._mark}", [*values, limit]

    def _newest_runs(self, where: RunFilter, before: RunCursor | None, limit: int) -> tuple[str, list[Any]]:
        source, place, conditions, values = self._selected(where, _others(where))
        side, order = (">", "ASC") if where.oldest_first else ("<", "DESC")
        if before is not None:
            conditions.append(f"j.id {side}= {self._mark} AND (j.id {side} {self._mark} OR j.run {side} {self._mark})")
            values += [before[0], *before]
            if where.attributes:  # neither database derives it from the other condition
                conditions.append(f"a.job {side}= {self._mark}")
                values.append(before[0])
        columns = ", ".join(f"j.{name}" for name in JOB_COLUMNS.split(", "))
        filtered = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        return (
            f"SELECT {columns}, p.said, p.at FROM {source} LEFT JOIN {self._schema}progress p"
            f" ON p.job = j.id AND p.run = j.run {filtered} ORDER BY {place} {order} LIMIT {self._mark}"
        ), [*values, limit]

    def _selected(self, where: RunFilter, others: RunFilter) -> tuple[str, str, list[str], list[Any]]:
        """Return the tables of a listing, the column of its order, its conditions and their values.

        The first attribute's index has the order of the listing, so only one page is read. `others` has the rest.
        """
        conditions, values = self._conditions(others, "j.status", "j.updated_at")
        for name, value in where.attributes.items():
            conditions.insert(0, f"a.name = {self._mark} AND a.value = {self._mark}")
            source = f"{self._schema}attributes a JOIN {self._schema}jobs j ON j.id = a.job"
            return source, "a.job", conditions, [name, attribute_text(value), *values]
        return f"{self._schema}jobs j", "j.id", conditions, values

    def count_newest(self, where: RunFilter, before: str | None, limit: int) -> tuple[str, list[Any]]:
        """Return the statement and values that count newest runs among so many jobs.

        A row has a status, the number of jobs that were looked at, the number of those that match, and the oldest id.
        """
        status = where.status if len(where.status) == 1 else ()
        by_index = RunFilter(status=status, task_id=where.task_id, group=where.group, parent=where.parent)
        source, place, conditions, values = self._selected(where, by_index)
        for name in ("j.id", "a.job") if where.attributes else ("j.id",):  # neither database derives one from the other
            if before is not None:
                conditions.append(f"{name} < {self._mark}")
                values.append(before)
        columns = ", ".join(f"j.{name}" for name in _FILTERED.split(", "))
        filtered = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        matching, more = self._conditions(_others(where), "j.status", "j.updated_at")
        fits = f"CASE WHEN {' AND '.join(matching)} THEN 1 ELSE 0 END" if matching else "1"
        return (
            f"SELECT j.status, count(*), sum({fits}), min(j.id) FROM (SELECT {columns} FROM {source} {filtered}"
            f" ORDER BY {place} DESC LIMIT {self._mark}) j GROUP BY j.status"
        ), [*more, *values, limit]

    def count_past(self, where: RunFilter, before: str | None, oldest: str | None) -> tuple[str, list[Any]]:
        """Return the statement and values that count earlier runs, which are few, of the jobs in a range of ids."""
        conditions, values = self._conditions(where, "r.status", self._past_end)
        for condition, value in (("r.job <", before), ("r.job >=", oldest)):
            if value is not None:
                conditions.append(f"{condition} {self._mark}")
                values.append(value)
        return (
            f"SELECT r.status, count(*) FROM {self._schema}past_runs r CROSS JOIN {self._schema}jobs j"
            f" WHERE {' AND '.join(['j.id = r.job', *conditions])} GROUP BY r.status"
        ), values

    def questions(self, status: str, group: str | None, after: str | None, limit: int) -> tuple[str, list[Any]]:
        """Return the statement and values that list jobs with one run status that wait for a person, oldest first.

        With one status, an index has the rows in the order of the list.
        """
        asks = " OR ".join(f"wait LIKE {self._mark}" for _ in PEOPLE)
        conditions: list[str] = [f"status = '{RunStatus(status).value}'", "state = 'waiting'", f"({asks})"]
        values: list[Any] = list(PEOPLE)
        if group is not None:
            conditions.append(f"length(group_name) > 0 AND group_name = {self._mark}")
            values.append(group)
        if after is not None:
            conditions.append(f"id > {self._mark}")
            values.append(after)
        return (
            f"SELECT {JOB_COLUMNS} FROM {self._schema}jobs WHERE {' AND '.join(conditions)}"
            f" ORDER BY id LIMIT {self._mark}"
        ), [*values, limit]

    def window_counts(self, window: Window) -> tuple[str, list[Any]]:
        """Return the statement and values that count runs in a window: one statement, which reads one snapshot.

        Its rows are the jobs that were looked at, then the groups of waits, then those of ends.
        """
        mark, jobs = self._mark, f"{self._schema}jobs"
        columns = "queue, status, state, course, created_at, due_at, updated_at"
        at = f"CAST({mark} AS double precision)"
        ended = ", ".join(f"'{status}'" for status in sorted(ENDED))
        in_queue = f"WHERE queue = {mark}" if window.queue is not None else ""
        due = self._whole.format(f"(due - {at}) / {at}")
        left = self._whole.format(f"(gone - {at}) / {at}")
        over = self._whole.format(f"(updated_at - {at}) / {at}")
        sql = (
            f"WITH newest AS (SELECT * FROM (SELECT {columns} FROM {jobs} WHERE id >= {mark}"
            f" ORDER BY id DESC LIMIT {mark}) n"
            f" UNION ALL SELECT * FROM (SELECT {columns} FROM {jobs} WHERE status = 'queued' AND id < {mark}"
            f" ORDER BY id DESC LIMIT {mark}) o),"
            f" mine AS (SELECT *, {self._started} AS begun FROM newest {in_queue}),"
            f" waits AS (SELECT CASE WHEN begun IS NOT NULL AND due_at > begun THEN created_at ELSE due_at END AS due,"
            f" CASE WHEN begun IS NOT NULL THEN begun WHEN status IN ({ended}) THEN updated_at END AS gone,"
            f" CASE WHEN begun IS NOT NULL THEN 1 ELSE 0 END AS begins FROM mine"
            f" WHERE begun IS NOT NULL OR state <> 'waiting')"
            f" SELECT {SEEN}, count(*), 0, 0, 0, min(created_at), '' FROM newest UNION ALL"
            f" SELECT {WAIT}, CASE WHEN due < {at} THEN -1 ELSE {due} END,"
            f" CASE WHEN gone IS NULL THEN -1 ELSE {left} END, begins, count(*), min(due), '' FROM waits"
            f" WHERE due < {at} AND (gone IS NULL OR gone >= {at})"
            f" GROUP BY 2, 3, 4 UNION ALL"
            f" SELECT {END}, {over}, 0, 0, count(*), 0, status FROM mine"
            f" WHERE status IN ({ended}) AND updated_at >= {at} AND updated_at < {at} GROUP BY 2, 7"
        )
        start, seconds, last = window.start, window.seconds, window.end
        values = [window.oldest, window.limit, window.oldest, window.limit]
        values += [window.queue] if window.queue is not None else []
        values += [start, start, seconds, start, seconds, last, start]
        values += [start, seconds, start, last]
        return sql, values

    def past_runs(self, where: RunFilter, before: RunCursor | None, limit: int) -> tuple[str, list[Any]]:
        """Return the statement and values that list earlier runs."""
        conditions, values = self._conditions(where, "r.status", self._past_end)
        side, order = (">", "ASC") if where.oldest_first else ("<", "DESC")
        if before is not None:
            conditions.append(f"(r.job {side} {self._mark} OR (r.job = {self._mark} AND r.run {side} {self._mark}))")
            values += [before[0], *before]
        filtered = f"WHERE {' AND '.join(['j.id = r.job', *conditions])}"
        return (
            f"SELECT r.job, r.run, r.record, p.said, p.at FROM {self._schema}past_runs r"
            f" CROSS JOIN {self._schema}jobs j"  # in this order on SQLite: a group has many jobs, and few past runs
            f" LEFT JOIN {self._schema}progress p ON p.job = r.job AND p.run = r.run {filtered}"
            f" ORDER BY r.job {order}, r.run {order} LIMIT {self._mark}"
        ), [*values, limit]

    def _conditions(self, where: RunFilter, status: str, end: str) -> tuple[list[str], list[Any]]:
        """Return the conditions of a filter and their values; the job's row is ``j``."""
        wanted: dict[str, Any] = {
            "j.id =": where.task_id,
            "j.plugin =": where.plugin_id,
            "j.entry =": where.entry_id,
            "j.queue =": where.queue,
            "length(j.group_name) > 0 AND j.group_name =": where.group,  # for the partial indexes
            "j.idempotency_key =": where.idempotency_key,
            "j.created_at >=": where.created_after,
            "j.created_at <": where.created_before,
            f"{end} >=": where.finished_after,
            f"{end} <": where.finished_before,
            "j.parent =": where.parent,
            "j.state = 'waiting' AND j.wait LIKE": f'%"{DOUBT_KEY}%' if where.asks else None,
        }
        wanted_values = {condition: value for condition, value in wanted.items() if value is not None}
        clauses, values = [f"{condition} {self._mark}" for condition in wanted_values], list(wanted_values.values())
        if where.top:
            clauses.append("j.parent IS NULL")
        statuses = _statuses(where)
        if statuses is not None:
            named = ", ".join(f"'{RunStatus(name).value}'" for name in statuses)  # literals, for partial indexes
            clauses.append(f"{status} IN ({named})" if named else "1 = 0")
        for name, value in where.attributes.items():
            clauses.append(
                f"EXISTS (SELECT 1 FROM {self._schema}attributes o WHERE o.name = {self._mark}"
                f" AND o.value = {self._mark} AND o.job = j.id)"
            )
            values += [name, attribute_text(value)]
        return clauses, values


def _outcome(mark: str, schema: str, event_columns: str) -> str:
    """Return the read of a job, its progress, and its last event, which may have the result, only if it has ended."""
    newest = ", ".join(f"j.{name}" for name in JOB_COLUMNS.split(", "))
    last = ", ".join(f"e.{name}" for name in event_columns.split(", "))
    return (
        f"SELECT {newest}, p.said, p.at, {last} FROM {schema}jobs j"
        f" LEFT JOIN {schema}progress p ON p.job = j.id AND p.run = j.run"
        f" LEFT JOIN {schema}events e ON e.job = j.id AND j.state IN ('completed', 'failed', 'cancelled')"
        f" AND e.seq = (SELECT max(seq) FROM {schema}events WHERE job = j.id) WHERE j.id = {mark}"
    )


def _others(where: RunFilter) -> RunFilter:
    """Return a filter without its first attribute."""
    return msgspec.structs.replace(where, attributes=dict(list(where.attributes.items())[1:]))


def _statuses(where: RunFilter) -> list[str] | None:
    """Return the statuses that can match, or None for any."""
    if where.finished_after is None and where.finished_before is None:
        return sorted(set(where.status)) or None
    return sorted(set(where.status or ENDED) & ENDED)


def audit_row_of(row: tuple[Any, ...]) -> AuditRow:
    """Return a row of the audit log from its columns."""
    number, at, actor, said, verb, subject, detail = row
    return AuditRow(number, at, actor, said, verb, subject, msgspec.json.decode(detail))


def newest_of(row: tuple[Any, ...]) -> tuple[Job, str | None, float | None]:
    """Return a job, and its newest run's progress report."""
    *columns, progress_json, at = row
    return job_of(tuple(columns)), progress_json, at


def record_of_newest(job: Job, progress_json: str | None, at: float | None) -> tuple[RunCursor, RunRecord]:
    """Return a job's newest run."""
    return (job.id, job.run), with_progress(job.record(), progress_json, at)


def past_of(row: tuple[Any, ...]) -> tuple[RunCursor, RunRecord]:
    """Return an earlier run."""
    job, number, record, progress_json, at = row
    return (job, number), with_progress(_decode_record(record), progress_json, at)


def may_be_past(where: RunFilter) -> bool:
    """Return whether an earlier run could match."""
    return not (where.newest or where.asks) and (not where.status or bool(PAST & set(where.status)))


def index_entries_of(rows: list[Any]) -> IndexEntries | None:
    """Return a job's index entries; None if there is no such job."""
    by_kind = {(what, number): value for what, value, number, named in rows if not named}
    mine = [(value, at) for what, value, at, named in rows if what == "job" and not named]
    if not mine:
        return None
    status, at = mine[0]
    return IndexEntries(
        status,
        at if status is not None else None,
        {int(number): value for (what, number), value in by_kind.items() if what == "past"},
        {what: value for what, value, _, named in rows if named},
        {int(number): int(value) for (what, number), value in by_kind.items() if what == "exports"},
    )


def window_counts_of(rows: list[Any]) -> WindowCounts:
    """Return the counts of a window from the rows of its statement."""
    (_, seen, _, _, _, since, _) = next(row for row in rows if row[0] == SEEN)
    waits = [
        WaitCount(due, None if left < 0 else left, bool(begins), count, oldest)
        for what, due, left, begins, count, oldest, _ in rows
        if what == WAIT
    ]
    ends = {(bucket, status): count for what, bucket, _, _, count, _, status in rows if what == END}
    return WindowCounts(seen, since, waits, ends)


def export_row(command: KeepExport, number: int, now: float) -> tuple[Any, ...]:
    """Return an export's columns, without its number in the run."""
    value = _encode(command.value).decode() if command.blob is None else None
    what = command.name, command.kind, command.media_type, command.size
    return (command.job, number, command.key, *what, value, command.blob, now)


def export_of(row: tuple[Any, ...]) -> ExportRow:
    """Return an export from its columns."""
    columns = dict(zip(_EXPORT_COLUMNS, row, strict=True))
    if columns["value"] is not None:
        columns["value"] = msgspec.json.decode(columns["value"])
    return ExportRow(**columns)
