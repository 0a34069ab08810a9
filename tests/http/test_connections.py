"""Connections as strange clients use them: cut off, one request behind another, left in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.http import request_guard
from holdfast.http.application import Service
from holdfast.http.handlers.probes import healthz
from holdfast.http.problems import Problem
from holdfast.http.request import Call
from holdfast.http.request_guard import RequestGuard
from holdfast.http.response import Answer
from holdfast.http.route import Handler, Operation
from holdfast.server import Limits, asgi
from support.web import serving, small_shop, statuses, wait_until

PARSERS = ["httptools", "h11"]
OK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes servers of this process have read."""
    read, total = RequestGuard.data_received, [0]

    def counted(guard: RequestGuard, data: bytes, *, answered: bool = False) -> None:
        read(guard, data, answered=answered)
        total[0] += len(data)

    monkeypatch.setattr(RequestGuard, "data_received", counted)
    return total


def send(connection: socket.socket, sent: bytes, heard: list[int]) -> None:
    """Send bytes, and have them read before anything else is sent."""
    due = heard[0] + len(sent)
    connection.sendall(sent)
    wait_until(lambda: heard[0] >= due)


def post(path: str, body: bytes, *more: bytes, length: int | None = None) -> bytes:
    """Write a request with a body; one that is cut off says that it is longer."""
    heads = [b"Host: localhost", b"Content-Type: application/json", *more]
    heads += [b"Content-Length: %d" % (len(body) if length is None else length)] if length != -1 else []
    return b"POST %b HTTP/1.1\r\n%b\r\n\r\n%b" % (path.encode(), b"\r\n".join(heads), body)


def creation(name: str) -> bytes:
    return json.dumps({"plugin_id": "shop", "entry_id": "greet", "args": {"name": name}}).encode()


def answer_healthz_with(service: Service, handler: Handler) -> None:
    route = next(one for one in service.routes if isinstance(one, Operation) and one.path == "/healthz")
    route.handler = handler


@contextlib.contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as connection:
        yield connection


LIST = b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("name", PARSERS)
def test_connections_without_a_request_shut_nobody_out(small: App, name: str) -> None:
    service = asgi(small)
    with serving(service, name) as url, contextlib.ExitStack() as stack:
        assert service.connections is not None
        service.connections.most = 3
        idle = [stack.enter_context(connected(url)) for _ in range(6)]
        wait_until(lambda: service.connections is not None and service.connections.refused == 3)
        assert [one.recv(1) for one in idle[:3]] == [b"", b"", b""], "those that were idle longest"
        for sent in (OK, LIST):
            with connected(url) as connection:
                connection.sendall(sent)
                assert statuses(connection, 1) == [200]


@pytest.mark.parametrize("name", PARSERS)
def test_probes_are_answered_when_every_connection_has_a_request(small: App, name: str) -> None:
    service = asgi(small)
    run = small.start("ask")
    stream = b"GET /api/v1/runs/%b/stream HTTP/1.1\r\nHost: localhost\r\n\r\n" % run.id.encode()
    with serving(service, name) as url, contextlib.ExitStack() as stack:
        assert service.connections is not None
        service.connections.most = 2
        streams = [stack.enter_context(connected(url)) for _ in range(2)]
        for one in streams:
            one.sendall(stream)
            assert one.recv(12) == b"HTTP/1.1 200"
        for path in (b"/healthz", b"/readyz"):
            with connected(url) as connection:
                connection.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
                assert statuses(connection, 1) == [200]
        with connected(url) as connection:
            connection.sendall(LIST)
            answer = connection.makefile("rb").read()  # and the connection is closed
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"application/problem+json" in answer
            assert b'"code":"too_many_requests"' in answer


def test_streams_leave_connections_free_and_a_token_has_its_share(small: App) -> None:
    service = asgi(small, limits=Limits(streams=10**6, token_streams=2))
    with serving(service):
        assert service.connections is not None
        assert service.hub.most == service.connections.most // 2
    for _ in range(2):
        service.hub.enter("token:ana")
    with pytest.raises(Problem, match="the token has 2 open streams"):
        service.hub.enter("token:ana")
    service.hub.enter("token:bo")


