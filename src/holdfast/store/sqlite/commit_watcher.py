"""The commit watcher: notices commits of other processes on one SQLite file, without polling the database.

Each process writes a byte to the lock file after its commit, so that a process that sees the byte also sees the commit.
A thread sleeps on that file with inotify and costs nothing meanwhile. It does not watch SQLite's log: that is written
before the commit is visible, and may be removed.

What can fail:

- A process dies between its commit and its byte, or another program writes: the thread compares the mark of the last
  commit twice a second. That reads a few bytes of a file and not the store.
- There is no inotify, or no instance of it is left: the thread polls the store every `poll_seconds`, at a read each.
- Some changes write no byte (a worker's process died, a file was deleted): the thread calls `tick` twice a second.
- Many commits in a row, of others: the thread looks `LOOKS_MAX` times a second. If they are all this process's own, it
  looks less and less often, down to once in `poll_seconds`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

FLOOR_SECONDS = 0.5  # between two looks at the log
LOOKS_MAX = 400  # a second, for as long as commits go on
BURST = 40  # looks that may follow each other at once
FRUITLESS_MAX = 40  # looks without a commit of another process; from then on the pauses grow
IN_MODIFY = 0x2
EVENTS_BYTES = 65_536


class CommitWatcher:
    """A thread that calls `look` when a process has written to the bell file.

    Args:
        bell: the file that is written to after each commit.
        mark: returns what changes with each commit of any program; called from the thread, as all of these.
        look: returns whether another process has committed; called if the mark changed, or without inotify.
        tick: is called from the thread at its start and every `FLOOR_SECONDS`; it must not read the store.
        poll_seconds: longest pause between two looks while commits go on.
        hear: does the same as `look` when the bell file was written to. It may believe that its writer has written.
    """

    def __init__(
        self,
        bell: Path,
        mark: Callable[[], object],
        look: Callable[[], bool],
        poll_seconds: float,
        tick: Callable[[], None] = lambda: None,
        hear: Callable[[], bool] | None = None,
    ) -> None:
        self._mark = mark
        self._look = look
        self._hear = hear or look
        self._tick = tick
        self._ticked_at = float("-inf")
        self._poll_seconds = poll_seconds
        self._stopping = threading.Event()
        self._watched = _watch(bell)
        self._end, self._ender = os.pipe()
        self._thread = threading.Thread(target=self._run, name="holdfast-ear", daemon=True)
        self._thread.start()

    @property
    def is_woken(self) -> bool:
        """Return whether the system wakes the thread; else it polls."""
        return self._watched is not None

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        os.write(self._ender, b"!")
        self._thread.join()
        self.forget()

    def forget(self) -> None:
        """Close its descriptors; only in a forked child, which does not have the thread."""
        for descriptor in (self._end, self._ender, self._watched):
            if descriptor is not None:
                os.close(descriptor)

    def _run(self) -> None:
        pace = Pace(self._poll_seconds, time.monotonic())
        seen = self._mark()
        while not self._stopping.is_set():
            self._tick_in_time()
            rung = False
            if self._watched is None:
                self._stopping.wait(self._poll_seconds)
            else:
                rung = self._rung(self._watched)
                before, seen = seen, self._mark()
                if not rung and seen == before:
                    continue
            if self._stopping.is_set():
                return
            found = True
            with contextlib.suppress(RuntimeError):  # a subscriber has closed its loop: no notice is missed
                found = self._hear() if rung else self._look()
            pause = pace.after(time.monotonic(), found=found)
            if self._watched is not None and pause:
                self._stopping.wait(pause)

    def _tick_in_time(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= 0.99 * FLOOR_SECONDS:
            self._ticked_at = now
            with contextlib.suppress(RuntimeError):  # as for `look`
                self._tick()

    def _rung(self, watched: int) -> bool:
        """Sleep until a process writes to the bell file; return False on a timeout."""
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        waiting.register(self._end, select.POLLIN)
        if not waiting.poll(FLOOR_SECONDS * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(watched, EVENTS_BYTES)
        return True


class Pace:
    """Says how long to pause after a look: not at all after a few, and always when there are many."""

    def __init__(self, poll_seconds: float, now: float) -> None:
        self._poll_seconds = poll_seconds
        self._credit = float(BURST)
        self._at = now
        self._fruitless = 0

    def after(self, now: float, *, found: bool) -> float:
        """Return the seconds to pause after a look that has or has not found a commit of another process."""
        self._credit = min(BURST, self._credit + (now - self._at) * LOOKS_MAX) - found  # the others cost little
        self._at = now
        self._fruitless = 0 if found else min(self._fruitless + 1, FRUITLESS_MAX + 10)
        if self._fruitless > FRUITLESS_MAX:
            return min(self._poll_seconds, 2.0 ** (self._fruitless - FRUITLESS_MAX) / LOOKS_MAX)
        return max(0.0, -self._credit / LOOKS_MAX)


def file_mark(path: Path | str) -> tuple[int, int] | None:
    """Return what changes with each write to a file: its size and time. None if there is no such file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path takes as long as the call
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _watch(bell: Path) -> int | None:
    """Return a descriptor that becomes readable with writes to a file; None where the system has none."""
    try:
        system = ctypes.CDLL(None, use_errno=True)
        descriptor: int = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError, TypeError):
        return None
    if descriptor < 0:
        return None
    if system.inotify_add_watch(descriptor, os.fsencode(bell), IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
