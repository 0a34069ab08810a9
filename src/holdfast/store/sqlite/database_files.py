"""The files of an open SQLite database: created private, held so that no other program deletes the log, checked.

SQLite's own locks on the database are POSIX locks. The kernel drops all POSIX locks of a process on a file when the
process closes any descriptor of that file. That may be a backup in Python, a second SQLite library, or `open().read()`.
Then another program that reads and closes the database believes that it is the last user. It deletes the log under the
processes that write to it. So:

- This module opens a descriptor of the database once per process and closes it after the last connection.
- On Linux it holds two shared locks of its own (`F_OFD_SETLK`) for as long: one where SQLite looks before it deletes
  the log, one where it looks before it clears the shared memory. They belong to the descriptor, so that no other
  `close` drops them.
- `descriptor_locks` does the same for the locks that SQLite takes on the shared memory for each read and commit.
- `check` compares the inodes of database, log and shared memory with those that were opened; see `file_identity`.

What can fail:

- A file was deleted or replaced: `StoreReplaced`.
- The system has no such locks: SQLite's own must do.
- A forked child inherits the descriptors: it closes them at once, which does not release its parent's locks.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from holdfast.errors import StoreReplaced, StoreUnavailable
from holdfast.store.sqlite import descriptor_locks
from holdfast.store.sqlite.commit_watcher import file_mark
from holdfast.store.sqlite.file_identity import identity, identity_of

# Where SQLite's lock bytes are: https://sqlite.org/src/file/src/os.h and https://sqlite.org/walformat.html
SHARED_FIRST, SHARED_SIZE = 0x40000002, 510  # of the database: held shared by each open connection
DEAD_MAN_SWITCH = 128  # of the shared memory: held shared by each process that has it mapped
INDEX_HEADER_BYTES = 48  # at its beginning: each commit changes a counter in them

ALL_FILES = 3  # fewer where a file system cannot share memory between processes, and SQLite does without a log

_table: dict[tuple[int, int], DatabaseFiles] = {}
_carried: set[tuple[int, int]] = set()  # databases that this process has inherited open, in use
_changing = threading.RLock()  # while the table changes, or a last connection is closed; a store may be collected then


class DatabaseFiles:
    """Database, log and shared memory of one database that this process has open; one object for all its stores."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._real_path = os.path.realpath(path)  # next to which SQLite keeps the log
        self._descriptor = descriptor
        self._key = identity(os.fstat(descriptor))
        self._shared_memory: int | None = None
        self.users = 0
        self._held = False
        self._locked = False  # whether the system gave the locks
        self._identities: list[tuple[str, tuple[int, int]]] = []

    @classmethod
    def attach(cls, path: Path) -> DatabaseFiles:
        """Return the files of a database, which is created if it is missing; `detach` is called once for each call."""
        with _changing:
            with contextlib.suppress(FileNotFoundError):
                key = identity_of(str(path))
                if key in _carried:
                    raise StoreUnavailable(
                        f"{path}: a transaction was under way when this process was forked: fork again"
                    )
                known = _table.get(key)
                if known is not None:
                    known.users += 1
                    return known
            descriptor_locks.install()
            # Created here, so that no other user can read it from the first moment on.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            files = cls(path, descriptor)
            _table[files._key] = files
            files.users = 1
            return files

    def hold(self) -> None:
        """Take the locks and remember which files these are. A connection must be open, in WAL mode."""
        with _changing:
            if self._held:
                return
            names = [str(self._path), *filter(os.path.exists, (f"{self._real_path}-wal", f"{self._real_path}-shm"))]
            if sys.platform == "linux" and len(names) == ALL_FILES:
                shared_memory = self._open_shared_memory(names[-1])
                locked = _lock_shared(self._descriptor, SHARED_FIRST, SHARED_SIZE)
                self._locked = _lock_shared(shared_memory, DEAD_MAN_SWITCH, 1) and locked
            self._identities = list(zip(names, [self._key, *map(identity_of, names[1:])], strict=True))
            self._held = True

    def _open_shared_memory(self, name: str) -> int:
        """Open it, unless it was kept open. It may have been kept for connections that have removed it since."""
        kept = self._shared_memory
        if kept is not None and identity(os.fstat(kept)) == identity_of(name):
            return kept
        self._shared_memory = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        if kept is not None:
            os.close(kept)
        return self._shared_memory

    def expect_again(self) -> None:
        """Prepare for opening a connection again: without locks, another process may have removed the log."""
        with _changing:
            if self._held and not self._locked and not _is_open(self._real_path):
                self._held = False
                del self._identities[1:]

    def is_in_transaction(self) -> bool:
        """Return, in a forked child, whether SQLite mistakes locks of the user's connection for the child's."""
        return any(not self._locked or _in_transaction(connection) for connection in _open_on(self._real_path))

    def carry_over(self) -> None:
        """Refuse, in a forked child, to open this database, which SQLite believes that it has locked."""
        _carried.add(self._key)

    def check(self) -> None:
        """Check that the files are those that were opened; open and close nothing.

        Raises:
            StoreReplaced: a file was replaced, or is missing.
        """
        for name, known in self._identities:
            try:
                found = identity_of(name)
            except (FileNotFoundError, NotADirectoryError):
                raise StoreReplaced(name, "deleted") from None
            if found != known:
                raise StoreReplaced(name, "replaced")

    def commit_mark(self) -> bytes | tuple[int, int] | None:
        """Return what changes with each commit of any program: the beginning of the shared memory, or the log's times.

        None: it cannot be read.
        """
        if self._shared_memory is None:
            return file_mark(f"{self._real_path}-wal")
        try:
            return os.pread(self._shared_memory, INDEX_HEADER_BYTES, 0)
        except (OSError, TypeError):  # the file is being closed
            return None

    def detach(self, connections: Sequence[apsw.Connection]) -> None:
        """Close a store's connections. The database's last user moves the log's content to it."""
        with _changing:
            self.users -= 1
            last = self.users == 0 and _table.get(self._key) is self  # a forked child must not unlock its parent's
            if last:
                self._release()
            is_ours = self._is_in_place()
            for connection in connections:
                if not is_ours:  # what is in the log does not belong to the file that has the name now
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close()
            if last and not _is_open(self._real_path):
                del _table[self._key]
                self._close_descriptors()

    def _release(self) -> None:
        if self._held and self._shared_memory is not None:
            _unlock(self._descriptor, SHARED_FIRST, SHARED_SIZE)
            _unlock(self._shared_memory, DEAD_MAN_SWITCH, 1)
        self._held = False

    def _is_in_place(self) -> bool:
        try:
            self.check()
        except (StoreReplaced, OSError):
            return False
        return True

    def _close_descriptors(self) -> None:
        for descriptor in (self._descriptor, self._shared_memory):
            if descriptor is not None:
                os.close(descriptor)
        self._shared_memory = None


