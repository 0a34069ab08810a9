"""A pooler between the store and its server, as far as a client can see one."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from urllib.parse import urlsplit, urlunsplit

from support.postgres import server


class Pooler(socketserver.ThreadingTCPServer):
    """Stands between, and names itself where a server names its process: as every pooler does."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        parts = urlsplit(server().url)
        return urlunsplit(parts._replace(netloc=f"postgres@127.0.0.1:{self.server_address[1]}"))


class Passing(socketserver.BaseRequestHandler):
    """One connection through the pooler."""

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", urlsplit(server().url).port or 0)) as behind:
            threading.Thread(target=self._pass, args=(self.request, behind), daemon=True).start()
            self._pass(behind, self.request)

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                head, key, rest = data.partition(b"K\0\0\0\x0c")  # the process's number is behind it
                other.sendall(head + key + (b"\0\0\0\1" + rest[4:] if key else rest))
            other.shutdown(socket.SHUT_WR)
