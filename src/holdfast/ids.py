"""Ids for jobs: UUIDv7, so later ids sort after earlier ones, strictly within one process."""

from __future__ import annotations

import os
import struct
import threading
import time

_RANDOM = struct.Struct(">Q")
_DRAWN_BYTES = 64 * _RANDOM.size  # that are drawn at once: a draw is a call of the system, and may switch threads


class Stamps:
    """Where ids come from: the last time stamp of this process with its lock, and random bits."""

    def __init__(self) -> None:
        self.last = 0
        self.renew()

    def renew(self) -> None:
        """Make a new lock and forget the random bits that were drawn, in a forked process.

        A thread of the parent may have held the old lock, and the parent uses the old bits.
        """
        self.lock = threading.RLock()  # a signal handler may need an id in the middle of making another
        self._drawn = _RANDOM.iter_unpack(b"")

    def next(self) -> int:
        """Return 48 bits of milliseconds and 12 of a fraction; one more than the last if the clock has not moved."""
        with self.lock:
            while True:
                last = self.last
                stamp = max(last + 1, (time.time_ns() << 12) // 1_000_000)
                if self.last == last:  # no signal handler has taken one meanwhile
                    self.last = stamp
                    return stamp

    def random_bits(self) -> int:
        """Return 64 random bits."""
        with self.lock:
            while True:
                for (bits,) in self._drawn:
                    return int(bits)
                self._drawn = _RANDOM.iter_unpack(os.urandom(_DRAWN_BYTES))


_stamps = Stamps()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_stamps.renew)


def new_id() -> str:
    """Return a new id of 36 characters, ordered by time."""
    stamp = _stamps.next()
    random = _stamps.random_bits()
    value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random >> 2
    digits = f"{value & (1 << 128) - 1:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
