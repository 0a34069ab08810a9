"""A heartbeat in its own thread. It beats whatever the event loop does.

An error in one beat is logged. The next beat comes in time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

STOP_SECONDS = 5.0  # longest wait for the current beat

_log = logging.getLogger("holdfast.worker")


class Heartbeat(threading.Thread):
    """Calls a function at once, and then every so many seconds."""

    def __init__(self, beat: Callable[[], None], every_seconds: float) -> None:
        super().__init__(name="holdfast-heartbeat", daemon=True)
        self._beat = beat
        self._every_seconds = every_seconds
        self._ended = threading.Event()

    def run(self) -> None:
        """Beat until stopped."""
        self._beat_once()
        while not self._ended.wait(self._every_seconds):
            self._beat_once()

    def _beat_once(self) -> None:
        try:
            self._beat()
        except Exception:  # after any error the heartbeat must continue, or leases would be lost
            _log.exception("a heartbeat failed, the next comes in %g s", self._every_seconds)

    def end(self) -> None:
        """Stop after the current beat."""
        self._ended.set()

    def stop(self) -> None:
        """Stop, and wait for the current beat. Do not wait longer for a store that is silent."""
        self.end()
        self.join(STOP_SECONDS)
