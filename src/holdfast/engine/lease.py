"""How long an attempt may act, by the worker's own clock (SPEC L11).

A lease counts from the moment at which the last confirmed renewal, or the claim, was *sent*: the store cannot have
counted from an earlier one. So the attempt stops before the store would let another worker take the job.
"""

from __future__ import annotations

from holdfast.clock import elapsed

__all__ = ["Lease"]

STOP_SHARE = 0.8  # of a lease, after which its attempt stops: the rest is for its code to notice


class Lease:
    """How long one attempt may be certain that no other has its job. From any thread."""

    __slots__ = ("_given_up", "stops_at")

    def __init__(self, sent_at: float, seconds: float) -> None:
        self.stops_at = sent_at + seconds * STOP_SHARE
        self._given_up = False

    def renewed(self, sent_at: float, seconds: float) -> None:
        """Count from a renewal that was confirmed. A lease that has been given up stays so."""
        if not self._given_up:
            self.stops_at = max(self.stops_at, sent_at + seconds * STOP_SHARE)

    def give_up(self) -> None:
        """End it now, whatever the store says later."""
        self._given_up = True
        self.stops_at = float("-inf")

    def lasts(self) -> bool:
        """Whether the attempt may still act."""
        return not self._given_up and elapsed() < self.stops_at
