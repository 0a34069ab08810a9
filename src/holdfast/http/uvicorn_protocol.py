"""A connection: uvicorn's, with the bounds that it leaves open, and with a short way for what is small and whole.

- The head of a request is bounded in bytes and in time, from the first moment of a connection on, whichever parser
  reads it: a client that sends it drop by drop holds a connection for seconds and not for ever.
- With httptools, a body that is all there is taken as it is, and a small answer is written in one go (`Direct`):
  messages, and checks that are for strangers' headers, are much of what a small request costs.
- Requests that come behind one another are read as they are answered, and not before: what waits in line is what one
  piece of a read has brought, and the rest of that read as bytes. Nothing is written between their answers, and when
  their client leaves, nobody goes on for it.
- A connection that nobody uses is closed after a while. One timer looks after it for as long as it lasts, and not one
  for each request.
"""

from __future__ import annotations

import contextlib
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

from holdfast.http.request_limits import CLOSE, HEAD
from holdfast.http.response import DIRECT, Answer
from holdfast.http.streams import ABORT

__all__ = ["HEAD_BYTES", "bounded"]

HEAD_BYTES = 32 * 1024  # of a request's first line and headers, as they come
HEAD_SECONDS = 10.0  # how long they may take
DRAIN_BYTES = 64 * 1024 * 1024  # of a body that is read and forgotten behind an answer that did not wait for it
PIECE_BYTES = 16 * 1024  # of a read that are looked at before it is seen whether something waits in line
WHOLE_BYTES = 64 * 1024  # an answer up to this is written in one go

STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


_Any: Any = object  # what stands beside it: one of uvicorn's two protocols


class Direct:
    """The short way of one request: what `receive` and `send` would do in several messages, at once."""

    __slots__ = ("_cycle", "_usual")

    def __init__(self, cycle: Any, usual: _Usual) -> None:
        self._cycle: Any = cycle
        self._usual = usual

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
        self._cycle = None  # which refers to us: nothing is left for the garbage collector
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
        self._bytes_before = 0  # what came with a head's beginning, and may be of requests before it
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
            self._look_at_body(len(data))
            return
        if answering and self._wait_in_line():
            return
        self._look_at_body(len(data))  # one that nobody waited for, if any
        self._begin()  # a head, or what is nothing at all
        if self._head_bytes > self._bytes_max():
            if self._in_head:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _reading_head(self) -> bool:
        import h11  # noqa: PLC0415 - it is there, for this is its protocol

        self._in_head = self.conn.their_state is h11.IDLE
        return self._in_head

    def _bytes_max(self) -> int:
        """How much may come while nothing is answered."""
        return HEAD_BYTES

    def _look_at_body(self, size: int) -> None:
        """Look at so many bytes that came behind a head."""

    def _wait_in_line(self) -> bool:
        """Have a head that comes behind others wait until these are answered, if that is not done already."""
        return False

    def _begin(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _end(self) -> None:
        self._head_bytes = self._bytes_before = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Flow(FlowControl):
    """Reads no further while something waits in line: else each answer would let in as much as one read holds."""

    def __init__(self, transport: Transport, connection: _Swift) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        if not self._connection.in_line():
            super().resume_reading()


class _Swift(_Bounds):
    """The same around httptools, which can do more at once."""

    usual = _Usual()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle_since: float | None = None  # while nothing is asked
        self._idle_timer: TimerHandle | None = None
        self._unread = b""  # what a read has brought, and is looked at when those in line are answered
        self._answered: Any = None  # the one that is answered now; `cycle` is the last that has come
        self._in_body = self._had_body = False
        self._no_body_bytes = 0  # that came where a body should

    def _answer(self, scope: Any, receive: Any, send: Any) -> Any:
        scope["extensions"] = {ABORT: self.transport.abort, DIRECT: Direct(send.__self__, self.usual)}
        return self._answering(scope, receive, send)

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self.flow = _Flow(transport, self)

    def in_line(self) -> bool:
        """Whether a request, or the beginning of one, waits for another's answer."""
        if self.pipeline or self._unread:
            return True
        return self._in_head and self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self._unread or len(data) > PIECE_BYTES:
            self._unread += data
            self._go_on()
        else:
            super().data_received(data)

    def _go_on_soon(self) -> None:
        """One was answered: look at what comes behind it, if that is the next in line, or its body."""
        if self._unread and not self.pipeline:
            self.loop.call_soon(self._go_on)
        self.flow.resume_reading()

    def _go_on(self) -> None:
        """Look at what was read, piece by piece, until something waits in line."""
        data, self._unread = self._unread, b""
        place = 0
        while place < len(data) and not self.in_line() and not self.transport.is_closing():
            super().data_received(data[place : place + PIECE_BYTES])
            place += PIECE_BYTES
        if self.transport.is_closing():
            return
        self._unread = data[place:]
        if self._unread:
            self.flow.pause_reading()
        elif not self._has_enough():
            self.flow.resume_reading()

    def _has_enough(self) -> bool:
        """Whether as much of a body is kept as may be, until who answers takes it."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and len(cycle.body) > HIGH_WATER_LIMIT

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._had_body = False, True, True  # what came with the head is not looked at
        if self.parser.should_upgrade() and any(_says_body(name, value) for name, value in self.headers):
            raise ValueError("its body would be read as another request, for the parser believes in the upgrade")
        # More than its own, if it came with others or with a body.
        self.scope[HEAD] = self._bytes_before + self._head_bytes
        super().on_headers_complete()
        if self.parser.should_upgrade():  # the parser gives up the rest of a read: the next would lack its head
            self.cycle.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # what comes behind one is no header: it was not there when others looked
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._had_body = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; if others are still to be answered, by closing behind their answers."""
        if self.in_line() or (self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body):
            self.cycle.keep_alive = False
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        if self.pipeline:
            super().on_response_complete()
            self._go_on_soon()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._go_on_soon()
        if self._in_head:
            self._begin()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._look_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        answered = self._answered
        if answered is not None and not answered.response_complete:
            answered.disconnected = True
            answered.message_event.set()
        self.pipeline.clear()
        self._unread = b""
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _reading_head(self) -> bool:
        return self._in_head

    def on_message_complete(self) -> None:
        self._in_body = False
        if self.cycle.response_complete:
            # It was a body's, which nobody waited for; or of the next head, if that came with it.
            self._bytes_before, self._head_bytes = self._bytes_before + self._head_bytes, 0
        super().on_message_complete()

    def _bytes_max(self) -> int:
        return DRAIN_BYTES if self._in_body else HEAD_BYTES  # of a body that was refused, so that this is heard

    def _look_at_body(self, size: int) -> None:
        self._no_body_bytes = 0 if self._had_body or not self._in_body else self._no_body_bytes + size
        self._had_body = False
        if self._no_body_bytes > HEAD_BYTES:  # trailers, or what a chunk's size is told with
            self.transport.abort()

    def _wait_in_line(self) -> bool:
        before = self._bytes_before + self._head_bytes
        self._end()
        self._bytes_before = before
        self.flow.pause_reading()
        return True

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


def _says_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0") != b"")


def bounded(name: str = "auto") -> type[Any]:
    """Give uvicorn's protocol of this name, with bounds; by default httptools, if it is installed, else h11."""
    if name != "h11":
        with contextlib.suppress(ImportError):
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - if it is there

            return type("Bounded", (_Swift, HttpToolsProtocol), {})
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415 - one of the two

    return type("Bounded", (_Bounds, H11Protocol), {})
