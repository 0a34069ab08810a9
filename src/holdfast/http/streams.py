"""Server-sent events with ids, resumed by Last-Event-ID, kept alive by comments; whoever does not read is dropped.

Ids of a run's stream: ``e7`` is event 7, ``r7`` a record that was read when event 7 was the newest. Whoever comes
back with one misses no event; records are latest-wins. A stream ends with its run's terminal record, when its time is
up, when its token is no longer good, or when its client leaves what was sent unread for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.client.interface import Client
from holdfast.errors import HoldfastError
from holdfast.http.problems import Problem
from holdfast.http.request import Call, Query
from holdfast.http.request_limits import Limits
from holdfast.http.response import SAFE
from holdfast.http.run_channel import Channel, Seat
from holdfast.http.run_feed import Feed
from holdfast.http.tokens import Scope as Needed

__all__ = ["RUN_STREAM", "Hub", "stream_run", "stream_runs"]

ALIVE = b": alive\n\n"
ABORT = "holdfast.abort"  # an extension of our own server: end a connection that takes nothing

RUN_STREAM = (
    Query(
        "after",
        "integer",
        "Events from behind this number; all unless said. A Last-Event-ID comes first.",
        0,
        10**15 - 1,
    ),
    Query("events", "string", "Whether the job's events are sent too; they are, unless `no`.", words=("yes", "no")),
)
_ID = re.compile(r"[er](\d{1,15})\Z", re.ASCII)


class Hub:
    """All streams of this process."""

    def __init__(self, client: Client, limits: Limits) -> None:
        self._client, self._limits = client, limits
        self._channels: dict[tuple[asyncio.AbstractEventLoop, str], Channel] = {}
        self._feeds: dict[tuple[asyncio.AbstractEventLoop, str | None], Feed] = {}
        self.seats: set[Seat] = set()
        self.dropped = 0
        self._stopped = False

    def stop(self) -> None:
        """End all streams: the server is going."""
        self._stopped = True
        for seat in list(self.seats):
            seat.end()

    def enter(self) -> Seat:
        """Take a seat, if there is one."""
        if len(self.seats) >= self._limits.streams:
            raise Problem(
                429, "too_many_requests", f"there are {self._limits.streams} streams already", "come back in a moment",
                headers=[(b"retry-after", b"5")],
            )  # fmt: skip
        seat = Seat()
        self.seats.add(seat)
        if self._stopped:
            seat.end()  # it has waited in line behind others: its client comes back elsewhere
        return seat

    async def run(self, run_id: str, after: int, seat: Seat, *, events: bool) -> AsyncGenerator[bytes, None]:
        """Give a run's frames, and an empty one where there is nothing more to send for now."""
        key = (asyncio.get_running_loop(), run_id)
        channel = self._channels.get(key)
        if channel is None or channel.failed:
            channel = self._channels[key] = Channel(self._client, run_id)
        channel.users.add(seat)
        seen = 0
        try:
            while True:
                seat.wake.clear()
                ended, version, frame, until = channel.ended, channel.version, channel.frame, channel.seq
                if events and version:
                    async for number, one in channel.events(after, until):
                        after = number
                        yield one
                if version != seen:
                    seen = version
                    yield frame
                if ended:
                    return
                yield b""
        finally:
            channel.users.discard(seat)
            if not channel.users:
                channel.close()
                if self._channels.get(key) is channel:
                    del self._channels[key]

    async def all(self, last: str | None, seat: Seat, group: str | None) -> AsyncGenerator[bytes, None]:
        """Give the frames of all runs' changes, or of one group's; an empty one where there is no more for now."""
        key = (asyncio.get_running_loop(), group)
        feed = self._feeds.get(key)
        if feed is None or feed.ended:
            feed = self._feeds[key] = Feed(self._client, group)
        feed.users.add(seat)
        place: int | None = feed.place(last)
        try:
            while place is not None and not feed.ended:
                seat.wake.clear()
                place, frames = feed.after(place)
                for frame in frames:
                    yield frame
                yield b""
        finally:
            feed.users.discard(seat)
            if not feed.users:
                feed.close()
                if self._feeds.get(key) is feed:
                    del self._feeds[key]


class EventStream(Response):
    """A stream that is sent until its source ends, its client leaves or stops reading, or its time is up."""

    def __init__(self, call: Call, seat: Seat, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        self.raw_headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"), *SAFE]
        self._call, self._seat, self._frames = call, seat, frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        hub, limits = self._call.service.hub, self._call.limits
        loop = asyncio.get_running_loop()
        listening = loop.create_task(self._listen(receive))
        ending = loop.call_later(limits.stream_seconds, self._seat.end)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await self._send_frames(send, limits)
            async with asyncio.timeout(limits.stream_stall_seconds):
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            hub.dropped += 1
            scope.get("extensions", {}).get(ABORT, lambda: None)()
        finally:
            ending.cancel()
            listening.cancel()
            hub.seats.discard(self._seat)
            await self._frames.aclose()

    async def _send_frames(self, send: Send, limits: Limits) -> None:
        silent = b""  # said once at the start, so that a client knows at once that it is heard
        async for frame in self._frames:
            if frame:
                async with asyncio.timeout(limits.stream_stall_seconds):
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            while not frame and not self._seat.wake.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limits.heartbeat_seconds if silent else 0):
                        await self._seat.wake.wait()
                        break
                silent = ALIVE
                async with asyncio.timeout(limits.stream_stall_seconds):
                    await send({"type": "http.response.body", "body": ALIVE, "more_body": True})
                if not self._may_stay():
                    return
            if self._seat.over or not (frame or self._may_stay()):
                return

    def _may_stay(self) -> bool:
        """Whether the token that has opened the stream is still good; asked before what is new is told."""
        try:
            now = self._call.service.guard.admit(self._call.request.scope, Needed.READ)
        except (Problem, HoldfastError):
            return False
        return now.group == self._call.principal.group

    async def _listen(self, receive: Receive) -> None:
        """Notice that the client has left."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._seat.end()


async def stream_run(call: Call) -> Response:
    """Stream a run: its record at each change, and its job's events."""
    asked = call.query(RUN_STREAM)
    await call.client.aget(call.run_id)  # what is wrong is said before the stream begins
    last = _ID.match(call.request.headers.get("last-event-id") or "")
    after = int(last[1]) if last is not None else asked.get("after", 0)
    seat = call.service.hub.enter()
    frames = call.service.hub.run(call.run_id, after, seat, events=asked.get("events") != "no")
    return EventStream(call, seat, frames)


async def stream_runs(call: Call) -> Response:
    """Stream the changes of all runs that the token opens."""
    seat = call.service.hub.enter()
    frames = call.service.hub.all(call.request.headers.get("last-event-id"), seat, call.principal.group)
    return EventStream(call, seat, frames)