def test_the_limit_of_open_files_is_raised() -> None:
    script = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard));"
        "from holdfast.http.uvicorn_server import raise_file_limit; most = raise_file_limit();"
        "print(most + 300 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("waits", [False, True])
def test_half_a_request_is_not_acted_on(small: App, name: str, waits: bool, heard: list[int]) -> None:
    run = small.start("ask")
    service = asgi(small)
    with serving(service, name) as url:
        for sent in (
            post(f"/api/v1/runs/{run.id}/cancel", b"", length=40),
            post(f"/api/v1/runs/{run.id}/pause", b"", length=40),
            post("/api/v1/runs", creation("Ann"), length=500),
        ):
            with connected(url) as connection:
                send(connection, sent, heard) if waits else connection.sendall(sent)
        wait_until(lambda: service.metrics.text(None, (), 0, 0).count('method="POST",code="400"') == 3)
    assert [(one.run_id, one.status, one.stage) for one in small.list()] == [(run.id, "queued", "queued")]


@pytest.mark.parametrize("name", PARSERS)
def test_requests_behind_one_another_are_answered_in_order_wherever_a_read_ends(
    small: App, name: str, heard: list[int]
) -> None:
    with serving(asgi(small), name) as url, connected(url) as connection:
        send(connection, post("/api/v1/runs", creation("a" * 40_000)) + OK + OK[:20], heard)
        connection.sendall(OK[20:])
        assert statuses(connection, 3) == [201, 200, 200]
        large = post("/api/v1/runs", creation("a" * 100_000))
        connection.sendall(OK + large + OK + large)
        assert statuses(connection, 4) == [200, 201, 200, 201]
        connection.sendall(post("/api/v1/runs", creation("b")) + b"\0 is no request\r\n\r\n")
        assert statuses(connection, 1) == [201], "what is behind it is not the answer to it"


@pytest.mark.parametrize("name", PARSERS)
def test_who_waits_in_line_is_not_cut_off_for_it(
    small: App, name: str, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_guard, "HEAD_SECONDS", 1.0)
    stream = f"GET /api/v1/runs/{small.start('ask').id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    limits = Limits(heartbeat_seconds=0.05, stream_seconds=2.0)
    with serving(asgi(small, limits=limits), name) as url, connected(url) as connection:
        send(connection, stream + OK + OK[:20], heard)
        connection.sendall(OK[20:])
        told = b""
        while told.count(b'{"status":"ok"}') < 2:
            part = connection.recv(65536)
            assert part, "it has ended before everything was answered"
            told += part


@pytest.mark.parametrize("name", PARSERS)
def test_what_waits_in_line_is_bounded(small: App, name: str, heard: list[int]) -> None:
    """One request of a connection is answered at a time, and no more is read than waits for it."""
    under_way, most, first, go_on = [0], [0], threading.Event(), threading.Event()
    service = asgi(small)

    async def held(call: Call) -> Answer:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        first.set()
        if not go_on.is_set():
            await asyncio.to_thread(go_on.wait)
        under_way[0] -= 1
        return await healthz(call)

    answer_healthz_with(service, held)
    with serving(service, name) as url, connected(url) as connection:

        def send_all() -> None:
            with contextlib.suppress(OSError):  # it has seen enough
                connection.sendall(OK * 200_000)

        sending = threading.Thread(target=send_all)
        sending.start()
        first.wait()
        sending.join(0.5)
        assert sending.is_alive(), "it waits for the server, which reads no further"
        assert heard[0] < 1_000_000, "some reads' worth"
        go_on.set()
        assert set(statuses(connection, 2_000)) == {200}
        connection.shutdown(socket.SHUT_RDWR)
        sending.join()
    assert most[0] == 1


