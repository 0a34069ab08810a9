"""A lock between processes of one host, for transactions on a SQLite file, and a thread that works under it.

It is advisory and lies on a file of its own, never on the database: closing any descriptor of a database drops SQLite's
own locks on it. The kernel serves those who wait in the order in which they came, and releases the lock when a process
dies. Where there is no flock, SQLite's own lock has to do.

What can fail: the process that holds the lock is stopped (SIGSTOP, a debugger, a frozen container). `flock` then waits
without limit, and nothing interrupts it. So it waits in a thread that the process does not wait for at its end, and a
caller stops waiting after `wait_seconds`: `StoreUnavailable`, which names the process. Work whose caller has stopped
waiting is never begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import StoreUnavailable

try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    _fcntl = None  # type: ignore[assignment]  # - a module, or nothing
fcntl: Any = _fcntl

__all__ = ["BUSY_SECONDS", "CLOSED", "FORKED", "FileLock", "WriteThread"]

S = TypeVar("S")
T = TypeVar("T")
_Task = tuple[Future[Any], Callable[[], Any], Callable[[Any], Any] | None]  # what to do, and what after the lock

BUSY_SECONDS = 30.0  # how long another process may hold a file before its users are told
CLOSE_SECONDS = 1.0  # how long a store that is closed waits for a lock that it needs for what was asked before
CLOSED = "this store was closed: open another one"
FORKED = "this store was opened before fork(), in the process that forked: open another one in this process"
LOOK_SECONDS = 0.05  # between two looks at whether a thread that is to end waits for the lock

_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()  # of this process


class FileLock:
    """Holds one lock file open. One thread at a time may use it.

    Args:
        path: the lock file; created when it is first needed.
        wait_seconds: how long `run` waits for another process; None is without limit.
    """

    def __init__(self, path: Path, wait_seconds: float | None = BUSY_SECONDS) -> None:
        self.wait_seconds = wait_seconds
        self._path = path
        self._descriptor: int | None = None
        _locks.add(self)

    def run(self, work: Callable[[], T]) -> T:
        """Wait for the lock, work, release it.

        Raises:
            StoreUnavailable: another process holds the lock for longer than `wait_seconds`.
        """
        if not self._taken_at_once():
            waiting: Future[None] = Future()
            threading.Thread(target=self._wait, args=(waiting,), name="holdfast-lock", daemon=True).start()
            try:
                waiting.result(self.wait_seconds)
            except TimeoutError:
                if waiting.cancel():
                    raise self.timed_out() from None
        try:
            return work()
        finally:
            self.release()

    def acquire(self) -> None:
        """Wait for the lock without limit."""
        if fcntl is not None:
            fcntl.flock(self._opened(), fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def ring(self) -> None:
        """Write to the file, so that other processes that watch it know that something was committed."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, b"!", 0)

    def close(self) -> None:
        """Close the file, which releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def timed_out(self) -> StoreUnavailable:
        """Return the error of a caller that has waited for too long; it names the process that holds the lock."""
        holder = self._holder()
        if holder is None:
            who, cure = (
                "another process has held the lock",
                "look for a process that is stopped, and continue or end it",
            )
        elif _is_stopped(holder):
            who, cure = (
                f"process {holder}, which is stopped, has held the lock",
                f"continue it (kill -CONT {holder}) or end it",
            )
        else:
            who, cure = f"process {holder} has held the lock", "try again, or end that process if it hangs"
        return StoreUnavailable(f"{self._path}: {who} for more than {self.wait_seconds:g} s: {cure}")

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._descriptor

    def _taken_at_once(self) -> bool:
        if fcntl is None:  # pragma: no cover - not a POSIX system
            return True
        try:
            fcntl.flock(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait(self, waiting: Future[None]) -> None:
        self.acquire()
        if waiting.set_running_or_notify_cancel():
            waiting.set_result(None)
        else:  # the caller has stopped waiting
            self.release()

    def _holder(self) -> int | None:
        """Return the id of the process that holds the lock, where the system can tell."""
        with contextlib.suppress(OSError, ValueError):
            inode = str(self._path.stat().st_ino)
            for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
                fields = line.split()  # 1: FLOCK ADVISORY WRITE 4711 fd:00:2146333 0 EOF; "->" before one that waits
                if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode and int(fields[4]) > 0:
                    return int(fields[4])
        return None


class WriteThread:
    """A thread that does one thing after another, most of it under a `FileLock`.

    Args:
        lock: the lock.
        guard: runs what it is given, and turns what the system says into errors of ours.
    """

    def __init__(self, lock: FileLock, guard: Callable[[Callable[[], None]], None]) -> None:
        self._lock = lock
        self._guard = guard
        self._process = os.getpid()
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._under_way: Future[Any] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have something done in the thread, without the lock."""
        return self._submit(lambda: work(*arguments), None)

    def is_current(self) -> bool:
        """Whether it is the thread that calls."""
        return threading.current_thread() is self._thread

    def _submit(self, work: Callable[[], Any], then: Callable[[Any], Any] | None) -> Future[Any]:
        if os.getpid() != self._process:
            raise StoreUnavailable(FORKED)
        if self._closed:
            raise StoreUnavailable(CLOSED)
        future: Future[Any] = Future()
        self._waiting.put((future, work, then))
        return future

    def run(self, work: Callable[[], S], then: Callable[[S], T]) -> T:
        """Do something under the lock, then something with its result after it was released; return the result of that.

        It waits for the end, but for the begin no longer than the lock says.

        Raises:
            StoreUnavailable: another process holds the lock for too long; nothing was done.
        """
        future: Future[T] = self._submit(work, then)
        try:
            return future.result(self._lock.wait_seconds)
        except TimeoutError:
            if future.cancel():
                raise self._lock.timed_out() from None
        except CancelledError:
            raise StoreUnavailable(CLOSED) from None
        return future.result()

    async def arun(self, work: Callable[[], S], then: Callable[[S], T]) -> T:
        """Do the same as `run`, without blocking the loop."""
        future: Future[T] = self._submit(work, then)
        gave_up = False

        def give_up() -> None:
            nonlocal gave_up
            gave_up = future.cancel()

        seconds = self._lock.wait_seconds
        timer = asyncio.get_running_loop().call_later(seconds, give_up) if seconds is not None else None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if gave_up:
                raise self._lock.timed_out() from None
            if task is not None and not task.cancelling():
                raise StoreUnavailable(CLOSED) from None
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def stop(self) -> None:
        """Do what was asked for, end, close the lock. What waits for a lock that another process keeps is dropped."""
        self._closed = True
        self._waiting.put(None)
        if threading.current_thread() is self._thread:
            return  # the last one to know the store was its own thread
        self._thread.join(CLOSE_SECONDS)
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                while task := self._waiting.get_nowait():
                    task[0].cancel()
            self._waiting.put(None)
            under_way = self._under_way
            if under_way is not None and under_way.cancel():
                return  # the thread waits for the lock; when it has it, it does nothing and ends
            self._thread.join(LOOK_SECONDS)

    def _run(self) -> None:
        while (task := self._waiting.get()) is not None:
            self._do(*task)
            del task  # which refers to the store: a store that its caller has dropped is to be closed
        self._lock.close()

    def _do(self, future: Future[Any], work: Callable[[], Any], then: Callable[[Any], Any] | None) -> None:
        self._under_way = future
        begun = False
        try:
            if then is not None:
                self._guard(self._lock.acquire)
            try:
                begun = future.set_running_or_notify_cancel()
                result = work() if begun else None
            finally:
                if then is not None:
                    self._lock.release()
            result = then(result) if begun and then is not None else result
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
            if begun or (not future.cancelled() and future.set_running_or_notify_cancel()):
                future.set_exception(error)
        else:
            if begun:
                future.set_result(result)
        finally:
            self._under_way = None


def _is_stopped(process: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] in {"T", "t"}
    return False


def _forget() -> None:
    """In a forked child: close the parent's lock files, or a lock that the parent held at that moment would stay."""
    for lock in list(_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
