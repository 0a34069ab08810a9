"""Errors of SQLite and the system, as `StoreUnavailable` with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.errors import StoreUnavailable

T = TypeVar("T")

CURES: list[tuple[type[apsw.Error], str]] = [
    (apsw.FullError, "the disk is full: free some space"),
    (apsw.ReadOnlyError, "the file or its directory is read-only: give this user the right to write"),
    (apsw.CantOpenError, "the file cannot be opened: check the path and its rights"),
    (apsw.NotADBError, "the file is not a SQLite database: name another, or move this one away"),
    (apsw.CorruptError, "the file is damaged: stop all workers and restore a backup"),
    (apsw.IOError, "the disk reports an error: check it, and the space on it"),
    (apsw.BusyError, "another program holds the file locked: close it"),
    (apsw.LockedError, "another program holds the file locked: close it"),
]


def guarded(path: Path, work: Callable[[], T], moved_note: Callable[[], object] = lambda: None) -> T:
    """Run a function, and turn errors of SQLite and the system into `StoreUnavailable`."""
    try:
        return work()
    except apsw.Error as error:
        if isinstance(error, apsw.ConstraintError) and "this store has moved" in str(error):
            raise StoreUnavailable(f"{path}: {moved_note() or error}") from error
        cure = next((text for kind, text in CURES if isinstance(error, kind)), None)
        if cure is None:
            raise
        raise StoreUnavailable(f"{path}: {cure} ({error})") from error
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}: check the path and its rights") from error
