"""Ids for jobs: UUIDv7, so later ids sort after earlier ones, strictly within one process."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["new_id"]

_lock = threading.Lock()
_last = 0


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it when this process was forked
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_lock)


def new_id() -> str:
    """Return a new id of 36 characters, ordered by time."""
    global _last  # noqa: PLW0603 - the order of names within a process is exactly this one number
    with _lock:
        # 48 bits of milliseconds and 12 of a fraction; one more than the last if the clock has not moved.
        _last = max(_last + 1, (time.time_ns() << 12) // 1_000_000)
        stamp = _last
    random = int.from_bytes(os.urandom(8), "big")
    value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random >> 2
    digits = f"{value & (1 << 128) - 1:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
