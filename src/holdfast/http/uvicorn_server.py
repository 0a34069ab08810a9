"""The server: uvicorn, with the bounds that it leaves open. It uses httptools and uvloop where they are installed.

- What one connection may do is bounded; see `protocol`.
- A client that takes nothing of what is sent to it is cut off.
- A signal stops it in order: no more work is taken, streams end, requests that are under way are answered.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn

from holdfast.gc_tuning import tune_gc
from holdfast.http.application import Service
from holdfast.http.uvicorn_protocol import HEAD_BYTES, bounded

__all__ = ["listen", "serve", "server"]

CONNECTIONS = 2000
IDLE_SECONDS = 15  # how long a connection may be kept by a client that asks nothing
STALLED_MS = 60_000  # after which the kernel gives up a peer that acknowledges nothing


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
        limit_concurrency=CONNECTIONS, timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=5,
    )  # fmt: skip
    return _Server(config, service)


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until a signal says to stop."""
    tune_gc()
    server(service).run(sockets=[listening])
