"""Reads that several clients share: the charts and lists of many open pages cost one read of the store in a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from holdfast.client.interface import Client
from holdfast.client.overview.builds import BuildStatus
from holdfast.client.overview.series import Series

FRESH_SECONDS = 2.0  # how long a result is sent again

Key = tuple[asyncio.AbstractEventLoop, Hashable]


class SharedReads:
    """The results that were read last. Clients that ask at the same time wait for the same read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reads: dict[Key, tuple[float, asyncio.Task[Any]]] = {}

    async def series(self, minutes: int, queue: str | None) -> Series:
        """Return a series that is at most `FRESH_SECONDS` old."""
        found: Series = await self._read(
            ("series", minutes, queue), lambda: self._client.aseries(minutes=minutes, queue=queue)
        )
        return found

    async def builds(self) -> list[BuildStatus]:
        """Return the builds as they were at most `FRESH_SECONDS` ago. To count their runs, all open ones are read."""
        found: list[BuildStatus] = await self._read("builds", self._client.abuilds)
        return found

    async def _read(self, name: Hashable, read: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        loop = asyncio.get_running_loop()
        now, key = loop.time(), (loop, name)
        self._reads = {known: one for known, one in self._reads.items() if now - one[0] < FRESH_SECONDS}
        if key not in self._reads:
            task = loop.create_task(read())
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # all clients may have left
            self._reads[key] = (now, task)
        return await asyncio.shield(self._reads[key][1])
