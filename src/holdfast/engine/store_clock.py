"""The store's clock, as exactly as this host can know it. Due times and deadlines use the store's time.

The time in an answer was true at some moment between request and response. Each may be slow: a disk is slow, a process
is stopped. So an answer only bounds the difference of the clocks. The estimate stays unless an answer shows that it
cannot be right. So a slow answer never moves clocks apart that agree.
"""

from __future__ import annotations

from holdfast.clock import Clock, SystemClock


class StoreClock:
    """A clock that follows the store's clock by the answers of the store.

    Args:
        host: the clock of this host.
    """

    def __init__(self, host: Clock | None = None) -> None:
        self._host = host or SystemClock()
        self._ahead = 0.0  # seconds by which the store's clock is ahead of this host's
        self._sent_at = self._host.now()

    def request_sent(self) -> None:
        """Note that a request is about to be sent."""
        self._sent_at = self._host.now()

    def answered(self, at: float) -> None:
        """Adjust the estimate: the store has answered, and this was its time."""
        self._ahead = min(max(self._ahead, at - self._host.now()), at - self._sent_at)

    def now(self) -> float:
        """Return the estimated time of the store."""
        return self._host.now() + self._ahead
