"""A wire between client and server that loses answers when it is told to: the request arrives, the answer does not."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading


class Cutting(socketserver.ThreadingTCPServer):
    """Passes connections on to a port; the next `lose` requests that begin so are done, and their answers lost."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.port = port
        self.lose: list[bytes] = []
        self.lost: list[bytes] = []
        self.open: set[socket.socket] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def cut(self) -> None:
        """End every connection there is."""
        for one in list(self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Passing(socketserver.BaseRequestHandler):
    server: Cutting

    def handle(self) -> None:
        self._losing = False
        self.server.open.add(self.request)
        try:
            with socket.create_connection(("127.0.0.1", self.server.port)) as behind:
                threading.Thread(target=self._requests, args=(behind,), daemon=True).start()
                self._answers(behind)
        except OSError:
            pass
        finally:
            self.server.open.discard(self.request)

    def _requests(self, behind: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                if self.server.lose and data.startswith(self.server.lose[0]):
                    self.server.lost.append(self.server.lose.pop(0))
                    self._losing = True
                behind.sendall(data)
            behind.shutdown(socket.SHUT_RDWR)

    def _answers(self, behind: socket.socket) -> None:
        while data := behind.recv(65536):
            if self._losing:  # the server has answered, so it has done it
                self.request.shutdown(socket.SHUT_RDWR)
                return
            self.request.sendall(data)
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)
