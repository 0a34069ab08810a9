"""A backup of the store that a URL names, while it is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.client.store_url import is_postgres
from holdfast.errors import InvalidSetting

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store.sqlite.online_backup import Backup

__all__ = ["backup"]


def backup(url: str, destination: str | Path, *, force: bool = False) -> Backup:
    """Copy the SQLite database of a URL to a file, check the copy, and put it in place whole.

    Raises:
        InvalidSetting: a store that is not a SQLite file.
        InvalidArguments: the destination exists, and `force` was not given; or it is not a file.
        StoreUnavailable: there is no database, or no good copy of it could be made.
    """
    if is_postgres(url):
        raise InvalidSetting("url", "postgresql://…", "use pg_dump to back up a PostgreSQL database")
    if not url.startswith("sqlite:///"):
        raise InvalidSetting("url", url, "it names nothing that can be backed up: use sqlite:///path/to/jobs.db")
    from holdfast.store.sqlite.online_backup import back_up  # noqa: PLC0415 - a backend is imported when it is used

    return back_up(url.removeprefix("sqlite:///"), destination, force=force)
