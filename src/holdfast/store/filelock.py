"""A lock between processes of one host, taken before each transaction on a SQLite file.

It is advisory and lies on a file of its own, never on the database: closing any descriptor of a database drops SQLite's
own locks on it. The kernel releases it when a process dies. Where there is no flock, SQLite's own lock has to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    _fcntl = None  # type: ignore[assignment]  # - a module, or nothing
fcntl: Any = _fcntl

__all__ = ["FileLock"]

T = TypeVar("T")


class FileLock:
    """Holds one lock file open; `run` does work while no other process does its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def run(self, work: Callable[[], T]) -> T:
        """Wait for the lock, work, let go."""
        if fcntl is None:  # pragma: no cover - see above
            return work()
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            return work()
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def ring(self) -> None:
        """Write to the file, so that whoever watches it knows that something was committed."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, b"!", 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
