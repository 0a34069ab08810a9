"""The newest events of several schedules about their ticks, as one statement reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.schedules.outcome import EVENTS_OF_A_TICK, TickEvent, TickOutcome, outcomes_of
from holdfast.schedules.schedule import Schedule, stream_of

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def newest_of_streams(schedules: Sequence[Schedule], limit: int) -> list[tuple[str, int]]:
    """Return the stream of each schedule, and the number of the event before the first that is read."""
    return [(stream_of(row.id), max(0, row.version - EVENTS_OF_A_TICK * limit)) for row in schedules]


def tick_event_of(row: tuple[Any, ...]) -> tuple[str, TickEvent]:
    """Return the stream of a row, and its event."""
    stream, kind, payload, at, status = row
    return stream, TickEvent(kind, _decode(payload), at, status)


def outcomes_by_schedule(
    schedules: Sequence[Schedule], rows: Sequence[tuple[str, TickEvent]], limit: int
) -> dict[str, list[TickOutcome]]:
    """Return the outcomes of each schedule. The rows of a stream are newest first."""
    events: dict[str, list[TickEvent]] = {}
    for stream, event in rows:
        events.setdefault(stream, []).append(event)
    return {row.id: outcomes_of(events.get(stream_of(row.id), ()), limit) for row in schedules}
