"""Built-in jobs: `holdfast.verify`, `holdfast.purge`, `holdfast.move` and `holdfast.retention`, in recorded steps.

They are jobs like any other: they show progress, can be canceled and paused, and their result is the report. A step
checks or removes for about a second, so a crash repeats no more than that. A server executes them; see
`holdfast.http.maintenance`. Workers claim only `holdfast.retention`, which their schedule starts, and `entries` does
not list them.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.functions import Backoff
from holdfast.authoring.job_api import external_key
from holdfast.authoring.reports import progress
from holdfast.client.app import App
from holdfast.client.overview.builds import MISFITS_MAX, MovePart, RunMisfit, check_move, movable, move_jobs
from holdfast.client.retention.removal import BATCH, remove_jobs, states_of
from holdfast.client.retention.retention_schedule import declare_job
from holdfast.client.verify import violations_of
from holdfast.client.views import Created, Creation, RunFilter
from holdfast.machines import TERMINAL_RUN_STATUSES, JobState, RunStatus
from holdfast.machines.keys import BUILTIN
from holdfast.store import Job, Purge, Store
from holdfast.store.audit import Audited
from holdfast.store.request_keys import Once

if TYPE_CHECKING:
    from holdfast.store.effects import EffectStore

QUEUE = BUILTIN  # their own queue: the limits of other queues do not hold them back
MARK = {"builtin": True}  # an attribute, because its index finds their runs without a look at others
CHECK_SECONDS = 1.0  # after which a step ends that checks histories
CHECK_JOBS = 1000  # jobs that one step checks at most
PAGE = 100  # jobs per read
REPORT_BYTES = 256 * 1024  # of the damaged jobs that a report names; it counts all of them
VIOLATIONS_MAX = 20  # of one job in a report
RETRY = Backoff(retries=10, first_seconds=0.2)  # of a step that the store did not answer: minutes in all
OPEN_PAGE = 50  # open runs per read, to find one that needs a worker
PAUSED = "paused"  # the stage of a run that needs none

_OPEN = tuple(str(status) for status in RunStatus if status not in TERMINAL_RUN_STATUSES)


class BuiltinJobs(App):
    """The built-in jobs over the store of an app."""

    _is_builtin = True

    def __init__(self, app: App) -> None:
        self._app = app
        self._found: str | None = None  # the last job that needed a worker
        config = msgspec.structs.replace(
            app.config, keep_seconds=0.0, keep_runs=0, keep_audit_seconds=0.0, retention=""
        )
        super().__init__(BUILTIN, app.url, config=config)
        _declare_verify(self)
        _declare_purge(self)
        _declare_move(self)
        declare_job(self)

    async def start_verify(self, group: str | None, key: str | None, trace_id: str | None) -> Created:
        """Create a run that checks the histories of a group, or all of them."""
        return await self._create("verify", {"group": group}, key, trace_id)

    async def start_purge(
        self,
        *,
        older_than_seconds: float,
        statuses: list[str],
        limit: int | None,
        group: str | None,
        actor: str,
        key: str | None,
        trace_id: str | None,
    ) -> Created:
        """Create a run that removes ended jobs of a group, or of all groups."""
        arguments = {
            "older_than_seconds": older_than_seconds,
            "statuses": sorted(statuses),
            "limit": limit,
            "group": group,
            "actor": actor,
        }
        return await self._create("purge", arguments, key, trace_id)

    async def start_move(
        self, old: str, new: str, *, check: bool, actor: str, key: str | None, trace_id: str | None
    ) -> Created:
        """Create a run that moves the runs of a build to another one.

        Raises:
            InvalidArguments, UnknownBuild: as for `check_move`.
        """
        arguments = {"old": old, "new": new, "check": check, "actor": actor, "group": None}
        if not await self._is_repeat("move", key):
            await check_move(self._app, self._store(), old, new, check=check)
        return await self._create("move", arguments, key, trace_id)

    async def _is_repeat(self, entry: str, key: str | None) -> bool:
        """Return whether a run with this key exists. What it asked for may be done by now."""
        where = RunFilter(plugin_id=BUILTIN, entry_id=entry, idempotency_key=key, attributes=dict(MARK))
        return key is not None and bool(await self._store().records(where, 1))

    async def _create(self, entry: str, arguments: dict[str, Any], key: str | None, trace_id: str | None) -> Created:
        creation = Creation(
            plugin_id=BUILTIN,
            entry_id=entry,
            args=arguments,
            group=arguments["group"],
            attributes=dict(MARK),
            idempotency_key=key,
            trace_id=trace_id,
        )
        return await self.acreate(creation)

    async def need_worker(self) -> bool:
        """Return whether a run of these jobs is queued or running. One that waits, such as a paused one, is not."""
        if self._found is not None and await self._needs_worker(self._found):
            return True  # without a look at others, as there may be many that are paused
        where = RunFilter(plugin_id=BUILTIN, attributes=dict(MARK), status=_OPEN, newest=True)
        cursor: tuple[str, int] | None = None
        while records := await self._store().records(where, OPEN_PAGE, cursor):
            for record in records:
                job = record.task_id or record.run_id
                if record.stage != PAUSED and await self._needs_worker(job):
                    self._found = job
                    return True
                cursor = (job, 0)
        return False

    async def _needs_worker(self, job: str) -> bool:
        row = await self._store().get(job)
        return row is not None and row.state in {JobState.QUEUED, JobState.RUNNING}

    async def remove(self, command: Once) -> int:
        """Remove one batch of jobs, and return their number."""
        return len(await self.removed(command))

    async def removed(self, command: Once) -> list[str]:
        """Remove one batch of jobs, and return them. A repeat returns those of the first call."""
        return await remove_jobs(self._store(), self._outside(), command)

    @property
    def code(self) -> App:
        """The app whose store these jobs use, with the code of its jobs."""
        return self._app

    def is_current(self, store: Store) -> bool:
        """Return whether the app still uses this store."""
        return self._app._opened is store  # noqa: SLF001 - of the app that this one extends

    def is_store_open(self) -> bool:
        """Return whether the app has opened its store."""
        return self._app._opened is not None  # noqa: SLF001 - as above

    # The store and the effects are those of the app.

    def _store(self) -> Store:
        return self._app.store()

    def effects(self) -> EffectStore | None:
        """Return the effect store of the app."""
        return self._app.effects()

    async def aclose(self) -> None:
        """Do nothing: the app closes its store."""


def _declare_verify(jobs: BuiltinJobs) -> None:
    @jobs.step(backoff=RETRY)
    async def count_jobs(group: str | None) -> int | None:
        """Count the jobs to check; None if the number is not known."""
        return sum((await jobs.store().counts()).runs.values()) if group is None else None

    @jobs.step(backoff=RETRY)
    async def check_histories(before: str | None, group: str | None) -> dict[str, Any]:
        """Check the next jobs before an id, newest first."""
        return await _check(jobs.store(), before, group)

    @jobs.job(queue=QUEUE)
    async def verify(group: str | None = None) -> dict[str, Any]:
        """Check histories: the rules, the hash chain and the projections."""
        total = await count_jobs(group)
        report: dict[str, Any] = {"checked": 0, "damaged": 0, "wrong": {}}
        before: str | None = None
        while True:
            part = await check_histories(before, group)
            _add(report, part)
            checked = report["checked"]
            known = max(total, checked) if total is not None else None
            progress(
                checked / known if known else None,
                stage="checking",
                step=checked,
                step_total=known,
                message=f"{checked:,} histories checked, {report['damaged']:,} damaged",
            )
            before = part["next"]
            if before is None:
                return report


async def _check(store: Store, before: str | None, group: str | None) -> dict[str, Any]:
    """Check jobs for a while. `next` is None after the last one."""
    end = time.monotonic() + CHECK_SECONDS
    checked = 0
    wrong: dict[str, list[str]] = {}
    while rows := await _next_jobs(store, before, group):
        for row in rows:
            violations = await violations_of(store, row)
            if violations:
                wrong[row.id] = [str(violation) for violation in violations[:VIOLATIONS_MAX]]
            checked, before = checked + 1, row.id
            if checked >= CHECK_JOBS or time.monotonic() >= end:
                return {"checked": checked, "wrong": wrong, "next": before}
    return {"checked": checked, "wrong": wrong, "next": None}


def _add(report: dict[str, Any], part: dict[str, Any]) -> None:
    """Add what a step has found to a report. Beyond its size, damaged jobs are only counted."""
    size = sum(len(text) for texts in report["wrong"].values() for text in texts)
    for job, texts in part["wrong"].items():
        size += sum(map(len, texts))
        if size <= REPORT_BYTES:
            report["wrong"][job] = texts
    report["checked"] += part["checked"]
    report["damaged"] += len(part["wrong"])


async def _next_jobs(store: Store, before: str | None, group: str | None) -> list[Job]:
    """Return a page of jobs, newest first. It is empty after the last one."""
    if group is None:
        return await store.jobs(before=before, limit=PAGE)
    cursor = (before, 0) if before is not None else None
    records = await store.records(RunFilter(group=group, newest=True), PAGE, cursor)
    rows = [await store.get(record.task_id or record.run_id) for record in records]
    return [row for row in rows if row is not None]


def _declare_purge(jobs: BuiltinJobs) -> None:
    @jobs.step(backoff=RETRY)
    async def ended_before(older_than_seconds: float) -> float:
        """Return the time by the store's clock before which jobs must have ended."""
        return await jobs.store().now() - older_than_seconds

    @jobs.step(backoff=RETRY)
    async def remove_part(
        before: float, statuses: list[str], size: int, group: str | None, after: str | None, actor: str
    ) -> dict[str, Any]:
        """Remove the next jobs."""
        store, states = jobs.store(), states_of(statuses)
        command, following = Purge(before, size, states), None
        if group is not None:
            names = await _ended_of_group(store, before, statuses, size, group, after)
            command, following = Purge(before, size, states, tuple(names)), names[-1] if len(names) == size else None
        detail = {"ended_before": before, "states": sorted(states), "group": group}
        named = {name: value for name, value in detail.items() if value is not None}
        entry = Audited(command, "purge", "", actor, None, named)
        removed = await jobs.remove(Once(entry, external_key(), ""))  # a step that runs again removes no others
        more = following is not None if group is not None else bool(removed)
        return {"removed": removed, "more": more, "after": following}

    @jobs.job(queue=QUEUE)
    async def purge(
        older_than_seconds: float, statuses: list[str], limit: int | None, group: str | None, actor: str
    ) -> dict[str, Any]:
        """Remove jobs that ended long ago."""
        before = await ended_before(older_than_seconds)
        removed, after, more = 0, None, True
        while more and (limit is None or removed < limit):
            size = BATCH if limit is None else min(BATCH, limit - removed)
            part = await remove_part(before, statuses, size, group, after, actor)
            removed, after, more = removed + part["removed"], part["after"], part["more"]
            progress(
                removed / limit if limit else None,
                stage="removing",
                step=removed,
                step_total=limit,
                message=f"{removed:,} runs removed",
            )
        return {"removed": removed}


