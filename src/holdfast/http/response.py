"""What goes back: Starlette responses with the headers that every answer carries. A stream is sent as it comes.

Every answer says: not to be guessed at, not to be framed, not to be kept. There are no cookies and no CORS headers.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["Answer", "Headers", "StreamAnswer", "encode", "json"]

Headers = Sequence[tuple[bytes, bytes]]

SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]

encode = msgspec.json.Encoder().encode


class Answer(Response):
    """A whole answer."""

    def __init__(
        self, status: int, body: bytes, media_type: bytes = b"application/json", headers: Headers = ()
    ) -> None:
        super().__init__(status_code=status)
        self.body = body
        length = str(len(body)).encode()
        self.raw_headers = [(b"content-type", media_type), (b"content-length", length), *SAFE, *headers]


class StreamAnswer(Response):
    """An answer of which the first part is known before anything is sent, and the rest comes as it does."""

    def __init__(self, parts: AsyncIterator[bytes], media_type: bytes, headers: Headers = ()) -> None:
        super().__init__()
        self.parts = parts
        self.raw_headers = [(b"content-type", media_type), *SAFE, *headers]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, part by part."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self.parts) as parts:  # type: ignore[type-var]  # - a generator, which closes
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """Answer with a value as JSON."""
    return Answer(status, encode(value), b"application/json", headers)
