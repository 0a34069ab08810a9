"""What goes back: a status, bytes, and the headers that every answer carries. A stream is sent as it comes.

Every answer says: not to be guessed at, not to be framed, not to be kept. There are no cookies and no CORS headers.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec

__all__ = ["Answer", "Headers", "Receive", "Scope", "Send", "StreamAnswer", "encode", "json"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]

encode = msgspec.json.Encoder().encode


class Answer:
    """A whole answer."""

    __slots__ = ("body", "headers", "media_type", "status")

    def __init__(
        self, status: int, body: bytes, media_type: bytes = b"application/json", headers: Headers = ()
    ) -> None:
        self.status, self.body, self.media_type, self.headers = status, body, media_type, headers

    async def send(self, send: Send) -> None:
        """Send it."""
        length = str(len(self.body)).encode()
        headers = [(b"content-type", self.media_type), (b"content-length", length), *SAFE, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class StreamAnswer(Answer):
    """An answer of which the first part is known before anything is sent, and the rest comes as it does."""

    __slots__ = ("parts",)

    def __init__(
        self, parts: AsyncIterator[bytes], media_type: bytes, headers: Headers = (), *, status: int = 200
    ) -> None:
        super().__init__(status, b"", media_type, headers)
        self.parts = parts

    async def send(self, send: Send) -> None:
        """Send it, part by part."""
        headers = [(b"content-type", self.media_type), *SAFE, *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        async with contextlib.aclosing(self.parts) as parts:  # type: ignore[type-var]  # - a generator, which closes
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """Answer with a value as JSON."""
    return Answer(status, encode(value), b"application/json", headers)
