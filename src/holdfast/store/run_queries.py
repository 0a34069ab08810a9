"""Filters and results of run listings, counts and exports, for every backend.

Runs are listed by the job's id and the run's number, newest first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.machines import Event, HistoryEvent, RunRecord, RunStatus
from holdfast.machines.keys import CHANGED
from holdfast.store.rows import Job
from holdfast.store.sql.columns import ends_at

Attribute = str | int | float | bool
RunCursor = tuple[str, int]  # a job and the number of its run: the cursor of a listing


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class EndedJob(msgspec.Struct, frozen=True, gc=False):
    """A job that has ended, as far as retention asks."""

    id: str
    created_at: float
    updated_at: float
    plugin: str
    entry: str
    state: str


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for runs: a run must match every field that is set.

    Attributes:
        status: one of these.
        task_id: of this job.
        plugin_id: of this app.
        entry_id: of this job.
        queue: of jobs in this queue.
        group: of jobs of this group.
        idempotency_key: with this key.
        attributes: with these values of these attributes.
        created_after: of jobs created at this time or later.
        created_before: of jobs created before this time.
        parent: of children of this job.
        top: of jobs without a parent.
        asks: of jobs with a call in doubt, which wait for an operator's answer.
        finished_after: that ended at this time or later.
        finished_before: that ended before this time.
        newest: only the newest run of each job.
        oldest_first: list the oldest runs first; not a condition.
    """

    status: tuple[str, ...] = ()
    task_id: str | None = None
    plugin_id: str | None = None
    entry_id: str | None = None
    queue: str | None = None
    group: str | None = None
    idempotency_key: str | None = None
    attributes: dict[str, Attribute] = {}
    created_after: float | None = None
    created_before: float | None = None
    parent: str | None = None
    top: bool = False
    asks: bool = False
    finished_after: float | None = None
    finished_before: float | None = None
    newest: bool = False
    oldest_first: bool = False


class Counts(msgspec.Struct, frozen=True):
    """Numbers of newest runs by status and of open jobs by queue and state, and the oldest due times.

    `oldest_tick` is when the oldest tick of a schedule became due that has no outcome yet.
    """

    runs: dict[str, int]
    queues: dict[str, dict[str, int]]
    oldest_due: float | None
    oldest_tick: float | None = None


class BuildCounts(msgspec.Struct, frozen=True):
    """How many open jobs need which build of the code.

    Attributes:
        waiting: Jobs that wait or are queued, by the build that ran them last. Jobs without a build are left out.
        running: Jobs that run, by the name of the worker that holds them.
        kept: Jobs that only workers of one build may run, by that build, each with the oldest of them.
    """

    waiting: dict[str, int]
    running: dict[str, int]
    kept: dict[str, tuple[int, str]]


