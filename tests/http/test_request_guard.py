"""The guard of a connection: what it passes on to uvicorn, wherever its reads end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.http.connections import Connections
from holdfast.http.request_guard import DRAIN_BYTES, HEAD_BYTES, RequestGuard
from support.stories import play

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"


class Recorder(asyncio.Protocol):
    """Stands where uvicorn's protocol does."""

    def __init__(self, *, app_state: dict[str, Any]) -> None:
        self.state, self.heard = app_state, b""

    def data_received(self, data: bytes) -> None:
        self.heard += data


class Guard(RequestGuard):
    protocol = Recorder
    connections = Connections(1_000_000)


class Transport(asyncio.Transport):
    """Keeps what is written, and whether it is read from and open."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.reads, self.open = b"", True, True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return not self.open

    def close(self) -> None:
        self.open = False

    abort = close


def passed_on(pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Give what the guard passes on if each request is answered at once, and what it writes itself."""

    found: list[bytes] = []

    async def story() -> None:
        guard, transport = Guard(app_state={}), Transport()
        guard.connection_made(transport)
        for piece in pieces:
            guard.data_received(piece)
            for _ in range(4):
                guard.data_received(b"", answered=True)
        guard.connection_lost(None)
        inner = guard._inner
        assert isinstance(inner, Recorder)
        found.extend([inner.heard, transport.written])

    play(story())
    return found[0], found[1]


def assert_is_problem(written: bytes, status: int, code: str) -> None:
    head, _, body = written.partition(b"\r\n\r\n")
    line, *heads = head.split(b"\r\n")
    assert line.split()[1] == str(status).encode()
    assert b"content-type: application/problem+json" in heads
    assert b"connection: close" in heads
    assert b"content-length: %d" % len(body) in heads
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (status, code)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (GET + POST + GET, GET + POST + GET),
        (b"\r\n" + GET + b"\r\n" + POST, GET + POST),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + GET, CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + GET),
        (CHUNKED + b'05 ;a="b"\r\nhello\r\n00\r\nX: y\r\n\r\n' + GET, CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + GET),
        (
            b"GET / HTTP/1.1\r\nconnection: keep-alive, UPGRADE\r\nUpgrade: h2c\r\n\r\n",
            b"GET / HTTP/1.1\r\nConnection: close\r\nUpgrade: h2c\r\n\r\n",
        ),
    ],
)
def test_requests_are_the_same_wherever_a_read_ends(sent: bytes, expected: bytes) -> None:
    assert passed_on([sent]) == (expected, b"")
    assert passed_on([bytes([byte]) for byte in sent]) == (expected, b"")
    for place in range(1, len(sent)):
        assert passed_on([sent[:place], sent[place:]]) == (expected, b"")


@pytest.mark.parametrize(
    "chunks", [b"x\r\n", b"\r\n", b"-1\r\n", b"5 5\r\n", b"123456789\r\n", b"0\r\nno trailer\r\n\r\n"]
)
def test_chunks_with_no_single_reading_end_the_connection(chunks: bytes) -> None:
    _, written = passed_on([CHUNKED, chunks, GET])
    assert_is_problem(written, 400, "bad_request")


@pytest.mark.parametrize(
    "heads",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"X: a\r\n folded\r\n",
        b"X: a\r\n\tfolded\r\n",
        b"X: a\nY: b\r\n",
        b"Content-Length : 5\r\n",
    ],
)
def test_a_head_with_no_single_reading_is_refused_before_any_parser_sees_it(heads: bytes) -> None:
    heard, written = passed_on([b"POST / HTTP/1.1\r\nHost: a\r\n" + heads + b"\r\n0\r\n\r\n" + GET])
    assert heard == b""
    assert_is_problem(written, 400, "bad_request")


@pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\nX: ", CHUNKED + b"5;", CHUNKED + b"0\r\nX: "])
def test_a_line_without_an_end_is_kept_up_to_a_bound(begun: bytes) -> None:
    heard, written = passed_on([begun, b"y" * (HEAD_BYTES - len(begun)), b"y" * len(begun)])
    assert_is_problem(written, 431, "headers_too_large")
    assert len(heard) <= len(CHUNKED)


def test_a_request_waits_for_the_answer_to_the_one_before_and_no_more_is_read() -> None:
    async def story() -> None:
        guard, transport = Guard(app_state={}), Transport()
        guard.connection_made(transport)
        inner = guard._inner
        assert isinstance(inner, Recorder)
        guard.data_received(POST[:-1])
        assert transport.reads, "its body is still to come"
        guard.data_received(POST[-1:])
        assert transport.reads, "that its client leaves must be noticed"
        guard.data_received(GET + GET)
        assert (inner.heard, transport.reads) == (POST, False)
        transport.resume_reading()  # as uvicorn does, which has its own reasons to pause
        guard.data_received(POST)
        assert (inner.heard, transport.reads) == (POST, False)
        guard.data_received(b"", answered=True)
        assert (inner.heard, transport.reads) == (POST + GET, False)
        guard.data_received(b"", answered=True)
        guard.data_received(b"", answered=True)
        assert (inner.heard, transport.reads) == (POST + GET + GET + POST, True)
        guard.connection_lost(None)

    play(story())


def test_a_response_is_sent_to_a_client_that_has_closed_its_own_side() -> None:
    """The transport closes itself right after: what it has not got by then is lost."""

    async def story() -> None:
        guard, transport = Guard(app_state={}), Transport()
        guard.connection_made(transport)
        guard.data_received(GET)
        guard.transport.write(b"head ")
        guard.transport.write(b"body")
        assert not guard.eof_received()
        assert transport.written == b"head body"
        guard.connection_lost(None)

    play(story())


def test_a_body_that_goes_on_after_its_response_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DRAIN_BYTES == 64 * 1024 * 1024
    monkeypatch.setattr("holdfast.http.request_guard.DRAIN_BYTES", 1000)

    async def story() -> None:
        guard, transport = Guard(app_state={}), Transport()
        guard.connection_made(transport)
        guard.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n")
        guard.data_received(bytes(5000))
        guard.data_received(b"", answered=True)
        for _ in range(10):
            guard.data_received(bytes(100))
        assert not transport.is_closing(), "the rest of a body is read and dropped, up to the bound"
        guard.data_received(b"x")
        assert transport.is_closing()
        guard.connection_lost(None)

    play(story())
