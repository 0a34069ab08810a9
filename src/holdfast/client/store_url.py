"""The store backend that a URL names. Only this module knows all backends."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from holdfast.errors import InvalidSetting
from holdfast.store import Store
from holdfast.store.effects import DirectoryEffects, EffectStore
from holdfast.store.memory import MemoryStore
from holdfast.store.sql.reads import SqlReads

MEMORY = frozenset({"memory:", "memory://", "sqlite://"})
NO_DRIVER = "PostgreSQL needs a driver: pip install 'holdfast-jobs[postgres]'"
_OURS = frozenset({"migrate", "schema"})  # query parameters for Holdfast; the driver does not get them


def open_store(url: str, poll_seconds: float = 0.02, busy_seconds: float = 30.0, lease_seconds: float = 15.0) -> Store:
    """Open the store of a URL. `poll_seconds`, `busy_seconds` and `lease_seconds` are settings of `Config`.

    Raises:
        InvalidSetting: The URL names no backend.
        StoreUnavailable: The backend cannot be used.
    """
    if url in MEMORY:
        return MemoryStore()
    if url.startswith("sqlite:///") and Path(url.removeprefix("sqlite:///")).name:
        _need_file_locks("url", url)
        from holdfast.store.sqlite.store import SqliteStore  # noqa: PLC0415 - a backend is imported when it is used

        return SqliteStore(url.removeprefix("sqlite:///"), poll_seconds=poll_seconds, busy_seconds=busy_seconds)
    if is_postgres(url):
        return _open_postgres(url, lease_seconds)
    raise _not_a_store(url)


def open_reader(url: str) -> SqlReads | MemoryStore:
    """Open the store of a URL so that nothing is written: no migration, no lock, no row.

    Raises:
        InvalidSetting: The URL names no backend.
        StoreUnavailable: The store cannot be read, does not exist, or has the schema of another release.
    """
    if url.startswith("sqlite:///") and Path(url.removeprefix("sqlite:///")).name:
        from holdfast.store.sqlite.reader import SqliteReader  # noqa: PLC0415 - a backend is imported when it is used

        return SqliteReader(url.removeprefix("sqlite:///"))
    if is_postgres(url):
        try:
            from holdfast.store.postgres.reader import PostgresReader  # noqa: PLC0415 - as above
        except ImportError as error:
            raise InvalidSetting("url", url, NO_DRIVER) from error
        place, ours = postgres_place(url)
        return PostgresReader(place, ours.get("schema", "holdfast"))
    if url in MEMORY:
        return MemoryStore()
    raise _not_a_store(url)


def _not_a_store(url: str) -> InvalidSetting:
    return InvalidSetting(
        "url", url, "it is not the URL of a store: use sqlite:///path/to/jobs.db, postgresql://…, or memory: for tests"
    )


def _need_file_locks(setting: str, value: str) -> None:
    """Refuse a store in files on Windows, where nothing would keep two processes from the same file."""
    try:
        import fcntl  # noqa: F401, PLC0415 - only whether it exists
    except ImportError as error:
        raise InvalidSetting(setting, value, "this system has no POSIX file locks: use Linux or macOS") from error


def is_postgres(url: str) -> bool:
    """Return whether a URL names a PostgreSQL database."""
    return url.startswith(("postgresql://", "postgres://"))


def postgres_place(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL into the driver's URL and Holdfast's own parameters, ``schema=name`` and ``migrate=no``."""
    parts = urlsplit(url)
    query = [(unquote(part.partition("=")[0]), part) for part in parts.query.split("&") if part]
    ours = {name: unquote(part.partition("=")[2]) for name, part in query if name in _OURS}
    others = "&".join(part for name, part in query if name not in _OURS)  # as written: libpq reads a plus as a plus
    return urlunsplit(parts._replace(query=others)), ours


def _open_postgres(url: str, lease_seconds: float) -> Store:
    try:
        from holdfast.store.postgres.store import PostgresStore  # noqa: PLC0415 - a backend is imported when it is used
    except ImportError as error:
        raise InvalidSetting("url", url, NO_DRIVER) from error
    place, ours = postgres_place(url)
    try:
        return PostgresStore(
            place,
            ours.get("schema", "holdfast"),
            migrating=_yes(ours.get("migrate", "yes")),
            # Well before a lease ends. A busy server may take 2 s; an operator should not wait longer than 30 s.
            silence_seconds=min(max(2.0, lease_seconds * 2 / 3), 30.0),
        )
    except ValueError as error:
        raise InvalidSetting("url", url, str(error)) from error


def _yes(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise ValueError(f"migrate must be yes or no, got {text!r}")
    return text == "yes"


def open_effects(place: str) -> EffectStore | None:
    """Open the effect store that a setting names. Return None if the job's own database keeps the effects."""
    if not place:
        return None
    _need_file_locks("effects", place)
    return DirectoryEffects(place.removeprefix("file://"))
