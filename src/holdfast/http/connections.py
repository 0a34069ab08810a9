"""The open connections of a server, and their bound.

A connection is busy while it has a request, else idle. If there are too many connections, the server aborts the one
that has been idle longest. So clients that connect and send nothing cannot keep others out. If all connections are
busy, new ones get 503. Probes are answered beyond the bound, because an orchestrator restarts a server that does not
answer them.
"""

from __future__ import annotations

from typing import Protocol

PROBES = frozenset({"/healthz", "/readyz"})
RESERVE = 100  # connections beyond the bound, for probes and for responses that say 503


class Connection(Protocol):
    """What the server can do with a connection of a client."""

    def abort(self) -> None:
        """Close the connection at once."""


class Connections:
    """The connections of one server. `refused` counts connections that it aborted, and requests that the guard refused.

    Args:
        most: the bound of connections.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.refused = 0
        self._idle: dict[Connection, None] = {}  # in the order in which they became idle
        self._busy: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    @property
    def is_full(self) -> bool:
        """Whether more connections are busy than may be."""
        return len(self._busy) > self.most

    def open(self, connection: Connection) -> None:
        """Add a new connection. Abort the oldest idle one if there are too many, or this one if all are busy."""
        self._idle[connection] = None
        if len(self) > self.most and len(self._idle) > 1:
            self._abort(next(iter(self._idle)))
        elif len(self) > self.most + RESERVE:
            self._abort(connection)

    def set_busy(self, connection: Connection) -> None:
        """Mark a connection that has received the head of a request."""
        if self._idle.pop(connection, self) is None:
            self._busy.add(connection)

    def set_idle(self, connection: Connection) -> None:
        """Mark a connection whose request has its response."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle[connection] = None

    def lost(self, connection: Connection) -> None:
        """Remove a connection that was closed."""
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def _abort(self, connection: Connection) -> None:
        self.refused += 1
        self.lost(connection)
        connection.abort()
