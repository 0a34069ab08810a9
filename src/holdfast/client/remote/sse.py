"""A parser of server-sent events from a stream of bytes.

Lines end with LF or CRLF only, because text may hold other characters that `splitlines` treats as line ends. A comment
produces no event. A server sends comments so that clients can tell an idle connection from a dead one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from holdfast.errors import StoreUnavailable

EVENT_BYTES_MAX = 64 * 1024 * 1024


class Sent(NamedTuple):
    """One event: its kind, the id to resume from, and its data."""

    kind: str
    id: str | None
    data: bytes


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Sent]:
    """Yield each complete event. An incomplete event at the end is dropped."""
    rest, size = b"", 0
    kind, name, data = "message", None, [b""][:0]
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        size = size + len(piece) if data or not lines else len(piece)
        if size > EVENT_BYTES_MAX:
            raise StoreUnavailable(f"an event of the stream has more than {EVENT_BYTES_MAX} bytes")
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
