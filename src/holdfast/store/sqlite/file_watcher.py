"""What no commit tells of: workers whose process is gone, and database files that were deleted or replaced."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import StoreReplaced
from holdfast.store.commands import DEATHS, EVERYTHING, WORK
from holdfast.store.sqlite.database_files import DatabaseFiles
from holdfast.store.sqlite.liveness import Attendance

__all__ = ["SqliteWatch"]


class SqliteWatch:
    """Looks at the file system, and tells of each thing once. It does not read the database."""

    def __init__(self, files: DatabaseFiles, attendance: Attendance, tell: Callable[[int], None]) -> None:
        self._files = files
        self._attendance = attendance
        self._tell = tell
        self._dead: set[str] = set()
        self._replaced = False

    def look(self) -> None:
        """Look, and tell what is new: the subscribers then read or write, and get the error there."""
        self._attendance.keep()
        before, self._dead = self._dead, set(self._attendance.dead_workers())
        if self._dead - before:
            self._tell(WORK | DEATHS)
        if not self._replaced and self._is_replaced():
            self._replaced = True
            self._tell(EVERYTHING)

    def _is_replaced(self) -> bool:
        try:
            self._files.check()
        except StoreReplaced:
            return True
        except OSError:
            return False  # the next read or commit tells of it
        return False
