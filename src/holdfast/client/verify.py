"""Judges a job by its history: rules, hash chain, and that everything kept beside the stream is what it makes (J6, P8).

It may be asked while workers are at work. What it reads is read in pieces, and a job that moved between two of them
looks wrong without being so: a finding counts only if the job's row was the same before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.replay_check import ReplayCheck, ReplayReport
from holdfast.errors import UnknownEntry
from holdfast.machines import Event, Violation, check, runs
from holdfast.store import Job, Store, rebuilt
from holdfast.store.run_queries import as_projected, filed

if TYPE_CHECKING:
    from holdfast.client.app import App

__all__ = ["ReplayReport", "check_replay", "judged"]


async def judged(store: Store, row: Job) -> list[Violation]:
    """Say what is wrong with a job; one that is gone meanwhile has nothing wrong with it."""
    while True:
        wrong = await _wrong(store, row)
        after = await store.get(row.id) if wrong else row
        if after is None:
            return []
        if after == row:
            return wrong
        row = after


async def _wrong(store: Store, row: Job) -> list[Violation]:
    stream = await store.events(row.id)
    wrong = check(stream, head=row.head)
    if rebuilt(row, stream) != row or not (wrong or await _records_agree(store, row, stream)):
        wrong.append(Violation(len(stream), "J6", "the projection differs from what the stream makes"))
    elif not wrong and not await _is_filed(store, row, stream):
        wrong.append(Violation(len(stream), "J6", "what the runs are found by differs from what the stream makes"))
    return wrong


async def _records_agree(store: Store, row: Job, stream: list[Event]) -> bool:
    """Whether the records of runs are what the stream makes; one that cannot be read is not."""
    try:
        kept = [await store.record(row.id, number) for number in range(1, row.run + 1)]
    except msgspec.DecodeError:
        return False
    return [as_projected(one) for one in kept] == [as_projected(one) for one in runs(stream)]


async def _is_filed(store: Store, row: Job, stream: list[Event]) -> bool:
    """Whether what stands beside the row for the indexes is so, and as many exports are there as were counted.

    The group is in the row, and says who may see the job: it must be that with which the job was created.
    """
    found = await store.filing(row.id)
    if found is None or stream[0].payload.get("group") != row.group:
        return False
    must = filed(row, runs(stream)[:-1])
    if found.status is None:  # left behind by an older release, and made anew when the job is next moved
        must = msgspec.structs.replace(must, status=None, ends_at=None)
    whole = -1 not in found.exports.values() and len(row.course.refs) in {0, row.exported}
    newest = {number: count for number, count in found.exports.items() if number == row.run}
    return whole and msgspec.structs.replace(found, exports=newest) == must


async def check_replay(app: App, events: Sequence[Event]) -> ReplayReport:
    """Replay a job's history through the code of this app, calling nothing; return the report.

    Raises:
        UnknownEntry: this app has no such job.
    """
    said = events[0].payload
    function = app.entries.get((said.get("plugin"), said.get("entry")))  # type: ignore[arg-type]  # - None is no name
    if function is None:
        known = [".".join(name) for name in app.entries]
        raise UnknownEntry(f"{said.get('plugin')}.{said.get('entry')}", known)
    return await ReplayCheck(events, function).run()
