"""One schedule: its row, and how each event of its stream changes the row.

A schedule is a stream of hash-chained events, as a job is. The row is a projection of it, written in the same
transaction: `follow` over all events gives the row again. Only `open` and `failures` describe the present and are not
in the stream.

| event | meaning |
|---|---|
| declared | created, by code or by an operator |
| changed | another definition or another job |
| fired | a tick has started a run; `manual` if an operator did |
| skipped | a tick, or a range of ticks, starts no run: overlap, excluded, gap, paused, queue_full, remaining |
| buffered | a tick waits until the open runs have ended |
| missed | ticks, from and to, that were due while no worker ran, and that are not caught up |
| backfilled | an operator has started runs for ticks of the past |
| recomputed | other time zone data have moved the next tick |
| paused, resumed | no ticks in between |
| ended | no more ticks: the end, or the number of runs, is reached |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.schedules.calendar import delay_seconds
from holdfast.schedules.definition import Definition

NO_EVENT = "0" * 64  # what the first event of a stream names as its predecessor


class ScheduleEvent(StrEnum):
    """The events of a schedule."""

    DECLARED = "declared"
    CHANGED = "changed"
    FIRED = "fired"
    SKIPPED = "skipped"
    BUFFERED = "buffered"
    MISSED = "missed"
    BACKFILLED = "backfilled"
    RECOMPUTED = "recomputed"
    PAUSED = "paused"
    RESUMED = "resumed"
    ENDED = "ended"


class ScheduleState(StrEnum):
    """Whether a schedule has ticks."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class JobTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job that a tick starts: the fields of a new run.

    Attributes:
        args: the encoded arguments.
        tick_argument: the parameter that gets the `Tick`, if the job has one.
    """

    plugin: str
    entry: str
    args: dict[str, Any] = {}
    tick_argument: str | None = None
    queue: str = "default"
    priority: int = 0
    deadline_seconds: float | None = None
    max_attempts: int = 5
    attributes: dict[str, Any] | None = None
    group: str | None = None
    budget: dict[str, int] | None = None
    plan: dict[str, Any] | None = None


class BufferedTick(msgspec.Struct, frozen=True, gc=False):
    """A tick that waits for open runs to end."""

    at: float
    is_catch_up: bool = False


class SchedulePause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why and since when a schedule is paused: by an ``operator``, after ``failures``, or ``removed`` from the code."""

    reason: str
    at: float
    note: str | None = None
    by: str | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule's row.

    Attributes:
        id: ``app.name``.
        source: ``code`` for a declaration, ``api`` for one made at run time.
        build: the build that has declared it.
        declared: the hash of the declaration.
        next: the instant of the next tick, which has no outcome yet.
        last: the instant of the newest tick that has an outcome.
        tzdata: the release of the time zone data that `next` was computed with.
        remaining: how many ticks may still start a run.
        buffer: ticks that wait for open runs to end.
        last_run: the newest run.
        open: runs that had not ended when the schedule was last looked at.
        failures: how many of its newest runs in a row have failed.
    """

    id: str
    plugin: str
    name: str
    definition: Definition
    job: JobTemplate
    source: str = "api"
    build: str | None = None
    declared: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    version: int = 0
    head: str = NO_EVENT
    state: ScheduleState = ScheduleState.ACTIVE
    pause: SchedulePause | None = None
    next: float | None = None
    last: float | None = None
    tzdata: str = ""
    remaining: int | None = None
    buffer: tuple[BufferedTick, ...] = ()
    last_run: str | None = None
    open: tuple[str, ...] = ()
    failures: int = 0

    @property
    def due_at(self) -> float | None:
        """Return when a worker has to look at it; None if time alone brings nothing."""
        if self.state is not ScheduleState.ACTIVE or self.next is None:
            return None
        return self.due_time(self.next)

    def due_time(self, at: float) -> float:
        """Return when a tick is due: its instant, plus its delay."""
        return at + delay_seconds(self.id, at, self.definition.jitter_seconds)


def stream_of(schedule: str) -> str:
    """Return the name of a schedule's stream of events."""
    return f"schedule:{schedule}"


