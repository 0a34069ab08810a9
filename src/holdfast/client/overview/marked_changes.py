"""Marked changes of job code, `changed("2026-11-fee")`: who is on which side, and when the old side can be removed.

A run records its side when a worker first replays it with the mark. So most sides are read, in pages, from the streams
of the runs that have not ended. A run that has waited since before the change has recorded none. It is replayed through
the code of the app, which calls nothing. Both have a bound, and the result says if it was reached.

Where the code asks is found by parsing its files (`mark_uses`): nothing is run for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from holdfast.client.overview.mark_uses import MarkUse, uses_of
from holdfast.client.verify import check_replay
from holdfast.errors import HoldfastError
from holdfast.machines.run_projection import run_name
from holdfast.store import Job, Store

if TYPE_CHECKING:
    from holdfast.client.app import App

RUNS_MAX = 10_000  # runs that are looked at, the newest first
REPLAYS_MAX = 500  # of those, runs without a record that are replayed
PAGE = 500


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A marked change of job code.

    Attributes:
        mark: its name.
        old: runs that have not ended and are on the old side.
        new: such runs on the new side.
        unknown: such runs that may be on the old side: they have recorded no side and were not replayed.
        oldest: the oldest run on the old side.
        uses: where the code asks for the mark; empty if this app's code does not.
        removable: whether no run needs the old side any more.
    """

    mark: str
    old: int
    new: int
    unknown: int
    oldest: str | None
    uses: list[MarkUse]
    removable: bool


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The marked changes, and what was looked at.

    Attributes:
        changes: one for each mark.
        runs: number of runs that were looked at. They have not ended.
        complete: whether these are all. Otherwise no mark counts as removable.
        next: the last run that was looked at, to go on from; None if there are no more.
        unread: where the code asks for a mark that cannot be read from it. Such a mark is listed once a run records it.
    """

    changes: list[Change]
    runs: int
    complete: bool
    next: str | None = None
    unread: list[MarkUse] = []


class _Tally:
    def __init__(self) -> None:
        self.sides: dict[str, list[int]] = {}  # mark → old, new, unknown
        self.oldest: dict[str, str] = {}

    def count(self, row: Job, mark: str, *, is_new: bool | None) -> None:
        sides = self.sides.setdefault(mark, [0, 0, 0])
        sides[2 if is_new is None else int(is_new)] += 1
        if is_new is False:
            run = run_name(row.id, row.run)
            self.oldest[mark] = min(self.oldest.get(mark, run), run)


async def read_changes(app: App, store: Store, limit: int, replays: int, before: str | None = None) -> Changes:
    """Count the runs on each side of each change, looking at `limit` runs and replaying `replays` at most.

    The newest runs come first, from before the given job. A job keeps its place in the walk until it ends, so a run
    that moves on meanwhile is neither missed nor counted twice.
    """
    uses, unread = await asyncio.to_thread(uses_of, app)
    tally, looked_at, left = _Tally(), 0, True
    for mark in uses:
        tally.sides[mark] = [0, 0, 0]
    while left and looked_at < limit:
        size = min(PAGE, limit - looked_at)
        rows = await store.open_jobs(before, size + 1)
        rows, left = rows[:size], len(rows) > size
        looked_at += len(rows)
        before = rows[-1].id if rows else None
        replays = await _count(app, store, rows, uses.keys(), tally, replays)
    changes = [
        Change(
            mark=mark, old=old, new=new, unknown=unknown, oldest=tally.oldest.get(mark), uses=uses.get(mark, []),
            removable=not left and mark in uses and not old and not unknown,
        )
        for mark, (old, new, unknown) in sorted(tally.sides.items())
    ]  # fmt: skip
    return Changes(changes=changes, runs=looked_at, complete=not left, unread=unread, next=before if left else None)


def joined(first: Changes, second: Changes) -> Changes:
    """Return the sum of two parts of a walk, of which the second one follows the first."""
    parts: dict[str, list[Change]] = {}
    for change in [*first.changes, *second.changes]:
        parts.setdefault(change.mark, []).append(change)
    changes = [
        msgspec.structs.replace(
            same[0],
            old=(old := sum(one.old for one in same)),
            new=sum(one.new for one in same),
            unknown=(unknown := sum(one.unknown for one in same)),
            oldest=min((one.oldest for one in same if one.oldest is not None), default=None),
            removable=second.complete and bool(same[0].uses) and not old and not unknown,
        )
        for _, same in sorted(parts.items())
    ]
    return msgspec.structs.replace(second, changes=changes, runs=first.runs + second.runs)


async def _count(app: App, store: Store, rows: list[Job], used: Iterable[str], tally: _Tally, replays: int) -> int:
    """Count a page of runs. Return how many more may be replayed."""
    marks = await store.marks([row.id for row in rows])
    for row in rows:
        sides: dict[str, bool | None] = dict(marks.get(row.id, {}))
        if row.version > 1 and (missing := set(used) - sides.keys()):  # it has begun
            if replays and (row.plugin, row.entry) in app.entries:
                replays -= 1
                sides = {**await _replayed(app, store, row), **sides}
            elif row.plugin in {plugin for plugin, _ in app.entries}:
                sides |= dict.fromkeys(missing)
        for mark, is_new in sides.items():
            tally.count(row, mark, is_new=is_new)
    return replays


async def _replayed(app: App, store: Store, row: Job) -> dict[str, bool]:
    """Return the sides that a replay of a run asks for."""
    try:
        report = await check_replay(app, await app.awith_results(await store.events(row.id)))
    except HoldfastError:
        return {}  # its arguments do not fit: `holdfast check` says so
    return report.marks
