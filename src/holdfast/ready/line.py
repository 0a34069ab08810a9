"""Who waits in line at a gate: a task or a thread, with a bell, a timer of its own and a share once it was served.

A bell may be rung from any thread and any loop, any number of times; a ring that comes before its waiter waits is not
lost. `ring` says False when there is nobody left to hear it, because the loop was closed: whoever rang must then
see to it that what was meant for this waiter goes to the next.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol

from holdfast.ready.gate import Share

__all__ = ["EnterableGate", "TaskWaiter", "ThreadWaiter", "Waiter", "running_loop"]


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Give the loop that runs in this thread, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Waiter(Protocol):
    """One place in a line."""

    share: Share | None
    """What it was served; written under the gate's lock."""
    error: Exception | None
    """What looking for it raised instead, a ledger's error for example; written under the gate's lock."""
    armed: object
    """What its timer was set for, by the gate's own reckoning; None while it has none."""

    def ring(self) -> bool:
        """Have it look again; False if nobody is left to hear it."""
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
        """Have the task look again; False if its loop was closed."""
        if running_loop() is self._loop:
            self._event.set()
            return True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return False
        return True

    async def wait(self, timeout_seconds: float | None) -> bool:
        """Suspend until the bell rings; False if the time ran out first."""
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
        """Have the thread look again."""
        self._event.set()
        return True

    def wait(self, timeout_seconds: float | None) -> bool:
        """Block until the bell rings; False if the time ran out first."""
        if not self._event.wait(timeout_seconds):
            return False  # and do not clear: a ring that comes just now is for the next wait
        self._event.clear()
        return True


class EnterableGate(ABC):
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
