"""Counters that the processes of a measurement share: a small file mapped into memory.

A job adds to a counter when its code ends, so the runner sees progress without asking the database. Each process has a
place of its own, so no two processes write to the same bytes.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from pathlib import Path

PLACES = 16
_NUMBER = struct.Struct("<Q")
_TIME = struct.Struct("<d")
_ENDED, _WAITING, _MARK = 0, PLACES * 8, 2 * PLACES * 8
_SIZE = _MARK + 8


class Tally:
    """The counters of one measurement, seen from one process."""

    def __init__(self, path: Path, place: int = 0) -> None:
        if not path.exists():
            path.write_bytes(bytes(_SIZE))
        self._file = path.open("r+b")
        self._bytes = mmap.mmap(self._file.fileno(), _SIZE)
        self._place = place * 8
        self._lock = threading.Lock()

    def job_ended(self) -> None:
        """Count a job whose code has ended."""
        self._add(_ENDED)

    def job_waits(self) -> None:
        """Count a job that is about to wait."""
        self._add(_WAITING)

    def mark(self) -> None:
        """Record that code runs now."""
        _TIME.pack_into(self._bytes, _MARK, time.monotonic())

    def take_mark(self) -> float | None:
        """Return when code last ran, once."""
        marked: float = _TIME.unpack_from(self._bytes, _MARK)[0]
        _TIME.pack_into(self._bytes, _MARK, 0.0)
        return marked or None

    @property
    def ended(self) -> int:
        """How many jobs have ended, in all processes."""
        return self._sum(_ENDED)

    @property
    def waiting(self) -> int:
        """How many jobs have begun to wait, in all processes."""
        return self._sum(_WAITING)

    def close(self) -> None:
        """Unmap the file."""
        self._bytes.close()
        self._file.close()

    def _add(self, kind: int) -> None:
        with self._lock:
            number = _NUMBER.unpack_from(self._bytes, kind + self._place)[0]
            _NUMBER.pack_into(self._bytes, kind + self._place, number + 1)

    def _sum(self, kind: int) -> int:
        return sum(_NUMBER.unpack_from(self._bytes, kind + 8 * place)[0] for place in range(PLACES))
