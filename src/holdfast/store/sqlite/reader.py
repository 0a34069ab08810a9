"""A SQLite store that is only read: the database and its log stay as they are, whatever the caller does.

Workers may use the file meanwhile. Each read sees everything that was committed before it began. While no process uses
the file, it has no log, and SQLite would make one to read it. So it is then read as a file that cannot change. If it
has changed by the end of such a read, the read is repeated with the log.

What can fail: the file is missing, damaged, or has another schema than this release: `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from holdfast.clock import SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.store.sql.migrate import migrations, too_new
from holdfast.store.sql.reads import SqlReads
from holdfast.store.sqlite.error_text import guarded
from holdfast.store.sqlite.store import READS

BUSY_SECONDS = 30.0  # that a read waits for another program that has locked the whole file


class SqliteReader(SqlReads):
    """The reads of a store in a SQLite file; see the module's docstring."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(READS)
        self._path = Path(path).absolute()
        if not self._path.is_file():
            raise StoreUnavailable(f"the store sqlite:///{path} does not exist: name the store with --url")
        self._log = self._path.resolve().with_name(f"{self._path.resolve().name}-wal")
        self._unused = guarded(self._path, self._state)  # the file, while no process uses it
        self._connection = guarded(self._path, self._connect)

    def _state(self) -> tuple[int, int] | None:
        """Return what changes with the file; None if a process uses it."""
        status = self._path.stat()
        return None if self._log.exists() else (status.st_mtime_ns, status.st_size)

    def _connect(self) -> apsw.Connection:
        place = f"file:{quote(str(self._path))}?mode=ro{'&immutable=1' if self._unused is not None else ''}"
        connection = apsw.Connection(place, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        connection.set_busy_timeout(round(BUSY_SECONDS * 1000))
        current, known = connection.pragma("user_version"), len(migrations("sqlite"))
        if current > known:
            raise too_new(current, known)
        if current < known:
            raise StoreUnavailable(f"{self._path} has schema {current}, not {known}: run `holdfast migrate` first")
        return connection

    async def _read(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        return guarded(self._path, lambda: self._fetch(sql, bindings))

    def _fetch(self, sql: str, bindings: Sequence[Any]) -> list[Any]:
        rows = self._connection.execute(sql, bindings).fetchall()
        if self._unused is not None and self._state() != self._unused:
            self._connection.close()
            self._unused = None
            self._connection = self._connect()
            rows = self._connection.execute(sql, bindings).fetchall()
        return rows

    async def now(self) -> float:
        """Read the host's clock."""
        return SystemClock().now()

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()
