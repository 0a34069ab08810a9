"""Ids for jobs: UUIDv7, so later ids sort after earlier ones, strictly within one process."""

from __future__ import annotations

import os
import threading
import time


class Stamps:
    """Where ids come from: the last time stamp of this process with its lock, and random bits."""

    def __init__(self) -> None:
        self.last = 0
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make a new lock: in a forked process, a thread of the parent may have held the old one."""
        self.lock = threading.Lock()

    def next(self) -> int:
        """Return 48 bits of milliseconds and 12 of a fraction; one more than the last if the clock has not moved."""
        with self.lock:
            self.last = max(self.last + 1, (time.time_ns() << 12) // 1_000_000)
            return self.last

    def random_bits(self) -> int:
        """Return 64 random bits."""
        return int.from_bytes(os.urandom(8), "big")


_stamps = Stamps()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_stamps.renew_lock)


def new_id() -> str:
    """Return a new id of 36 characters, ordered by time."""
    stamp = _stamps.next()
    random = _stamps.random_bits()
    value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random >> 2
    digits = f"{value & (1 << 128) - 1:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
