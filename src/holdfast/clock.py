"""The only module that reads a clock. Everything else takes time as an argument."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "elapsed"]

# Of the clocks that never jump, the one that also counts while the machine is suspended: a lease ends meanwhile.
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def elapsed() -> float:
    """Read seconds since some fixed moment: never set back, and counted while the process or the machine is stopped."""
    return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)


class Clock(Protocol):
    """Tells the time in UTC epoch seconds."""

    def now(self) -> float:
        """Read it."""
        ...


class SystemClock:
    """The host's clock."""

    def now(self) -> float:
        """Read it."""
        return time.time()


class ManualClock:
    """A clock that stands still until it is moved: for tests and simulations."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Read it."""
        return self._now

    def move(self, seconds: float) -> float:
        """Move it, and read it."""
        self._now += seconds
        return self._now
