"""Apps in a forked process: blocking calls work in the child, and the child touches nothing of the parent.

A child has a copy of the parent's memory and none of its threads. It shares the parent's files and connections.

- The loop, the journal and the store of an app belong to the parent. The child opens its own on first use.
- SQLite must not carry an open database over a fork, even an unused one. A connection that the child opens would assume
  that it holds the parent's locks. `holdfast.store.sqlite` closes its connections before the fork. It opens them again
  on next use.
- Connections to PostgreSQL belong to the parent. The child closes its copies of the sockets and sends nothing on them.
- A store in memory is not shared. Every call in the child raises.

Workers, calls in progress and jobs of the parent continue in the parent only.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from concurrent.futures import Executor, Future
from typing import Any, Protocol

from holdfast.errors import StoreUnavailable


class Forked(Protocol):
    """An object that must know of forks."""

    def after_fork_in_child(self) -> None:
        """Abandon everything that belongs to the parent process."""


_registered: weakref.WeakSet[Any] = weakref.WeakSet()
_abandoned: list[object] = []  # objects of the parent, referenced so that no destructor touches them


def survive_fork(instance: Forked) -> None:
    """Call `after_fork_in_child` of an object after every fork of this process, for as long as the object exists."""
    _registered.add(instance)


def leave(*objects: object) -> None:
    """Keep objects of the parent from being destroyed in the child."""
    _abandoned.extend(objects)


class _Refusing(Executor):
    """An executor in the child that refuses all work. It replaces an executor of the parent."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, args, kwargs
        raise StoreUnavailable(
            "this store was opened before fork() and belongs to the parent process: open another one in this process"
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """Do nothing: this executor has no threads."""


def abandon_store(store: Any) -> None:
    """Leave an open store to the parent. In the child, calls on it raise, and its sockets are closed."""
    leave(store, *vars(store).values())
    listener = vars(store).get("_listener")
    connections = [vars(store).get("_write_connection"), vars(store).get("_read_connection")]
    connections.append(vars(listener).get("connection") if listener is not None else None)
    for connection in connections:
        if hasattr(connection, "pgconn"):
            _close_socket(connection)
    for name in ("_writer", "_reader"):
        if isinstance(vars(store).get(name), Executor):  # the thread of a SQLite store refuses work by itself
            setattr(store, name, _Refusing())


def _close_socket(connection: Any) -> None:
    """Close the child's copy of a socket without sending anything.

    With an open copy in the child, the server would not notice the death of the parent.
    """
    with contextlib.suppress(Exception):
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, connection.pgconn.socket)  # keeps the descriptor number from being reused
        os.close(null)


def _in_child() -> None:
    for instance in list(_registered):
        instance.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
