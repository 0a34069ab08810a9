"""Timeouts of calls to PostgreSQL: no call of the store blocks without a limit (L11).

The driver waits for a reply as long as the connection lives. A network that drops all packets, a proxy that hangs or a
server process that is stopped keeps it alive: TCP sees no error. So a thread of each store watches the calls under way.
When a call takes too long, the thread shuts its socket down. The driver sees the end of the connection, and the caller
gets an error. The connection is then broken and is never used again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import psycopg

from holdfast.store.postgres.schema import Connection


class CallTimeout(psycopg.OperationalError):
    """The server did not reply to a call in time."""


class CallWatcher:
    """Watches the calls of one store.

    Args:
        seconds: how long a call may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._calls: dict[object, tuple[float, Connection]] = {}
        self._given_up: set[object] = set()
        self._some = threading.Event()  # whether there is a call under way
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-watch", daemon=True)
        self._thread.start()

    def deadline(self) -> float:
        """Return when a call that begins now must have ended."""
        return time.monotonic() + self.seconds

    @contextlib.contextmanager
    def over(self, connection: Connection, deadline: float) -> Iterator[None]:
        """Shut the connection down if its use takes longer than `deadline`.

        Raises:
            CallTimeout: it was shut down.
        """
        call = object()
        with self._lock:
            self._calls[call] = deadline, connection
        self._some.set()
        try:
            yield
        except Exception as error:
            if self._end(call):
                raise CallTimeout(f"it did not answer within {self.seconds:g} s") from error
            raise
        finally:
            self._end(call)

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._some.set()
        self._thread.join()

    def _end(self, call: object) -> bool:
        """Remove a call from the list; return whether it timed out."""
        with self._lock:
            self._calls.pop(call, None)
            given_up = call in self._given_up
            self._given_up.discard(call)
            return given_up

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                now = time.monotonic()
                for call, (deadline, connection) in list(self._calls.items()):
                    if deadline <= now:
                        del self._calls[call]
                        self._given_up.add(call)
                        _shut_down(connection)  # under the lock: the call, and so its socket, still exists
                if not self._calls:
                    self._some.clear()
            if self._some.is_set():
                self._stopping.wait(self.seconds / 20)
            else:
                self._some.wait()


def _shut_down(connection: Connection) -> None:
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)  # an error says that it is closed already
