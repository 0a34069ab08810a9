"""The server: uvicorn, with the bounds that it leaves open. It uses httptools and uvloop where they are installed.

- The head of a request is bounded in bytes and in time, from the first moment of a connection on, whichever parser
  reads it: a client that sends it drop by drop holds a connection for seconds and not for ever.
- A client that takes nothing of what is sent to it is cut off.
- A signal stops it in order: no more work is taken, streams end, requests that are under way are answered.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import socket
import threading
from asyncio import TimerHandle, Transport
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import uvicorn

from holdfast.surfaces.http.answers import WHOLE, Answer
from holdfast.surfaces.http.limits import CLOSE
from holdfast.surfaces.http.service import Service
from holdfast.surfaces.http.streams import ABORT
from holdfast.surfaces.staying import stay

__all__ = ["HEAD_BYTES", "bounded", "listen", "serve", "server"]

HEAD_BYTES = 32 * 1024  # of a request's first line and headers, as they come
HEAD_SECONDS = 10.0  # how long they may take
CONNECTIONS = 2000
WHOLE_BYTES = 64 * 1024  # an answer up to this is written in one go
STALLED_MS = 60_000  # after which the kernel gives up a peer that acknowledges nothing

STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


_Any: Any = object  # what stands beside it: one of uvicorn's two protocols


class _Bounds(_Any):  # type: ignore[misc]  # - which of the two is known later
    """The bounds of a request's head, around a connection of uvicorn's."""

    whole = False  # whether an answer can be written in one go

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answering: Any = self.app
        self.app: Any = self._answer
        self._head_bytes = 0
        self._in_head = False
        self._head_timer: TimerHandle | None = None

    def _answer(self, scope: Any, receive: Any, send: Any) -> Any:
        extensions = scope["extensions"] = {ABORT: self.transport.abort}
        if self.whole:
            extensions[WHOLE] = functools.partial(_write, send.__self__)
        return self._answering(scope, receive, send)

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self._reading_head():
            self._end()  # a body is read by who answers, and has its own bounds
            return
        self._begin()  # a head, or what is nothing at all
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            if self._in_head:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:  # httptools
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:  # httptools
        self._in_head = False
        super().on_headers_complete()

    def _reading_head(self) -> bool:
        if not hasattr(self, "conn"):
            return self._in_head
        import h11  # noqa: PLC0415 - it is there, for this is its protocol

        self._in_head = self.conn.their_state is h11.IDLE
        return self._in_head

    def _begin(self) -> None:
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _end(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _write(cycle: Any, answer: Answer) -> bool:
    """Write a small answer in one go, as `cycle.send` would in two; False if it should go that way all the same.

    What `send` checks of strangers' headers and lengths need not be checked of our own answers, and that is much of
    what a small request costs.
    """
    plain = type(answer) is Answer and len(answer.body) <= WHOLE_BYTES and answer.headers is not CLOSE
    if not plain or cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
        return False
    if cycle.scope["method"] == "HEAD":
        return False
    usual = b"".join(b"%b: %b\r\n" % pair for pair in cycle.default_headers)
    cycle.transport.write(b"%b%b%b\r\n%b" % (STATUS_LINE[answer.status], usual, answer.head(), answer.body))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    cycle.on_response()
    return True


def bounded(name: str = "auto") -> type[Any]:
    """Give uvicorn's protocol of this name, with bounds; by default httptools, if it is installed, else h11."""
    if name != "h11":
        with contextlib.suppress(ImportError):
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - if it is there

            return type("Bounded", (_Bounds, HttpToolsProtocol), {"whole": True})
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415 - one of the two

    return type("Bounded", (_Bounds, H11Protocol), {})


class _Server(uvicorn.Server):
    """Stops in order, and ends as a program that was asked to stop: with 0."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)
        await self._service.client.aclose()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # whoever serves in a thread of his own stops it by himself
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Open a socket; port 0 is any that is free.

    Raises:
        OSError: the address is taken, or none of ours.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    try:
        made.bind(address)
        made.listen(2048)
    except OSError:
        made.close()
        raise
    return made


def server(service: Service, parser: str = "auto") -> uvicorn.Server:
    """Make the server."""
    config = uvicorn.Config(
        service, http=bounded(parser), ws="none", lifespan="off", proxy_headers=False, server_header=False,
        access_log=False, log_level="warning", log_config=None, h11_max_incomplete_event_size=HEAD_BYTES,
        limit_concurrency=CONNECTIONS, timeout_keep_alive=15, timeout_graceful_shutdown=5,
    )  # fmt: skip
    return _Server(config, service)


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until a signal says to stop."""
    stay()
    server(service).run(sockets=[listening])
