"""The file watcher: finds dead workers, and database files that were deleted or replaced. No commit shows these."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import StoreReplaced
from holdfast.store.commands import DEATHS, EVERYTHING, WORK
from holdfast.store.sqlite.database_files import DatabaseFiles
from holdfast.store.sqlite.liveness import LivenessLocks


class FileWatcher:
    """Checks the file system and reports each change once. It does not read the database."""

    def __init__(self, files: DatabaseFiles, liveness: LivenessLocks, tell: Callable[[int], None]) -> None:
        self._files = files
        self._liveness = liveness
        self._tell = tell
        self._dead: set[str] = set()
        self._replaced = False

    def look(self) -> None:
        """Check the files and report changes. The subscribers then read or write, and get the error there."""
        self._liveness.keep()
        before, self._dead = self._dead, set(self._liveness.dead_workers())
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
            return False  # the next read or commit raises the error
        return False