class RecordCounts(msgspec.Struct, frozen=True):
    """How many runs match a filter, by status, among the jobs that were looked at.

    Attributes:
        runs: The numbers. A status without runs is left out.
        next: The last job that was looked at; None if no older job is left.
    """

    runs: dict[str, int]
    next: str | None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A window of time, cut into buckets, and the runs that are counted in it.

    Attributes:
        start: when the first bucket begins, in UTC epoch seconds.
        end: when the last bucket ends.
        seconds: length of a bucket.
        oldest: count only jobs whose id is not less than this one, and those that are still queued.
        limit: of these, count the newest so many.
        queue: count only jobs in this queue.
    """

    start: float
    end: float
    seconds: float
    oldest: str
    limit: int
    queue: str | None = None

    def bucket(self, at: float) -> int:
        """Return the number of the bucket of a time: -1 before the first."""
        return int((at - self.start) / self.seconds) if at >= self.start else -1


class WaitCount(NamedTuple):
    """How many runs became due and left the queue in the same two buckets.

    Attributes:
        due: the bucket in which they became due; -1 before the window.
        left: the bucket in which they started or ended; None if they still wait.
        started: whether they started.
        number: how many.
        oldest: when the first of them became due.
    """

    due: int
    left: int | None
    started: bool
    number: int
    oldest: float


class WindowCounts(msgspec.Struct, frozen=True):
    """What happened to runs in a window.

    Attributes:
        seen: the number of jobs that were looked at.
        since: when the oldest of them was created; None if there are none.
        waits: runs that waited for their first start in the window.
        ends: number of runs that ended, by bucket and status.
    """

    seen: int
    since: float | None
    waits: list[WaitCount]
    ends: dict[tuple[int, str], int]


class ExportRow(msgspec.Struct, frozen=True, kw_only=True):
    """One export of a run: its value if it is small, else the name of its blob."""

    number: int
    key: str
    name: str
    kind: str
    media_type: str
    size: int
    value: Any
    blob: str | None
    at: float


class IndexEntries(msgspec.Struct, frozen=True):
    """The columns and rows that exist to find a job and its runs by an index.

    Attributes:
        status: of the newest run; None where an older release has moved the job without it.
        ends_at: when time ends the job while it has no lease; None where `status` is None.
        past: statuses of the earlier runs, by number.
        attributes: names and values, as they are indexed.
        exports: number of exports of each run that has any, by number; -1 where one is missing.
    """

    status: str | None
    ends_at: float | None
    past: dict[int, str]
    attributes: dict[str, str]
    exports: dict[int, int]


def expected_index_entries(job: Job, past: list[RunRecord]) -> IndexEntries:
    """Return the index entries that a job must have; of exports, only those of the newest run."""
    attributes = {name: attribute_text(value) for name, value in (job.attributes or {}).items()}
    numbered = {number: record.status.value for number, record in enumerate(past, 1)}
    exports = {job.run: job.exported} if job.exported else {}
    return IndexEntries(job.course.status.value, ends_at(job), numbered, attributes, exports)


def marks_in(events: Iterable[Event]) -> dict[str, dict[str, bool]]:
    """Return the sides of marked changes that events record, by job and mark."""
    marks: dict[str, dict[str, bool]] = {}
    for event in events:
        name = event.payload.get("node")
        if event.type == HistoryEvent.VALUE_RECORDED and isinstance(name, str) and name.startswith(CHANGED):
            marks.setdefault(event.job, {})[name.removeprefix(CHANGED)] = bool(event.payload.get("value"))
    return marks


def attribute_text(value: Attribute) -> str:
    """Return an attribute's value as it is stored and compared."""
    return _encode(value).decode()


def with_progress(record: RunRecord, progress_json: str | bytes | None, at: float | None) -> RunRecord:
    """Return a record with the run's last progress report (R9). A stage that the engine sets is kept."""
    if progress_json is None or at is None:
        return record
    fields = _decode(progress_json)
    if record.status is RunStatus.SUCCEEDED:
        fields["progress"] = 1.0
    if record.stage not in {None, "running"}:
        fields.pop("stage", None)
    if record.finished_at is None:
        fields["updated_at"] = max(at, record.updated_at)
    return msgspec.structs.replace(record, **fields)


def as_projected(record: RunRecord | None) -> RunRecord | None:
    """Return a record without the run's progress reports, which are not events."""
    if record is None:
        return None
    reported = dict.fromkeys(("progress", "stage", "message", "step", "step_total", "eta_seconds"), None)
    ended = record.finished_at if record.finished_at is not None else record.created_at
    return msgspec.structs.replace(record, **reported, metrics={}, updated_at=ended)


def merged(records: list[tuple[RunCursor, RunRecord]], limit: int, *, oldest_first: bool = False) -> list[RunRecord]:
    """Merge newest and earlier runs in the order of the listing."""
    return [record for _, record in sorted(records, key=lambda placed: placed[0], reverse=not oldest_first)[:limit]]


def build_counts_of(rows: Iterable[Any]) -> BuildCounts:
    """Return the counts from rows: a kind, a name, a number and the oldest job."""
    counts = BuildCounts({}, {}, {})
    for kind, name, number, oldest in rows:
        if name is not None:
            if kind == "kept":
                counts.kept[name] = (number, oldest)
            else:
                (counts.waiting if kind == "waiting" else counts.running)[name] = number
    return counts


def counts_of(runs: list[Any], queues: list[Any], oldest: float | None, tick: float | None) -> Counts:
    """Return the counts from rows of the database."""
    by_queue: dict[str, dict[str, int]] = {}
    for queue, state, count in queues:
        by_queue.setdefault(queue, {})[state] = count
    return Counts(dict(runs), by_queue, oldest, tick)
