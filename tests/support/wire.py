"""A wire between a worker and PostgreSQL on loopback that fails on demand: it delays, resets, or swallows.

What is swallowed is held back, not lost: when the wire is healed it arrives, late, as after a partition. While one
direction is held, neither data nor the end of a connection gets through it. New connections are accepted by the wire at
any time, as by a proxy whose other side hangs.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from urllib.parse import urlsplit, urlunsplit

TO_SERVER, TO_CLIENT = "to server", "to client"
BOTH = frozenset({TO_SERVER, TO_CLIENT})
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends RST


class Wire:
    """Passes connections on to the server that a URL names."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")))
        self._changed = threading.Condition()
        self._held: frozenset[str] = frozenset()
        self._delay_seconds = 0.0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *directions: str) -> None:
        """Swallow everything in these directions, until it is healed."""
        with self._changed:
            self._held = frozenset(directions)

    def delay(self, seconds: float) -> None:
        """Let everything arrive so much later."""
        with self._changed:
            self._delay_seconds = seconds

    def heal(self) -> None:
        """Pass everything on, what was held back first."""
        with self._changed:
            self._held, self._delay_seconds = frozenset(), 0.0
            self._changed.notify_all()

    def cut(self) -> None:
        """Reset every connection there is."""
        with self._changed:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        """End."""
        self._closed = True
        self._listening.close()
        self.heal()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, server)
        with self._changed:
            self._pairs.add(pair)
        threads = [
            threading.Thread(target=self._pump, args=(client, server, TO_SERVER), daemon=True),
            threading.Thread(target=self._pump, args=(server, client, TO_CLIENT), daemon=True),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self._changed:
            self._pairs.discard(pair)
        for end in pair:
            end.close()

    def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                with self._changed:
                    self._changed.wait_for(lambda: direction not in self._held)
                    late = self._delay_seconds
                if late:
                    time.sleep(late)
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
