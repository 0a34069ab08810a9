"""Reads of stories, page by page. The latest stories are kept in memory.

A page of a story needs all events before it. A kept story is continued where it ended, so the next page costs only its
own events. Memory is bounded. The event loop is free between a few dozen events.
"""

from __future__ import annotations

import asyncio
import bisect
import threading
import weakref
from collections import OrderedDict

import msgspec

from holdfast.client.overview.plan_view import PlanView, plan_view
from holdfast.client.overview.story import Story, StoryEvent
from holdfast.store import Job, Store

CACHE_BYTES = 64 * 1024 * 1024  # of all stories that are kept
STORIES_MAX = 32  # that are kept
EVENT_BYTES = 1000  # about what a kept event or call needs
READ_BYTES = 2 * 1024 * 1024  # of events per read from the store, if they are as large as those before
READ_MIN, READ_MAX = 16, 256  # events per read: one may have a megabyte
LAST = 4  # events that are kept of a story with too many
TURN = 32  # events between which other tasks get the loop


class _Kept:
    """A story, and its events after the number `first`."""

    __slots__ = ("first", "size", "story", "told")

    def __init__(self, first: int = 0) -> None:
        self.story = Story()
        self.first = first
        self.told: list[StoryEvent] = []
        self.size = 0  # bytes of the events that were read

    @property
    def weight(self) -> int:
        """Return about how many bytes it needs. The story of a plan keeps the results of its nodes."""
        calls = len(self.story.view.get("calls", ()))
        return EVENT_BYTES * (calls + len(self.told)) + (self.size if self.story.nodes is not None else 0)


class StoryCache:
    """Reads stories of jobs."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._keeping = threading.Lock()  # a client may be used from several loops
        self._turns: weakref.WeakValueDictionary[tuple[int, str], asyncio.Lock] = weakref.WeakValueDictionary()

    async def read(self, store: Store, row: Job, after: int, limit: int) -> list[StoryEvent]:
        """Return up to `limit` events of a job's story, oldest first, that have a number greater than `after`."""
        if after >= row.version:
            return []  # a client that follows the run asks often, and mostly there is nothing new
        async with self._turn(row.id):
            kept = self._take(row, after)
            await _continue(store, row.id, kept, after, limit)
            begin = bisect.bisect_right(kept.told, after, key=lambda event: event.seq)
            page = kept.told[begin : begin + limit]
            self._keep(row.id, kept)
        return page

    async def plan(self, store: Store, row: Job) -> PlanView | None:
        """Return the plan of a job as it is now, or None if it has none."""
        async with self._turn(row.id):
            kept = self._take(row, row.version)
            await _continue(store, row.id, kept, row.version, 0)
            nodes = kept.story.nodes
            view = await asyncio.to_thread(plan_view, nodes) if nodes is not None else None
            self._keep(row.id, kept)
        return view

    def _turn(self, job: str) -> asyncio.Lock:
        """Return the lock of a job's story, so that many requests for a long story read it once."""
        name = (id(asyncio.get_running_loop()), job)
        return self._turns.get(name) or self._turns.setdefault(name, asyncio.Lock())

    def _take(self, row: Job, after: int) -> _Kept:
        """Take the kept story of a job out of the cache if it can be continued, else return a new one."""
        with self._keeping:
            kept = self._kept.pop(row.id, None)
        if kept is None or kept.first > after or kept.story.seq > row.version:
            return _Kept()
        restored = kept.story.seq == row.version and kept.story.head != row.head  # from a backup
        return _Kept() if restored else kept

    def _keep(self, job: str, kept: _Kept) -> None:
        if kept.weight > CACHE_BYTES // 2:
            kept.told = kept.told[-LAST:]  # the next page can still be read from here
            kept.first = kept.told[0].seq - 1 if kept.told else kept.story.seq
        if kept.weight > CACHE_BYTES // 2:
            return
        with self._keeping:
            self._kept[job] = kept
            weight = sum(other.weight for other in self._kept.values())
            while weight > CACHE_BYTES or len(self._kept) > STORIES_MAX:
                _, oldest = self._kept.popitem(last=False)
                weight -= oldest.weight


async def _continue(store: Store, job: str, kept: _Kept, after: int, limit: int) -> None:
    """Read a story up to the last event of a page."""
    story, count = kept.story, READ_MIN
    while story.seq < after + limit:
        count = min(count, after + limit - story.seq)
        events = await store.events(job, story.seq, count)
        for place, event in enumerate(events, 1):
            kept.told.append(story.push(event))
            if place % TURN == 0:
                await asyncio.sleep(0)
        if len(events) < count:
            return
        size = len(msgspec.json.encode(events))
        kept.size += size
        count = max(READ_MIN, min(READ_MAX, READ_BYTES * count // size))
