"""What an attempt tells its worker, and asks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Host"]


class Host(Protocol):
    """A worker, as an attempt sees it."""

    def freed(self, attempt: Attempt) -> None:
        """Its code runs no more; what it wrote last is on its way to the disk."""
        ...

    def settled(self, attempt: Attempt) -> None:
        """What it wrote last is on disk, or never will be; it does nothing more."""
        ...

    def unwound(self, attempt: Attempt) -> None:
        """The last of its calls has ended, after it was settled."""
        ...

    def abandoned(self) -> bool:
        """Whether the worker itself was cancelled, as everything is when a program ends."""
        ...
