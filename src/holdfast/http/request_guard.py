"""A protocol in front of uvicorn's protocol. It frames requests strictly, bounds them, and passes on one at a time.

- A head has at most `HEAD_BYTES` and `HEAD_SECONDS`; what a body has after an early response, `DRAIN_BYTES` and these.
- A head that parsers could read differently gets 400: folded headers, bare line feeds, two lengths, other codings.
- The guard drops chunk extensions, trailers and upgrades. It passes on a request after the previous response.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator
from typing import Any, ClassVar, cast

from holdfast.http.connections import Connections
from holdfast.http.head_patterns import CHUNK_LINE, HEAD, TRAILERS, UPGRADE
from holdfast.http.joined_writes import JoinedWrites
from holdfast.http.problems import Problem

HEAD_BYTES = 32 * 1024  # bound of a request line with headers, of trailers, and of a chunk line
DRAIN_BYTES = 64 * 1024 * 1024  # bound of a body that goes on after its response; it is read and dropped
HEAD_SECONDS = 10.0
CONNECTION = "holdfast.connection"  # key of the guard in the ASGI state of a request


class RequestGuard(asyncio.Protocol):
    """The guard of one of the server's `connections`. `protocol` is the uvicorn class that gets the checked bytes."""

    protocol: ClassVar[Callable[..., asyncio.Protocol]]
    connections: ClassVar[Connections]

    def __init__(self, *, app_state: dict[str, Any], **options: Any) -> None:
        self._inner = self.protocol(app_state={**app_state, CONNECTION: self}, **options)
        for name in ("pause_writing", "resume_writing"):
            setattr(self, name, getattr(self._inner, name))
        self._unread, self._checked, self._reading = bytearray(), bytearray(), self._read_requests()
        self._in_body, self._answering, self._drained = False, False, 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: D102 - documented by asyncio
        self.transport = JoinedWrites(transport)
        self.abort, self.eof_received = transport.abort, self.transport.at_end  # type: ignore[method-assign]  # - see there
        self._inner.connection_made(cast("asyncio.Transport", self.transport))
        self._limit_time(on=True)
        self.connections.open(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 - documented by asyncio
        self._limit_time(on=False)
        self.connections.lost(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes, *, answered: bool = False) -> None:
        """Pass checked bytes to uvicorn. `answered` says that the previous request has its response."""
        self._drained = self._drained + len(data) if self._in_body and not self._answering else 0
        if self._drained > DRAIN_BYTES:
            self.transport.abort()
        if self.transport.is_closing():
            return
        self._unread += data
        if answered:
            self._answering = False
            self.connections.set_idle(self)
            self.transport.resume_reading()  # first: the bytes passed below may make uvicorn pause
        try:
            next(self._reading)
        except Problem as refused:
            self.connections.refused += 1
            self.transport.write(refused.raw())
            self.transport.close()
            return
        self._limit_time(on=not self._answering and bool(self._in_body or self._unread or self._checked))
        if self._answering and not self._in_body and self._unread:
            self.transport.pause_reading()  # every time: uvicorn resumes reading after its own pause
        if self._checked:
            checked, self._checked = bytes(self._checked), bytearray()
            self._inner.data_received(checked)

    def _read_requests(self) -> Generator[None, None, None]:
        while True:  # each `yield` waits for more bytes or for the response
            head = yield from self._take(HEAD, b"\r\n\r\n")
            self._answering = self._in_body = True
            self.connections.set_busy(self)
            self._checked += UPGRADE.sub(b"\nConnection: close", head[0].lstrip(b"\r\n"))
            yield from self._pass_chunks() if head["chunked"] else self._pass(int(head["length"] or 0))
            self._in_body = False
            while self._answering:
                yield

    def _take(self, form: re.Pattern[bytes], end: bytes) -> Generator[None, None, re.Match[bytes]]:
        while (place := self._unread.find(end, 0, HEAD_BYTES)) < 0:
            if len(self._unread) >= HEAD_BYTES:
                raise Problem(431, "headers_too_large", f"the head has more than {HEAD_BYTES} bytes", "send less")
            yield
        taken = form.fullmatch(bytes(self._unread[: place + len(end)]))
        if taken is None:
            raise Problem(400, "bad_request", "the request is not valid HTTP/1.1, or ambiguous", "see RFC 9112")
        del self._unread[: taken.end()]
        return taken

    def _pass(self, left: int) -> Generator[None, None, None]:
        while left > len(self._unread):
            left -= len(self._unread)
            self._checked, self._unread = self._checked + self._unread, bytearray()
            yield
        self._checked += self._unread[:left]
        del self._unread[:left]

    def _pass_chunks(self) -> Generator[None, None, None]:
        while size := int((yield from self._take(CHUNK_LINE, b"\r\n"))[1], 16):
            self._checked += b"%x\r\n" % size
            yield from self._pass(size + 2)  # uvicorn checks the line end after the chunk
        self._unread[:0] = b"\r\n"  # so the pattern matches without trailers too
        yield from self._take(TRAILERS, b"\r\n\r\n")
        self._checked += b"0\r\n\r\n"

    def _limit_time(self, *, on: bool) -> None:
        if self._timer is not None and not on:
            self._timer.cancel()
        if on is not (self._timer is not None):
            self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.transport.abort) if on else None
