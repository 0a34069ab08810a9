"""The store's time, as near as this host can tell: due times and deadlines are compared with the store's.

What the store says was true at some moment between the question and the answer. Each may take its time to arrive: a
disk is slow, a process stands still. So an answer only bounds by how much the clocks differ, and what was taken for
the difference stays unless an answer shows that it cannot be. Clocks that agree are never taken apart by a slow answer.
"""

from __future__ import annotations

import time

__all__ = ["StoreClock"]


class StoreClock:
    """A clock that follows another by what it hears of it."""

    def __init__(self) -> None:
        self._ahead = 0.0  # seconds by which the store's clock is ahead of this host's
        self._sent_at = time.time()

    def request_sent(self) -> None:
        """The store is about to be asked."""
        self._sent_at = time.time()

    def answered(self, at: float) -> None:
        """It has answered, and this was its time when it did."""
        self._ahead = min(max(self._ahead, at - time.time()), at - self._sent_at)

    def now(self) -> float:
        """Read it."""
        return time.time() + self._ahead
