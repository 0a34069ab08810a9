"""The fork guard: closes the connections of open SQLite stores while their process forks.

SQLite keeps in memory which locks its process holds on a file. A child has that memory and none of the locks. A
connection that it opened next to an inherited one would read and write without them. So each store closes its
connections before a fork, and opens them again when they are needed. The descriptors of `database_files` stay open in
the parent: their locks keep the log in place. The store compares the files that it opens again with those before.

What can fail:

- A read or a transaction does not end within `FORK_SECONDS`, or the fork happens inside one: the child inherits the
  connections. It can never use that file, and gets `StoreUnavailable`. The parent goes on.
- The user's code has a transaction under way, on a connection of its own: the same.
- Two threads fork at once: one after the other.
- The parent's store is used in the child: `StoreUnavailable`. An inherited connection is never closed there, because
  closing one rolls back in shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from typing import Protocol

import apsw

FORK_SECONDS = 2.0  # longest wait for transactions before a fork, for all stores together


class Pausing(Protocol):
    """A store that closes its connections over a fork."""

    def before_fork(self, seconds: float) -> None:
        """Close the connections; reads and writes wait meanwhile."""

    def after_fork_in_parent(self) -> None:
        """Resume reads and writes."""

    def after_fork_in_child(self) -> None:
        """Disable the store in the child."""


open_stores: weakref.WeakValueDictionary[int, Pausing] = weakref.WeakValueDictionary()  # of this process
_forking = threading.Lock()
_paused: list[Pausing] = []


def leak(connection: apsw.Connection) -> None:
    """Prevent a connection from being destroyed, also when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _all() -> list[Pausing]:
    stores = [reference() for reference in open_stores.valuerefs()]  # at once: other threads may open stores
    return [store for store in stores if store is not None]


def _before() -> None:
    _forking.acquire()
    deadline = time.monotonic() + FORK_SECONDS
    for store in _all():
        _paused.append(store)
        store.before_fork(max(0.0, deadline - time.monotonic()))


def _in_parent() -> None:
    for store in _paused:
        store.after_fork_in_parent()
    _paused.clear()
    with contextlib.suppress(RuntimeError):  # it was interrupted before it had the lock
        _forking.release()


def _in_child() -> None:
    global _forking  # noqa: PLW0603 - another thread may wait for it, which the child does not have
    _forking = threading.Lock()
    for store in _all():
        store.after_fork_in_child()
    _paused.clear()
    open_stores.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