@pytest.mark.parametrize("name", PARSERS)
def test_who_leaves_while_others_wait_behind_him_leaves_nothing_in_the_log(
    small: App, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = asgi(small)
    with caplog.at_level(logging.WARNING), serving(service, name) as url:
        for _ in range(5):
            with connected(url) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                connection.sendall(post("/api/v1/runs", creation("Ann")) + post("/api/v1/runs", creation("Bob")))
        with connected(url) as connection:
            connection.sendall(OK)
            assert statuses(connection, 1) == [200]
    assert caplog.records == []


@pytest.mark.parametrize("name", PARSERS)
def test_who_is_refused_before_his_body_has_come_hears_it(small: App, name: str, heard: list[int]) -> None:
    """Most clients send all of it before they look; a connection that is closed meanwhile says nothing."""
    large = post("/api/v1/nothing", b"x" * 1_000_000)
    with serving(asgi(small), name) as url, connected(url) as connection:
        send(connection, large[:200], heard)
        wait_until(lambda: connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"H")
        for place in range(200, len(large), 10_000):
            send(connection, large[place : place + 10_000], heard)
        connection.sendall(OK)
        assert statuses(connection, 2) == [404, 200]


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("head", [b"Content-Length: %d", b"Transfer-Encoding: chunked"])
def test_a_body_behind_an_upgrade_is_no_request(small: App, name: str, head: bytes, heard: list[int]) -> None:
    with serving(asgi(small), name) as url, connected(url) as connection:
        length = head % len(OK) if b"%d" in head else head
        send(connection, post("/api/v1/runs", b"", length, b"Connection: Upgrade", b"Upgrade: h2c", length=-1), heard)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(OK)
        assert statuses(connection, 1) == [400]
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b"", "and nothing more is answered"


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, chunked", b"identity, chunked"])
def test_a_body_that_is_coded_otherwise_than_in_chunks_is_refused(small: App, name: str, coding: bytes) -> None:
    body = creation("Ann")
    sent = post(
        "/api/v1/runs", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), b"Transfer-Encoding: " + coding, length=-1
    )
    with serving(asgi(small), name) as url, connected(url) as connection:
        connection.sendall(sent)
        assert statuses(connection, 1)[0] in {400, 415}
    assert small.list() == []


@pytest.mark.parametrize("name", PARSERS)
def test_what_comes_behind_a_body_is_no_header_and_bounded(small: App, name: str) -> None:
    body = creation("Ann")
    chunked = post("/api/v1/runs", b"%x\r\n%b\r\n0\r\n" % (len(body), body), b"Transfer-Encoding: chunked", length=-1)
    with serving(asgi(small), name) as url:
        with connected(url) as connection:
            connection.sendall(chunked + b"Via: a proxy\r\n\r\n")
            connection.sendall(chunked.replace(b"Host: localhost", b"Connection: close") + b"Host: localhost\r\n\r\n")
            with connection.makefile("rb") as stream:
                answers = [int(code) for code in re.findall(rb"HTTP/1.1 (\d+)", stream.read())]
            assert answers == [201, 421 if name == "httptools" else 400], "a Host in the trailers is none"
        with connected(url) as connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(chunked + b"X: " + b"y" * 30_000_000)


@pytest.mark.parametrize("name", PARSERS)
def test_what_comes_behind_a_body_that_nobody_waited_for_is_bounded(small: App, name: str, heard: list[int]) -> None:
    chunked = post("/api/v1/nothing", b"5\r\nhello\r\n0\r\n", b"Transfer-Encoding: chunked", length=-1)
    with serving(asgi(small), name) as url, connected(url) as connection:
        send(connection, chunked, heard)
        assert statuses(connection, 1) == [404]
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(b"ab:cd\r\n" * 4_000_000)
    assert heard[0] < 1_000_000


@pytest.mark.parametrize("name", PARSERS)
def test_a_connection_is_closed_if_nothing_follows_a_body_that_nobody_waited_for(
    small: App, name: str, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_guard, "HEAD_SECONDS", 0.2)
    refused = post("/api/v1/nothing", b"x" * 1000)
    with serving(asgi(small), name) as url, connected(url) as connection:
        send(connection, refused[:-10], heard)
        assert statuses(connection, 1) == [404]
        send(connection, refused[-10:], heard)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.parametrize("name", PARSERS)
def test_the_head_behind_a_body_that_nobody_waited_for_is_bounded_too(small: App, name: str, heard: list[int]) -> None:
    refused = post("/api/v1/nothing", b"x" * 1000)
    large = OK[:-2] + b"X: " + b"y" * 17_000 + b"\r\n\r\n"
    with serving(asgi(small), name) as url, connected(url) as connection:
        send(connection, refused[:-10], heard)
        assert statuses(connection, 1) == [404]
        send(connection, refused[-10:] + large[:16_000], heard)
        connection.sendall(large[16_000:] + OK)
        assert statuses(connection, 2) == [431, 200]


