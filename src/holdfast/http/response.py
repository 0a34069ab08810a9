"""Responses: Starlette responses with the security headers that every response carries.

The headers forbid content sniffing, framing and caching. The server sets no cookies and no CORS headers.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Headers = Sequence[tuple[bytes, bytes]]

SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]

encode = msgspec.json.Encoder().encode


class Answer(Response):
    """A response whose whole body is known."""

    def __init__(
        self, status: int, body: bytes, media_type: bytes = b"application/json", headers: Headers = ()
    ) -> None:
        super().__init__(status_code=status)
        self.body = body
        length = str(len(body)).encode()
        self.raw_headers = [(b"content-type", media_type), (b"content-length", length), *SAFE, *headers]


class StreamAnswer(Response):
    """A response that sends its body in parts, as the iterator yields them."""

    def __init__(self, parts: AsyncIterator[bytes], media_type: bytes, headers: Headers = ()) -> None:
        super().__init__()
        self.parts = parts
        self.raw_headers = [(b"content-type", media_type), *SAFE, *headers]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response part by part."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self.parts) as parts:  # type: ignore[type-var]  # - a generator, which has aclose
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def not_modified(tag: bytes) -> Response:
    """Return the response to a client that has the current content already."""
    response = Response(status_code=304)
    response.raw_headers = [(b"etag", tag), *SAFE]
    return response


def no_content() -> Answer:
    """Return a response without a body."""
    answer = Answer(204, b"")
    answer.raw_headers = [*SAFE]
    return answer


def json(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """Return a response with a value as JSON."""
    return Answer(status, encode(value), b"application/json", headers)
