"""The HTTP transport of the remote client: requests, safe retries, response decoding, and errors.

- After a lost response, the transport repeats a request that only reads, and one that carries a key: the server
  executes it once. It repeats others only if the connection could not be made.
- The timeout of a call includes its retries. A stream has no timeout.
- Each event loop has its own connection pool, because loops cannot share one.
- A response has a bound, and must not be compressed: a small one could expand beyond memory.

What can fail: the server does not answer, the response is lost, or it is not from a Holdfast server. Then the call
raises `StoreUnavailable`, whose message says what to do. A refusal raises the error of the same call on an `App`.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.client.remote import sse
from holdfast.client.remote.error_decoder import error_of
from holdfast.errors import InvalidSetting, StoreUnavailable, UnknownJob, shown_url

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Query = Sequence[tuple[str, str]]

CONNECT_SECONDS = 5.0
PAUSES_SECONDS = (0.1, 0.3, 0.9)  # before each retry
RETRY_AFTER_MAX_SECONDS = 5.0  # a server that asks for a longer wait counts as unavailable
SILENCE_SECONDS = 60.0  # a stream without any bytes, comments included, for this long is dead
FIRST_ERROR = 300  # statuses from here on are no success
LOST_SECONDS = 60.0  # how long a watch tries to reconnect
RESPONSE_BYTES_MAX = 1024 * 1024 * 1024  # a page has 8 MiB at most; a result, as much as its workers allow
_LATER = frozenset({429, 502, 503, 504})
_LOOPBACK: dict[str, Any] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}


def at_run(run_id: str, *parts: str) -> str:
    """Return the URL path of a run, followed by other parts.

    Raises:
        UnknownJob: No run can have this id.
    """
    if run_id in {"", ".", ".."}:  # in a path these would name another resource
        raise UnknownJob(run_id)
    return "/".join(["/runs", quote(run_id, safe=""), *parts])


class Wire:
    """The HTTP connection to one server."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidSetting("server", url, "it is not the address of a server: use http://host:port or https://…")
        try:
            urlsplit(url).port  # noqa: B018 - the access validates the port
        except ValueError as error:
            raise InvalidSetting("server", url, str(error)) from error
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidSetting(
                "token", "…", "it has characters that are not allowed in a token: check for spaces and line ends"
            )
        self.url = url.rstrip("/")
        self._shown = shown_url(self.url)  # for messages
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
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, T]:
        """Send a request and return the status and the decoded body of its response.

        Args:
            method: The HTTP method.
            path: The path after ``/api/v1``.
            kind: The type of the response body.
            query: Query parameters.
            body: The request body, sent as JSON.
            again: Whether a repeat is harmless. None means: only for GET.
            about: The subject of the request, for an error whose response does not name it.
            headers: More headers.
        """
        again = method == "GET" if again is None else again
        end = time.monotonic() + self._timeout_seconds
        for pause in [*PAUSES_SECONDS, None]:
            try:
                answer = await self._send(method, path, query, body, headers, end - time.monotonic())
            except _Lost as lost:
                if pause is None or not (again or lost.unsent) or time.monotonic() + pause >= end:
                    raise lost.as_error(self._shown, harmless=again or lost.unsent) from lost
                await asyncio.sleep(pause)
                continue
            if answer.status < FIRST_ERROR:
                return answer.status, self._read(answer.content, kind)
            wait = _seconds_of(answer.retry_after) if answer.status in _LATER and again else None
            if pause is None or wait is None or time.monotonic() + max(wait, pause) >= end:
                raise error_of(answer.status, answer.content, about, self._shown)
            await asyncio.sleep(max(wait, pause))
        raise AssertionError("the last try has returned or raised")

    async def follow(self, path: str, about: str) -> AsyncGenerator[sse.Sent, None]:
        """Yield the events of a stream. After a lost connection, reconnect and resume at the last event.

        The generator does not end by itself: it also reconnects after a regular end of the response. The caller stops
        reading at the last event that it expects.
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
                    raise lost.as_error(self._shown, harmless=True) from lost
            await asyncio.sleep(PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS) - 1)])
            tries += 1

    async def content(self, path: str, about: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a response in pieces."""
        try:
            async with self._stream(path, about, {}) as answer:
                async for piece in answer.aiter_bytes():
                    yield piece
        except _Lost as lost:
            raise lost.as_error(self._shown, harmless=True) from lost

    async def close(self) -> None:
        """Close the connections of the current event loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    async def _send(
        self, method: str, path: str, query: Query, body: Any, headers: Mapping[str, str] | None, left: float
    ) -> _Answer:
        import httpx  # noqa: PLC0415 - slow to import, and programs without a server do not need it

        kwargs: dict[str, Any] = {"params": list(query)} if query else {}
        kwargs["headers"] = dict(headers or {})
        if body is not None:
            kwargs["content"] = msgspec.json.encode(body)
            kwargs["headers"]["Content-Type"] = "application/json"
        left = max(left, 0.001)
        kwargs["timeout"] = httpx.Timeout(left, connect=min(CONNECT_SECONDS, left))
        try:
            async with asyncio.timeout(left), self._pool().stream(method, f"/api/v1{path}", **kwargs) as answer:
                content = await self._bounded(answer)
                return _Answer(answer.status_code, content, answer.headers.get("Retry-After", "0"))
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
                    error = error_of(answer.status_code, await self._bounded(answer), about, self._shown)
                    raise _Lost(error) if answer.status_code in _LATER else error
                self._check_coding(answer)
                yield answer
        except httpx.TransportError as error:
            raise _Lost(error) from error

    async def _bounded(self, answer: httpx.Response) -> bytes:
        """Return the body of a response, up to a size."""
        self._check_coding(answer)
        content = bytearray()
        async for piece in answer.aiter_bytes():
            content += piece
            if len(content) > RESPONSE_BYTES_MAX:
                raise StoreUnavailable(f"{self._shown} answers with more than {RESPONSE_BYTES_MAX} bytes: ask for less")
        return bytes(content)

    def _check_coding(self, answer: httpx.Response) -> None:
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise StoreUnavailable(
                f"{self._shown} answers in compressed form, which was not asked for: is there a proxy?"
            )

    def _pool(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415 - as above

        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            headers = {"Accept-Encoding": "identity"}
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token}"
            try:
                # No proxy for loopback addresses, because a proxy cannot reach them. No maximum of connections,
                # because each watch holds one until its run ends, and other requests must not wait for it.
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
                f"{self._shown} sent a response that this release cannot read ({error}): check that it is"
                " a Holdfast server of this release"
            ) from error


class _Answer(NamedTuple):
    """A response: its status, its body and the header Retry-After."""

    status: int
    content: bytes
    retry_after: str


class _Lost(Exception):
    """No response: the request was not sent, or its outcome is unknown."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        self.unsent = type(cause).__name__ in {"ConnectError", "ConnectTimeout", "PoolTimeout"}
        super().__init__(cause)

    def as_error(self, server: str, *, harmless: bool) -> Exception:
        """Return the error that users see."""
        if isinstance(self.cause, StoreUnavailable):
            return self.cause
        why = str(self.cause) or type(self.cause).__name__
        if harmless:
            advice = "is it running (holdfast serve), and is the address right?"
            return StoreUnavailable(f"the server at {server} does not answer ({why}): {advice}")
        advice = "whether it was done is not known: look at the run before you ask again"
        return StoreUnavailable(f"the answer of {server} was lost ({why}): {advice}")


def _seconds_of(retry_after: str) -> float | None:
    """Return the seconds to wait before a retry, or None if that is too long."""
    text = retry_after[:20]
    wait = float(text) if text.isdecimal() else 0.0
    return wait if wait <= RETRY_AFTER_MAX_SECONDS else None
