"""Reads of one run: its record at each change, and its exports.

`watch` does not poll. A commit of this or another process wakes it, at the latest the store's own floor interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.run_handle import job_of_run
from holdfast.client.views import Export
from holdfast.errors import StoreUnavailable
from holdfast.machines import TERMINAL_RUN_STATUSES, RunRecord, RunStatus
from holdfast.store import Store
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.run_queries import ExportRow

if TYPE_CHECKING:
    from holdfast.client.app import App

FEW_WATCHED = 20  # jobs
JOBS_AT_ONCE = 500  # versions per query
REST = 19  # a pause is at most so many times as long as the look before it: then a twentieth of the time goes to looks
REST_SECONDS_MAX = 0.1  # a look also takes long where the loop was busy, and that must not delay the next one


def exported(record: RunRecord, row: ExportRow) -> Export:
    """Return an export of a run as clients see it."""
    return Export(
        run_id=record.run_id,
        number=row.number,
        name=row.name,
        kind=row.kind,
        media_type=row.media_type,
        size=row.size,
        at=row.at,
        provisional=record.status is not RunStatus.SUCCEEDED,
        value=row.value,
    )


async def content(store: Store, blobs: DirectoryBlobs | None, job: str, row: ExportRow) -> AsyncIterator[bytes]:
    """Yield the bytes of an export in pieces."""
    if row.blob is None:
        yield msgspec.json.encode(row.value) if row.kind == "json" else str(row.value).encode()
        return
    number = 1
    stored = await store.blob(job, row.blob, number)
    if stored is None and blobs is not None:
        async for piece in blobs.read(job, row.blob):
            yield piece
        return
    while stored is not None:
        yield stored
        number += 1
        stored = await store.blob(job, row.blob, number)


async def watch(app: App, run_id: str) -> AsyncIterator[RunRecord]:
    """Yield the record of a run now and after each change, until the run has ended."""
    last: RunRecord | None = None
    with app.run_watcher().watching(job_of_run(run_id)[0]) as woken:
        while True:
            woken.clear()
            record = await app.aget(run_id)
            if record != last:
                app.run_watcher().found_change()
                yield record
                last = record
            if record.status in TERMINAL_RUN_STATUSES:
                return
            await woken.wait()


async def ended(app: App, run_id: str) -> tuple[RunRecord, dict[str, Any] | None]:
    """Wait for the end of a run. Return its record, and the payload of the event that ended it.

    The payload is None if another run of the job has followed.
    """
    last: RunRecord | None = None
    with app.run_watcher().watching(job_of_run(run_id)[0]) as woken:
        while True:
            woken.clear()
            record, ending = await app.aget_outcome(run_id)
            if record.status in TERMINAL_RUN_STATUSES:
                return record, ending
            if record != last:
                app.run_watcher().found_change()
                last = record
            await woken.wait()


async def newest_event(app: App, run_id: str) -> int:
    """Return the number of the newest event of a run's job, or 0 if there is no such job."""
    row = await app.store().get(job_of_run(run_id)[0])
    return row.version if row is not None else 0


class RunWatcher:
    """Wakes watchers of runs on one event loop. It subscribes to the store while at least one run is watched.

    After a commit it reads the versions of all watched jobs in one query, and wakes only the watchers whose run has
    changed. A look is followed by a pause in proportion to its duration. So thousands of idle watchers cost commits
    little, however many commits there are. With few watchers the pause is short until looks find no change. A notice
    wakes a single watcher without a look, as long as such watchers find changes.

    Args:
        store: the store of the runs.
        versions: reads the versions of jobs, from any loop.
    """

    def __init__(self, store: Store, versions: Callable[[Sequence[str]], Awaitable[dict[str, Any]]]) -> None:
        self.store = store
        self._read = versions
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._versions: dict[str, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # while a run is watched
        self._unsubscribe: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None  # while it looks: an idle watcher has no task
        self._changed = False  # since the look began
        self._fruitless = 0  # looks in a row that found no change
        self._context = contextvars.Context()  # not that of the commit: job code, which may commit, has its own loop

    @contextlib.contextmanager
    def watching(self, job: str) -> Iterator[asyncio.Event]:
        """Return an event that is set after each change of a job, and at times without one."""
        if self._loop is None:
            self._start()
        woken = asyncio.Event()
        self._watchers.setdefault(job, set()).add(woken)
        self._versions.pop(job, None)  # a change between this line and the first read wakes the watcher
        try:
            yield woken
        finally:
            self._watchers[job].discard(woken)
            if not self._watchers[job]:
                del self._watchers[job]
                self._versions.pop(job, None)
            if not self._watchers:
                self._stop()

    def found_change(self) -> None:
        """Note that a watcher which was woken without a look has found a change."""
        self._fruitless = 0

    def _start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()

        def notice(change: int) -> None:
            del change
            with contextlib.suppress(RuntimeError):  # the loop was closed with a watcher on it
                loop.call_soon_threadsafe(self._wake, context=self._context)

        self._unsubscribe = self.store.subscribe(notice)  # now: a change after the caller's next read must be noticed
        self._rest()

    def _stop(self) -> None:
        self._unsubscribe()
        for pending in (self._timer, self._task):
            if pending is not None:
                pending.cancel()
        self._loop = self._timer = self._task = None

    def _rest(self) -> None:
        """Wait for the next notice, or for the store's floor interval."""
        if self._loop is not None and self.store.floor_seconds is not None:
            self._timer = self._loop.call_later(self.store.floor_seconds, self._wake, context=self._context)

    def _wake(self) -> None:
        self._changed = True
        if self._loop is not None and self._task is None:
            if self._timer is not None:
                self._timer.cancel()
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._changed:
                self._changed = False
                await asyncio.sleep(await self._look_at_all(list(self._watchers)))
        finally:  # also after an error: the next notice must wake the watchers
            self._task = None
        self._rest()

    async def _look_at_all(self, watched: list[str]) -> float:
        """Wake the watchers whose run has changed. Return how long to pause."""
        time = asyncio.get_running_loop().time
        began = time()
        woke = False
        if len(watched) == 1 and not self._fruitless:
            self._wake_all(watched[0])  # to read its version would take as long as to read the run
        else:
            for first in range(0, len(watched), JOBS_AT_ONCE):
                woke = await self._look(watched[first : first + JOBS_AT_ONCE]) or woke
        self._fruitless = 0 if woke else self._fruitless + 1
        rest = REST if len(watched) > FEW_WATCHED else min(REST, 2**self._fruitless - 1)
        return min(rest * (time() - began), REST_SECONDS_MAX)

    def _wake_all(self, job: str) -> None:
        for woken in self._watchers.get(job, ()):
            woken.set()

    async def _look(self, jobs: list[str]) -> bool:
        """Wake the watchers of the jobs that have changed. Return whether there was one."""
        try:
            versions = await self._read(jobs)
        except StoreUnavailable:
            versions = {}  # wake all watchers: each of them reads its run, and raises the error
        woke = False
        for job in jobs:
            version = versions.get(job)
            if version is None or version != self._versions.get(job):
                woke = True
                self._wake_all(job)
            if job in self._watchers:
                self._versions[job] = version
        return woke