def connect(path: Path, busy_seconds: float) -> apsw.Connection:
    """Open a connection whose commits are on disk when they return."""
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(round(busy_seconds * 1000))
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "FULL")
        connection.pragma("foreign_keys", "ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_open(path: str) -> bool:
    """Return whether a connection of this process has the database open, such as one of the user's code."""
    return next(_open_on(path), None) is not None


def _open_on(path: str) -> Iterator[apsw.Connection]:
    for connection in apsw.connections():
        with contextlib.suppress(apsw.Error):
            if connection.filename == path:
                yield connection


def _in_transaction(connection: apsw.Connection) -> bool:
    try:
        return connection.txn_state() != apsw.SQLITE_TXN_NONE
    except apsw.Error:  # another thread uses it at this moment
        return True


def _lock_shared(descriptor: int, start: int, length: int) -> bool:
    import fcntl  # noqa: PLC0415 - Linux only

    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _region(fcntl.F_RDLCK, start, length))
    except OSError:  # a file system without such locks: SQLite's own must do
        return False
    return True


def _unlock(descriptor: int, start: int, length: int) -> None:
    import fcntl  # noqa: PLC0415 - Linux only

    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _region(fcntl.F_UNLCK, start, length))


def _region(kind: Any, start: int, length: int) -> bytes:
    """Return a `struct flock`: type, whence, start, length, and a process id that must be 0."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def _forget() -> None:
    """Close the parent's descriptors in a forked child. The parent keeps its locks."""
    global _changing  # noqa: PLW0603 - the parent may have held it, in a thread that the child does not have
    _changing = threading.RLock()
    for files in list(_table.values()):
        files._close_descriptors()  # noqa: SLF001 - of this module
    _table.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
