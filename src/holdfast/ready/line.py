"""The waiting line of a gate, and gates as context managers.

A waiter is a task or a thread. It has a bell, its own timer, and a share once it was served. A bell may be rung from
any thread and any loop, any number of times. A ring before its waiter waits is not lost. `ring` returns False if the
waiter's loop was closed. The caller must then pass the waiter's share to the next in line.

``async with gate`` and ``with gate`` take a share and release it with the error that ended the block.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol

from holdfast.ready.gate import Share


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Waiter(Protocol):
    """One place in a line."""

    share: Share | None
    """The share it was served; written under the gate's lock."""
    error: Exception | None
    """The error that the check for it raised, such as a ledger's; written under the gate's lock."""
    armed: object
    """The holds that its timer was set for; None while it has no timer."""

    def ring(self) -> bool:
        """Make the waiter check again. Return False if its loop was closed."""
        ...


class TaskWaiter:
    """A task of the running loop."""

    __slots__ = ("_event", "_loop", "armed", "error", "share")

    def __init__(self) -> None:
        self.share: Share | None = None
        self.error: Exception | None = None
        self.armed: object = None
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> bool:
        """Make the task check again. Return False if its loop was closed."""
        if running_loop() is self._loop:
            self._event.set()
            return True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return False
        return True

    async def wait(self, timeout_seconds: float | None) -> bool:
        """Suspend until the bell rings. Return False if the time ran out first."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class ThreadWaiter:
    """A thread that may block."""

    __slots__ = ("_event", "armed", "error", "share")

    def __init__(self) -> None:
        self.share: Share | None = None
        self.error: Exception | None = None
        self.armed: object = None
        self._event = threading.Event()

    def ring(self) -> bool:
        """Make the thread check again."""
        self._event.set()
        return True

    def wait(self, timeout_seconds: float | None) -> bool:
        """Block until the bell rings. Return False if the time ran out first."""
        if not self._event.wait(timeout_seconds):
            return False  # without clear(): a ring at this moment is for the next wait
        self._event.clear()
        return True


class EnterableGate(ABC):
    """A gate as a context manager, entered by any number of tasks and threads at the same time."""

    def __init__(self) -> None:
        self._entered: dict[object, list[Share]] = {}  # shares of `with` blocks, by task or thread

    @abstractmethod
    async def acquire(self) -> Share:
        """Take a share; wait until one is free."""

    @abstractmethod
    def acquire_blocking(self, timeout_seconds: float | None = None) -> Share | None:
        """Take a share in a thread that may block."""

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
        if key not in self._entered:  # entered by another task, as in the two halves of a fixture
            key = next(reversed(self._entered))
        shares = self._entered[key]
        share = shares.pop()
        if not shares:
            del self._entered[key]
        return share
