"""The part of the reference backend that is about runs: records, progress, exports."""

from __future__ import annotations

from collections import Counter

import msgspec

from holdfast.clock import Clock
from holdfast.errors import UnknownJob
from holdfast.machines import TERMINAL_JOB_STATES, JobState, RunRecord
from holdfast.store import commands as c
from holdfast.store import decide
from holdfast.store.commands import PROGRESS
from holdfast.store.rows import Job
from holdfast.store.run_queries import (
    Counts,
    ExportRow,
    Filing,
    Place,
    RunFilter,
    counts_of,
    filed,
    merged,
    with_progress,
)

__all__ = ["MemoryRuns"]


class MemoryRuns:
    """Keeps what runs report and produce, beside their jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._past: dict[Place, RunRecord] = {}
        self._progress: dict[Place, tuple[bytes, float]] = {}
        self._exports: dict[Place, list[ExportRow]] = {}
        self._blobs: dict[tuple[str, str, int], bytes] = {}
        self._now = 0.0  # the time of the transaction under way
        self._change = 0  # what there is to tell of it

    async def record(self, job: str, number: int) -> RunRecord | None:
        """Read one run's record."""
        row = self._jobs.get(job)
        kept = row.record() if row is not None and row.run == number else self._past.get((job, number))
        return with_progress(kept, *self._progress.get((job, number), (None, None))) if kept is not None else None

    async def records(self, where: RunFilter, limit: int, before: Place | None = None) -> list[RunRecord]:
        """List runs, newest first."""
        found = [
            (place, record)
            for place, record in self._records().items()
            if (before is None or place < before) and _fits(self._jobs[place[0]], record, where)
        ]
        return merged(found, limit)

    async def filing(self, job: str) -> Filing | None:
        """Say what a job is found by: here that is its row."""
        row = self._jobs.get(job)
        if row is None:
            return None
        made = filed(row, [self._past[job, number] for number in range(1, row.run)])
        exports = {place[1]: len(kept) for place, kept in self._exports.items() if place[0] == job and kept}
        return msgspec.structs.replace(made, exports=exports)

    async def counts(self) -> Counts:
        """Count runs and queues."""
        now = self._clock.now()
        runs = Counter(job.course.status.value for job in self._jobs.values())
        queues: Counter[tuple[str, str]] = Counter()
        due = []
        for job in self._jobs.values():
            if job.state not in TERMINAL_JOB_STATES:
                delayed = job.state is JobState.QUEUED and job.due_at > now
                queues[job.queue, "delayed" if delayed else job.state.value] += 1
                due += [job.due_at] if job.state is JobState.QUEUED and not delayed else []
        counted = [(queue, state, count) for (queue, state), count in queues.items()]
        return counts_of(list(runs.items()), counted, min(due, default=None))

    async def exports(self, job: str, number: int, after: int, limit: int) -> list[ExportRow]:
        """List what a run has produced."""
        return self._exports.get((job, number), [])[after : after + limit]

    async def blob(self, job: str, blob: str, number: int) -> bytes | None:
        """Read one piece of a blob."""
        return self._blobs.get((job, blob, number))

    def keep_run(self, job: str, number: int, record: RunRecord) -> None:
        """Keep the record of a run that another follows."""
        self._past[job, number] = record
        self._exports[job, number + 1] = list(self._exports.get((job, number), []))

    def report_progress(self, command: c.Progress) -> None:
        """Keep what a run reports of itself."""
        job = self._fenced(command)
        self._progress[job.id, job.run] = msgspec.json.encode(command.said), self._now
        self._change |= PROGRESS

    def keep_export(self, command: c.KeepExport) -> int:
        """Keep what a run has produced; its number."""
        job = self._fenced(command)
        kept = self._exports.setdefault((job.id, job.run), [])
        known = next((one.number for one in kept if one.key == command.key), None)
        if known is None:
            said = {name: getattr(command, name) for name in ("key", "name", "kind", "media_type", "size", "blob")}
            value = msgspec.json.decode(msgspec.json.encode(command.value)) if command.blob is None else None
            kept.append(ExportRow(**said, number=len(kept) + 1, value=value, at=self._now))
            self._jobs[job.id] = msgspec.structs.replace(job, exported=len(kept))
        self._change |= PROGRESS
        return known or len(kept)

    def put_blob(self, command: c.PutBlob) -> None:
        """Keep a piece of a blob; a repeat changes nothing."""
        self._fenced(command)
        self._blobs.setdefault((command.job, command.blob, command.number), command.content)

    def forget_runs(self) -> None:
        """Forget what is kept of jobs that are gone."""
        self._past = {place: one for place, one in self._past.items() if place[0] in self._jobs}
        self._progress = {place: one for place, one in self._progress.items() if place[0] in self._jobs}
        self._exports = {place: one for place, one in self._exports.items() if place[0] in self._jobs}
        self._blobs = {place: one for place, one in self._blobs.items() if place[0] in self._jobs}

    def _records(self) -> dict[Place, RunRecord]:
        found = {**self._past, **{(job.id, job.run): job.record() for job in self._jobs.values()}}
        none = (None, None)
        return {place: with_progress(record, *self._progress.get(place, none)) for place, record in found.items()}

    def _fenced(self, command: c.Progress | c.KeepExport | c.PutBlob) -> Job:
        job = self._jobs.get(command.job)
        if job is None:
            raise UnknownJob(command.job)
        decide.fence(job, command.attempt, self._now)
        return job


def _fits(job: Job, record: RunRecord, where: RunFilter) -> bool:
    wanted = {
        "id": where.task_id,
        "plugin": where.plugin_id,
        "entry": where.entry_id,
        "queue": where.queue,
        "group": where.group,
        "idempotency_key": where.idempotency_key,
    }
    return (
        all(value is None or getattr(job, name) == value for name, value in wanted.items())
        and (not where.status or record.status in where.status)
        and all(_same((job.attributes or {}).get(name), value) for name, value in where.attributes.items())
        and (where.created_after is None or job.created_at >= where.created_after)
        and (where.created_before is None or job.created_at < where.created_before)
    )


def _same(kept: object, wanted: object) -> bool:
    return kept is not None and msgspec.json.encode(kept) == msgspec.json.encode(wanted)
