"""One watcher for all watched runs of an event loop.

After a commit, the watcher reads the versions of all watched jobs in one query, and wakes only the watchers whose run
has changed. A look is followed by a pause in proportion to its duration. So thousands of idle watchers cost commits
little, however many commits there are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.store import Store

JOBS_AT_ONCE = 500  # versions per query
REST = 9  # a pause is so many times as long as the look before it


class RunWatcher:
    """Wakes watchers of runs. It subscribes to the store while at least one run is watched.

    Args:
        store: the store of the runs.
        versions: reads the versions of jobs, from any loop.
    """

    def __init__(self, store: Store, versions: Callable[[Sequence[str]], Awaitable[dict[str, Any]]]) -> None:
        self.store = store
        self._read = versions
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._versions: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watching(self, job: str) -> Iterator[asyncio.Event]:
        """Return an event that is set after each change of a job, and at times without one."""
        if self._task is None:
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
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _start(self) -> None:
        loop, noticed = asyncio.get_running_loop(), asyncio.Event()

        def notice(change: int) -> None:
            del change
            with contextlib.suppress(RuntimeError):  # the loop was closed with a watcher on it
                loop.call_soon_threadsafe(noticed.set)

        end = self.store.subscribe(notice)  # now: a change after the caller's next read must be noticed
        self._task = loop.create_task(self._run(noticed))
        self._task.add_done_callback(lambda _: end())

    async def _run(self, noticed: asyncio.Event) -> None:
        time = asyncio.get_running_loop().time
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.store.floor_seconds):
                    await noticed.wait()
            noticed.clear()
            began = time()
            watched = list(self._watchers)
            for first in range(0, len(watched), JOBS_AT_ONCE):
                await self._look(watched[first : first + JOBS_AT_ONCE])
            await asyncio.sleep(REST * (time() - began))

    async def _look(self, jobs: list[str]) -> None:
        try:
            versions = await self._read(jobs)
        except StoreUnavailable:
            versions = {}  # wake all watchers: each of them reads its run, and raises the error
        for job in jobs:
            version = versions.get(job)
            if version is None or version != self._versions.get(job):
                for woken in self._watchers.get(job, ()):
                    woken.set()
            if job in self._watchers:
                self._versions[job] = version
