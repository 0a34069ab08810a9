"""What happens to a run, as it happens: its record and the new events, through whichever client there is.

A watch tells of a changed record; events are asked for then, and every second besides, for a step that begins changes
no record everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from holdfast.client.interface import Client
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, RunRecord

__all__ = ["follow"]

LOOK_SECONDS = 1.0  # how often events are asked for though the record has not changed


async def follow(asked: Client, run_id: str, tell: Callable[[RunRecord, list[Event]], None]) -> RunRecord:
    """Tell of a run's record and what has happened since, at each change, until it has ended; its last record."""
    records = asked.awatch(run_id)
    record = await anext(records)
    coming: asyncio.Future[RunRecord | None] | None = None
    seen, changed = 0, True
    try:
        while True:
            news = await asked.aevents(run_id, after=seen)
            seen = news[-1].seq if news else seen
            mine = [one for one in news if one.at >= record.created_at and one.at <= (record.finished_at or one.at)]
            if mine or changed:
                tell(record, mine)
            if record.status in TERMINAL_RUN_STATUSES:
                return record
            coming = coming or asyncio.ensure_future(_next(records))
            await asyncio.wait({coming}, timeout=LOOK_SECONDS)
            changed = coming.done()
            if changed:
                record, coming = coming.result() or await asked.aget(run_id), None
    finally:
        if coming is not None:
            coming.cancel()


async def _next(records: AsyncIterator[RunRecord]) -> RunRecord | None:
    return await anext(records, None)
