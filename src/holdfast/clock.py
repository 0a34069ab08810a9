"""The only module that reads a clock. All other code takes time as an argument."""

from __future__ import annotations

import time
from typing import Protocol

# A clock that never jumps. If there is one, it also runs while the machine is suspended, because leases end then.
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def elapsed() -> float:
    """Return seconds since a fixed moment. The clock is never set back, and runs while the machine is suspended."""
    return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)


class Clock(Protocol):
    """A clock in UTC epoch seconds."""

    def now(self) -> float:
        """Return the time."""
        ...


class SystemClock:
    """The host's clock."""

    def now(self) -> float:
        """Return the time."""
        return time.time()


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time."""
        return self._now

    def move(self, seconds: float) -> float:
        """Move the clock, and return the new time."""
        self._now += seconds
        return self._now
