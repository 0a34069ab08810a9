"""Handlers for schedules: read, create, change, pause, resume, fire, backfill and delete."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from holdfast.client.schedules.schedules_interface import ScheduleInfo, TickTime
from holdfast.errors import InvalidArguments, UnknownSchedule
from holdfast.http.handlers.operations import Pause
from holdfast.http.handlers.reads import LIMIT, NUMBER_CURSOR, NUMBER_MAX, PAGE_MAX, page
from holdfast.http.request import Call, Query
from holdfast.http.response import Answer, json
from holdfast.schedules.definition import OPTIONS

PAGE = 100
TICKS = 10
HISTORY = 50
NAMES = r"[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,254}"  # characters that a path can spell in one way only
_TEXT = r"^[0-9A-Za-z:+. -]{1,40}$"
OUTCOMES_MAX = 50
WITH_OUTCOMES_MAX = 50  # schedules of a page with outcomes
LISTED = (
    LIMIT,
    Query("cursor", "string", "`next` of the previous page.", pattern=rf"^~{NAMES}$"),
    Query(
        "outcomes",
        "integer",
        "Add what happened to so many of the newest ticks of each schedule, none by default. A page then has at most"
        f" {WITH_OUTCOMES_MAX} schedules.",
        0,
        OUTCOMES_MAX,
    ),
)
ONE = (
    Query("outcomes", "integer", "Add what happened to so many of its newest ticks, none by default.", 0, OUTCOMES_MAX),
)
EVENTS = (LIMIT, NUMBER_CURSOR)
AROUND = (
    Query("around", "string", "A day: its ticks, and those of the day before and after it.", pattern=_TEXT),
    LIMIT,
)
AT = (Query("at", "string", "A time: say what happened to the tick.", pattern=_TEXT),)

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Note = Annotated[str, msgspec.Meta(max_length=1000)]
_Time = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class NewSchedule(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule to create. `options` are those of ``@app.schedule``."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    job: _Name
    options: dict[str, Any]
    args: dict[str, Any] = {}
    actor: _Name | None = None


class ScheduleChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to change of a schedule. Options that the client leaves out stay, and null resets an option."""

    options: dict[str, Any] = {}
    job: _Name | None = None
    args: dict[str, Any] | None = None
    actor: _Name | None = None


class SchedulePauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A pause, with a note for others to read."""

    note: _Note | None = None
    actor: _Name | None = None


class FireRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A run to start now."""

    allow_overlap: bool = False
    actor: _Name | None = None


class BackfillRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A range of the past. A time without an offset is in the time zone of the schedule."""

    start: _Time
    end: _Time
    dry_run: bool = False
    actor: _Name | None = None


class Fired(msgspec.Struct):
    """The run that was started."""

    run_id: str


class ScheduleExplanation(msgspec.Struct):
    """What a schedule does, or what happened to a tick, in words."""

    schedule: str
    explanation: str


async def list_schedules(call: Call) -> Answer:
    """List schedules by id."""
    query = call.query(LISTED)
    cursor, outcomes = query.get("cursor"), query.get("outcomes", 0)
    limit = min(query.get("limit", PAGE), WITH_OUTCOMES_MAX if outcomes else PAGE_MAX)
    after = cursor[1:] if cursor is not None else None
    infos = await call.client.schedules.alist(after=after, limit=limit + 1, outcomes=outcomes)
    return page(infos[:limit], f"~{infos[limit - 1].id}" if len(infos) > limit else None)


async def create_schedule(call: Call) -> Answer:
    """Create a schedule."""
    asked = await call.body(NewSchedule)
    made = await call.client.schedules.acreate(
        asked.name, asked.job, args=asked.args, actor=call.actor(asked.actor), **_options(asked.options)
    )
    return json(made, 201)


async def get_schedule(call: Call) -> Answer:
    """Return a schedule."""
    return json(await call.client.schedules.aget(_name(call), outcomes=call.query(ONE).get("outcomes", 0)))


async def change_schedule(call: Call) -> Answer:
    """Change a schedule."""
    asked = await call.body(ScheduleChange)
    actor, options = call.actor(asked.actor), _options(asked.options)
    changed = await call.client.schedules.achange(_name(call), job=asked.job, args=asked.args, actor=actor, **options)
    return json(changed)


async def delete_schedule(call: Call) -> Answer:
    """Delete a schedule with its history."""
    info: ScheduleInfo = await call.client.schedules.aget(_name(call))
    await call.client.schedules.adelete(info.id, actor=call.actor(None))
    return json(info)


async def list_schedule_events(call: Call) -> Answer:
    """List the events of a schedule, newest first."""
    query = call.query(EVENTS)
    limit, before = query.get("limit", HISTORY), query.get("cursor", NUMBER_MAX)
    events = await call.client.schedules.ahistory(_name(call), before=before, limit=limit)
    return page(events, events[-1].seq if len(events) == limit and events[-1].seq > 1 else None)


async def list_ticks(call: Call) -> Answer:
    """List the next ticks of a schedule, or those around a day."""
    query = call.query(AROUND)
    ticks: list[TickTime] = await call.client.schedules.aticks(
        _name(call), around=query.get("around"), limit=query.get("limit", TICKS)
    )
    return page(ticks)


async def explain_schedule(call: Call) -> Answer:
    """Explain a schedule, or what happened to a tick."""
    name = _name(call)
    return json(ScheduleExplanation(name, await call.client.schedules.aexplain(name, call.query(AT).get("at"))))


async def pause_schedule(call: Call) -> Answer:
    """Pause a schedule."""
    asked = await call.body(SchedulePauseRequest, SchedulePauseRequest())
    return json(await call.client.schedules.apause(_name(call), asked.note, actor=call.actor(asked.actor)))


async def resume_schedule(call: Call) -> Answer:
    """Resume a schedule."""
    asked = await call.body(Pause, Pause())
    return json(await call.client.schedules.aresume(_name(call), actor=call.actor(asked.actor)))


async def fire_schedule(call: Call) -> Answer:
    """Start a run of a schedule now."""
    asked = await call.body(FireRequest, FireRequest())
    actor = call.actor(asked.actor)
    run = await call.client.schedules.afire(_name(call), allow_overlap=asked.allow_overlap, actor=actor)
    return json(Fired(run), 201)


async def backfill_schedule(call: Call) -> Answer:
    """Start the runs of ticks of the past."""
    asked = await call.body(BackfillRequest)
    return json(
        await call.client.schedules.abackfill(
            _name(call), asked.start, asked.end, dry_run=asked.dry_run, actor=call.actor(asked.actor)
        )
    )


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options that cannot be taken for another argument."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        text = f"unknown options {', '.join(unknown)[:200]}; valid options are {', '.join(OPTIONS)}"
        raise InvalidArguments("schedule", text)
    return options


def _name(call: Call) -> str:
    name = str(call.request.path_params["schedule"])
    if not re.fullmatch(NAMES, name, re.ASCII):
        raise UnknownSchedule(name)
    return name
