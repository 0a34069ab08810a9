"""Threads for plain functions: so many at once, reused, and never waited for.

A function that runs in a thread cannot be ended from outside. When whoever asked for it has given up (its job was
cancelled and its grace time is over, its step timed out), its thread is abandoned: it no longer counts, another may be
started in its place, and it does not keep the process from ending. Python's own pool would run out of threads, and
would wait for them at exit, for ever.

What a function raises reaches whoever asked, but not what would end the loop he waits on: SystemExit, KeyboardInterrupt
and StopIteration become a RuntimeError that names them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

__all__ = ["ThreadPool", "as_runtime_error"]

_log = logging.getLogger("holdfast")


def as_runtime_error(error: BaseException) -> RuntimeError:
    """Give the error to raise in place of one that would end more than the code that raised it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return RuntimeError(f"{text} raised inside a job: it would stop the worker, not the job; raise an error instead")


class ThreadPool(Executor):
    """Runs functions in at most `at_once` threads, those that were abandoned not counted."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._counted = 0  # threads that are there and not abandoned
        self._free = 0  # those of them that wait for work
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called as soon as a thread is free."""
        task = _Task(self, partial(fn, *args, **kwargs))
        with self._changed:
            if self._closed:
                raise RuntimeError("these threads take no more work: their worker has stopped")
            self._waiting.append(task)
            self._changed.notify()
            self._add_thread()
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """Take no more work. Nobody is waited for."""
        del wait
        with self._changed:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            self._changed.notify_all()
        for task in dropped:
            task.cancel()

    def resize(self, at_once: int) -> None:
        """Have so many threads from now on; of those that are there none is ended."""
        with self._changed:
            self._at_once = at_once
            self._add_thread()

    def abandon(self, task: _Task) -> None:
        """Stop counting the thread that runs this, if one does."""
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
            except BaseException:  # of a callback of its future: without the thread the pool would shrink
                _log.exception("a callback of a plain function failed")
            with self._changed:
                if task.served_by is None:
                    return  # abandoned meanwhile: another has its place
                task.served_by = None
            del task  # while this thread has nothing to do, it keeps nothing of a job in memory

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
    """A call, and the pool whose thread runs it; None while none does, or when it was abandoned."""

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
        except BaseException as error:  # whatever it is, whoever asked must hear of it
            self.set_exception(error)
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if not cancelled:
            self._threads.abandon(self)
        return cancelled
