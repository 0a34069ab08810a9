"""Garbage-collector settings for long-running processes: workers and servers.

Python counts objects, not bytes. Code that leaves a few large ones in a cycle, such as an exception that is kept by the
frame that caught it, would fill the memory long before they are many. So a thread collects as the memory grows, too.

What can fail: the system does not tell how much memory a process has. Then Python's own settings stay.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

# Objects between two collections of cycles. Jobs and requests create hundreds of objects and free them without one.
# Five hundred jobs at once hold 40,000. A collection that they cause looks at all of them, and finds nothing.
GARBAGE = 100_000

GROWTH_BYTES = 64 * 1024 * 1024  # of the memory, that causes a collection
GROWTH_PART = 4  # or a fourth of the memory if that is more, so that large programs do not collect all the time
LOOK_SECONDS = 0.2

_watching: threading.Thread | None = None  # one for the process


def tune_gc() -> None:
    """Freeze all current objects and collect less often. A worker then runs a tenth more jobs per second."""
    global _watching  # noqa: PLW0603 - one for the process
    gc.collect()
    gc.freeze()
    if resident_bytes() is None or _watching is not None:
        return
    gc.set_threshold(GARBAGE)
    _watching = threading.Thread(target=_watch, name="holdfast-memory", daemon=True)
    _watching.start()


class MemoryWatch:
    """Collects when the memory of the process has grown.

    Args:
        resident: returns the bytes of memory that the process has.
        collect: frees what it can, and returns it to the system.
    """

    def __init__(self, resident: Callable[[], int | None], collect: Callable[[], object]) -> None:
        self._resident = resident
        self._collect = collect
        self._least = resident() or 0  # since the last collection

    def look(self) -> None:
        """Collect if the memory has grown by so much that it may be garbage."""
        now = self._resident() or 0
        if now - self._least > max(GROWTH_BYTES, self._least // GROWTH_PART):
            self._collect()
            self._least = self._resident() or 0
        else:
            self._least = min(self._least, now)


def resident_bytes() -> int | None:
    """Return the bytes of memory that this process has; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _collect() -> None:
    gc.collect()
    # Else freed memory stays with the process, and what is used again would not show as growth.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # musl has none
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _watch() -> None:
    watch, forever = MemoryWatch(resident_bytes, _collect), threading.Event()
    while not forever.wait(LOOK_SECONDS):
        watch.look()
