"""A pool of threads for plain functions. It has a maximum size, reuses threads, and never waits for them.

A function in a thread cannot be ended from outside. Its caller may give up: the job was cancelled and its grace time is
over, or the step timed out. The pool then abandons the thread. It no longer counts, another one may replace it, and it
does not keep the process from ending. Python's own pool would run out of threads, and would wait for them at exit
permanently.

The caller gets every error of the function, except those that would end the caller's loop. SystemExit,
KeyboardInterrupt and StopIteration become a RuntimeError that names them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

_log = logging.getLogger("holdfast")


def as_runtime_error(error: BaseException) -> RuntimeError:
    """Return the error to raise in place of one that would end more than the code that raised it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return RuntimeError(
        f"{text} raised inside a job: it would stop the worker, not only the job; raise another exception instead"
    )


class ThreadPool(Executor):
    """Runs functions in at most `at_once` threads. Abandoned threads do not count."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._counted = 0  # threads that exist and are not abandoned
        self._free = 0  # those that wait for work
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function as soon as a thread is free."""
        task = _Task(self, partial(fn, *args, **kwargs))
        with self._changed:
            if self._closed:
                raise RuntimeError("the thread pool is closed: its worker has stopped")
            self._waiting.append(task)
            self._changed.notify()
            self._add_thread()
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """Accept no more work. Wait for no thread."""
        del wait
        with self._changed:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            self._changed.notify_all()
        for task in dropped:
            task.cancel()

    @property
    def at_work(self) -> int:
        """The number of functions that run or wait for a thread. Abandoned threads do not count."""
        with self._changed:
            return len(self._waiting) + self._counted - self._free

    def resize(self, at_once: int) -> None:
        """Change the maximum number of threads. No existing thread is ended."""
        with self._changed:
            self._at_once = at_once
            self._add_thread()

    def abandon(self, task: _Task) -> None:
        """Stop counting the thread that runs this task, if one does."""
        with self._changed:
            if task.served_by is self:
                task.served_by = None
                self._counted -= 1
                self._add_thread()

    def _add_thread(self) -> None:
        if len(self._waiting) > self._free and self._counted < self._at_once:
            self._counted += 1
            threading.Thread(target=self._serve, name="holdfast-job", daemon=True).start()

    def _serve(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.run()
            except BaseException:  # a callback of its future: without this thread the pool would shrink
                _log.exception("a callback of a plain function failed")
            with self._changed:
                if task.served_by is None:
                    return  # abandoned meanwhile: another thread has its place
                task.served_by = None
            del task  # an idle thread keeps nothing of a job in memory

    def _next(self) -> _Task | None:
        with self._changed:
            self._free += 1
            while not self._waiting and not self._closed:
                self._changed.wait()
            self._free -= 1
            if not self._waiting:
                self._counted -= 1
                return None
            task = self._waiting.popleft()
            task.served_by = self
            return task


class _Task(Future[Any]):
    """A call, and the pool whose thread runs it. The pool is None while no thread does, or if it was abandoned."""

    def __init__(self, threads: ThreadPool, call: Callable[[], Any]) -> None:
        super().__init__()
        self._threads = threads
        self._call = call
        self.served_by: ThreadPool | None = None

    def run(self) -> None:
        if not self.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except (SystemExit, KeyboardInterrupt, StopIteration) as error:
            self.set_exception(as_runtime_error(error))
        except BaseException as error:  # the caller gets every error
            self.set_exception(error)
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if not cancelled:
            self._threads.abandon(self)
        return cancelled
