"""One watcher for all clients of a run, and none of them can cost the server more than a pointer.

A watcher reads the run once for everybody and encodes each change once. It keeps the newest record and a short ring
of the newest events; a client has no buffer of its own, only a place in there. So a client that is slow skips
records, which are latest-wins anyway, and reads older events from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast.client.interface import Client
from holdfast.errors import HoldfastError
from holdfast.http.response import encode
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, RunRecord

__all__ = ["Channel", "Seat"]

RING = 512  # events kept for those who are nearly up to date
PAGE = 100  # events read at once for those who are not
PAYLOAD_BYTES_MAX = 4096  # of an event in a stream; a larger one is read with GET


class Seat:
    """One client's place: woken when there is something to send, or when it is over."""

    __slots__ = ("over", "wake")

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.over = False

    def end(self) -> None:
        """Have the stream end: its client has left, or the server is going."""
        self.over = True
        self.wake.set()


class Channel:
    """What all clients of one run share."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self.users: set[Seat] = set()
        self.version = 0  # of the record: how many were seen
        self.frame = b""
        self.seq = 0  # of the newest event that was seen
        self.ended = False  # nothing will come any more
        self.failed = False  # nor has the end been seen
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=RING)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        try:
            watching: Any = self._client.awatch(self._run_id)
            async with contextlib.aclosing(watching) as records:
                async for record in records:
                    await self._read()
                    self._publish(record)
        except HoldfastError:
            pass  # the store is away, or the run was removed: the streams end, and their clients come back
        finally:
            self.failed = not self.ended
            self.ended = True
            self._tell()

    async def _read(self) -> None:
        """Read the events that are new. Of a long history only the ring's worth is of use to anybody here."""
        while found := await self._client.aevents(self._run_id, after=self.seq, limit=PAGE):
            for event in found:
                self._ring.append((event.seq, event_frame(event)))
            self.seq = found[-1].seq

    def _publish(self, record: RunRecord) -> None:
        self.version += 1
        self.frame = b"event: run\nid: r%d\ndata: %b\n\n" % (self.seq, encode(record))
        self.ended = record.status in TERMINAL_RUN_STATUSES
        self._tell()

    def _tell(self) -> None:
        for user in self.users:
            user.wake.set()

    async def events(self, after: int, until: int) -> AsyncIterator[tuple[int, bytes]]:
        """Give events behind a number: from the ring, or, for who is further behind, from the store."""
        while after < until and not (self._ring and self._ring[0][0] <= after + 1):
            found = await self._client.aevents(self._run_id, after=after, limit=PAGE)
            if not found:
                return
            for event in found:
                after = event.seq
                yield after, event_frame(event)
        for seq, frame in list(self._ring):
            if after < seq <= until:
                yield seq, frame

    def close(self) -> None:
        """Stop watching: nobody is left."""
        self._task.cancel()


def event_frame(event: Event) -> bytes:
    """Write an event for a stream."""
    data = encode(event)
    if len(data) > PAYLOAD_BYTES_MAX and len(encode(event.payload)) > PAYLOAD_BYTES_MAX:
        data = encode(msgspec.structs.replace(event, payload={"truncated": True}))
    return b"event: event\nid: e%d\ndata: %b\n\n" % (event.seq, data)
