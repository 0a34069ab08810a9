"""Beats from a thread of its own, whatever the loop does."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Heartbeat"]


class Heartbeat(threading.Thread):
    """Does something at once, and then every so many seconds."""

    def __init__(self, beat: Callable[[], None], every_seconds: float) -> None:
        super().__init__(name="holdfast-heartbeat", daemon=True)
        self._beat = beat
        self._every_seconds = every_seconds
        self._ended = threading.Event()

    def run(self) -> None:
        """Beat until it is stopped."""
        self._beat()
        while not self._ended.wait(self._every_seconds):
            self._beat()

    def stop(self) -> None:
        """Stop, and wait for the beat that is under way."""
        self._ended.set()
        self.join()