def follow(row: Schedule | None, kind: str, payload: Mapping[str, Any], at: float) -> Schedule:
    """Return a schedule's row after an event."""
    if row is None or kind == ScheduleEvent.DECLARED:
        return _declared(row, payload, at)
    fields: dict[str, Any] = {"updated_at": at}
    if "next" in payload:
        fields |= {"next": payload["next"], "tzdata": payload["tzdata"]}
    if kind in _FOLLOWED:
        fields |= _FOLLOWED[kind](row, payload, at)
    return msgspec.structs.replace(row, **fields)


def _declared(row: Schedule | None, payload: Mapping[str, Any], at: float) -> Schedule:
    del row
    definition = msgspec.convert(payload["definition"], Definition)
    return Schedule(
        id=f"{payload['plugin']}.{payload['name']}",
        plugin=payload["plugin"],
        name=payload["name"],
        definition=definition,
        job=msgspec.convert(payload["job"], JobTemplate),
        source=payload["source"],
        build=payload.get("build"),
        declared=payload.get("declared"),
        created_at=at,
        updated_at=at,
        next=payload["next"],
        tzdata=payload["tzdata"],
        remaining=definition.remaining,
    )


def _changed(row: Schedule, payload: Mapping[str, Any], at: float) -> dict[str, Any]:
    del at
    definition = msgspec.convert(payload["definition"], Definition)
    ended = row.state is ScheduleState.ENDED
    return {
        "definition": definition,
        "job": msgspec.convert(payload["job"], JobTemplate),
        "build": payload.get("build"),
        "declared": payload.get("declared"),
        "state": ScheduleState.ACTIVE if ended and payload["next"] is not None else row.state,
        "remaining": definition.remaining if payload.get("counts_again") else row.remaining,
    }


def _fired(row: Schedule, payload: Mapping[str, Any], at: float) -> dict[str, Any]:
    del at
    fields: dict[str, Any] = {"last_run": payload["job"]}
    if payload.get("manual"):
        return fields
    if row.remaining is not None:
        fields["remaining"] = max(row.remaining - 1, 0)
    return fields | _handled(row, payload)


def _handled(row: Schedule, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields after a tick, or a range of ticks, has its outcome."""
    if payload.get("buffered"):
        return {"buffer": tuple(tick for tick in row.buffer if tick.at != payload["nominal"])}
    return {"last": payload["nominal"] if "nominal" in payload else payload["to"]}


def _skipped(row: Schedule, payload: Mapping[str, Any], at: float) -> dict[str, Any]:
    del at
    return _handled(row, payload)


def _buffered(row: Schedule, payload: Mapping[str, Any], at: float) -> dict[str, Any]:
    del at
    tick = BufferedTick(payload["nominal"], payload.get("catch_up", False))
    return {"last": payload["nominal"], "buffer": (*row.buffer, tick)}


def _paused(row: Schedule, payload: Mapping[str, Any], at: float) -> dict[str, Any]:
    del row
    pause = SchedulePause(payload["reason"], at, payload.get("note"), payload.get("by"))
    return {"state": ScheduleState.PAUSED, "pause": pause}


def _resumed(row: Schedule, payload: Mapping[str, Any], at: float) -> dict[str, Any]:
    del row, payload, at
    return {"state": ScheduleState.ACTIVE, "pause": None}


def _ended(row: Schedule, payload: Mapping[str, Any], at: float) -> dict[str, Any]:
    del row, payload, at
    return {"state": ScheduleState.ENDED}


_FOLLOWED: dict[str, Callable[[Schedule, Mapping[str, Any], float], dict[str, Any]]] = {
    ScheduleEvent.CHANGED: _changed,
    ScheduleEvent.FIRED: _fired,
    ScheduleEvent.SKIPPED: _skipped,
    ScheduleEvent.MISSED: _skipped,
    ScheduleEvent.BUFFERED: _buffered,
    ScheduleEvent.PAUSED: _paused,
    ScheduleEvent.RESUMED: _resumed,
    ScheduleEvent.ENDED: _ended,
}
