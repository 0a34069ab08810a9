"""Stores that do not answer: no error, no end of the connection, nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from holdfast.store import Command, Store


class SilentStore:
    """Passes everything on; once it is silent, commits do not come back until it speaks again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._speaks = threading.Event()
        self._speaks.set()

    def silence(self) -> None:
        self._speaks.clear()

    def speak(self) -> None:
        self._speaks.set()

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        await asyncio.to_thread(self._speaks.wait)
        return await self._store.commit(batch)

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        self._speaks.wait()
        return self._store.commit_blocking(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class SilentWire(socketserver.ThreadingTCPServer):
    """Passes connections on to a server; once it is silent, nothing arrives in either direction."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.speaks = threading.Event()
        self.speaks.set()
        parts = urlsplit(url)
        self.server = (parts.hostname or "127.0.0.1", parts.port or 5432)
        user = f"{parts.username}@" if parts.username else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.server_address[1]}"))
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Passing(socketserver.BaseRequestHandler):
    server: SilentWire

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self.server.server) as far:
            threading.Thread(target=self._pass, args=(self.request, far), daemon=True).start()
            self._pass(far, self.request)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.server.speaks.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