@pytest.mark.parametrize("name", PARSERS)
def test_a_body_is_not_read_further_than_it_is_taken(small: App, name: str, heard: list[int]) -> None:
    """However large its reads are: who answers may take long, or wait for a client that does not read."""
    service, go_on = asgi(small), threading.Event()

    async def held(call: Call) -> Answer:
        await asyncio.to_thread(go_on.wait)
        return await healthz(call)

    answer_healthz_with(service, held)
    sent = OK[:-2] + b"Content-Length: 50000000\r\n\r\n" + b"x" * 50_000_000
    with serving(service, name) as url, connected(url) as connection:
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(sent)
        assert heard[0] < 1_000_000, "some reads' worth"
        go_on.set()
        connection.settimeout(30)
        assert statuses(connection, 1) == [200]


@pytest.mark.parametrize("name", PARSERS)
def test_what_comes_behind_an_upgrade_is_not_read_in_half(small: App, name: str) -> None:
    """The parser gives up the rest of the read that an upgrade comes with, and would begin anew with the next one."""
    with serving(asgi(small), name) as url, connected(url) as connection:
        connection.sendall(OK[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + OK[:-2] + b"X: ")
        with connection.makefile("rb") as stream:
            told = stream.read()
    assert told.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in told.lower()
    assert told.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("name", PARSERS)
def test_a_stream_that_waits_in_line_when_the_server_goes_does_not_keep_it(
    small: App, name: str, heard: list[int]
) -> None:
    stream = f"GET /api/v1/runs/{small.start('ask').id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with contextlib.ExitStack() as stays:
        with serving(asgi(small), name) as url:
            connection = stays.enter_context(connected(url))
            send(connection, stream + stream, heard)
            wait_until(lambda: b"event: run" in connection.recv(65536, socket.MSG_PEEK))
            began = time.monotonic()
        assert time.monotonic() - began < 4, "after 5 s it is called off"
        with connection.makefile("rb") as told:
            answers = told.read()
    assert answers.count(b"HTTP/1.1 200") == 1, "its client asks again elsewhere"
    assert answers.endswith(b"0\r\n\r\n"), "and the first stream came to its end"


@pytest.mark.parametrize("name", PARSERS)
def test_a_create_that_waits_in_line_when_the_server_goes_is_answered_or_not_executed(
    small: App, name: str, heard: list[int]
) -> None:
    stream = f"GET /api/v1/runs/{small.start('ask').id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    body = b'{"plugin_id":"shop","entry_id":"greet","args":{"name":"Ada"}}'
    head = (
        b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with contextlib.ExitStack() as stays:
        with serving(asgi(small), name) as url:
            connection = stays.enter_context(connected(url))
            send(connection, stream + head % len(body) + body, heard)
            wait_until(lambda: b"event: run" in connection.recv(65536, socket.MSG_PEEK))
            began = time.monotonic()
        assert time.monotonic() - began < 4, "after 5 s it is called off"
        with connection.makefile("rb") as told:
            answers = told.read()
    made = [run for run in small.list() if run.entry_id == "greet"]
    assert len(made) == answers.count(b"HTTP/1.1 201"), "a run that no client knows of"


def test_a_small_request_leaves_nothing_for_the_garbage_collector(small: App) -> None:
    """What refers to itself waits for the collector, which then looks at everything: a fifth of what a create costs."""
    sent = [post("/api/v1/runs", creation(f"number {number}")) for number in range(200)]
    with serving(asgi(small), "httptools") as url, connected(url) as connection:
        for one in sent[:100]:
            connection.sendall(one)
            assert statuses(connection, 1) == [201]
        gc.collect()
        gc.disable()
        try:
            for one in sent[100:]:
                connection.sendall(one)
                assert statuses(connection, 1) == [201]
            left = gc.collect()
        finally:
            gc.enable()
    assert left < 100, "less than one object for each request"
