"""Explanations of schedules in plain words: what a schedule does now, and what happened to one tick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.machines import Event
from holdfast.schedules import zones
from holdfast.schedules.calendar import calendar_of
from holdfast.schedules.schedule import Schedule, ScheduleEvent, ScheduleState, stream_of
from holdfast.schedules.tick import instant_text
from holdfast.store import Store

PAGE = 200  # events that are read at once
REASONS = {
    "overlap": "a run of the schedule was open",
    "excluded": "an exclusion of the schedule matches",
    "gap": "the local clock was set forward over that time, so that it did not exist",
    "paused": "the schedule was paused",
    "queue_full": "the queue of its job had reached its maximum depth",
    "remaining": "the schedule had no runs left",
    "none": "no worker was there in time, and catch_up is 'none'",
    "last": "no worker was there in time, and a later tick came instead, or the tick was older than the window",
    "all": "no worker was there in time, and the tick was older than the window",
    "changed": "the schedule was changed before a worker came to the tick",
}


def explain_schedule(row: Schedule, events: Sequence[Event], now: float, *, served: bool) -> str:
    """Return what a schedule does now. `events` are its newest ones, newest first."""
    parts = [f"{row.id} starts {row.job.plugin}.{row.job.entry}, {row.definition.text()}."]
    if row.state is ScheduleState.PAUSED and row.pause is not None:
        by = f" by {row.pause.by}" if row.pause.by else ""
        note = f": {row.pause.note}" if row.pause.note else ""
        parts.append(f"It has been paused{by} since {_local(row, row.pause.at)} ({row.pause.reason}){note}.")
        parts.append(f"`holdfast schedules resume {row.id}` resumes it.")
    elif row.state is ScheduleState.ENDED:
        parts.append("It has ended: it has no more ticks.")
    elif row.next is not None and row.due_at is not None:
        delay = f", with a delay of {row.due_at - row.next:.0f} s" if row.due_at != row.next else ""
        parts.append(f"Its next tick is {_local(row, row.next)}{delay}.")
        if row.due_at <= now:
            parts.append("That is due: the next worker that looks handles it.")
    if row.buffer:
        parts.append(f"{len(row.buffer)} ticks wait until its open runs have ended: {', '.join(row.open)}.")
    if not served:
        parts.append(
            f"No live worker has the job {row.job.plugin}.{row.job.entry}: runs that it starts wait in the queue"
            f" {row.job.queue}. Start a worker with that job."
        )
    last = next((event for event in events if event.type in _OUTCOMES), None)
    if last is not None:
        parts.append(f"Last: {event_text(row.definition.tz, last)}")
    return " ".join(parts)


async def explain_tick(store: Store, row: Schedule, at: float, wall: str, now: float) -> str:
    """Return what happened to the tick at a time, or will happen. `wall` is the local time that was asked for."""
    calendar = calendar_of(row.definition)
    tick = calendar.at_or_after(at)
    near = f"The times are {row.definition.text()}."
    if tick is None or tick.at - at >= 60:  # noqa: PLR2004 - within the same minute
        gap = [each for each in calendar.between(at - 86400, at + 86400) if wall in _minutes(each.gap)]
        if not gap:
            return f"{row.id} has no tick at {_local(row, at)}. {near}"
        tick = gap[0]
    found = await _outcome(store, row, tick.at)
    shown = _local(row, tick.at)
    moved = f" The local time {', '.join(tick.gap)} does not exist on that day." if tick.gap else ""
    if found is not None:
        return f"{event_text(row.definition.tz, found)}{moved}"
    if tick.at in {waiting.at for waiting in row.buffer}:
        return f"The tick {shown} waits until the open runs have ended: {', '.join(row.open)}.{moved}"
    if tick.at < row.created_at:
        return f"The tick {shown} was before the schedule was created, at {_local(row, row.created_at)}."
    if row.state is ScheduleState.PAUSED and tick.at <= now and row.next is not None and tick.at >= row.next:
        return f"The tick {shown} is skipped: {REASONS['paused']}.{moved}"
    if row.state is ScheduleState.ENDED:
        return f"{row.id} has ended, so the tick {shown} starts nothing."
    if tick.at > now:
        will = "will be skipped: an exclusion matches" if tick.excluded else "is in the future"
        return f"The tick {shown} {will}.{moved}"
    return f"The tick {shown} is due, and no worker has handled it yet.{moved}"


def event_text(tz: str, event: Event) -> str:
    """Return one event of a schedule as a sentence."""
    payload = event.payload
    if "nominal" in payload:
        what = f"The tick {_shown(tz, payload['nominal'])}"
    elif "from" in payload and "to" in payload:
        count = f"{payload['count']} ticks" if payload.get("count") else "The ticks"
        what = f"{count} from {_shown(tz, payload['from'])} to {_shown(tz, payload['to'])}"
    else:
        what = "The schedule"
    return f"{what} {_happened(event.type, payload)}"


def _happened(kind: str, payload: dict[str, Any]) -> str:  # noqa: PLR0911 - one sentence for each event
    reason = REASONS.get(payload.get("reason", ""), payload.get("reason", ""))
    run = f" ({payload['run']})" if payload.get("run") else ""
    detail = f" {payload['detail']}." if payload.get("detail") else ""
    by = f" by {payload['by']}" if payload.get("by") else ""
    if kind == ScheduleEvent.FIRED:
        how = f" by hand{by}" if payload.get("manual") else " as a catch-up" if payload.get("catch_up") else ""
        return f"was fired{how}: the run is {payload['job']}."
    match kind:
        case ScheduleEvent.SKIPPED:
            return f"was skipped: {reason}{run}.{detail}"
        case ScheduleEvent.MISSED:
            return f"was missed: {reason}."
        case ScheduleEvent.BUFFERED:
            return f"was buffered: a run of the schedule was open{run}."
        case ScheduleEvent.PAUSED:
            note = f": {payload['note']}" if payload.get("note") else ""
            return f"was paused{by} ({payload['reason']}){note}."
        case ScheduleEvent.CHANGED:
            return f"was changed{by}: {', '.join(payload.get('fields', []))}."
        case ScheduleEvent.RECOMPUTED:
            return f"has its next tick at another time, by the time zone data {payload['tzdata']}."
        case ScheduleEvent.BACKFILLED:
            return f"were backfilled{by}: {len(payload['fired'])} runs were started, {payload['existing']} existed."
        case ScheduleEvent.ENDED:
            return "has ended."
        case _:
            return f"was {kind}{by}."


_OUTCOMES = {ScheduleEvent.FIRED, ScheduleEvent.SKIPPED, ScheduleEvent.MISSED, ScheduleEvent.BUFFERED}


async def _outcome(store: Store, row: Schedule, at: float) -> Event | None:
    """Return the event that is the outcome of a tick, by a search from the end of the stream."""
    end = row.version
    while end > 0:
        first = max(0, end - PAGE)
        for event in reversed(await store.events(stream_of(row.id), first, end - first)):
            payload = event.payload
            if event.type in _OUTCOMES and event.type != ScheduleEvent.BUFFERED:
                if payload.get("nominal") == at:
                    return event
                if "nominal" not in payload and payload.get("from", at + 1) <= at <= payload.get("to", at - 1):
                    return event
            if event.at < at:  # a tick has its outcome after it was due
                return None
        end = first
    return None


def _local(row: Schedule, at: float) -> str:
    return _shown(row.definition.tz, at)


def _shown(tz: str, at: float) -> str:
    zone = "UTC" if tz == "UTC" else f"{tz}, {instant_text(at)}"
    return f"{zones.local_time(tz, at):%Y-%m-%d %H:%M:%S} ({zone})"


def _minutes(gap: Sequence[str]) -> set[str]:
    return {local.replace("T", " ")[:16] for local in gap}
