"""Verification of a job: the rules, the hash chain, and that all derived rows follow from the stream (J6, P8).

Callers may verify while workers run. A verification makes several reads, and a job that changes between two reads
looks wrong. So a violation counts only if the job's row is the same before and after the reads. The rules of a long
stream are checked in a thread, so that other requests of a server do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.replay_check import ReplayCheck
from holdfast.engine.replay_report import ReplayReport
from holdfast.errors import UnknownEntry
from holdfast.machines import Event, Violation, check, runs
from holdfast.machines.chain import RULE, breaks
from holdfast.schedules.schedule import Schedule, stream_of
from holdfast.store import Job, Store, rebuilt
from holdfast.store.run_queries import as_projected, expected_index_entries
from holdfast.store.schedule_writes import rebuilt_schedule

if TYPE_CHECKING:
    from holdfast.client.app import App

LONG = 200  # events of a stream that is checked in a thread


async def violations_of(store: Store, row: Job) -> list[Violation]:
    """Return the violations of a job. A job that was removed in the meantime has none."""
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
    wrong, same = await _checked(row, stream)
    if not same or not (wrong or await _records_agree(store, row, stream)):
        wrong.append(Violation(len(stream), "J6", "the projection differs from what the stream makes"))
    elif not wrong and not await _is_expected_index_entries(store, row, stream):
        wrong.append(Violation(len(stream), "J6", "what the runs are found by differs from what the stream makes"))
    return wrong


async def _checked(row: Job, stream: list[Event]) -> tuple[list[Violation], bool]:
    """Return the violations of the rules, and whether the row follows from the stream."""

    def work() -> tuple[list[Violation], bool]:
        return check(stream, head=row.head), rebuilt(row, stream) == row

    return work() if len(stream) < LONG else await asyncio.to_thread(work)


async def _records_agree(store: Store, row: Job, stream: list[Event]) -> bool:
    """Return whether the run records follow from the stream. An unreadable record does not."""
    try:
        records = [await store.record(row.id, number) for number in range(1, row.run + 1)]
    except msgspec.DecodeError:
        return False
    derived = runs(stream) if len(stream) < LONG else await asyncio.to_thread(runs, stream)
    return [as_projected(record) for record in records] == [as_projected(record) for record in derived]


async def _is_expected_index_entries(store: Store, row: Job, stream: list[Event]) -> bool:
    """Return whether the index entries of the job are correct, and the number of exports is the counted one.

    The row's group decides which tokens can see the job. So it must be the group from the job's creation.
    """
    entries = await store.index_entries(row.id)
    if entries is None or stream[0].payload.get("group") != row.group:
        return False
    past = runs(stream)[:-1] if row.run > 1 else []
    expected = expected_index_entries(row, past)
    if entries.status is None:  # an older release wrote it; the next change of the job writes it again
        expected = msgspec.structs.replace(expected, status=None, ends_at=None)
    whole = -1 not in entries.exports.values() and len(row.course.refs) in {0, row.exported}
    newest = {number: count for number, count in entries.exports.items() if number == row.run}
    return whole and msgspec.structs.replace(entries, exports=newest) == expected


async def wrong_schedules(store: Store) -> dict[str, list[Violation]]:
    """Return the violations of all schedules: the hash chain, and that each row follows from its stream."""
    wrong: dict[str, list[Violation]] = {}
    after: str | None = None
    while page := await store.schedules(after):
        for row in page:
            if problems := await _schedule_violations(store, row):
                wrong[stream_of(row.id)] = problems
            await asyncio.sleep(0)
        after = page[-1].id
    return wrong


async def _schedule_violations(store: Store, row: Schedule) -> list[Violation]:
    while True:
        stream = await store.events(stream_of(row.id))
        wrong = [Violation(index, RULE, problem) for index, problem in breaks(stream, row.head)]
        if not wrong and rebuilt_schedule(row, stream) != row:
            wrong = [Violation(len(stream), "J6", "the schedule's row differs from what its stream makes")]
        after = await store.schedule(row.id) if wrong else row
        if after is None:
            return []
        if after == row:
            return wrong
        row = after


async def check_replay(app: App, events: Sequence[Event]) -> ReplayReport:
    """Check a history against the current code of its app. This calls no step and no tool.

    Raises:
        UnknownEntry: This app has no such job.
    """
    payload = events[0].payload
    name = (payload.get("plugin"), payload.get("entry"))
    function = app.entries.get(name)  # type: ignore[arg-type]  # - an entry is never named None
    if function is None:
        known = [".".join(entry) for entry in app.entries]
        raise UnknownEntry(f"{name[0]}.{name[1]}", known)
    return await ReplayCheck(events, function).run()
