"""One watcher for all streams of a run. Each client costs the server one position, never a buffer.

The watcher reads the run once for all clients and encodes each change once. It keeps the newest record and a short
ring of the newest events. A client has no buffer, only a position in the ring. A slow client skips records, of which
only the newest matters, and reads older events from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast.client.app import App
from holdfast.client.run_reads import newest_event
from holdfast.errors import HoldfastError
from holdfast.http.response import encode
from holdfast.machines import TERMINAL_RUN_STATUSES, Event, RunRecord

RING = 512  # events kept for clients that are nearly up to date
PAGE = 16  # events per read from the store, each of which may have a megabyte
PAYLOAD_BYTES_MAX = 4096  # of an event in a stream; clients read a larger payload with GET


class Seat:
    """The stream of one client. `wake` is set when there is something to send, or when the stream ends.

    `owner` is the actor name of the client.
    """

    __slots__ = ("over", "owner", "wake")

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        self.wake = asyncio.Event()
        self.over = False

    def end(self) -> None:
        """End the stream, because the client disconnected or the server shuts down."""
        self.over = True
        self.wake.set()


class Channel:
    """The state that all streams of a run share."""

    def __init__(self, client: App, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self.users: set[Seat] = set()
        self.version = 0  # number of records seen
        self.frame = b""
        self.seq = 0  # number of the newest event seen
        self.ended = False  # nothing more will come
        self.failed = False  # the watcher stopped before the run ended
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=RING)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        try:
            self.seq = await newest_event(self._client, self._run_id)  # each client reads older ones for itself
            watching: Any = self._client.awatch(self._run_id)
            async with contextlib.aclosing(watching) as records:
                async for record in records:
                    await self._read()
                    self._publish(record)
        except HoldfastError:
            pass  # the store does not answer, or the run was removed: the streams end and clients reconnect
        finally:
            self.failed = not self.ended
            self.ended = True
            self._tell()

    async def _read(self) -> None:
        """Read the new events into the ring. Only the newest `RING` events stay."""
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
        """Yield the events after a number. They come from the ring, or from the store if they are older."""
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
        """Stop watching, because the last client has left."""
        self._task.cancel()


def event_frame(event: Event) -> bytes:
    """Return an event as a frame of a stream. A large payload is left out."""
    data = encode(event)
    if len(data) > PAYLOAD_BYTES_MAX and len(encode(event.payload)) > PAYLOAD_BYTES_MAX:
        data = encode(msgspec.structs.replace(event, payload={"truncated": True}))
    return b"event: event\nid: e%d\ndata: %b\n\n" % (event.seq, data)
