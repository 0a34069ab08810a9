"""Series that several clients share: the charts of many open pages cost one read of the store every few seconds."""

from __future__ import annotations

import asyncio

from holdfast.client.interface import Client
from holdfast.client.overview.series import Series

FRESH_SECONDS = 2.0  # how long a series is sent again

Key = tuple[asyncio.AbstractEventLoop, int, str | None]


class SharedSeries:
    """The series that were read last. Clients that ask at the same time wait for the same read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reads: dict[Key, tuple[float, asyncio.Task[Series]]] = {}

    async def read(self, minutes: int, queue: str | None) -> Series:
        """Return a series that is at most `FRESH_SECONDS` old."""
        loop = asyncio.get_running_loop()
        now, key = loop.time(), (loop, minutes, queue)
        self._reads = {name: read for name, read in self._reads.items() if now - read[0] < FRESH_SECONDS}
        if key not in self._reads:
            task = loop.create_task(self._client.aseries(minutes=minutes, queue=queue))
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # all clients may have left
            self._reads[key] = (now, task)
        return await asyncio.shield(self._reads[key][1])
