"""Size limits of requests. The server checks them before it parses anything, and counts the body as it arrives.

The server does not keep a body that is too large. It reads and discards the rest up to a bound, so that the client can
read the response. Past that bound it closes the connection. The server checks the depth, the names and the digits of
JSON on the raw bytes, before it decodes a value.
"""

from __future__ import annotations

import asyncio
import re
from itertools import chain

import msgspec
from starlette.types import Receive, Scope

from holdfast.http.problems import Problem
from holdfast.http.response import Headers

ONCE = (b"host", b"authorization", b"content-length", b"content-type", b"content-encoding", b"origin")
CLOSE = [(b"connection", b"close")]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper limits of requests and streams.

    Attributes:
        body_bytes: bytes of a body.
        header_bytes: bytes of all headers, names and values.
        query_bytes: bytes of a query.
        path_bytes: bytes of a path.
        json_depth: nesting depth of a JSON document.
        json_names: names and containers in a JSON document.
        json_values: values in a JSON document that follow another.
        json_slow: exponents, and runs of 20 digits, of the numbers in a JSON document. They take long to decode.
        json_digits: digits of a number.
        body_seconds: time until the whole body has arrived.
        drain_bytes: bytes of a refused body that the server discards before it closes the connection.
        stream_seconds: duration of a stream; the client then reconnects with Last-Event-ID.
        stream_stall_seconds: time that a client may leave sent data unread.
        heartbeat_seconds: interval of heartbeats on a silent stream.
        streams: number of open streams; `holdfast serve` also keeps half of its connections free of them.
        token_streams: number of open streams of one token.
    """

    body_bytes: int = 2 * 1024 * 1024
    header_bytes: int = 16 * 1024
    query_bytes: int = 8 * 1024
    path_bytes: int = 2 * 1024
    json_depth: int = 64
    json_names: int = 25_000
    json_values: int = 50_000
    json_slow: int = 500
    json_digits: int = 400
    body_seconds: float = 15.0
    drain_bytes: int = 64 * 1024 * 1024
    stream_seconds: float = 3600.0
    stream_stall_seconds: float = 20.0
    heartbeat_seconds: float = 15.0
    streams: int = 2000
    token_streams: int = 500


def heads_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers by name. Of a repeated one, the first counts.

    A repeated header in `ONCE` is refused, because two programs could pick different values.
    """
    heads = dict(scope["headers"])
    if len(heads) != len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        twice = [name.decode() for name in ONCE if names.count(name) > 1]
        if twice:
            raise Problem(400, "invalid_header", f"repeated header: {', '.join(twice)}", "send it once")
        heads = dict(reversed(scope["headers"]))
    return heads


def check_request(scope: Scope, limits: Limits) -> None:
    """Refuse a request whose path, query or headers are too large."""
    if len(scope["query_string"]) > limits.query_bytes:
        raise Problem(414, "query_too_long", f"the query has more than {limits.query_bytes} bytes", "use fewer filters")
    if len(scope.get("raw_path") or scope["path"]) > limits.path_bytes:
        raise Problem(
            414,
            "path_too_long",
            f"the path has more than {limits.path_bytes} bytes",
            "GET /openapi.json lists the routes",
        )
    if sum(map(len, chain.from_iterable(scope["headers"]))) > limits.header_bytes:
        raise Problem(
            431,
            "headers_too_large",
            f"the headers have more than {limits.header_bytes} bytes",
            "send fewer or shorter ones",
        )


async def read_body(receive: Receive, length: str, limits: Limits) -> bytes:
    """Read a body and count its bytes. `length` is what its header says.

    The rest of a body that is too large is read and discarded, so that the client can read the error response.
    """
    refused = not length.isdecimal() or int(length[:20]) > limits.body_bytes
    body, size = bytearray(), 0
    first = b""  # most bodies are in one part
    try:
        async with asyncio.timeout(limits.body_seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":  # never act on half a request
                    raise Problem(
                        400, "invalid_json", "the connection ended before the whole body arrived", "send it again"
                    )
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > limits.drain_bytes and size > limits.body_bytes:
                    raise _too_large(limits, CLOSE)
                if refused or size > limits.body_bytes:
                    refused, first = True, b""
                    body.clear()
                elif size == len(part):
                    first = part
                else:
                    body += part
    except TimeoutError:
        raise Problem(
            408,
            "request_timeout",
            f"the body did not arrive within {limits.body_seconds:g} s",
            "send it again",
            headers=CLOSE,
        ) from None
    if refused:
        raise _too_large(limits)
    return first + body if body else first


def _too_large(limits: Limits, headers: Headers = ()) -> Problem:
    return Problem(
        413, "body_too_large", f"the body has more than {limits.body_bytes} bytes",
        "store the data elsewhere and send a reference to it", headers=headers,
    )  # fmt: skip


_STRING = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"', re.DOTALL)  # atomic: no backtracking, so linear time
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_KINDS = bytes(ord("0" if char in "0123456789." else "e" if char in "eE" else " ") for char in map(chr, range(256)))
_LONG = b"0" * 20


def check_json(body: bytes, limits: Limits) -> None:
    """Refuse JSON that is too deep, or has too many values, or too long numbers, without decoding it.

    The time is linear in the size, whatever the content. The quick counts are right even if strings hold brackets.
    """
    few = body.count(b"[") + body.count(b"{") <= limits.json_depth and body.count(b":") <= limits.json_names
    if few and body.count(b",") <= limits.json_values and _number_problem(body, limits) is None:
        return
    if (body.count(b'"') - body.count(b"\\")) // 2 > limits.json_names + limits.json_values:  # at least so many strings
        raise _too_many(f"{limits.json_names} names or {limits.json_values} values")
    bare = _STRING.sub(b"", body)
    if bare.count(b":") + bare.count(b"[") + bare.count(b"{") > limits.json_names:
        raise _too_many(f"{limits.json_names} names and containers")
    if bare.count(b",") > limits.json_values:
        raise _too_many(f"{limits.json_values} values")
    problem = _number_problem(bare, limits)
    if problem is not None:
        raise problem
    depth = 0
    for bracket in bare.translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > limits.json_depth:
            message = f"the body nests deeper than {limits.json_depth} levels"
            raise Problem(422, "json_too_deep", message, "nest it less")


def _number_problem(text: bytes, limits: Limits) -> Problem | None:
    """Return the problem of numbers that are too long, or take too long to decode, if there are any."""
    kinds = text.translate(_KINDS)
    if b"0" * (limits.json_digits + 1) in kinds:
        message = f"a number has more than {limits.json_digits} digits"
        return Problem(422, "number_too_long", message, "send it as a string")
    if kinds.count(b"0e") + kinds.count(_LONG) > limits.json_slow:  # microseconds each, where others take nanoseconds
        return _too_many(f"{limits.json_slow} exponents, or 20 times as many digits of long numbers")
    return None


def _too_many(what: str) -> Problem:
    return Problem(413, "json_too_large", f"the body has more than {what}", "send less at once")
