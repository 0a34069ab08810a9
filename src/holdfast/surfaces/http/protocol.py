"""A connection: uvicorn's, with the bounds that it leaves open, and with a short way for what is small and whole.

- The head of a request is bounded in bytes and in time, from the first moment of a connection on, whichever parser
  reads it: a client that sends it drop by drop holds a connection for seconds and not for ever.
- With httptools, a body that is all there is taken as it is, and a small answer is written in one go (`Direct`):
  messages, and checks that are for strangers' headers, are much of what a small request costs.
- A connection that nobody uses is closed after a while. One timer looks after it for as long as it lasts, and not one
  for each request.
"""

from __future__ import annotations

import contextlib
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

from holdfast.surfaces.http.answers import DIRECT, Answer
from holdfast.surfaces.http.limits import CLOSE, HEAD
from holdfast.surfaces.http.streams import ABORT

__all__ = ["HEAD_BYTES", "bounded"]

HEAD_BYTES = 32 * 1024  # of a request's first line and headers, as they come
HEAD_SECONDS = 10.0  # how long they may take
WHOLE_BYTES = 64 * 1024  # an answer up to this is written in one go

STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


_Any: Any = object  # what stands beside it: one of uvicorn's two protocols


class Direct:
    """The short way of one request: what `receive` and `send` would do in several messages, at once."""

    __slots__ = ("_cycle", "_usual")

    def __init__(self, cycle: Any, usual: _Usual) -> None:
        self._cycle, self._usual = cycle, usual

    def body(self) -> bytes | None:
        """Take the body, if it is all there; None if it is still to come, or nobody is there any more."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.response_complete or cycle.waiting_for_100_continue:
            return None
        cycle.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def write(self, answer: Answer) -> bool:
        """Write a small answer; False if it has to go message by message.

        What `send` checks of strangers' headers and lengths need not be checked of our own answers.
        """
        cycle = self._cycle
        plain = type(answer) is Answer and len(answer.body) <= WHOLE_BYTES and answer.headers is not CLOSE
        if not plain or cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        if cycle.scope["method"] == "HEAD":
            return False
        usual = self._usual.text(cycle.default_headers)
        cycle.transport.write(b"%b%b%b\r\n%b" % (STATUS_LINE[answer.status], usual, answer.head(), answer.body))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True


class _Usual:
    """The headers that the server sends with every answer, written down; they change once a second, with the date."""

    def __init__(self) -> None:
        self._headers: Any = None
        self._text = b""

    def text(self, headers: Any) -> bytes:
        if headers is not self._headers:
            self._headers, self._text = headers, b"".join(b"%b: %b\r\n" % pair for pair in headers)
        return self._text


class _Bounds(_Any):  # type: ignore[misc]  # - which of the two is known later
    """The bounds of a request's head, around a connection of uvicorn's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answering: Any = self.app
        self.app: Any = self._answer
        self._head_bytes = 0
        self._in_head = False
        self._head_timer: TimerHandle | None = None

    def _answer(self, scope: Any, receive: Any, send: Any) -> Any:
        scope["extensions"] = {ABORT: self.transport.abort}
        return self._answering(scope, receive, send)

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self._reading_head():
            self._end()  # a body is read by who answers, and has its own bounds
            return
        self._begin()  # a head, or what is nothing at all
        if self._head_bytes > HEAD_BYTES:
            if self._in_head:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _reading_head(self) -> bool:
        import h11  # noqa: PLC0415 - it is there, for this is its protocol

        self._in_head = self.conn.their_state is h11.IDLE
        return self._in_head

    def _begin(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _end(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Swift(_Bounds):
    """The same around httptools, which can do more at once."""

    usual = _Usual()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle_since: float | None = None  # while nothing is asked
        self._idle_timer: TimerHandle | None = None

    def _answer(self, scope: Any, receive: Any, send: Any) -> Any:
        scope["extensions"] = {ABORT: self.transport.abort, DIRECT: Direct(send.__self__, self.usual)}
        return self._answering(scope, receive, send)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.scope[HEAD] = self._head_bytes  # more than its own, if it came with others or with a body
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._look_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _reading_head(self) -> bool:
        return self._in_head

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _look_after(self, seconds: float) -> None:
        self._idle_timer = self.loop.call_later(seconds, self._idle)

    def _idle(self) -> None:
        """Close the connection if nothing was asked for so long; else look again when it might be."""
        self._idle_timer = None
        if self._idle_since is None or self.transport.is_closing():
            return  # whoever answers begins anew
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_after(left)
        else:
            self.timeout_keep_alive_handler()


def bounded(name: str = "auto") -> type[Any]:
    """Give uvicorn's protocol of this name, with bounds; by default httptools, if it is installed, else h11."""
    if name != "h11":
        with contextlib.suppress(ImportError):
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - if it is there

            return type("Bounded", (_Swift, HttpToolsProtocol), {})
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415 - one of the two

    return type("Bounded", (_Bounds, H11Protocol), {})
