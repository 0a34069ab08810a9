"""What happened to the ticks of a schedule, read from its events: one outcome for each tick or range of ticks.

Pure. A tick that waited for an open run has two events, and one outcome: the later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.schedules.schedule import ScheduleEvent

KINDS = tuple(
    str(kind) for kind in (ScheduleEvent.FIRED, ScheduleEvent.SKIPPED, ScheduleEvent.MISSED, ScheduleEvent.BUFFERED)
)
EVENTS_OF_A_TICK = 2  # at most: buffered, and what came after


class TickOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a tick, or to a range of ticks. Times are UTC epoch seconds.

    Attributes:
        outcome: ``fired``, ``skipped``, ``missed``, or ``buffered`` while it waits for an open run.
        at: When that was decided.
        tick: The tick, or the first one of a range. None for a run that an operator has started.
        last: The last tick of a range. None for one tick.
        ticks: How many ticks. None if they were not counted.
        reason: Why it was skipped or missed.
        run_id: The run that it has started, or the open run that it met.
        status: The status of the run that it has started. None if there is none, or it was deleted.
        catch_up: Whether it was fired late.
        by: The operator who has started the run.
    """

    outcome: str
    at: float
    tick: float | None = None
    last: float | None = None
    ticks: int | None = 1
    reason: str = ""
    run_id: str | None = None
    status: str | None = None
    catch_up: bool = False
    by: str | None = None


class TickEvent(NamedTuple):
    """An event about ticks, and the status of the run that it has started."""

    kind: str
    payload: dict[str, Any]
    at: float
    status: str | None


def outcomes_of(events: Iterable[TickEvent], limit: int) -> list[TickOutcome]:
    """Return the outcomes of ticks, newest first, from events that are newest first."""
    outcomes: list[TickOutcome] = []
    decided: set[float] = set()  # ticks whose wait has ended
    for event in events:
        if len(outcomes) == limit:
            break
        outcome = _outcome(event)
        if event.payload.get("buffered") and outcome.tick is not None:
            decided.add(outcome.tick)
        if event.kind != ScheduleEvent.BUFFERED or outcome.tick not in decided:
            outcomes.append(outcome)
    return outcomes


def _outcome(event: TickEvent) -> TickOutcome:
    payload = event.payload
    first = payload.get("nominal", payload.get("from"))
    last = payload.get("to")
    return TickOutcome(
        outcome=event.kind,
        at=event.at,
        tick=first,
        last=last if last != first else None,
        ticks=payload.get("count") if last is not None else 1,
        reason=payload.get("reason", ""),
        run_id=payload.get("job", payload.get("run")),
        status=event.status,
        catch_up=bool(payload.get("catch_up")),
        by=payload.get("by"),
    )
