"""A job's inbox: the signals that came and that no wait has used yet (E12).

`decide` reads it through `Inbox`. The SQL backends share `StoredInbox`, which reads the database once per batch and
follows the signals that the batch adds and uses. The memory backend has its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Sequence
from typing import Protocol

from holdfast.store.rows import Signal


class Inbox(Protocol):
    """The unused signals of one job."""

    def oldest(self, keys: Container[str | None], excluded: Container[str] = ()) -> Signal | None:
        """Return the oldest unused signal with one of these keys, except those whose ids are in `excluded`."""
        ...

    def knows(self, signal: str) -> bool:
        """Return whether a signal with this id has come before, used or not."""
        ...

    def count(self) -> int:
        """Count the unused signals."""
        ...

    def keys(self) -> Collection[str]:
        """Return the keys of the unused signals."""
        ...

    def unused(self) -> Sequence[Signal]:
        """Return the unused signals, oldest first."""
        ...


class SignalTable(ABC):
    """The database side of an inbox. Writes are buffered: call `written` before a read."""

    @abstractmethod
    def written(self) -> None:
        """Write the signals that were kept and used so far."""

    @abstractmethod
    def unused(self, job: str) -> dict[str, str]:
        """Read the ids and keys of a job's unused signals, oldest first."""

    @abstractmethod
    def count_unused(self, job: str) -> int:
        """Count a job's unused signals."""

    @abstractmethod
    def read_signal(self, job: str, signal: str) -> Signal:
        """Read one signal that exists."""

    @abstractmethod
    def read_unused(self, job: str) -> list[Signal]:
        """Read a job's unused signals, oldest first."""

    @abstractmethod
    def knows(self, job: str, signal: str) -> bool:
        """Return whether a signal's id is in a job's inbox, used or not."""


class StoredInbox:
    """One job's inbox in a SQL backend, during one batch."""

    def __init__(self, job: str, table: SignalTable) -> None:
        self._job = job
        self._table = table
        self._new: set[str] = set()  # ids that this batch has kept
        self._unused: dict[str, str] | None = None
        self._count: int | None = None

    def oldest(self, keys: Container[str | None], excluded: Container[str] = ()) -> Signal | None:
        """Return the oldest unused signal with one of these keys."""
        fitting = (name for name, key in self._loaded().items() if key in keys and name not in excluded)
        name = next(fitting, None)
        if name is None:
            return None
        self._table.written()
        return self._table.read_signal(self._job, name)

    def knows(self, signal: str) -> bool:
        """Return whether a signal's id is known."""
        return signal in self._new or self._table.knows(self._job, signal)

    def count(self) -> int:
        """Count the unused signals, without reading them."""
        if self._unused is not None:
            return len(self._unused)
        if self._count is None:
            self._table.written()
            self._count = self._table.count_unused(self._job)
        return self._count

    def keys(self) -> Collection[str]:
        """Return the keys of the unused signals."""
        return self._loaded().values()

    def unused(self) -> Sequence[Signal]:
        """Return the unused signals, oldest first."""
        if not self._loaded():
            return ()
        self._table.written()
        return self._table.read_unused(self._job)

    def kept(self, signal: Signal) -> None:
        """Record a signal that this batch keeps."""
        self._new.add(signal.id)
        if self._unused is not None:
            self._unused[signal.id] = signal.key
        if self._count is not None:
            self._count += 1

    def used(self) -> None:
        """Record that this batch uses signals; earlier reads are no longer valid."""
        self._unused = self._count = None

    def have_read(self, unused: dict[str, str] | None = None, count: int | None = None) -> None:
        """Record signals that were read ahead."""
        self._unused, self._count = unused, count

    def _loaded(self) -> dict[str, str]:
        if self._unused is None:
            self._table.written()
            self._unused = self._table.unused(self._job)
        return self._unused
