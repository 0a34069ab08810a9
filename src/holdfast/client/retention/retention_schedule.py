"""Retention by a schedule: ``holdfast.retention`` removes the runs that the rules of a store do not keep.

Workers of an app with `retention` declare the schedule, and run its job. A tick is one run, whatever the number of
workers. It walks once over the ended jobs, oldest first, and removes up to `BATCH` in one transaction, with a row in
the audit log. Ages are counted up to the time of the tick. The result is the number of removed runs, at least: it may
leave out those of a worker that died before the end of its step.

What can fail: the role of the workers may not delete. Then the run fails, and says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.authoring.functions import Backoff
from holdfast.authoring.job_api import continue_as, external_key, sleep
from holdfast.authoring.reports import progress
from holdfast.client.retention.removal import BATCH
from holdfast.errors import Permanent, StoreUnavailable
from holdfast.machines import JobState
from holdfast.machines.keys import BUILTIN
from holdfast.schedules.definition import define
from holdfast.schedules.retention_rules import Rules, age_for, shortest, tick_seconds
from holdfast.schedules.schedule import JobTemplate
from holdfast.schedules.tick import Tick
from holdfast.store import Purge
from holdfast.store.audit import Audited
from holdfast.store.request_keys import KeepAnswer, Once
from holdfast.store.schedule_commands import Declaration, Declared, DeclareSchedules

if TYPE_CHECKING:
    from holdfast.client.app import App
    from holdfast.client.builtin_jobs import BuiltinJobs
    from holdfast.store.run_queries import EndedJob

NAME = "retention"
RETENTION = f"{BUILTIN}.{NAME}"  # the schedule, and its job
OWN_SECONDS = 7 * 86400.0  # for which its own runs stay, unless a rule is shorter
PARTS_MAX = 200  # batches of one run; another run continues, so that no history grows long
PARTS_IN_A_ROW = 5  # batches between two pauses, in which other jobs get its slot
PAUSE_SECONDS = 0.1
BEGIN = (-1.0, "")  # the place before all jobs
RETRY = Backoff(retries=10, first_seconds=0.2)  # of a step that the store did not answer: minutes in all
CURE = (
    "retention removes rows: grant the role DELETE on the tables of the schema (see the page on retention), or leave"
    " retention out and run holdfast purge as the owner"
)
_STATUSES = {JobState.COMPLETED: "succeeded", JobState.FAILED: "failed", JobState.CANCELLED: "canceled"}


async def declare_retention(app: App) -> Declared:
    """Declare the schedule as the settings of an app say. Pause it if this app has declared it before and has no rules.

    Builds are ordered as for other schedules: an older one changes nothing.
    """
    store, rules = app.store(), app.config.retention_rules()
    if rules is None:
        row = await store.schedule(RETENTION)
        if row is None or row.job.args.get("app") != app.name:
            return Declared()
    declarations = (declaration_of_rules(app.name, rules),) if rules is not None else ()
    (answer,) = await store.commit([DeclareSchedules(BUILTIN, app.build, declarations)])
    if isinstance(answer, Exception):
        raise answer
    declared: Declared = answer
    return declared


def declaration_of_rules(app: str, rules: Rules) -> Declaration:
    """Return the declaration of the schedule. Its own runs stay for a week at most, unless a rule names them."""
    if RETENTION not in rules:
        age = age_for(rules, RETENTION, "succeeded")
        rules = {**rules, RETENTION: min(age if age is not None else OWN_SECONDS, OWN_SECONDS)}
    args = {"app": app, "rules": rules}
    template = JobTemplate(plugin=BUILTIN, entry=NAME, args=args, tick_argument="tick", queue=BUILTIN)
    return Declaration(name=NAME, definition=define(every=tick_seconds(rules)), template=template)


def declare_job(jobs: BuiltinJobs) -> None:
    """Declare the job of the schedule."""

    @jobs.step(backoff=RETRY)
    async def remove_ended(rules: Rules, now: float, after: list[Any] | None) -> dict[str, Any]:
        """Remove the next ended jobs that the rules do not keep."""
        return await _remove_ended(jobs, rules, now, after)

    @jobs.job(name=NAME, queue=BUILTIN)
    async def retention(
        app: str, rules: Rules, tick: Tick, after: list[Any] | None = None, removed: int = 0
    ) -> dict[str, Any]:
        """Remove the runs that the rules of the store do not keep."""
        now, parts = tick.nominal.timestamp(), 0
        while True:
            parts += 1
            done = await remove_ended(rules, now, after)
            removed, after = removed + done["removed"], done["after"]
            progress(stage="removing", step=removed, message=f"{removed:,} runs removed")
            if after is None:
                return {"removed": removed}
            if parts == PARTS_MAX:
                continue_as(app, rules, tick, after, removed)
            if parts % PARTS_IN_A_ROW == 0:
                await sleep(PAUSE_SECONDS)


async def _remove_ended(jobs: BuiltinJobs, rules: Rules, now: float, after: Sequence[Any] | None) -> dict[str, Any]:
    """Look at one page of ended jobs, and remove those that are too old. `after` is None after the last page."""
    before = now - shortest(rules)
    place = (float(after[0]), str(after[1])) if after is not None else None
    page = await jobs.store().ended_jobs(before, place, BATCH)
    names = tuple(row.id for row in page if _is_due(row, rules, now))
    purge = Audited(Purge(before, BATCH, jobs=names), "purge", "", RETENTION, None, {"ended_before": before})
    command = purge if names else KeepAnswer({"jobs": []})  # a repeat may have had some
    try:
        removed = await jobs.removed(Once(command, external_key(), ""))
    except StoreUnavailable as error:
        if type(error.__cause__).__name__ == "InsufficientPrivilege":  # of psycopg, which may not be installed
            raise Permanent(f"{error}; {CURE}") from error
        raise
    if not set(removed) <= set(names):  # a repeat: this page comes after what the first call has removed
        return {"removed": len(removed), "after": list(after or BEGIN)}
    last = page[-1] if len(page) == BATCH else None
    return {"removed": len(removed), "after": [last.created_at, last.id] if last is not None else None}


def _is_due(row: EndedJob, rules: Rules, now: float) -> bool:
    age = age_for(rules, f"{row.plugin}.{row.entry}", _STATUSES[JobState(row.state)])
    return age is not None and row.updated_at <= now - age
