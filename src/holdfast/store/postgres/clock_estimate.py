"""The server's clock, estimated between two readings of it."""

from __future__ import annotations

import time
from collections.abc import Callable

DRIFT = 0.001  # more than the rates of two clocks differ
BEHIND_MAX = 0.002  # seconds that an estimate may be behind for that reason


class ClockEstimate:
    """The time that the server gave last, plus what has passed since; used under the lock of the connection.

    The estimate is behind the server's clock, because the reply took time, and because it is slower. It is ahead only
    if a clock was set meanwhile. An old one is not used. It would give a job an earlier time than one that another
    process has started before, so the later one would be claimed first.

    Args:
        monotonic: a clock that is exactly as fast as the server's, as in a test; None: the one of this process.
    """

    def __init__(self, monotonic: Callable[[], float] | None = None) -> None:
        self.monotonic = monotonic or time.monotonic
        self._drift = DRIFT if monotonic is None else 0.0
        self._last: tuple[float, float] | None = None  # the server's time, and when it came by our clock

    def read(self, now: float) -> None:
        """Take the server's time from a reply, unless it took longer than the one that the estimate is from."""
        if now > (self.estimate() or 0.0):
            self._last = now, self.monotonic()

    def forget(self) -> None:
        """Clear the estimate: the connection is new, and may be to another server, or a clock may have been set."""
        self._last = None

    def estimate(self) -> float | None:
        """Return the server's time, or None if it was never read, or too long ago."""
        if self._last is None:
            return None
        now, came = self._last
        passed = self.monotonic() - came
        behind = passed * self._drift
        return now + passed - behind if behind <= BEHIND_MAX else None
