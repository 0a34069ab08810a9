"""Backup of the store that a URL names, while workers use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client.store_url import is_postgres
from holdfast.errors import InvalidSetting

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store.sqlite.online_backup import Backup


def backup(url: str, destination: str | Path, *, force: bool = False) -> Backup:
    """Copy the SQLite database of a URL to a file, check the copy, and move it into place atomically.

    Args:
        url: The store, ``sqlite:///path``.
        destination: The file to write.
        force: Replace the destination if it exists.

    Raises:
        InvalidSetting: The URL does not name a SQLite file.
        InvalidArguments: The destination exists and `force` is not set, or the destination is not a file.
        StoreUnavailable: The database does not exist, or no valid copy could be made.
    """
    if is_postgres(url):
        raise InvalidSetting("url", "postgresql://…", "use pg_dump to back up a PostgreSQL database")
    if not url.startswith("sqlite:///"):
        raise InvalidSetting("url", url, "only a SQLite file can be backed up: use sqlite:///path/to/jobs.db")
    from holdfast.store.sqlite.online_backup import back_up  # noqa: PLC0415 - a backend is imported when it is used

    return back_up(url.removeprefix("sqlite:///"), destination, force=force)
