"""What tests of gates share: a clock that only they move, and waiters that need no thread and no loop."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ready import OnViolation, Share, raise_violation


class Clock:
    """Seconds, as `time.monotonic` gives them; kept in nanoseconds, so that moving it rounds nothing.

    With `tick_ns` every look at it takes time, as it does in the world.
    """

    def __init__(self, tick_ns: int = 0) -> None:
        self.now_ns = 0
        self.tick_ns = tick_ns

    def __call__(self) -> float:
        self.now_ns += self.tick_ns
        return self.now_ns / 1e9

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


STRICT: OnViolation = raise_violation


class Hand:
    """Somebody in line, rung by calling a function instead of waking a task."""

    def __init__(self, name: str = "", rung: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.share: Share | None = None
        self.error: Exception | None = None
        self.armed: object = None
        self.rings = 0
        self.there = True  # False: its loop was closed
        self._rung = rung

    def ring(self) -> bool:
        self.rings += 1
        self._rung()
        return self.there
