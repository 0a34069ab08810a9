"""Online backup of a SQLite database: consistent, checked and atomic, while workers use it.

SQLite copies the pages in one read transaction. The copy holds what was committed when it began. Writers go on
meanwhile. The copy is made next to its destination, checked, written to disk, and then renamed.

What can fail: there is no such database, the destination exists or is in use, the disk is full, or the copy does not
pass its check. Then it raises `StoreUnavailable` or `InvalidArguments`, and the destination does not change.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast.errors import InvalidArguments, StoreUnavailable
from holdfast.store.effects import sync_folder
from holdfast.store.sqlite.error_text import guarded
from holdfast.store.sqlite.file_lock import BUSY_SECONDS

_ENDS = ("-wal", "-shm", "-journal")  # what SQLite may have next to a database that is in use


class Backup(msgspec.Struct, frozen=True):
    """A finished copy: its path, its size, and its content."""

    path: str
    bytes: int
    schema: int
    jobs: int
    events: int


def back_up(source: str | Path, destination: str | Path, *, force: bool = False) -> Backup:
    """Copy a database, check the copy, and put it in place; with `force` over a file that is there.

    Raises:
        InvalidArguments: the destination is not valid.
        StoreUnavailable: there is no database, or the copy failed.
    """
    here, there = Path(source).absolute(), Path(destination).absolute()
    if not here.is_file():
        raise StoreUnavailable(f"{here}: there is no such file to back up")
    _check_destination(here, there, force=force)
    new = there.with_name(f".{there.name}.{os.getpid()}.new")
    try:
        guarded(there, lambda: _copy(here, new))
        made = guarded(there, lambda: _checked(new))
        guarded(there, lambda: _put_in_place(new, there, force=force))
    finally:
        for end in ("", *_ENDS):
            Path(f"{new}{end}").unlink(missing_ok=True)
    return msgspec.structs.replace(made, path=str(there))


def _check_destination(here: Path, there: Path, *, force: bool) -> None:
    if there.is_dir():
        raise InvalidArguments("backup", f"{there} is a directory: name a file in it")
    if there.exists() and there.samefile(here):
        raise InvalidArguments("backup", f"{there} is the database itself: name another file")
    if there.exists() and not force:
        raise InvalidArguments("backup", f"{there} exists: name another file, or use --force to replace it")
    for end in _ENDS:
        if Path(f"{there}{end}").exists():
            raise InvalidArguments("backup", f"{there}{end} exists, so another program uses {there}: name another file")


def _copy(here: Path, new: Path) -> None:
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # before any connection has it
    source = apsw.Connection(str(here), flags=apsw.SQLITE_OPEN_READWRITE)
    target = apsw.Connection(str(new))
    try:
        source.set_busy_timeout(round(BUSY_SECONDS * 1000))
        with target.backup("main", source, "main") as copying:
            while (
                not copying.done
            ):  # all pages at once: between two steps another process may write, and it begins again
                copying.step(-1)
    finally:
        target.close()
        source.close()


def _checked(new: Path) -> Backup:
    connection = apsw.Connection(str(new))
    try:
        problems = [text for (text,) in connection.execute("PRAGMA integrity_check(5)")]
        if problems != ["ok"]:
            raise StoreUnavailable(f"the copy is damaged, so the database may be: {'; '.join(map(str, problems))}")
        schema: int = connection.pragma("user_version")
        jobs, events = (_count(connection, table) for table in ("jobs", "events"))
    finally:
        connection.close()
    return Backup("", new.stat().st_size, schema, jobs, events)


def _count(connection: apsw.Connection, table: str) -> int:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchall():
        raise StoreUnavailable("the file has no table of jobs: it is not a database of Holdfast")
    count: Any = connection.execute(f"SELECT count(*) FROM {table}").get
    return int(count)


def _put_in_place(new: Path, there: Path, *, force: bool) -> None:
    with new.open("rb") as file:  # all connections to it are closed
        os.fsync(file.fileno())
    if force:
        new.replace(there)
    else:
        try:
            os.link(new, there)  # fails if another process has made the file meanwhile
        except FileExistsError:
            raise InvalidArguments("backup", f"{there} exists: name another file, or use --force") from None
    with contextlib.suppress(OSError):  # a file system whose directories cannot be synced
        sync_folder(there.parent)
