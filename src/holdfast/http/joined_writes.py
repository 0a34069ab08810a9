"""A transport that joins what is written in one turn of the loop, so that a response is one packet and one system call.

Uvicorn writes the head of a response and its body one after the other.
"""

from __future__ import annotations

import asyncio
from typing import Any

JOINED_BYTES_MAX = 64 * 1024  # more than that is passed on at once, so that the transport can ask writers to pause


class JoinedWrites:
    """Has the methods of the asyncio transport that it passes writes on to."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0
        self.abort, self.is_closing = transport.abort, transport.is_closing
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.get_extra_info, self.set_protocol = transport.get_extra_info, transport.set_protocol

    def write(self, data: bytes) -> None:
        """Write with the rest of this turn."""
        self._size += len(data)
        if self._size > JOINED_BYTES_MAX:
            self.flush()
            self._transport.write(data)
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Pass on what was written."""
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._transport.write(b"".join(parts))

    def at_end(self) -> None:
        """Pass on what was written when the client sends no more: the transport closes itself right after.

        It stands for the protocol's `eof_received`, in which uvicorn does nothing.
        """
        self.flush()

    def close(self) -> None:
        """Pass on what was written, then close."""
        self.flush()
        self._transport.close()
