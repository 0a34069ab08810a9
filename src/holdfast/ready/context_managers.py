"""Gates as blocks: ``async with gate`` and ``with gate`` take a share, and give it back with how the block ended."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType

from holdfast.ready.share import Share

__all__ = ["Entered"]


class Entered(ABC):
    """What can be entered by any number of tasks and threads at a time."""

    def __init__(self) -> None:
        self._entered: dict[object, list[Share]] = {}  # shares of `with` blocks, by the task or thread that is inside

    @abstractmethod
    async def acquire(self) -> Share:
        """Take a share; wait until there is one."""
        ...

    @abstractmethod
    def acquire_blocking(self, timeout_seconds: float | None = None) -> Share | None:
        """Take a share in a thread that may block."""
        ...

    async def __aenter__(self) -> Share:
        return self._enter(asyncio.current_task(), await self.acquire())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(asyncio.current_task()).release(error)

    def __enter__(self) -> Share:
        share = self.acquire_blocking()
        assert share is not None, "without a time limit it waits until there is one"
        return self._enter(threading.get_ident(), share)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(threading.get_ident()).release(error)

    def _enter(self, key: object, share: Share) -> Share:
        self._entered.setdefault(key, []).append(share)
        return share

    def _exit(self, key: object) -> Share:
        if key not in self._entered:  # entered by another task, as the two halves of a fixture may be
            key = next(reversed(self._entered))
        shares = self._entered[key]
        share = shares.pop()
        if not shares:
            del self._entered[key]
        return share
