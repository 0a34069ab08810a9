"""Requests to a Holdfast server: sent, sent again where that is safe, their answers read, their refusals raised.

- What only reads, and what carries a name of its own (a created run's key, a signal's id), is sent again when its
  answer was lost; everything else only if the connection could not even be made.
- A call takes as long as its time-out allows in all, repeats included; a stream as long as it lives.
- One connection pool for each loop that asks: a pool cannot be shared between loops.

What can go wrong: the server is away, or its answer was lost, or is none of ours: `StoreUnavailable`, which says what
to do; a refusal: the error that the same call on an app raises.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.client.remote import sse
from holdfast.client.remote.error_decoder import error_of
from holdfast.errors import InvalidSetting, StoreUnavailable, UnknownJob

if TYPE_CHECKING:
    import httpx

__all__ = ["Wire", "at_run"]

T = TypeVar("T")
Query = Sequence[tuple[str, str]]

CONNECT_SECONDS = 5.0
PAUSES_SECONDS = (0.1, 0.3, 0.9)  # before each repeat
RETRY_AFTER_MAX_SECONDS = 5.0  # a server that wants to be asked later than this is away
SILENCE_SECONDS = 60.0  # a stream that is silent for so long, comments included, is dead
LOST_SECONDS = 60.0  # how long a watch tries to reach its server again
_LATER = frozenset({429, 502, 503, 504})
_LOOPBACK: dict[str, Any] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}


def at_run(run_id: str, *behind: str) -> str:
    """Give the path of a run.

    Raises:
        UnknownJob: no run can have this id.
    """
    if run_id in {"", ".", ".."}:  # as part of a path these would mean another one
        raise UnknownJob(run_id)
    return "/".join(["/runs", quote(run_id, safe=""), *behind])


class Wire:
    """The way to one server."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidSetting("server", url, "it is no address of a server: use http://host:port or https://…")
        try:
            urlsplit(url).port  # noqa: B018 - it is looked at
        except ValueError as error:
            raise InvalidSetting("server", url, str(error)) from error
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidSetting("token", "…", "it holds characters that no token has: look for a blank or a line end")
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Query = (),
        body: Any = None,
        again: bool | None = None,
        about: str = "",
        timeout_seconds: float | None = None,
    ) -> tuple[int, T]:
        """Send a request and read its answer: the status, and the value.

        Args:
            method: as HTTP has it.
            path: behind ``/api/v1``.
            kind: what the answer is.
            query: names and values.
            body: what is sent as JSON.
            again: whether a repeat does no harm; None is: if it only reads.
            about: what it is about, for an error that does not say.
            timeout_seconds: how long it may take, if not as usual.
        """
        again = method == "GET" if again is None else again
        end = time.monotonic() + (timeout_seconds or self._timeout_seconds)
        for pause in [*PAUSES_SECONDS, None]:
            try:
                answer = await self._send(method, path, query, body, end - time.monotonic())
            except _Lost as lost:
                if pause is None or not (again or lost.unsent) or time.monotonic() + pause >= end:
                    raise lost.told(self.url, harmless=again or lost.unsent) from lost
                await asyncio.sleep(pause)
                continue
            if answer.is_success:
                return answer.status_code, self._read(answer.content, kind)
            wait = _retry_after(answer) if answer.status_code in _LATER and again else None
            if pause is None or wait is None or time.monotonic() + max(wait, pause) >= end:
                raise error_of(answer.status_code, answer.content, about, self.url)
            await asyncio.sleep(max(wait, pause))
        raise AssertionError("the last try has returned or raised")

    async def follow(self, path: str, about: str) -> AsyncGenerator[sse.Sent, None]:
        """Read a stream for as long as it lives; one that is lost goes on where it was.

        Whoever reads it stops when it is at its end; a stream that ends before is taken up again.
        """
        last: str | None = None
        heard = time.monotonic()
        tries = 0
        while True:
            try:
                async with self._stream(path, about, {"Last-Event-ID": last} if last is not None else {}) as answer:
                    heard = time.monotonic()
                    async for sent in sse.events(answer.aiter_bytes()):
                        heard, tries = time.monotonic(), 0
                        last = sent.id if sent.id is not None else last
                        yield sent
            except _Lost as lost:
                if time.monotonic() - heard > LOST_SECONDS:
                    raise lost.told(self.url, harmless=True) from lost
            await asyncio.sleep(PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS) - 1)])
            tries += 1

    async def content(self, path: str, about: str) -> AsyncIterator[bytes]:
        """Read bytes, a piece at a time."""
        try:
            async with self._stream(path, about, {}) as answer:
                async for piece in answer.aiter_bytes():
                    yield piece
        except _Lost as lost:
            raise lost.told(self.url, harmless=True) from lost

    async def close(self) -> None:
        """Let go of the connections of this loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    async def _send(self, method: str, path: str, query: Query, body: Any, left: float) -> httpx.Response:
        import httpx  # noqa: PLC0415 - a program that asks no server does not wait for it

        kwargs: dict[str, Any] = {"params": list(query)} if query else {}
        if body is not None:
            kwargs |= {"content": msgspec.json.encode(body), "headers": {"Content-Type": "application/json"}}
        left = max(left, 0.001)
        kwargs["timeout"] = httpx.Timeout(left, connect=min(CONNECT_SECONDS, left))
        try:
            async with asyncio.timeout(left):
                return await self._pool().request(method, f"/api/v1{path}", **kwargs)
        except httpx.TransportError as error:
            raise _Lost(error) from error
        except TimeoutError as error:
            raise _Lost(error) from error

    @asynccontextmanager
    async def _stream(self, path: str, about: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        import httpx  # noqa: PLC0415 - as above

        timeout = httpx.Timeout(self._timeout_seconds, connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
        try:
            async with self._pool().stream("GET", f"/api/v1{path}", headers=headers, timeout=timeout) as answer:
                if not answer.is_success:
                    error = error_of(answer.status_code, await answer.aread(), about, self.url)
                    raise _Lost(error) if answer.status_code in _LATER else error
                yield answer
        except httpx.TransportError as error:
            raise _Lost(error) from error

    def _pool(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415 - as above

        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}
            try:
                # A proxy is for what is far away: it could not reach this machine's own addresses. Each watch holds a
                # connection for as long as its run lives: there is no number of them at which others have to wait.
                self._pools[loop] = httpx.AsyncClient(
                    base_url=self.url,
                    headers=headers,
                    mounts=_LOOPBACK,
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                )
            except (httpx.InvalidURL, ValueError) as error:
                raise InvalidSetting("server", self.url, str(error)) from error
        return self._pools[loop]

    def _read(self, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreUnavailable(
                f"{self.url} answers what this release cannot read ({error}): is it a Holdfast server of this release?"
            ) from error


class _Lost(Exception):
    """No answer: nothing was sent, or it is not known what became of it."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        self.unsent = type(cause).__name__ in {"ConnectError", "ConnectTimeout", "PoolTimeout"}
        super().__init__(cause)

    def told(self, server: str, *, harmless: bool) -> Exception:
        """Give it as users see it."""
        if isinstance(self.cause, StoreUnavailable):
            return self.cause
        why = str(self.cause) or type(self.cause).__name__
        if harmless:
            advice = "is it running (holdfast serve), and is the address right?"
            return StoreUnavailable(f"the server at {server} does not answer ({why}): {advice}")
        advice = "whether it was done is not known: look at the run before you ask again"
        return StoreUnavailable(f"the answer of {server} was lost ({why}): {advice}")


def _retry_after(answer: httpx.Response) -> float | None:
    """For how long to wait before a repeat; None if that is too long."""
    text = answer.headers.get("Retry-After", "0")
    wait = float(text) if text.isdecimal() else 0.0
    return wait if wait <= RETRY_AFTER_MAX_SECONDS else None
