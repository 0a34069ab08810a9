"""The server: uvicorn, with the bounds that it leaves open. It uses httptools and uvloop where they are installed.

- What one connection may do is bounded; see `request_guard`.
- A client that takes nothing of what is sent to it is cut off.
- A signal stops it in order: no more work is taken, streams end, requests that are under way are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.gc_tuning import tune_gc
from holdfast.http.application import Service
from holdfast.http.request_guard import CONNECTION, RequestGuard
from holdfast.http.streams import ABORT

__all__ = ["listen", "serve", "server"]

CONNECTIONS = 2000
IDLE_SECONDS = 15  # how long a connection may be kept by a client that asks nothing
STALLED_MS = 60_000  # after which the kernel gives up a peer that acknowledges nothing


class _Server(uvicorn.Server):
    """Ends the streams first: uvicorn waits for the requests that are under way."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)
        await self._service.client.aclose()


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


def guarded_protocol(parser: str = "auto") -> type[RequestGuard]:
    """Return the guard in front of uvicorn's protocol for this parser: httptools if it is installed, else h11."""
    if parser != "h11":
        with contextlib.suppress(ImportError):
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - it is optional

            return type("HttpToolsGuard", (RequestGuard,), {"protocol": HttpToolsProtocol})
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415 - only if it is used

    return type("H11Guard", (RequestGuard,), {"protocol": H11Protocol})


def guarded_app(service: Service) -> ASGIApp:
    """Return an application that tells the guard of a connection when a request is answered."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        guard: RequestGuard = scope["state"][CONNECTION]
        scope["extensions"] = {**scope.get("extensions", {}), ABORT: guard.transport.abort}
        try:
            await service(scope, receive, send)
        finally:
            asyncio.get_running_loop().call_soon(functools.partial(guard.data_received, b"", answered=True))

    return answer


def server(service: Service, parser: str = "auto") -> uvicorn.Server:
    """Make the server."""
    config = uvicorn.Config(
        guarded_app(service), http=guarded_protocol(parser), ws="none", lifespan="off", proxy_headers=False,
        server_header=False, access_log=False, log_level="warning", log_config=None, limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=5,
    )  # fmt: skip
    return _Server(config, service)


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until a signal says to stop."""
    tune_gc()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)  # uvicorn raises it again when it has stopped: the process ends with 0
    server(service).run(sockets=[listening])


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing about a signal that was already obeyed."""
