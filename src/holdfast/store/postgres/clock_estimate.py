"""The server's clock, estimated between two readings of it."""

from __future__ import annotations

import time
from collections.abc import Callable

CLOCK_SECONDS_OFF = 0.1  # how far behind the server's time an estimate may be where it is used
DRIFT = 0.001  # more than the rates of two clocks differ


class ClockEstimate:
    """The time that the server gave last, plus what has passed since; only the writing thread uses it.

    The estimate is behind the server's clock, by the time that the reply took and a little more. It is ahead only if a
    clock was changed meanwhile.

    Args:
        monotonic: the clock of this process.
        drift: by how much the estimate is slower.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, drift: float = DRIFT) -> None:
        self.monotonic = monotonic
        self.drift = drift
        self._last: tuple[float, float] | None = None  # the server's time, and when it came by our clock

    def read(self, now: float) -> None:
        """Take the server's time from a reply that has just come."""
        self._last = now, self.monotonic()

    def estimate(self) -> float | None:
        """Return the server's time, or None if it was never read."""
        if self._last is None:
            return None
        now, came = self._last
        return now + (self.monotonic() - came) * (1 - self.drift)
