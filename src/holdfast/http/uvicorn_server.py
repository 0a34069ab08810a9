"""The server: uvicorn, with limits that uvicorn does not have. It uses httptools and uvloop where they are installed.

- `request_guard` bounds each connection.
- The server closes the connection of a client that reads nothing.
- On a signal the server takes no more work, ends the streams, and finishes the requests in progress.
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

from holdfast.gc_settings import tune_gc
from holdfast.http.application import Service
from holdfast.http.connections import PROBES, RESERVE, Connections
from holdfast.http.problems import Problem
from holdfast.http.request_guard import CONNECTION, RequestGuard
from holdfast.http.request_limits import CLOSE
from holdfast.http.streams import ABORT

CONNECTIONS = 4000
FILES = 65_536  # descriptors that the process asks for, if it may
OTHER_FILES = 256  # descriptors that are not connections: the store, its log, the interpreter's own
IDLE_SECONDS = 15  # how long an idle connection stays open
STALLED_MS = 60_000  # the kernel drops a peer that acknowledges nothing for this time

_FULL = Problem(
    503, "too_many_requests", "the server has as many requests in progress as it can have", "try again later",
    headers=[(b"retry-after", b"5"), *CLOSE],
)  # fmt: skip


class _Server(uvicorn.Server):
    """A uvicorn server that ends the streams first, because uvicorn waits for open requests."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._service.maintenance.look()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)
        await asyncio.to_thread(self._service.maintenance.join)
        await self._service.client.aclose()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 selects a free port.

    Raises:
        OSError: the address is in use, or does not belong to this machine.
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


def raise_file_limit() -> int:
    """Raise the limit of open files, whose usual value is 1,024. Return the number of connections that fit."""
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = FILES if soft == resource.RLIM_INFINITY else soft
    return max(1, min(CONNECTIONS, files - RESERVE - OTHER_FILES))


def guarded_protocol(connections: Connections, parser: str = "auto") -> type[RequestGuard]:
    """Return the guard class for a parser. ``auto`` selects httptools if it is installed, else h11."""
    if parser != "h11":
        with contextlib.suppress(ImportError):
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - an optional package

            return type("HttpToolsGuard", (RequestGuard,), {"protocol": HttpToolsProtocol, "connections": connections})
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415 - imported only if used

    return type("H11Guard", (RequestGuard,), {"protocol": H11Protocol, "connections": connections})


def guarded_app(service: Service) -> ASGIApp:
    """Return an application that tells the guard of the connection when a response is complete.

    If too many connections have a request, it answers probes only.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        guard: RequestGuard = scope["state"][CONNECTION]
        scope["extensions"] = {**scope.get("extensions", {}), ABORT: guard.transport.abort}
        full = guard.connections.is_full and scope["path"] not in PROBES
        try:
            await (_FULL.answer() if full else service)(scope, receive, send)
        finally:
            asyncio.get_running_loop().call_soon(functools.partial(guard.data_received, b"", answered=True))

    return answer


def server(service: Service, parser: str = "auto") -> uvicorn.Server:
    """Return the configured server."""
    connections = service.connections = Connections(raise_file_limit())
    service.hub.most = min(service.limits.streams, connections.most // 2)  # the others are for requests
    config = uvicorn.Config(
        guarded_app(service), http=guarded_protocol(connections, parser), ws="none", lifespan="off",
        proxy_headers=False, server_header=False, access_log=False, log_level="error", log_config=None,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=5,
    )  # fmt: skip
    return _Server(config, service)


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    tune_gc()
    serving = server(service)

    def stop(_number: int, _frame: FrameType | None) -> None:
        serving.should_exit = True

    # uvicorn handles signals while it serves. This handler is for those before, and for the one that uvicorn raises
    # again after its shutdown: the exit code must be 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    serving.run(sockets=[listening])
