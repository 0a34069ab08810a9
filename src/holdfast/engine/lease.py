"""The lease of an attempt by the worker's own clock (SPEC L11).

A lease counts from the moment at which the claim or the last confirmed renewal was *sent*. The store cannot have
counted from an earlier moment. So the attempt stops before the store lets another worker take the job.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import elapsed

STOP_SHARE = 0.8  # share of a lease after which its attempt stops; the rest is for its code to notice


class Lease:
    """How long one attempt can be certain that no other attempt has its job. Safe from any thread."""

    __slots__ = ("_given_up", "_steady", "stops_at")

    def __init__(self, sent_at: float, seconds: float, steady: Callable[[], float] = elapsed) -> None:
        self.stops_at = sent_at + seconds * STOP_SHARE
        self._steady = steady
        self._given_up = False

    def renewed(self, sent_at: float, seconds: float) -> None:
        """Count from a confirmed renewal. A lease that was given up stays so."""
        if not self._given_up:
            self.stops_at = max(self.stops_at, sent_at + seconds * STOP_SHARE)

    def give_up(self) -> None:
        """End the lease now, whatever the store answers later."""
        self._given_up = True
        self.stops_at = float("-inf")

    def lasts(self) -> bool:
        """Return whether the attempt may still act."""
        return not self._given_up and self._steady() < self.stops_at
