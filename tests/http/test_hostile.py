"""Hostile input: each is refused with the right code, and a real server's memory stays where it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from holdfast import App
from holdfast.http import request_guard, uvicorn_server
from holdfast.http.problems import Problem
from holdfast.http.request_limits import check_json
from holdfast.server import Limits, asgi
from support.stories import play
from support.web import JSON, Served, near, served, serving, small_shop, statuses

TARGET = Path(__file__).parents[1] / "support" / "streaming_shop.py"
MIB = 1024 * 1024
PLAIN = "application/json"
HIDDEN = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
GREET = '{"plugin_id": "shop", "entry_id": "greet", "args": {"name": %s}}'

HOSTILE_BODIES: dict[str, tuple[bytes, int, str]] = {
    "deep lists": (b"[" * 1_000_000, 413, "json_too_large"),
    "deep objects": (b'{"a":' * 100_000, 413, "json_too_large"),
    "just too deep": (GREET.encode() % (b"[" * 65 + b"]" * 65), 422, "json_too_deep"),
    "many names": (b"{" + b",".join(b'"%d":0' % n for n in range(100_001)) + b"}", 413, "json_too_large"),
    "many numbers": (GREET.encode() % (b"[" + b"1," * 50_001 + b"1]"), 413, "json_too_large"),
    "slow numbers": (GREET.encode() % (b"[" + b"1e308," * 501 + b"1]"), 413, "json_too_large"),
    "long numbers": (GREET.encode() % (b"[" + (b"9" * 399 + b",") * 31 + b"1]"), 413, "json_too_large"),
    "a long number": (GREET.encode() % (b"9" * 100_000), 422, "number_too_long"),
    "a long fraction": (GREET.encode() % (b"0." + b"9" * 1000), 422, "number_too_long"),
    "broken UTF-8": (GREET.encode() % b'"\xff\xfe"', 400, "invalid_json"),
    "an overlong slash": (GREET.encode() % b'"\xc0\xaf"', 400, "invalid_json"),
    "half a surrogate": (GREET.encode() % b'"\\ud800"', 400, "invalid_json"),
    "no JSON": (b"plugin_id=shop", 400, "invalid_json"),
    "NaN": (GREET.encode() % b"NaN", 400, "invalid_json"),
    "two documents": (GREET.encode() % b'"x"' + b"{}", 400, "invalid_json"),
    "nothing": (b"", 400, "invalid_json"),
    "a list": (b"[]", 422, "invalid_arguments"),
    "null": (b"null", 422, "invalid_arguments"),
    "prototype names": (GREET.encode() % b'"x", "__class__": {"__init__": {}}', 422, "invalid_arguments"),
    "an infinite deadline": (
        GREET.encode() % b'"x"}, "deadline": 1e999, "attributes": {"a": 1', 422, "invalid_arguments",
    ),
}  # fmt: skip

HOSTILE_PATHS = [
    ("/api/v1/runs/..%2f..%2fetc%2fpasswd", 400),
    ("/api/v1/runs/%2e%2e", 400),
    ("/api/v1/runs/%252e%252e%252f", 400),
    ("/api/v1/runs/..", 400),
    ("/api/v1/runs/../../healthz", 400),
    ("/api/v1/runs/..;/healthz", 400),
    ("/api/v1/runs;/healthz", 400),
    ("/api/v1/runs/;a=b", 400),
    ("/api/v1/runs/a%5c..%5cb", 400),
    ("/api/v1/runs/a\\b", 400),
    ("/api/v1/runs/%00", 400),
    ("/api/v1/runs/a%00.json", 400),
    ("//api/v1/runs", 400),
    ("/api/v1//runs", 400),
    ("/api/v1/runs/", 400),
    ("/healthz/", 400),
    ("/api/v1/./runs", 400),
    ("/api/v1/runs/x'%20OR%201=1--", 400),
    ("/api/v1/runs/~root", 404),
    ("/api/v1/runs/C:", 404),
    ("/api/v1/runs/x.99999999999999999999", 404),
    ("/api/v1/runs/x.-1", 404),
    ("/api/v1/runs/" + "x" * 300, 404),
    ("/api/v1/runs/" + "x" * 3000, 414),
    ("/api/v1/runs/healthz", 404),
    ("/api/v1/runs/x/exports/..%2f1/content", 400),
    ("/api/v1/runs/x/exports/-1/content", 404),
    ("/healthz/api/v1/runs", 404),
    ("/API/V1/RUNS", 404),
]

HOSTILE_QUERIES = [
    "plugin_id=x'%20OR%20'1'='1",
    "entry_id=%27%3B%20DROP%20TABLE%20jobs%3B--",
    "queue=1%20UNION%20SELECT%20*%20FROM%20sqlite_master",
    "cursor='%3B%20DELETE%20FROM%20events",
    "attr.x')%20OR%20json_extract(1,'$')=1",
    "attr.a%22%5D%20OR%201=1=1",
    "status=queued%27--",
    "sort=created_at%3BDROP",
    "limit=1%3B",
    "limit=-1",
    "limit=\uff11\uff10",
    "created_after=now()",
    "created_after=1e999",
    "plugin_id=%00",
    "plugin_id=%ff",
    "&".join(f"status=queued&attr.a{n}=1" for n in range(100)),
]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", HOSTILE_BODIES)
def test_a_hostile_body_is_refused_with_its_code(small: App, name: str) -> None:
    body, status, code = HOSTILE_BODIES[name]

    async def story() -> None:
        async with near(small) as client:
            refused = await client.post("/api/v1/runs", content=body, headers=JSON)
            assert (refused.status_code, refused.json()["code"]) == (status, code)
            assert await small.alist() == []

    play(story())


@pytest.mark.parametrize(("path", "status"), HOSTILE_PATHS)
def test_a_hostile_path_is_refused_and_never_public(small: App, path: str, status: int) -> None:
    """The path is sent as it stands, by hand: a client would tidy it."""
    with serving(asgi(small)) as url:
        answer = raw(url, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert int(answer.split(b" ", 2)[1]) == status, answer


@pytest.mark.parametrize("query", HOSTILE_QUERIES)
def test_sql_in_a_filter_is_a_value_or_refused(small: App, query: str) -> None:
    async def story() -> None:
        run = await small.astart("greet", "Ada")
        async with near(small) as client:
            answer = await client.get(f"/api/v1/runs?{query}")
            assert answer.status_code in {200, 400, 422}, answer.text
            if answer.status_code == 200:
                found = [one["run_id"] for one in answer.json()["items"]]
                assert found == [], "it is only a value"
            assert [one.run_id for one in await small.alist()] == [run.id]

    play(story())


@pytest.mark.parametrize(
    ("limits", "request_", "status"),
    [
        (Limits(header_bytes=1000), {"headers": {"x": "y" * 1000}}, 431),
        (Limits(query_bytes=100), {"params": {"plugin_id": "x" * 100}}, 414),
        (Limits(body_bytes=100), {"method": "POST", "content": b"x" * 101, "headers": JSON}, 413),
        (Limits(body_bytes=100), {"method": "POST", "content": b"x" * 100, "headers": JSON}, 400),
        (Limits(), {"method": "POST", "content": b"{}"}, 415),
        (Limits(), {"method": "POST", "content": b"{}", "headers": {**JSON, "Content-Encoding": "gzip"}}, 415),
        (Limits(), {"method": "POST", "content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
        (Limits(), {"method": "POST", "content": b"{}", "headers": {"Content-Type": f"{PLAIN}; charset=utf-16"}}, 415),
        (Limits(), {"method": "POST", "content": b"{}", "headers": {"Content-Type": f"{PLAIN}; charset=utf-8"}}, 422),
    ],
)  # fmt: skip
def test_each_limit_holds_and_one_less_does_not(
    small: App, limits: Limits, request_: dict[str, Any], status: int
) -> None:
    async def story() -> None:
        async with near(small, limits=limits) as client:
            answer = await client.request(request_.pop("method", "GET"), "/api/v1/runs", **request_)
            assert answer.status_code == status, answer.text

    play(story())


@pytest.mark.parametrize("name", ["Host", "Authorization", "Content-Type", "Origin"])
def test_a_header_that_decides_something_is_there_once_or_refused(small: App, name: str) -> None:
    with serving(asgi(small)) as url:
        head = f"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n{name}: localhost\r\n{name}: evil\r\n"
        answer = raw(url, f"{head}Connection: close\r\n\r\n".encode())
    assert int(answer.split(b" ", 2)[1]) == 400, answer


def test_json_at_its_limits_is_taken_and_brackets_in_text_are_text() -> None:
    limits = Limits(json_depth=4, json_names=10, json_digits=5, json_values=20, json_slow=3)
    check_json(b"[" * 4 + b"]" * 4, limits)
    check_json(json.dumps({"text": "[" * 100 + '"{' * 100 + ":" * 100 + "9" * 100}).encode(), limits)
    check_json(b'{"a": 12345, "b": "\\"[[[[[[[[[", "c": 1}', limits)
    check_json(b"[" + b"1," * 20 + b"1]", limits)
    check_json(json.dumps(["a,1e5,2E5" * 5, "," * 30, '"' * 200, "\\" * 300]).encode(), limits)
    check_json(b"[1e5,2E5,3.e5]", limits)
    bad_ones = [b"[" * 5 + b"]" * 5, b"123456", b'{"\\\\": 123456}', b"[1," + b"{}," * 11 + b"1]"]
    bad_ones += [b"[" + b"1," * 21 + b"1]", b"[1e5,2E5,3.e5,4e5]", b"[" + b'"",' * 40 + b"1]"]
    for bad in bad_ones:
        with pytest.raises(Problem):
            check_json(bad, limits)


def test_a_body_that_comes_too_slowly_is_given_up(small: App) -> None:
    async def story() -> None:
        async def drop_by_drop() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        async with near(small, limits=Limits(body_seconds=0.05)) as client:
            refused = await client.post("/api/v1/runs", content=drop_by_drop(), headers=JSON)
            assert (refused.status_code, refused.json()["code"]) == (408, "request_timeout")

    play(story())


def raw(url: str, sent: bytes) -> bytes:
    """Send bytes as they are, and read to the end."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(sent)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize("name", ["httptools", "h11"])