def _declare_move(jobs: BuiltinJobs) -> None:
    @jobs.step(backoff=RETRY)
    async def check_runs(old: str, after: str | None, *, check: bool) -> MovePart:
        """Check the next runs of a build against the code of the server. This calls nothing."""
        return await movable(jobs.code, jobs.store(), old, after, check=check)

    @jobs.step(backoff=RETRY)
    async def move_runs(names: list[str], old: str, new: str, actor: str) -> int:
        """Move runs; a step that runs again moves no others."""
        return await move_jobs(jobs.store(), names, old, new, actor)

    @jobs.job(queue=QUEUE)
    async def move(old: str, new: str, *, check: bool, actor: str, group: str | None = None) -> dict[str, Any]:
        """Move the runs that are kept for a build to another one, if all of them fit."""
        del group
        parts: list[MovePart] = []
        misfits: list[RunMisfit] = []
        while (not parts or parts[-1].next is not None) and len(misfits) < MISFITS_MAX:
            parts.append(await check_runs(old, parts[-1].next if parts else None, check=check))
            misfits += parts[-1].misfits
            checked = sum(len(part.jobs) for part in parts)
            progress(stage="checking", step=checked, message=f"{checked:,} runs checked, {len(misfits):,} do not fit")
        moved, total = 0, sum(len(part.jobs) for part in parts)
        for part in parts if not misfits else []:
            moved += await move_runs(part.jobs, old, new, actor) if part.jobs else 0
            progress(
                moved / (total or 1), stage="moving", step=moved, step_total=total, message=f"{moved:,} runs moved"
            )
        return {"moved": moved, "misfits": [msgspec.to_builtins(misfit) for misfit in misfits]}


async def _ended_of_group(
    store: Store, before: float, statuses: list[str], size: int, group: str, after: str | None
) -> list[str]:
    """Return the next jobs of a group that may be removed, oldest first."""
    ended = tuple(statuses) + (("timeout",) if "failed" in statuses else ())
    where = RunFilter(
        group=group, status=ended, finished_before=math.nextafter(before, math.inf), newest=True, oldest_first=True
    )
    cursor = (after, 2**31) if after is not None else None
    return [record.task_id or record.run_id for record in await store.records(where, size, cursor)]
