"""What happens to apps when their process forks: plain calls work in the child, and nothing of the parent is touched.

A child has a copy of the parent's memory, but none of its threads, and it shares the parent's files and connections.

- The loop of an app, its journal and its store are the parent's. The child opens its own when it first needs them.
- SQLite must not carry an open database over a fork, not even unused: a connection that the child opens would believe
  that it holds the locks of the parent's. `holdfast.store.sqlite` closes its connections before the fork, and opens
  them again when they are next needed.
- Connections to PostgreSQL stay the parent's: the child closes its copies of their sockets and says nothing on them.
- A store in memory is not shared: in the child every call raises.

What the parent was doing goes on in the parent alone: workers, calls that are under way, jobs.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from concurrent.futures import Executor, Future
from typing import Any, Protocol

from holdfast.errors import StoreUnavailable

__all__ = ["Forked", "abandon_store", "leave", "survive_fork"]


class Forked(Protocol):
    """What has to know of a fork."""

    def after_fork_in_child(self) -> None:
        """Leave to the parent what is the parent's."""


_living: weakref.WeakSet[Any] = weakref.WeakSet()
_left: list[object] = []  # what is the parent's, kept so that no destructor touches it


def survive_fork(one: Forked) -> None:
    """Have an object told of every fork of this process, for as long as it lives."""
    _living.add(one)


def leave(*things: object) -> None:
    """Keep what is the parent's from being destroyed in the child."""
    _left.extend(things)


class _Refusing(Executor):
    """Stands where the parent's threads were."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, args, kwargs
        raise StoreUnavailable("this store was opened before fork(): it is the parent's; open another in this process")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """There is nothing to end."""


def abandon_store(store: Any) -> None:
    """Leave an open store to the parent, in the child: whoever still has it is refused, and its sockets are closed."""
    leave(store, *vars(store).values())
    listener = vars(store).get("_listener")
    connections = [vars(store).get("_write_connection"), vars(store).get("_read_connection")]
    connections.append(vars(listener).get("connection") if listener is not None else None)
    for connection in connections:
        if hasattr(connection, "pgconn"):
            _close_socket(connection)
    for name in ("_writer", "_reader"):
        if isinstance(vars(store).get(name), Executor):  # the thread of a SQLite store refuses by itself
            setattr(store, name, _Refusing())


def _close_socket(connection: Any) -> None:
    """Close the child's copy of a socket, without a word to the server: else the parent's death would not be seen."""
    with contextlib.suppress(Exception):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, connection.pgconn.socket)  # so that its number is not given to another file
        os.close(nothing)


def _in_child() -> None:
    for one in list(_living):
        one.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
