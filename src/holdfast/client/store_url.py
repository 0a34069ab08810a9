"""The store backend that a URL names. Only this module knows all backends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from holdfast.client.interface import Client
from holdfast.client.process_fork import abandon_store, leave
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.store import Store
from holdfast.store.effects import DirectoryEffects, EffectStore
from holdfast.store.memory import MemoryStore

if TYPE_CHECKING:
    from holdfast.client.app_worker import AppWorker

__all__ = ["OpenedStore", "is_postgres", "open_effects", "open_store", "postgres_place"]


_OURS = frozenset({"migrate", "schema"})  # query parameters for Holdfast; the driver does not get them


def open_store(url: str, poll_seconds: float = 0.02, busy_seconds: float = 30.0, lease_seconds: float = 15.0) -> Store:
    """Open the store of a URL. `poll_seconds`, `busy_seconds` and `lease_seconds` are settings of `Config`.

    Raises:
        InvalidSetting: The URL names no backend.
        StoreUnavailable: The backend cannot be used.
    """
    if url in {"memory:", "memory://", "sqlite://"}:
        return MemoryStore()
    if url.startswith("sqlite:///") and Path(url.removeprefix("sqlite:///")).name:
        from holdfast.store.sqlite.store import SqliteStore  # noqa: PLC0415 - a backend is imported when it is used

        return SqliteStore(url.removeprefix("sqlite:///"), poll_seconds=poll_seconds, busy_seconds=busy_seconds)
    if is_postgres(url):
        return _open_postgres(url, lease_seconds)
    raise InvalidSetting(
        "url", url, "it names no store: use sqlite:///path/to/jobs.db, postgresql://…, or memory: for tests"
    )


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
        raise InvalidSetting("url", url, "PostgreSQL needs a driver: pip install 'holdfast-jobs[postgres]'") from error
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
        raise ValueError(f"migrate is yes or no, got {text!r}")
    return text == "yes"


class OpenedStore(Client):
    """The store, effect store and workers of an app, with support for process forks."""

    own_workers: set[AppWorker]
    _opened: Store | None
    _effects: EffectStore | None
    _forked_memory = False  # whether the parent of this process had a store in memory

    def after_fork_in_child(self) -> None:
        """Leave the store and the workers to the parent process."""
        super().after_fork_in_child()
        for worker in self.own_workers:
            worker.after_fork_in_child()
        self.own_workers.clear()
        store, self._opened = self._opened, None
        leave(self._effects)
        self._effects = None
        if store is not None:
            abandon_store(store)
            self._forked_memory = self._forked_memory or isinstance(store, MemoryStore)

    def open_own(self, url: str, poll_seconds: float, busy_seconds: float, lease_seconds: float) -> Store:
        """Open the app's store. In a forked child, refuse to replace the parent's store in memory by an empty one."""
        if self._forked_memory:
            raise StoreUnavailable(
                "a store in memory belongs to the process that opened it, and this one was forked from it: use"
                " sqlite:///path/to/jobs.db, or make the App after the fork"
            )
        return open_store(url, poll_seconds, busy_seconds, lease_seconds)


def open_effects(place: str) -> EffectStore | None:
    """Open the effect store that a setting names. Return None if the job's own database keeps the effects."""
    return DirectoryEffects(place.removeprefix("file://")) if place else None
