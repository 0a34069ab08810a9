"""The schedules of an app, on its store: declarations in code, and the operations of `app.schedules`."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from holdfast.authoring.functions import JobFunction, Options
from holdfast.authoring.signature import Signature
from holdfast.client.schedules.explain_schedule import explain_schedule, explain_tick
from holdfast.client.schedules.schedules_interface import (
    HISTORY,
    LISTED,
    Backfill,
    ScheduleInfo,
    Schedules,
    TickTime,
    checked_schedule_name,
    info_of,
)
from holdfast.errors import InvalidArguments, UnknownSchedule
from holdfast.machines import Event
from holdfast.schedules import zones
from holdfast.schedules.calendar import Occurrence, calendar_of
from holdfast.schedules.decision import backfill_ticks
from holdfast.schedules.definition import define, options_of
from holdfast.schedules.schedule import JobTemplate, Schedule, stream_of
from holdfast.schedules.tick import Tick, instant, instant_text
from holdfast.store.audit import audited
from holdfast.store.request_keys import Repeat, once
from holdfast.store.schedule_commands import (
    BackfillSchedule,
    ChangeSchedule,
    CreateSchedule,
    Declaration,
    Declared,
    DeclareSchedules,
    DeleteSchedule,
    FireSchedule,
    PauseSchedule,
    ResumeSchedule,
)

if TYPE_CHECKING:
    from holdfast.client.app import App

SAMPLE = Tick(schedule="app.sample", nominal=instant(0.0))  # to check the other arguments of a job


def tick_parameter(signature: Signature) -> str | None:
    """Return the parameter of a job that gets the tick; None if it has none.

    Raises:
        InvalidArguments: It has several.
    """
    names = signature.parameters_of(Tick)
    if len(names) > 1:
        raise InvalidArguments("schedule", f"a job gets one tick, and {', '.join(names)} are of the type Tick")
    return names[0] if names else None


def template_of(app: App, job: JobFunction[..., Any] | str, args: Mapping[str, Any] | None) -> JobTemplate:
    """Check the arguments of a job, and return what its ticks start.

    Raises:
        InvalidArguments: The arguments do not fit the job, or an option of the job cannot be used here.
        UnknownEntry: The app has no such job.
    """
    function = app.entry(job)
    _check_options(function)
    tick = tick_parameter(function.signature)
    given = dict(args or {})
    if tick is not None and tick in given:
        raise InvalidArguments(function.name, f"the schedule gives {tick} its tick: leave it out of args")
    sample = {tick: SAMPLE} if tick is not None else {}
    encoded = function.signature.encode((), {**given, **sample}, app.config.payload_bytes_max)
    submit = app.submission(function, "", {name: value for name, value in encoded.items() if name != tick}, 0.0)
    return JobTemplate(
        plugin=submit.plugin,
        entry=submit.entry,
        args=submit.args,
        tick_argument=tick,
        queue=submit.queue,
        priority=submit.priority,
        deadline_seconds=submit.deadline,
        max_attempts=submit.max_attempts,
        attributes=submit.attributes,
        group=submit.group,
        budget=submit.budget,
        plan=submit.plan,
    )


def _check_options(function: JobFunction[..., Any]) -> None:
    usual = Options()
    refused = {
        "key": "each tick has a key of its own",
        "delay_seconds": "use the times of the schedule, or jitter",
        "connection": "ticks are transactions of the store",
    }
    for name, cure in refused.items():
        if getattr(function.chosen, name) != getattr(usual, name):
            option = name.removesuffix("_seconds")
            raise InvalidArguments(option, f"cannot be an option of a job with a schedule: {cure}")


def declaration_of(
    app: App, name: str, job: JobFunction[..., Any], args: Mapping[str, Any] | None, options: dict[str, Any]
) -> Declaration:
    """Check a declaration in code, and return it."""
    return Declaration(
        name=checked_schedule_name(name), definition=define(**options), template=template_of(app, job, args)
    )


async def declare(app: App) -> Declared:
    """Make the schedules of an app as its code declares them, if its build is the newest that has declared some."""
    declarations = tuple(app.declared_schedules.values())
    store = app.store()
    if not declarations:  # an app without schedules writes nothing, unless it had some before
        page = await store.schedules(f"{app.name}.", 1)
        if not page or page[0].plugin != app.name:
            return Declared()
    (answer,) = await store.commit([DeclareSchedules(app.name, app.build, declarations)])
    if isinstance(answer, Exception):
        raise answer
    declared: Declared = answer
    return declared


class StoreSchedules(Schedules):
    """The schedules of a store."""

    _client: App

    async def acreate(
        self,
        name: str,
        job: JobFunction[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        actor: str | None = None,
        **options: Any,
    ) -> ScheduleInfo:
        template = template_of(self._client, job, args)
        command = CreateSchedule(
            plugin=self._client.name,
            name=checked_schedule_name(name),
            definition=define(**options),
            template=template,
            actor=actor,
        )
        detail = {"job": f"{template.plugin}.{template.entry}", "options": options_of(command.definition)}
        return await self._shown(await self._do(command, "create_schedule", self._id(name), actor, detail))

    async def alist(
        self, *, after: str | None = None, limit: int = LISTED, outcomes: int = 0
    ) -> builtins.list[ScheduleInfo]:
        served = await self._served()
        rows = await self._client.store().schedules(after, limit)
        known = await self._client.store().outcomes(rows, outcomes) if outcomes else {}
        return [info_of(row, has_worker=_entry(row) in served, outcomes=known.get(row.id)) for row in rows]

    async def aget(self, name: str, *, outcomes: int = 0) -> ScheduleInfo:
        row = await self._row(name)
        known = await self._client.store().outcomes([row], outcomes) if outcomes else {}
        return info_of(row, has_worker=_entry(row) in await self._served(), outcomes=known.get(row.id))

    async def ahistory(self, name: str, *, before: int | None = None, limit: int = HISTORY) -> builtins.list[Event]:
        row = await self._row(name)
        end = min(before - 1, row.version) if before is not None else row.version
        first = max(0, end - limit)
        events = await self._client.store().events(stream_of(row.id), first, end - first)
        return events[::-1]

    async def aticks(
        self, name: str, *, around: datetime | str | None = None, limit: int = 10
    ) -> builtins.list[TickTime]:
        row = await self._row(name)
        calendar = calendar_of(row.definition)
        if around is None:
            now = await self._client.store().now()
            start = max(now, row.last or 0.0) if row.due_at is None or row.next is None else row.next - 0.001
            return [_shown_tick(tick) for tick in islice(calendar.after(start), limit)]
        day = _time(around, row).astimezone(_zone(row)).replace(hour=0, minute=0, second=0)
        first, last = (day + timedelta(days=days) for days in (-1, 2))
        ticks = calendar.between(first.timestamp(), last.timestamp() - 0.001)
        return [_shown_tick(tick) for tick in islice(ticks, limit)]

    async def achange(
        self,
        name: str,
        *,
        job: JobFunction[..., Any] | str | None = None,
        args: Mapping[str, Any] | None = None,
        actor: str | None = None,
        **options: Any,
    ) -> ScheduleInfo:
        row = await self._row(name)
        template = row.job
        if job is not None or args is not None:
            wanted = job if job is not None else f"{row.job.plugin}.{row.job.entry}"
            template = template_of(self._client, wanted, row.job.args if args is None else args)
        before = options_of(row.definition)
        if {"cron", "every"} & {option for option, value in options.items() if value is not None}:
            before = {option: value for option, value in before.items() if option not in {"cron", "every", "phase"}}
        command = ChangeSchedule(row.id, define(**{**before, **options}), template, actor)
        detail = {"options": options_of(command.definition)}
        return await self._shown(await self._do(command, "change_schedule", row.id, actor, detail))

    async def apause(self, name: str, note: str | None = None, *, actor: str | None = None) -> ScheduleInfo:
        command = PauseSchedule(await self._find(name), note, actor)
        return await self._shown(
            await self._do(command, "pause_schedule", command.schedule, actor, {"note": note} if note else {})
        )

    async def aresume(self, name: str, *, actor: str | None = None) -> ScheduleInfo:
        command = ResumeSchedule(await self._find(name), actor)
        return await self._shown(await self._do(command, "resume_schedule", command.schedule, actor))

    async def afire(self, name: str, *, allow_overlap: bool = False, actor: str | None = None) -> str:
        command = FireSchedule(await self._find(name), actor, allow_overlap)
        fired = await self._do(command, "fire_schedule", command.schedule, actor)
        return str(fired["job"] if isinstance(fired, dict) else fired.job)

    async def abackfill(
        self,
        name: str,
        start: datetime | str,
        end: datetime | str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Backfill:
        row = await self._row(name)
        first, last = _time(start, row).timestamp(), _time(end, row).timestamp()
        ticks = backfill_ticks(row.definition, first, last, await self._client.store().now())
        shown = [_shown_tick(tick) for tick in ticks]
        if dry_run:
            return Backfill(shown, [])
        command = BackfillSchedule(row.id, first, last, actor)
        detail = {"from": instant_text(first), "to": instant_text(last)}
        done = await self._do(command, "backfill_schedule", row.id, actor, detail)
        return Backfill(shown, [entry["job"] for entry in done["fired"]], done["existing"], done["left"])

    async def adelete(self, name: str, *, actor: str | None = None) -> None:
        command = DeleteSchedule(await self._find(name), actor)
        await self._do(command, "delete_schedule", command.schedule, actor)

    async def aexplain(self, name: str, at: datetime | str | None = None) -> str:
        row = await self._row(name)
        now = await self._client.store().now()
        if at is not None:
            asked = _time(at, row)
            local = asked.astimezone(_zone(row)) if asked.tzinfo is not _zone(row) else asked
            return await explain_tick(self._client.store(), row, asked.timestamp(), f"{local:%Y-%m-%d %H:%M}", now)
        events = await self.ahistory(row.id, limit=HISTORY)
        return explain_schedule(row, events, now, served=_entry(row) in await self._served())

    def _id(self, name: str) -> str:
        return name if "." in name else f"{self._client.name}.{name}"

    async def _row(self, name: str) -> Schedule:
        """Return the schedule with this id, or with this name in the app; else the only one of the store."""
        store = self._client.store()
        row = await store.schedule(self._id(name))
        if row is None and "." not in name:
            rows = [row async for row in self._all() if row.name == name]
            row = rows[0] if len(rows) == 1 else None
        if row is None:
            raise UnknownSchedule(name)
        return row

    async def _all(self) -> AsyncIterator[Schedule]:
        after: str | None = None
        while page := await self._client.store().schedules(after, LISTED):
            for row in page:
                yield row
            after = page[-1].id

    async def _find(self, name: str) -> str:
        return (await self._row(name)).id

    async def _served(self) -> set[str]:
        """Return the entries of live workers."""
        store = self._client.store()
        now = await store.now()
        alive = [card for card in await store.workers() if now - card.seen_at <= card.lease_seconds]
        return {entry for card in alive for entry in card.entries}

    async def _shown(self, row: Any) -> ScheduleInfo:
        return info_of(row, has_worker=_entry(row) in await self._served())

    async def _do(
        self, command: Any, verb: str, subject: str, actor: str | None, detail: dict[str, Any] | None = None
    ) -> Any:
        request = once(audited(command, verb, subject, actor, detail), subject)
        (answer,) = await self._client.store().commit([request])
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Repeat):
            return answer
        if "schedule" in answer.answer:  # the schedule that the first request has answered with, as it is now
            return await self._row(answer.answer["schedule"])
        return answer.answer


def _zone(row: Schedule) -> ZoneInfo:
    """Return the time zone of a schedule. A time in it keeps its local form, also if that does not exist."""
    return zones.zone(row.definition.tz)


def _entry(row: Schedule) -> str:
    return f"{row.job.plugin}.{row.job.entry}"


def _shown_tick(tick: Occurrence) -> TickTime:
    return TickTime(tick.at, tick.local, instant_text(tick.at), tick.mark, [*tick.gap], tick.excluded)


def _time(value: datetime | str, row: Schedule) -> datetime:
    """Return a point in time. Without an offset it is in the time zone of the schedule."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        at = None
    if not isinstance(at, datetime):
        text = f"must be a datetime, or text such as '2026-10-25T02:30' or '2026-10-25', got {value!r:.60}"
        raise InvalidArguments("time", text)
    return at if at.tzinfo is not None else at.replace(tzinfo=_zone(row))
