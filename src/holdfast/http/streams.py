"""Server-sent events with ids. Clients resume with Last-Event-ID, and comments keep a silent connection open.

In the stream of a run, the id ``e7`` is event 7. The id ``r7`` is a record that was read when event 7 was the newest.
A client that reconnects with its last id misses no event. Of records only the newest matters. A client that reconnects
after the final record gets 204, which tells an EventSource to stop.

A stream ends in one of these cases:

- The server has sent the final record of the run.
- The time limit of the stream has passed.
- The token is no longer valid.
- The client has left sent data unread for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.client.app import App
from holdfast.client.run_reads import newest_event
from holdfast.errors import HoldfastError
from holdfast.http.auth import TOKEN
from holdfast.http.problems import Problem
from holdfast.http.request import Call, Query
from holdfast.http.request_limits import Limits
from holdfast.http.response import SAFE, no_content
from holdfast.http.run_channel import Channel, Seat
from holdfast.http.run_feed import Feed
from holdfast.http.tokens import Scope as Needed
from holdfast.machines import TERMINAL_RUN_STATUSES

ALIVE = b": alive\n\n"
CHECK_SECONDS = 0.4  # between checks of a stream's token; with that of the token file, less than a second
ABORT = "holdfast.abort"  # an ASGI extension of Holdfast's server: aborts the connection of a client that reads nothing

RUN_STREAM = (
    Query(
        "after",
        "integer",
        "Only events after this number, all by default. A Last-Event-ID header takes precedence.",
        0,
        10**15 - 1,
    ),
    Query("events", "string", "Whether to send the job's events too, `yes` by default.", words=("yes", "no")),
)
_ID = re.compile(r"([er])(\d{1,15})\Z", re.ASCII)


class Hub:
    """All open streams of this process."""

    def __init__(self, client: App, limits: Limits) -> None:
        self._client, self._limits = client, limits
        self._channels: dict[tuple[asyncio.AbstractEventLoop, str], Channel] = {}
        self._feeds: dict[tuple[asyncio.AbstractEventLoop, str | None], Feed] = {}
        self.seats: set[Seat] = set()
        self.most = limits.streams
        self.dropped = 0
        self._stopped = False

    def stop(self) -> None:
        """End all streams, because the server shuts down."""
        self._stopped = True
        for seat in list(self.seats):
            seat.end()

    def enter(self, owner: str = "") -> Seat:
        """Return a seat for a new stream of `owner`, an actor name.

        Raises:
            Problem: the limit of open streams is reached, of the server or of the token.
        """
        full = f"the server has {self.most} open streams" if len(self.seats) >= self.most else ""
        most = self._limits.token_streams
        if owner.startswith(TOKEN) and sum(seat.owner == owner for seat in self.seats) >= most:
            full = f"the token has {most} open streams"
        if full:
            raise Problem(429, "too_many_requests", full, "try again later", headers=[(b"retry-after", b"5")])
        seat = Seat(owner)
        self.seats.add(seat)
        if self._stopped:
            seat.end()  # the request was queued during the shutdown: the client reconnects to another server
        return seat

    async def run(self, run_id: str, after: int, seat: Seat, *, events: bool) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a run. An empty frame means that there is nothing more to send for now."""
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

    async def wait_for_end(self, run_id: str, timeout_seconds: float, receive: Receive) -> None:
        """Wait until a run has ended, the time has passed, the client has left, or the server shuts down."""
        seat = self.enter()
        frames = self.run(run_id, 0, seat, events=False)
        listening = asyncio.get_running_loop().create_task(listen(receive, seat))
        try:
            async with asyncio.timeout(timeout_seconds):
                async for frame in frames:
                    if seat.over:
                        return
                    if not frame:
                        await seat.wake.wait()
        except TimeoutError:
            pass
        finally:
            listening.cancel()
            self.seats.discard(seat)
            await frames.aclose()

    async def all(self, last: str | None, seat: Seat, group: str | None) -> AsyncGenerator[bytes, None]:
        """Yield the frames of the feed of all runs or of a group. An empty frame means nothing more for now."""
        key = (asyncio.get_running_loop(), group)
        feed = self._feeds.get(key)
        if feed is None or feed.ended:
            feed = self._feeds[key] = Feed(self._client, group)
        feed.users.add(seat)
        position, first = feed.place(last)
        place: int | None = position
        try:
            if first:
                yield first
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
    """A response that streams frames until they end, the client leaves or stalls, or the time limit passes."""

    def __init__(self, call: Call, seat: Seat, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        self.raw_headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"), *SAFE]
        self._call, self._seat, self._frames = call, seat, frames
        self._checking: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        hub, limits = self._call.service.hub, self._call.limits
        loop = asyncio.get_running_loop()
        listening = loop.create_task(listen(receive, self._seat))
        ending = loop.call_later(limits.stream_seconds, self._seat.end)
        self._check_token(loop)
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
            if self._checking is not None:
                self._checking.cancel()
            hub.seats.discard(self._seat)
            await self._frames.aclose()

    def _check_token(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the stream soon after its token was revoked or has expired, also if there is nothing to send."""
        if self._call.principal.token is None:
            return
        if not self._may_stay():
            self._seat.end()
            return
        self._checking = loop.call_later(CHECK_SECONDS, self._check_token, loop)

    async def _send_frames(self, send: Send, limits: Limits) -> None:
        silent = b""  # the first heartbeat goes out at once, so that the client knows that it is connected
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
        """Return whether the token of the stream is still valid. Called before new data is sent."""
        try:
            now = self._call.service.guard.admit(self._call.request.scope, Needed.READ)
        except (Problem, HoldfastError):
            return False
        return now.group == self._call.principal.group


async def listen(receive: Receive, seat: Seat) -> None:
    """End the stream of a seat when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    seat.end()


async def stream_run(call: Call) -> Response:
    """Stream the record of a run at each change, and the events of its job."""
    asked = call.query(RUN_STREAM)
    record = await call.client.aget(call.run_id)  # errors must be raised before the stream begins
    last = _ID.match(call.request.headers.get("last-event-id") or "")
    after = int(last[2]) if last is not None else asked.get("after", 0)
    ended = last is not None and last[1] == "r" and record.status in TERMINAL_RUN_STATUSES
    if ended and after >= await newest_event(call.service.client, call.run_id):
        return no_content()  # the client has the final record: an EventSource stops reconnecting at 204
    seat = call.service.hub.enter(call.principal.actor)
    frames = call.service.hub.run(call.run_id, after, seat, events=asked.get("events") != "no")
    return EventStream(call, seat, frames)


async def stream_runs(call: Call) -> Response:
    """Stream the changes of all runs that the token may see."""
    seat = call.service.hub.enter(call.principal.actor)
    frames = call.service.hub.all(call.request.headers.get("last-event-id"), seat, call.principal.group)
    return EventStream(call, seat, frames)
