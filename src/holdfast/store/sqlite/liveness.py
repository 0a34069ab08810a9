"""Lock files that show other processes of the host when a worker's process has died (L10).

Each worker has a file in a folder next to the database, and holds a lock on it. The kernel releases the lock when the
process dies, for any reason. If the file exists, is the one that the worker made, and is not locked, its worker is
dead. A missing file proves nothing: a worker whose file was deleted makes another one.

What can fail:

- The worker has forked. A child of `os.fork` or `multiprocessing` closes its copies of these descriptors at once. A
  child that a C library forks, and that does not exec, keeps the lock. The death is then noticed when the lease ends.
- The file was copied, or made by another program: it does not hold its own inode number, and proves nothing.
- A worker dies before its file has its name: another worker removes the rest a minute later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from holdfast.store.sqlite.file_lock import fcntl

LEFT_OVER_SECONDS = 60.0  # after which a file that never got its name is removed
CONTENT_BYTES_MAX = 4096

_of_this_process: weakref.WeakSet[LivenessLocks] = weakref.WeakSet()


class LivenessLocks:
    """The lock files of one database's workers; from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}  # descriptors, by worker
        self.changing = threading.Lock()  # while descriptors are opened and closed; a fork takes it too
        self._swept_at = float("-inf")
        _of_this_process.add(self)

    def hold_liveness_lock(self, worker: str) -> None:
        """Make a worker's file and lock it, until `leave` or the end of the process.

        Raises:
            OSError: it cannot be made; a death is then noticed later, when the lease ends.
        """
        if fcntl is None:  # pragma: no cover - not a POSIX system
            return
        with self.changing:
            self._drop(worker)
            self._held[worker] = self._make(worker)

    def leave(self, worker: str) -> None:
        """Remove the file of a worker that has stopped, or that is known to be dead; not another process's."""
        with self.changing:
            ours = self._held.pop(worker, None)
            path = self._path(worker)
            if ours is not None or self._dead_worker(path) is not None:
                with contextlib.suppress(OSError):  # a leftover reports a stopped worker as dead, which is harmless
                    path.unlink()
            if ours is not None:
                os.close(ours)
        with contextlib.suppress(OSError):  # not empty, or missing
            self._folder.rmdir()

    def dead_workers(self) -> list[str]:
        """List the workers whose process has died."""
        workers = [self._dead_worker(path) for path in self._files(".lock")]
        return sorted(worker for worker in workers if worker is not None)

    def keep(self) -> None:
        """Make deleted or replaced files of this process's workers again; remove leftovers."""
        with self.changing:
            for worker, descriptor in list(self._held.items()):
                with contextlib.suppress(OSError):
                    path = self._path(worker)
                    if not path.exists() or path.stat().st_ino != os.fstat(descriptor).st_ino:
                        self._held[worker] = self._make(worker)
                        os.close(descriptor)
        if time.monotonic() - self._swept_at > LEFT_OVER_SECONDS:
            self._swept_at = time.monotonic()
            self._remove_left_over()

    def _remove_left_over(self) -> None:
        for path in self._files(".new"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > LEFT_OVER_SECONDS:
                    path.unlink()

    def close(self) -> None:
        """Release the locks. Files of workers that have not left stay, so that others find them dead."""
        with self.changing:
            for worker in list(self._held):
                self._drop(worker)

    def _drop(self, worker: str) -> None:
        descriptor = self._held.pop(worker, None)
        if descriptor is not None:
            os.close(descriptor)

    def _make(self, worker: str) -> int:
        """Make and lock the file before it has its name: a file that others can see is never unlocked by chance."""
        path = self._path(worker)
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        while True:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            try:
                descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                continue  # a worker that left has just removed the folder
            break
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = {"worker": worker, "process": os.getpid(), "inode": os.fstat(descriptor).st_ino}
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(content).encode(), 0)
            new.replace(path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _path(self, worker: str) -> Path:
        is_plain = re.fullmatch(r"[A-Za-z0-9_-]{1,100}", worker)
        return self._folder / f"{worker if is_plain else hashlib.sha256(worker.encode()).hexdigest()}.lock"

    def _files(self, end: str) -> Iterator[Path]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - twice a second
        except OSError:
            return
        yield from (self._folder / name for name in names if name.endswith(end))

    def _dead_worker(self, path: Path) -> str | None:
        """Return the worker that a file names, if its lock is free and the file is the one that the worker made."""
        if fcntl is None:  # pragma: no cover - not a POSIX system
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same moment
            content = json.loads(os.pread(descriptor, CONTENT_BYTES_MAX, 0))
            worker, inode = content["worker"], content["inode"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        else:
            is_its_own = inode == os.fstat(descriptor).st_ino and self._path(str(worker)) == path
            return str(worker) if is_its_own else None
        finally:
            os.close(descriptor)

    def forget(self) -> None:
        """Close the parent's files in a forked child. The parent keeps its locks: they end with its own descriptors."""
        self.changing = threading.Lock()
        self.close()


def _forget() -> None:
    for liveness in list(_of_this_process):
        liveness.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
