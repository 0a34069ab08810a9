"""A pool of threads for plain functions. It has a maximum size, reuses threads, and never waits for them.

A function in a thread cannot be ended from outside. Its caller may give up: the job was cancelled and its grace time is
over, or the step timed out. The pool then abandons the thread. It no longer counts, another one may replace it, and it
does not keep the process from ending. Python's own pool would run out of threads, and would wait for them at exit
permanently.

The caller gets every error of the function, except those that would end the caller's loop. SystemExit,
KeyboardInterrupt and StopIteration become a RuntimeError that names them.

Only one thread at a time runs Python code, so waking a thread costs more than many functions do. Wake-ups are shared:

- A thread that takes a task wakes the next thread if more tasks wait. One thread thus runs many short functions, and
  a function that blocks holds up no other.
- Threads report to the loop through a `LoopInbox`. All reports that come before the loop has read it wake it once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Protocol

_log = logging.getLogger("holdfast")


def as_runtime_error(error: BaseException) -> RuntimeError:
    """Return the error to raise in place of one that would end more than the code that raised it."""
    try:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except BaseException:  # its __str__ may raise anything, and the caller would wait without end
        text = type(error).__name__
    return RuntimeError(
        f"{text} raised inside a job: it would stop the worker, not only the job; raise another exception instead"
    )


class LoopInbox:
    """Callbacks that threads pass to a loop, which calls them in order. Many share one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = contextvars.Context()  # not that of the job whose thread wakes the loop
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._rung = False  # whether the loop will read the inbox

    def put(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop soon. Safe from any thread.

        Raises:
            RuntimeError: the loop is closed.
        """
        if self._loop.is_closed():
            raise RuntimeError("the loop is closed: its worker has stopped")
        self._waiting.append((callback, args))
        if not self._rung:  # the loop reads what was put before this
            self._rung = True
            self._loop.call_soon_threadsafe(self._read, context=self._context)

    def _read(self) -> None:
        self._rung = False
        for _ in range(len(self._waiting)):
            callback, args = self._waiting.popleft()
            try:
                callback(*args)
            except Exception:  # the others must be called
                _log.exception("a callback of a thread failed")


class ThreadPool(Executor):
    """Runs functions in at most `at_once` threads. Abandoned threads do not count."""

    def __init__(self, at_once: int, loop: asyncio.AbstractEventLoop) -> None:
        self.inbox = LoopInbox(loop)
        self._loop = loop
        self._at_once = at_once
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._counted = 0  # threads that exist and are not abandoned
        self._free = 0  # those that wait for work
        self._waking = False  # whether a thread was woken or started that has not looked for a task yet
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function as soon as a thread is free."""
        task = _FutureTask(self, partial(fn, *args, **kwargs))
        self._put(task)
        return task

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, and return its result. If the caller is cancelled, the thread is abandoned."""
        task = _Call(self._loop.create_future(), function, self.inbox)
        self._put(task)
        try:
            return await task.future
        except asyncio.CancelledError:
            self.abandon(task)
            raise

    def _put(self, task: _Task) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("the thread pool is closed: its worker has stopped")
            self._waiting.append(task)
            self._wake_next()

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
            self._wake_next()

    def abandon(self, task: _Task) -> None:
        """Drop a task that no thread has begun. Otherwise stop counting the thread that runs it, if one does."""
        with self._changed:
            if task.served_by is self:
                task.served_by = None
                self._counted -= 1
                self._wake_next()
            elif task in self._waiting:
                self._waiting.remove(task)

    def _wake_next(self) -> None:
        """Wake or start a thread for the tasks that wait. It does the same for the next one when it takes a task."""
        if self._waking or not self._waiting:
            return
        if self._free:
            self._waking = True
            self._changed.notify()
        elif self._counted < self._at_once:
            self._waking = True
            self._counted += 1
            threading.Thread(target=self._serve, name="holdfast-job", daemon=True).start()

    def _serve(self) -> None:
        task = self._next(is_new=True)
        while task is not None:
            try:
                task.run()
            except BaseException:  # a callback of its future: without this thread the pool would shrink
                _log.exception("a callback of a plain function failed")
            with self._changed:
                if task.served_by is None:
                    return  # abandoned meanwhile: another thread has its place
                task.served_by = None
            del task  # an idle thread keeps nothing of a job in memory
            task = self._next()

    def _next(self, *, is_new: bool = False) -> _Task | None:
        with self._changed:
            if is_new:
                self._waking = False
            self._free += 1
            while not self._waiting and not self._closed:
                self._changed.wait()
                self._waking = False
            self._free -= 1
            if not self._waiting:
                self._counted -= 1
                return None
            task = self._waiting.popleft()
            task.served_by = self
            self._wake_next()
            return task


class _Task(Protocol):
    """A function for a thread, and the pool whose thread runs it: None while no thread does, or if it was abandoned."""

    served_by: ThreadPool | None

    def run(self) -> None:
        """Call the function, and pass on its result."""
        ...

    def cancel(self) -> bool:
        """Tell the caller that the function is not called."""
        ...


class _FutureTask(Future[Any]):
    """A task whose caller may be on any loop or thread."""

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
        except BaseException as error:  # the caller gets every error
            self.set_exception(for_caller(error))
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if not cancelled:
            self._threads.abandon(self)
        return cancelled


class _Call:
    """A task whose caller is a coroutine of the pool's loop."""

    __slots__ = ("_function", "_inbox", "future", "served_by")

    def __init__(self, future: asyncio.Future[Any], function: Callable[[], Any], inbox: LoopInbox) -> None:
        self.future = future
        self.served_by: ThreadPool | None = None
        self._function = function
        self._inbox = inbox

    def run(self) -> None:
        try:
            result, error = self._function(), None
        except BaseException as raised:  # the caller gets every error
            result, error = None, for_caller(raised)
        try:
            self._inbox.put(self._end, result, error)
        except RuntimeError:
            return  # the worker's loop is closed

    def _end(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return  # the caller has stopped waiting
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)

    def cancel(self) -> bool:
        return self.future.cancel()


def for_caller(error: BaseException) -> BaseException:
    """Return what the caller of a function gets for an error of it."""
    if isinstance(error, (SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit)):
        return as_runtime_error(error)
    if type(error) is concurrent.futures.CancelledError:
        return asyncio.CancelledError(*error.args)  # as code on a loop gets it
    return error
