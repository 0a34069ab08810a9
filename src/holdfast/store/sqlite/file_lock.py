"""A lock between processes of one host, for transactions on a SQLite file, and a thread that works under it.

It is advisory and uses its own file, never the database: closing any descriptor of a database drops SQLite's own locks
on it. The kernel serves waiting processes in order, and releases the lock when a process dies. Where there is no flock,
SQLite's own lock must do.

What can fail: the process that holds the lock is stopped (SIGSTOP, a debugger, a frozen container). `flock` then waits
without limit, and nothing interrupts it. So a daemon thread waits, and a caller stops waiting after
`wait_seconds`: `StoreUnavailable`, which names the process. Work whose caller has stopped waiting never begins.
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
from typing import Any, Generic, TypeVar

from holdfast.errors import StoreUnavailable

try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover - not a POSIX system
    _fcntl = None  # type: ignore[assignment]  # - a module, or nothing
fcntl: Any = _fcntl

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", bound="Future[Any] | _ThreadResult[Any]")

BUSY_SECONDS = 30.0  # how long another process may hold a file before callers get an error
CLOSE_SECONDS = 1.0  # how long a closing store waits for the lock, for queued work
CLOSED = "this store is closed: open a new one"
FORKED = "this store was opened before fork(), by the parent process: open a new one in this process"
LOOK_SECONDS = 0.05  # between two checks whether an ending thread waits for the lock

_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()  # of this process


def file_next_to(database: Path | str, ending: str) -> Path:
    """Return the path of a file next to a database. It is the same for processes that use the database by a link."""
    return Path(os.path.realpath(database) + ending)


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
        """Run a function under the lock.

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
            fcntl.flock(self.descriptor(), fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def ring(self) -> None:
        """Write to the file, so that other processes notice a commit."""
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

    def descriptor(self) -> int:
        """Return the descriptor of the file, which is opened when it is first needed."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._descriptor

    def _taken_at_once(self) -> bool:
        if fcntl is None:  # pragma: no cover - not a POSIX system
            return True
        try:
            fcntl.flock(self.descriptor(), fcntl.LOCK_EX | fcntl.LOCK_NB)
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


class _ThreadResult(Generic[T]):
    """What a `Future` is, for one thread that waits for a task.

    A signal handler may interrupt that thread at any line. It would leave the lock of a `Future` behind, and the thread
    that executes the tasks would wait for it without end.
    """

    def __init__(self) -> None:
        self._begun = threading.Lock()  # taken by what comes first: the begin of the task, or its cancel
        self._unset = threading.Lock()
        self._unset.acquire()
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._value: Any = None

    def set_running_or_notify_cancel(self) -> bool:
        return self._begun.acquire(blocking=False)

    def cancel(self) -> bool:
        if self._begun.acquire(blocking=False):
            self._is_cancelled = True
            self._unset.release()
        return self._is_cancelled

    def cancelled(self) -> bool:
        return self._is_cancelled

    def set_result(self, value: T) -> None:
        self._value = value
        self._unset.release()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._unset.release()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end of the task. Return its result or raise its error."""
        if not self._unset.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        self._unset.release()  # it may be asked again
        if self._is_cancelled:
            raise CancelledError
        value: T = self._value
        if self._error is None:
            return value
        try:
            raise self._error
        finally:
            del self  # the traceback refers to this frame


# The work, and what to run after the lock.
_Task = tuple[Future[Any] | _ThreadResult[Any], Callable[[], Any], Callable[[Any], Any] | None]


class WriteThread:
    """A thread that executes one task after another, most of them under a `FileLock`.

    Args:
        lock: the lock.
        guard: runs a function, and turns errors of the system into ours.
    """

    def __init__(self, lock: FileLock, guard: Callable[[Callable[[], None]], None]) -> None:
        self._lock = lock
        self._guard = guard
        self._process = os.getpid()
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._under_way: Future[Any] | _ThreadResult[Any] | None = None
        # No task comes after the last one: nothing would execute it. A signal handler may submit inside a submission.
        self._closing = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function in the thread, without the lock."""
        return self._submit(Future(), lambda: work(*arguments), None)

    def is_current(self) -> bool:
        """Return whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def _submit(self, future: R, work: Callable[[], Any], then: Callable[[Any], Any] | None) -> R:
        if os.getpid() != self._process:
            raise StoreUnavailable(FORKED)
        with self._closing:
            if self._closed:
                raise StoreUnavailable(CLOSED)
            self._waiting.put((future, work, then))
        return future

    def run(self, work: Callable[[], S], then: Callable[[S], T]) -> T:
        """Run `work` under the lock, then `then` with its result after the release; return the result of `then`.

        It waits for the end; for the start, no longer than the lock's `wait_seconds`.

        Raises:
            StoreUnavailable: another process holds the lock for too long; nothing was done.
        """
        future: _ThreadResult[T] = self._submit(_ThreadResult(), work, then)
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
        future: Future[T] = self._submit(Future(), work, then)
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
        """Finish queued work, end the thread, close the lock. Work that waits for the lock is dropped."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        if threading.current_thread() is self._thread:
            return  # the thread held the last reference to the store
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
            del task  # it refers to the store, which must be collected when its caller drops it
        self._lock.close()

    def _do(
        self, future: Future[Any] | _ThreadResult[Any], work: Callable[[], Any], then: Callable[[Any], Any] | None
    ) -> None:
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
    """Close the parent's lock files in a forked child; else a lock that the parent held at the fork would stay."""
    for lock in list(_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