def test_a_head_that_never_ends_is_cut_off(small: App, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "HEAD_SECONDS", 0.2)
    with serving(asgi(small), name) as url:
        for sent in (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"", b"\r\n"):
            with contextlib.suppress(ConnectionResetError):
                assert b" 200 " not in raw(url, sent), "it ends, without what was asked for"
        monkeypatch.undo()
        assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200


@pytest.mark.parametrize("name", ["httptools", "h11"])
def test_a_head_that_is_too_large_is_refused_before_it_is_kept(small: App, name: str) -> None:
    with serving(asgi(small), name) as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as greedy:
            greedy.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            answer = b""
            try:
                for _ in range(100):
                    greedy.sendall(b"X: " + b"y" * 10_000 + b"\r\n")
                answer = greedy.recv(100)
            except (ConnectionResetError, BrokenPipeError):
                pass  # it was cut off while we were sending
        assert b" 200 " not in answer
        for _ in range(3):
            assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200


def answered(url: str, pieces: list[bytes], count: int) -> list[int]:
    """Send pieces over one connection, and read so many answers."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return statuses(connection, count)


OK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
TOO_MUCH = {
    "path": (414, b"GET /" + b"p" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "query": (414, b"GET /healthz?" + b"q" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "headers": (431, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 17_000 + b"\r\n\r\n"),
    "body": (413, b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300\r\n\r\n" + b"b" * 300),
}


@pytest.mark.parametrize("name", ["httptools", "h11"])
@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_is_too_large_is_refused_wherever_it_stands_among_requests(small: App, name: str, what: str) -> None:
    status, sent = TOO_MUCH[what]
    with serving(asgi(small, limits=Limits(body_bytes=200)), name) as url:
        assert answered(url, [sent], 1) == [status]
        assert answered(url, [OK, sent[:40], sent[40:]], 2) == [200, status]
        assert answered(url, [OK + sent, OK], 3) == [200, status, 200]


@pytest.mark.parametrize("name", ["httptools", "h11"])
def test_a_connection_that_nobody_uses_is_closed_and_one_in_use_is_not(
    small: App, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_server, "IDLE_SECONDS", 0.2)
    run = small.start("ask")
    with serving(asgi(small, limits=Limits(heartbeat_seconds=0.05, stream_seconds=1.0)), name) as url:
        assert raw(url, OK + OK).count(b" 200 ") == 2, "and it came to its end"
        stream = f"GET /api/v1/runs/{run.id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        told = raw(url, OK + stream)  # lasts five times as long as an idle connection
    assert told.endswith(b"0\r\n\r\n"), "the stream came to its own end"


@pytest.mark.parametrize("name", ["httptools", "h11"])
@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 5, 5",
        b"Content-Length: 5\r\nX: y\r\ncontent-length: 0",
        b"Content-Length : 5",
        b"Content-Length: 0x5",
        b"Content-Length: +5",
        b"Content-Length: -5",
        b"Content-Length: 5_0",
        b"Content-Length:",
        b"Content-Length: 5\r\n X: folded",
        b"Content-Length: 5\nX: y",
        b"Content-Length: 5\rX: y",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding: gzip, chunked",
        b"X\x00: y",
        b"X: y\x00",
        b": y",
        b"no header",
    ],
)
def test_a_request_that_could_be_smuggled_is_refused(small: App, head: bytes, name: str) -> None:
    with serving(asgi(small), name) as url:
        sent = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + head
        answer = raw(
            url, sent + b"\r\nConnection: close\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert b'{"status":"ok"}' not in answer, "what was hidden behind it is no request"


@pytest.mark.parametrize("name", ["httptools", "h11"])
@pytest.mark.parametrize(
    "line",
    [
        b"POST /api/v1/runs HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked",
        b"POST /api/v1/runs HTTP/2.0\r\nHost: localhost",
        b"POST /api/v1/runs\r\nHost: localhost",
        b"POST /api/v1/runs HTTP/1.1 \r\nHost: localhost",
        b"POST  /api/v1/runs HTTP/1.1\r\nHost: localhost",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost",
    ],
)
def test_a_request_line_that_parsers_read_differently_is_refused(small: App, line: bytes, name: str) -> None:
    with serving(asgi(small), name) as url:
        assert raw(url, line + b"\r\n\r\n" + HIDDEN).startswith(b"HTTP/1.1 400 "), "and the connection has ended"


async def flood(server: Served) -> set[int]:
    """Everything above at a real server, with bodies of 30 MB sent in pieces, with and without a length."""
    codes: set[int] = set()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(480):
            yield b"[" * 65536

    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        for round_ in range(4):
            large = [
                client.post("/api/v1/runs", content=pieces(), headers=JSON),
                client.post("/api/v1/runs", content=b"[" * (30 * MIB), headers=JSON),
            ]
            for answer in await asyncio.gather(*large):
                assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
            for body, status, _ in HOSTILE_BODIES.values():
                answer = await client.post("/api/v1/runs", content=body, headers=JSON)
                assert answer.status_code in {status, 404}, round_
                codes.add(answer.status_code)
            for query in HOSTILE_QUERIES:
                codes.add((await client.get(f"/api/v1/runs?{query}")).status_code)
    return codes


def test_memory_stays_bounded_under_a_flood_of_hostile_requests(tmp_path: Path) -> None:
    with served(TARGET, f"sqlite:///{tmp_path / 'jobs.db'}") as server:
        httpx.get(f"{server.url}/readyz", timeout=60)
        before = server.resident_bytes()
        codes = play(flood(server))
        after = server.resident_bytes()
    assert codes <= {200, 400, 404, 413, 415, 422}
    assert after - before < 60 * MIB, f"{before / MIB:.0f} MiB before, {after / MIB:.0f} MiB after"


def test_what_nobody_foresaw_is_500_with_an_id_that_is_in_the_log(
    small: App, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        run = await small.astart("greet", "Ada")
        connection = apsw.Connection(str(tmp_path / "jobs.db"))
        connection.execute("UPDATE events SET payload = '{broken'")
        connection.close()
        async with near(small) as client:
            with caplog.at_level(logging.ERROR):
                answer = await client.get(f"/api/v1/runs/{run.id}/events")
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
            for told in ("Traceback", "SELECT", "broken", "jobs.db", ".py"):
                assert told not in answer.text
            assert answer.json()["id"] in caplog.text
            assert "Traceback" in caplog.text, "the operator can read it"

    play(story())


def test_an_error_after_the_response_has_begun_ends_the_connection_and_sends_nothing_more(small: App) -> None:
    async def broken(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise OSError("the rest cannot be read")

    async def story() -> None:
        service, sent = asgi(small), []
        service.router.default = broken

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": "/none", "raw_path": b"/none", "query_string": b"",
                 "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)}  # fmt: skip
        with pytest.raises(OSError, match="cannot be read"):  # the server logs it, and closes the connection
            await service(scope, receive, send)
        assert [message.get("status", message.get("body")) for message in sent] == [200, b"half"]

    play(story())


def test_requests_with_large_bodies_take_turns_and_small_ones_do_not_wait(small: App) -> None:
    async def story() -> None:
        transport = httpx.ASGITransport(service := asgi(small), client=("127.0.0.1", 1), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def create(name: str) -> int:
                body = {"plugin_id": "shop", "entry_id": "greet", "args": {"name": name}}
                return (await client.post("/api/v1/runs", json=body)).status_code

            turn = service.large_turn()
            async with turn:  # another large one is under way
                large = [asyncio.create_task(create("x" * 100_000)) for _ in range(2)]
                assert await create("x") == 201
                assert not any(one.done() for one in large)
            assert await asyncio.gather(*large) == [201, 201]
            refused = await client.post("/api/v1/runs", content=b"[" * 100_000, headers=JSON)
            assert refused.status_code == 413
            assert await create("x" * 2_000_000) == 413
            assert not turn.locked()

    play(story())
