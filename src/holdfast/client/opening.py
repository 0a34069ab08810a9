"""Opens the backend that a URL names. The only place that knows them all."""

from __future__ import annotations

from holdfast.errors import InvalidSetting
from holdfast.store import Store
from holdfast.store.effects import DirectoryEffects, EffectStore
from holdfast.store.memory import MemoryStore

__all__ = ["open_effects", "open_store"]


def open_store(url: str) -> Store:
    """Open a store.

    Raises:
        InvalidSetting: a URL that names no backend.
        StoreUnavailable: the backend cannot be used.
    """
    if url in {"memory:", "memory://", "sqlite://"}:
        return MemoryStore()
    if url.startswith("sqlite:///"):
        from holdfast.store.sqlite import SqliteStore  # noqa: PLC0415 - a backend is imported when it is used

        return SqliteStore(url.removeprefix("sqlite:///"))
    raise InvalidSetting("url", url, "it names no store: use sqlite:///path/to/jobs.db, or memory: for tests")


def open_effects(place: str) -> EffectStore | None:
    """Open the effect store that a setting names; None for the job's own database."""
    return DirectoryEffects(place.removeprefix("file://")) if place else None
