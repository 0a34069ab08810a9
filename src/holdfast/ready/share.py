"""A share in what a gate lets through: taken once, given back once.

A `Share` is what `try_acquire` and `acquire` hand out. Releasing it twice is harmless, the second time does nothing.
One that is never released stays taken, as a lock would: use ``with`` or ``async with`` and it cannot happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Share"]


class TakesBack(Protocol):
    """What a share is given back to."""

    def _give_back(self, share: Share, error: BaseException | None) -> None: ...


class Share:
    """What one caller holds of a gate; ``with share:`` releases it at the end of the block."""

    __slots__ = ("_gate", "receipts")

    def __init__(self, gate: TakesBack, receipts: Sequence[object]) -> None:
        self._gate = gate
        self.receipts: Sequence[object] | None = receipts  # one for each part of the gate; None once given back

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self.receipts is None

    def release(self, error: BaseException | None = None) -> None:
        """Give it back; `error` is how what it was taken for ended, which a `BackoffGate` wants to know."""
        self._gate._give_back(self, error)  # noqa: SLF001 - the two are one object seen from two sides

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(error)
