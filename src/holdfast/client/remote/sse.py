"""Server-sent events, read from bytes as they come.

Lines end with LF or CRLF and with nothing else: text may hold characters that other readers take for the end of a
line. A comment, which a server sends so that nobody takes silence for death, gives no event.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

__all__ = ["Sent", "events"]


class Sent(NamedTuple):
    """One event: its kind, the id to go on from, and its data."""

    kind: str
    id: str | None
    data: bytes


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Sent]:
    """Give each whole event; what is cut off at the end is none."""
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
