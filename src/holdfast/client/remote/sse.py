"""A parser of server-sent events from a stream of bytes.

Lines end with LF or CRLF only, because text may hold other characters that `splitlines` treats as line ends. A comment
produces no event. A server sends comments so that clients can tell an idle connection from a dead one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple


class Sent(NamedTuple):
    """One event: its kind, the id to resume from, and its data."""

    kind: str
    id: str | None
    data: bytes


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Sent]:
    """Yield each complete event. An incomplete event at the end is dropped."""
    rest = b""
    kind, name, data = "message", None, [b""][:0]
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            field, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                kind = value.decode()
            elif field == b"id":
                name = value.decode()
            elif field == b"data":
                data.append(value)
            elif not field and not value and data:
                yield Sent(kind, name, b"\n".join(data))
                kind, data = "message", []
