"""How large a request may be: looked at before anything is parsed, and counted while it comes.

A body that is too large is not kept: what comes after the limit is read and forgotten, up to a bound, so that the
client hears the answer; then the connection is closed. JSON is looked over as bytes (how deep, how many names, how
long its numbers are) before a single value is made of it.
"""

from __future__ import annotations

import asyncio
import functools
import re
import types
from collections.abc import Generator
from itertools import chain
from typing import Any

import msgspec

from holdfast.http.problems import Problem
from holdfast.http.response import DIRECT, Headers, Receive, Scope

__all__ = ["CLOSE", "HEAD", "Limits", "check_json", "check_request", "heads_of", "read_body", "whole_body"]

ONCE = (b"host", b"authorization", b"content-length", b"content-type", b"content-encoding", b"origin")
CLOSE = [(b"connection", b"close")]
HEAD = "holdfast.head"  # where our own server says how many bytes a request's head has at most
HEAD_UNKNOWN = 2**62
_NONE: Scope = {}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may have.

    Attributes:
        body_bytes: bytes of a body.
        header_bytes: bytes of all headers, names and values.
        query_bytes: bytes of a query.
        path_bytes: bytes of a path.
        json_depth: how deep JSON may nest.
        json_names: how many names and containers a JSON document may have.
        json_digits: digits of one number.
        body_seconds: how long a body may take to come.
        drain_bytes: how much of a refused body is read and forgotten before the connection is closed.
        stream_seconds: how long one stream lasts; its client comes back with Last-Event-ID.
        stream_stall_seconds: how long a client may leave what was sent to it unread.
        heartbeat_seconds: how often a silent stream says that it is alive.
        streams: how many streams at once.
    """

    body_bytes: int = 2 * 1024 * 1024
    header_bytes: int = 16 * 1024
    query_bytes: int = 8 * 1024
    path_bytes: int = 2 * 1024
    json_depth: int = 64
    json_names: int = 100_000
    json_digits: int = 400
    body_seconds: float = 15.0
    drain_bytes: int = 64 * 1024 * 1024
    stream_seconds: float = 3600.0
    stream_stall_seconds: float = 20.0
    heartbeat_seconds: float = 15.0
    streams: int = 2000


def heads_of(scope: Scope) -> dict[bytes, bytes]:
    """Give the headers by name. One of those that decide something must not be there twice: which would count?"""
    heads = dict(scope["headers"])
    if len(heads) != len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        twice = [name.decode() for name in ONCE if names.count(name) > 1]
        if twice:
            raise Problem(400, "invalid_header", f"{', '.join(twice)} is there more than once", "send it once")
    return heads


def check_request(scope: Scope, limits: Limits) -> None:
    """Refuse a request whose head is too large."""
    if scope.get(HEAD, HEAD_UNKNOWN) <= min(limits.query_bytes, limits.path_bytes, limits.header_bytes):
        return  # the everyday one
    if len(scope["query_string"]) > limits.query_bytes:
        raise Problem(414, "query_too_long", f"the query has over {limits.query_bytes} bytes", "use fewer filters")
    if len(scope.get("raw_path") or scope["path"]) > limits.path_bytes:
        raise Problem(414, "path_too_long", f"the path has over {limits.path_bytes} bytes", "no route is so long")
    if sum(map(len, chain.from_iterable(scope["headers"]))) > limits.header_bytes:
        raise Problem(
            431, "headers_too_large", f"the headers have over {limits.header_bytes} bytes", "send fewer or shorter ones"
        )


def whole_body(scope: Scope, limits: Limits) -> bytes | None:
    """Take a body that is all there; None if it has to be read."""
    direct = scope.get("extensions", _NONE).get(DIRECT)
    body: bytes | None = direct.body() if direct is not None else None
    if body is not None and len(body) > limits.body_bytes:
        raise _too_large(limits)
    return body


async def read_body(said: bytes, receive: Receive, limits: Limits) -> bytes:
    """Read a body whose length is said to be this, counting."""
    try:
        if not said.isdigit() or int(said[:20]) > limits.body_bytes:
            async with asyncio.timeout(limits.body_seconds):
                await _forget(receive, limits)
        message = _there(await _soon(receive, limits.body_seconds))
        body: bytes = message.get("body", b"")
        if not message.get("more_body") and len(body) <= limits.body_bytes:
            return body  # the everyday one: all of it at once
        async with asyncio.timeout(limits.body_seconds):
            return await _gather(body, message, receive, limits)
    except TimeoutError:
        raise Problem(
            408, "request_timeout", f"the body took over {limits.body_seconds:g} s", "send it again", headers=CLOSE
        ) from None


async def _soon(receive: Receive, seconds: float) -> Any:
    """Receive in time. What is there already, as most bodies are, is taken without a timer."""
    asked: Any = receive()
    if not asyncio.iscoroutine(asked):
        async with asyncio.timeout(seconds):
            return await asked
    try:
        first = asked.send(None)
    except StopIteration as there:
        return there.value
    async with asyncio.timeout(seconds):
        return await _rest(asked, first)


@types.coroutine
def _rest(asked: Any, waits_for: Any) -> Generator[Any, Any, Any]:
    """Await the rest of a coroutine that was begun by hand, and waits for this."""
    while True:
        try:
            told = yield waits_for
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the coroutine
            step = functools.partial(asked.throw, error)
        else:
            step = functools.partial(asked.send, told)
        try:
            waits_for = step()
        except StopIteration as ended:
            return ended.value


def _there(message: Any) -> Any:
    """Refuse what is left of a body whose sender has gone: half a request is not acted on, nor one without its body."""
    if message["type"] == "http.disconnect":
        raise Problem(400, "invalid_json", "the body was cut off", "send all of it")
    return message


async def _gather(body: bytes, message: Any, receive: Receive, limits: Limits) -> bytes:
    parts, size = [body], len(body)
    while message.get("more_body") and size <= limits.body_bytes:
        message = _there(await receive())
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if size > limits.body_bytes:
        parts.clear()
        await _forget(receive, limits, ended=not message.get("more_body"))
    return b"".join(parts)


async def _forget(receive: Receive, limits: Limits, *, ended: bool = False) -> None:
    """Read a body that is too large to its end, keeping nothing, and refuse it."""
    size = 0
    while not ended and size <= limits.drain_bytes:
        message = await receive()
        size += len(message.get("body", b""))
        ended = not message.get("more_body")
    raise _too_large(limits, () if ended else CLOSE)


def _too_large(limits: Limits, headers: Headers = ()) -> Problem:
    return Problem(
        413, "body_too_large", f"the body has over {limits.body_bytes} bytes",
        "keep the data elsewhere and pass a reference to it", headers=headers,
    )  # fmt: skip


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # possessive: never goes back, so never takes long
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_json(body: bytes, limits: Limits) -> None:
    """Refuse JSON that is too deep, has too many names, or numbers that are too long; without reading it."""
    many = body.count(b"[") + body.count(b"{") > limits.json_depth or body.count(b":") > limits.json_names
    if not many and (len(body) <= limits.json_digits or not re.search(rb"[0-9.]{%d}" % (limits.json_digits + 1), body)):
        return  # whatever is inside its strings, it is not too much
    bare = _STRING.sub(b"", body)
    if bare.count(b":") + bare.count(b"[") + bare.count(b"{") > limits.json_names:
        raise Problem(413, "json_too_large", f"over {limits.json_names} names and containers", "send less at once")
    if re.search(rb"[0-9.]{%d}" % (limits.json_digits + 1), bare):
        raise Problem(
            422, "number_too_long", f"a number has over {limits.json_digits} digits", "send it as text instead"
        )
    depth = 0
    for bracket in bare.translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > limits.json_depth:
            raise Problem(422, "json_too_deep", f"it nests deeper than {limits.json_depth} levels", "make it flatter")
