"""Hears of commits by other processes on one SQLite file, without asking again and again.

Whoever has committed something rings: a byte is written to the lock file, behind the commit, so that whoever hears it
sees what was committed. A thread sleeps on that file by inotify and costs nothing meanwhile. It is the lock file and
not SQLite's log, which is written before the commit can be seen, and comes and goes.

What can go wrong, and what happens then:

- A process dies between its commit and its ring, or somebody writes who does not ring: the log's size and time are
  looked at twice a second, which is a look at the file system and no read of the store.
- There is no inotify, or no instance of it is left: the store is looked at every `poll_seconds`, which costs a read.
- Something that makes no sound must be noticed as well (a worker's process that died, a file that was deleted): the
  thread calls `tick` twice a second, whatever it hears.
- Many commits in a row, here or elsewhere: the thread looks less and less often, down to once in `poll_seconds`.
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

__all__ = ["CommitWatcher"]

FLOOR_SECONDS = 0.5  # between two looks at the log
PAUSE_SECONDS = 0.001  # after a ring that comes alone
IN_MODIFY = 0x2
EVENTS_BYTES = 65_536


class CommitWatcher:
    """A thread that calls `look` when the bell was rung, by whomever.

    Args:
        bell: the file that is written to after each commit.
        log: SQLite's log, which shows commits of those who do not ring.
        look: finds out whether another process has committed; called from the thread.
        tick: is called from the thread at its start and every `FLOOR_SECONDS`; it must not read the store.
        poll_seconds: longest pause between two looks while there is something to hear.
    """

    def __init__(
        self,
        bell: Path,
        log: Path,
        look: Callable[[], None],
        poll_seconds: float,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._look = look
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
        """Whether the system wakes it; else it looks again and again."""
        return self._watched is not None

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        os.write(self._ender, b"!")
        self._thread.join()
        self.forget()

    def forget(self) -> None:
        """Close its descriptors; alone in a forked child, which does not have the thread."""
        for descriptor in (self._end, self._ender, self._watched):
            if descriptor is not None:
                os.close(descriptor)

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        seen = self._size()
        while not self._stopping.is_set():
            self._tick_in_time()
            if self._watched is None:
                self._stopping.wait(self._poll_seconds)
            elif self._rung(self._watched):
                pause = min(2 * pause, self._poll_seconds)
            elif self._size() == seen:
                pause = PAUSE_SECONDS
                continue
            if self._stopping.is_set():
                return
            seen = self._size()
            with contextlib.suppress(RuntimeError):  # somebody who was told has closed his loop: nobody is missed
                self._look()
            self._stopping.wait(pause if self._watched is not None else 0)

    def _tick_in_time(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= FLOOR_SECONDS - PAUSE_SECONDS:
            self._ticked_at = now
            with contextlib.suppress(RuntimeError):  # as for `look`
                self._tick()

    def _rung(self, watched: int) -> bool:
        """Sleep until the bell rings; False if it did not for a while."""
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        waiting.register(self._end, select.POLLIN)
        if not waiting.poll(FLOOR_SECONDS * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(watched, EVENTS_BYTES)
        return True

    def _size(self) -> tuple[int, int] | None:
        try:
            found = self._log.stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns


def _watch(bell: Path) -> int | None:
    """Have the system tell of writes to a file, through a descriptor; None where it cannot."""
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
