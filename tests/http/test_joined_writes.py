"""Writes of one turn of the loop are one write of the transport, in their order, and none is kept for long."""

from __future__ import annotations

import asyncio

from holdfast.http.joined_writes import JOINED_BYTES_MAX, JoinedWrites
from support.stories import play


class Transport(asyncio.Transport):
    """Keeps each write, and when it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.heard.append(bytes(data))

    def abort(self) -> None:
        self.heard.append(b"(aborted)")

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def close(self) -> None:
        self.heard.append(b"(closed)")


def test_writes_of_one_turn_are_one_write_and_those_of_the_next_another() -> None:
    transport = Transport()

    async def story() -> None:
        joined = JoinedWrites(transport)
        joined.write(b"head ")
        joined.write(b"body")
        assert transport.heard == []
        await asyncio.sleep(0)
        assert transport.heard == [b"head body"]
        joined.write(b"next")
        await asyncio.sleep(0)

    play(story())
    assert transport.heard == [b"head body", b"next"]


def test_more_than_the_bound_is_passed_on_at_once_and_in_order() -> None:
    transport, large = Transport(), b"x" * JOINED_BYTES_MAX

    async def story() -> None:
        joined = JoinedWrites(transport)
        joined.write(b"head")
        joined.write(large)
        assert transport.heard == [b"head", large]
        joined.write(b"tail")
        await asyncio.sleep(0)

    play(story())
    assert transport.heard == [b"head", large, b"tail"]


def test_what_was_written_is_passed_on_before_the_end() -> None:
    transport = Transport()

    async def story() -> None:
        joined = JoinedWrites(transport)
        joined.write(b"last words")
        joined.close()
        await asyncio.sleep(0)

    play(story())
    assert transport.heard == [b"last words", b"(closed)"]


def test_an_abort_passes_nothing_on_first() -> None:
    transport = Transport()

    async def story() -> None:
        joined = JoinedWrites(transport)
        joined.write(b"unsent")
        joined.abort()
        assert transport.heard == [b"(aborted)"]

    play(story())
