"""The event loop of one job's code (SPEC E14).

It owns the code's ready queue and passes everything else to the worker's loop. The worker's loop steps this one from
plain callbacks. So "the code rests" has an exact meaning: the ready queue is empty.

Timers, threads and sockets are *native work*. They run on the worker's loop and are numbered when the code creates
them. They are handed to the code one at a time, when it rests. The engine records the numbers, and a replay hands the
work over in the same places.

Changed code may have other work under a number. So the engine also records what the work was: its *label*. A label is
the kind of the work, the delay of a timer in milliseconds, and its number among equal ones, as the identity of a call
is. Work is found by its label first. The line of the code is not part of it, because code may move. A delay that is not
a whole number of milliseconds was computed, such as from the time or at random. It may differ in each attempt, so it is
not part of the label. The time of the loop stands still while the code runs, so a slow machine does not change a delay.

The loop refuses what it cannot support with `NotInJobCode`: subprocesses, servers and signal handlers. asyncio itself
refuses to await an object of another loop.

This module uses five names of asyncio that start with an underscore. `_set_running_loop` and `_get_running_loop` are
meant for authors of loops. `_swap_current_task` is meant for authors of tasks, and needed from Python 3.14 on.
`Task._fut_waiter` and the `_children` of a gather are only read. Where one of these two is missing, the task counts as
work, and the job stays in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
import threading
import weakref
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures import Future as ThreadFuture
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, NoReturn

import msgspec

from holdfast.authoring.conductor import conductor, job_thread
from holdfast.authoring.functions import Call
from holdfast.engine.thread_pool import ThreadPool, as_runtime_error
from holdfast.errors import NotInJobCode, NotRecorded

# Code of the job completes the futures of these modules: locks, queues, `wait`, `shield`, task groups.
_PRIMITIVES = frozenset(
    {"asyncio.locks", "asyncio.queues", "asyncio.tasks", "asyncio.taskgroups", "holdfast.plans.executor"}
)
_LIMITS = frozenset({"Timeout._on_timeout", "_release_waiter"})  # what asyncio calls when a time limit is over
LOOK_SECONDS = 0.2  # between two checks of a connection that cannot report when it is closed
DROPPED_MIN = 100  # cancelled timers that are kept in any case
EXACT_MS = 1e-5  # that a delay may be off a whole number of milliseconds: the loop's time is a float
LABELLED_MS = 1e12  # a timer with a longer delay has no delay in its label
_log = logging.getLogger("holdfast.job")

# From 3.14 on, a thread has one current task for all its loops, and no task can be entered while there is one. The
# engine steps a job's loop from plain callbacks. A caller inside a task would otherwise lose the step it asked for.
if sys.version_info >= (3, 14):
    from asyncio.tasks import _swap_current_task  # type: ignore[attr-defined]  # - only there from 3.14 on
else:

    def _swap_current_task(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        del loop, task
        return None


def _deliver_nothing() -> bool:
    return False


class DurableFuture(asyncio.Future[Any]):
    """The outcome of a durable call. A task that waits for one does not keep its job in memory."""

    __slots__ = ()


class _PrimitiveFuture(asyncio.Future[Any]):
    """A future of asyncio's own primitives, which only code of the same job completes."""


class JobTask(asyncio.Task[Any]):
    """A task of a job's code. Its hash is its number, so sets of tasks have the same order in every attempt."""

    __slots__ = ("number", "own_context")

    number: int
    own_context: contextvars.Context

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Handle(msgspec.Struct, eq=False):
    """A callback in the ready queue."""

    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: contextvars.Context

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class Native:
    """Work that the code started outside its loop: a thread, or a call on the worker's loop."""

    __slots__ = ("blocked", "deliver", "ident", "loop", "nth", "number", "over", "under_way", "what")

    timer = False

    def __init__(self, loop: JobLoop, number: int, what: str, deliver: Callable[[], object] | None) -> None:
        self.loop = loop
        self.number = number
        self.what = what  # its label without the number among equal ones
        self.nth = loop.count(what) if number else 0
        self.deliver = deliver
        self.under_way = True
        self.over = False  # handed over, or cancelled
        self.blocked = 0  # durable calls that this thread waits in
        self.ident: int | None = None  # of its thread, once that has begun

    @property
    def label(self) -> str:
        """Return what it is: its kind, its delay and its number among equal ones."""
        return f"{self.what}#{self.nth}" if self.nth > 1 else self.what


class _Timer(Native):
    """A timer that the code has set. It is handed over when it is due."""

    __slots__ = ("args", "callback", "context", "handle", "when_at")

    timer = True

    def __init__(
        self,
        loop: JobLoop,
        number: int,
        what: str,
        when: float,
        callback: Callable[..., object],
        args: Any,
        context: Any,
    ) -> None:
        super().__init__(loop, number, what, self._fire)
        self.when_at = when
        self.callback = callback
        self.args = args
        self.context = context
        self.handle: _Handle | None = None  # in the ready queue, once it is due

    def _fire(self) -> None:
        self.handle = self.loop.call_soon(self.callback, *self.args, context=self.context)

    @property
    def is_limit(self) -> bool:
        """Return whether it only ends something else: `asyncio.timeout`, or the timeout of `wait` and `wait_for`."""
        return getattr(self.callback, "__qualname__", None) in _LIMITS

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
        elif not self.over:
            self.loop.end_native(self)
            self.args = ()
            self.loop.timer_dropped()

    def cancelled(self) -> bool:
        return self.handle.cancelled() if self.handle is not None else self.over

    def when(self) -> float:
        return self.when_at

    def __lt__(self, other: _Timer) -> bool:
        return (self.when_at, self.number) < (other.when_at, other.number)


class _Watch(NamedTuple):
    """A callback for a descriptor that can be read or written."""

    kind: str
    fd: Any
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Any
    key: tuple[str, int]  # by its number: the file may be closed by the time its callback runs


def _outside(name: str) -> Any:
    """Return a method that runs the method of this name on the worker's loop, as native work."""

    async def method(self: JobLoop, *args: Any, **kwargs: Any) -> Any:
        return await self.outside(getattr(self.host, name)(*args, **kwargs))

    return method


def _connecting(name: str) -> Any:
    """Return a method that opens a connection on the worker's loop. An open connection counts as work."""

    async def method(self: JobLoop, *args: Any, **kwargs: Any) -> Any:
        transport, protocol = await self.outside(getattr(self.host, name)(*args, **kwargs))
        self.watch(transport, protocol)
        return transport, protocol

    return method


def _refusing(what: str) -> Any:
    """Return a method that refuses what job code cannot use."""

    async def method(self: JobLoop, *args: Any, **kwargs: Any) -> Any:
        del self, args, kwargs
        refuse(what)

    return method


class JobLoop(asyncio.AbstractEventLoop):
    """The loop of one attempt's code; see the module's docstring.

    Args:
        host: the worker's loop.
        threads: runs the functions that the code passes to its default executor.
        wake: called on the host's loop when there is work and no code of the job runs.
        salt: makes the hashes of this job's tasks differ from those of other jobs.
    """

    def __init__(
        self, host: asyncio.AbstractEventLoop, threads: ThreadPool, wake: Callable[[], None], salt: int = 0
    ) -> None:
        self.host = host
        self._empty_context = contextvars.Context()  # not shared: only one thread at a time can enter a context
        self.ready: deque[_Handle] = deque()
        self.completed: deque[Native] = deque()  # native work that is done and was not handed over yet
        self.handed: list[int] = []  # numbers of the work handed over since the last event
        self.handed_labels: list[str] = []  # their labels
        self.natives_made = 0  # total number of native work created
        self.fatal: BaseException | None = None  # ends the code: SystemExit, KeyboardInterrupt, or a misfit
        self.turning = False  # whether the engine will read the ready queue without a wake
        self._threads = threads
        self._wake = wake
        self._woken = False
        self._salt = salt
        self._tasks: list[JobTask] = []
        self._tasks_made = 0
        self._prune_at = 64
        self._natives: dict[int, Native] = {}  # by number, until they are handed over
        self._alike: dict[str, int] = {}  # number of native work created, by what it is
        self._running = 0  # those that keep the job from resting: not completed, not blocked in a durable call
        self._timers: list[_Timer] = []
        self._timers_dropped = 0  # number of those that were cancelled
        self._armed: tuple[float, asyncio.TimerHandle] | None = None
        self._jumped = 0.0  # seconds that a replay did not wait for
        self._frozen_at: float | None = None  # the host's time, fixed while the code runs
        self._foreign: weakref.WeakSet[asyncio.Future[Any]] | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._watched: dict[tuple[str, int], _Watch] = {}  # descriptors with a callback, by kind
        self._started_in_order: dict[int, JobTask] = {}
        self._generators: weakref.WeakSet[Any] | None = None
        self._host_hooks = sys.get_asyncgen_hooks()  # read once: it takes as long as a callback of the code
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self.code_thread: ThreadFuture[Any] | None = None  # the thread of the job's own plain function
        self._closed = False

    # The ready queue

    def call_soon(  # type: ignore[override]  # - handles of our own, as uvloop has
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context if context is not None else contextvars.copy_context())
        if self._closed:
            return handle
        self.ready.append(handle)
        if not self.turning and not self._woken and not self.host.is_closed():
            self._woken = True
            self.host.call_soon(self._wake_now, context=self._empty_context)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # - handles of our own
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context if context is not None else contextvars.copy_context())
        self._threads.inbox.put(self._enter, handle)  # in order with the durable calls of the same thread
        return handle

    def _enter(self, handle: _Handle) -> None:
        if not self._closed:
            self.ready.append(handle)
            self._wake()

    def _wake_now(self) -> None:
        self._woken = False
        if not self._closed:
            self._wake()

    def run_ready(self, most: int, release: Callable[[], bool] = _deliver_nothing) -> int:
        """Run callbacks until the code rests, or at most so many. Return their number.

        Args:
            most: the number of callbacks after which other jobs have their turn.
            release: called when the code rests. It may deliver a recorded outcome, and returns whether it did: a replay
                enters and leaves this loop once for many outcomes.
        """
        count, ready = 0, self.ready
        outer = _get_running_loop()
        outer_task = None if outer is None else _swap_current_task(outer, None)
        _set_running_loop(self)
        sys.set_asyncgen_hooks(self._first_iteration, self._finalize)
        self._frozen_at = self.host.time()
        try:
            while count < most:
                if not ready:
                    if not release():
                        break
                    self._frozen_at = self.host.time()
                    continue
                handle = ready.popleft()
                if handle.callback is None:
                    continue
                count += 1
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (SystemExit, KeyboardInterrupt) as error:
                    self.fatal = error
                    break
                except BaseException as error:  # a callback of the code: the error is reported, and the loop continues
                    self.call_exception_handler({"message": "a callback failed", "exception": error})
        finally:
            self._frozen_at = None
            sys.set_asyncgen_hooks(*self._host_hooks)
            _set_running_loop(outer)
            if outer is not None and outer_task is not None:
                _swap_current_task(outer, outer_task)
        return count

    # Native work

    @property
    def works(self) -> bool:
        """Return whether native work is under way that the code may be handed."""
        return self._running > 0 or bool(self._transports or self._watched)

    def state(self, number: int) -> str:
        """Return the state of native work: `unmade`, `running`, `timer`, `completed` or `over`."""
        if number > self.natives_made:
            return "unmade"
        native = self._natives.get(number)
        if native is None or native.over:
            return "over"
        if not native.under_way:
            return "completed"
        return "timer" if native.timer else "running"

    def find(self, number: int, label: str, *, at_its_place: bool) -> tuple[int, str]:
        """Return the number and the state of native work that a history has with this number and label.

        Args:
            number: its number in the code that recorded it.
            label: what it was. Empty in earlier histories: then it is known by its number alone.
            at_its_place: whether the code stands where this work ended. Then a timer may have another delay.
        """
        own = self._natives.get(number)
        if not label or (own is not None and own.label == label):
            return number, self.state(number)
        what, _, nth = label.partition("#")
        if self._alike.get(what, 0) >= int(nth or 1):
            alike = next((one for one in self._natives.values() if one.label == label), None)
            return (number, "over") if alike is None else (alike.number, self.state(alike.number))
        if own is not None and _is_alike(own.what, what, at_its_place=at_its_place):
            return number, self.state(number)
        return number, "unmade"

    def count(self, what: str) -> int:
        """Count native work that the code has created. Return its number among equal ones."""
        nth = self._alike[what] = self._alike.get(what, 0) + 1
        return nth

    def hand_over(self, number: int | None = None) -> bool:
        """Hand completed native work to the code: this one, or the oldest. Return whether there was any."""
        while self.completed:
            native = self.completed.popleft() if number is None else self._natives[number]
            if number is not None:
                self.completed.remove(native)
            if native.over:
                continue
            native.over = True
            self._natives.pop(native.number, None)
            if number is None and native.number:  # in a replay an event has the number
                self.handed.append(native.number)
                self.handed_labels.append(native.label)
            if native.deliver is not None:
                native.deliver()
            return True
        return False

    def fire(self, number: int) -> None:
        """Hand over a timer that is not due. A replay does not wait for what has happened."""
        timer = self._natives[number]
        assert isinstance(timer, _Timer), "only a timer can be fired"
        self._jumped += max(0.0, timer.when_at - self.time())
        self._complete(timer)
        self.hand_over(number)

    def only_timer(self) -> int | None:
        """Return the next timer if timers are all that can move the resting code; for a check, which does not wait."""
        timers = [timer for timer in self._timers if not timer.over]
        if not timers or self.completed or self.ready or len(timers) != self._running:
            return None
        self._transports = [each for each in self._transports if not each.is_closing()]
        return None if self._transports or self._watched else min(timers).number

    def has_only_time_limits(self) -> bool:
        """Return whether only timeouts can move the resting code. Nothing in it sleeps, so it is not slow."""
        return self.only_timer() is not None and all(timer.over or timer.is_limit for timer in self._timers)

    def begin_native(self, what: str, deliver: Callable[[], object] | None = None) -> Native:
        """Number native work that the code has created."""
        self.natives_made += 1
        native = self._natives[self.natives_made] = Native(self, self.natives_made, what, deliver)
        self._running += 1
        return native

    def end_native(self, native: Native) -> None:
        """Forget native work that nothing waits for any more."""
        native.over = True
        self._natives.pop(native.number, None)
        if native.under_way:
            native.under_way = False
            self._running -= not native.blocked

    def _complete(self, native: Native) -> None:
        if not native.under_way:
            return
        native.under_way = False
        self._running -= not native.blocked
        self.completed.append(native)

    def complete(self, native: Native) -> None:
        """Queue completed native work to be handed over. Runs on the host's loop."""
        if self._closed or native.over:
            return
        self._complete(native)
        self._wake()

    def block(self, native: Native | None) -> None:
        """Note that a thread of the code waits in a durable call."""
        if native is not None and native.loop is self:
            if not native.blocked and native.under_way:
                self._running -= 1
            native.blocked += 1

    def unblock(self, native: Native | None) -> None:
        """Note that the thread continues."""
        if native is not None and native.loop is self:
            native.blocked -= 1
            if not native.blocked and native.under_way:
                self._running += 1

    # Timers

    def time(self) -> float:
        """Return the time of this loop. It stands still while the code runs, and jumps where a replay did not wait.

        So a timer that the code sets is always in the future, and is numbered, however slow the machine is.
        """
        return (self.host.time() if self._frozen_at is None else self._frozen_at) + self._jumped

    def call_later(  # type: ignore[override]  # - handles of our own
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Timer:
        caller = sys._getframe(1)  # noqa: SLF001 - a sleep is not a timeout
        slept = caller.f_code.co_name == "sleep" and caller.f_globals.get("__name__") == "asyncio.tasks"
        now = self.time()
        return self._set_timer("sleep" if slept else "timer", now, now + delay, callback, args, context)

    def call_at(  # type: ignore[override]  # - handles of our own
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Timer:
        return self._set_timer("timer", self.time(), when, callback, args, context)

    def _set_timer(
        self,
        kind: str,
        now: float,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> _Timer:
        self.natives_made += 1
        run_in = context if context is not None else contextvars.copy_context()
        what = _timer_label(kind, when - now)
        timer = _Timer(self, self.natives_made, what, when, callback, args, run_in)
        self._natives[self.natives_made] = timer
        self._running += 1
        heappush(self._timers, timer)
        if not self.turning:
            self.host.call_soon(self._wake_now, context=self._empty_context)
        return timer

    def arm(self) -> None:
        """Set the host's timer for the next timer of the code.

        Called when the code rests, because most timers are cancelled before that.
        """
        timers = self._timers
        while timers and timers[0].over:
            heappop(timers)
            self._timers_dropped -= 1
        due = timers[0].when_at - self._jumped if timers else None
        if self._armed is not None:
            if due == self._armed[0]:
                return
            self._armed[1].cancel()
            self._armed = None
        if due is not None:
            self._armed = due, self.host.call_at(due, self._due, context=self._empty_context)

    def _due(self) -> None:
        self._armed = None
        now, timers = self.time(), self._timers
        while timers and (timers[0].over or timers[0].when_at <= now):
            timer = heappop(timers)
            if timer.over:
                self._timers_dropped -= 1
            else:
                self._complete(timer)
        if not self._closed:
            self._wake()

    def timer_dropped(self) -> None:
        """Count a cancelled timer, and free cancelled ones when they are the most.

        Code with many timeouts would keep them all.
        """
        self._timers_dropped += 1
        if self._timers_dropped > DROPPED_MIN and 2 * self._timers_dropped > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer.over]
            heapify(self._timers)
            self._timers_dropped = 0

    # Futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future. It counts as work until it is done, unless asyncio's own primitives created it."""
        caller = sys._getframe(1)  # noqa: SLF001 - the caller says what it is for
        if caller.f_globals.get("__name__") in _PRIMITIVES:
            if caller.f_code.co_name in _WRAPPERS:
                self._wrapped(caller.f_locals)
            return _PrimitiveFuture(loop=self)
        future: asyncio.Future[Any] = asyncio.Future(loop=self)
        self._count_as_work(future)
        return future

    def _count_as_work(self, future: asyncio.Future[Any]) -> None:
        if self._foreign is None:
            self._foreign = weakref.WeakSet()
        self._foreign.add(future)

    def _wrapped(self, names: dict[str, Any]) -> None:
        """Count the futures that `wait` and `shield` wait for as work, if they were created without this loop."""
        inner = names.get("inner")
        for future in [inner] if inner is not None else names.get("fs") or ():
            if asyncio.isfuture(future) and not future.done() and not _is_blocked(future):
                self._count_as_work(future)

    def create_task(  # type: ignore[override]  # - any further argument is for the task
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> JobTask:
        if self._started_in_order or sys._getframe(1).f_code.co_name in _ENSURES:  # noqa: SLF001 - for as_completed
            try:
                self._start_in_order()
            except NotInJobCode:
                coro.close()
                raise
            task = self._started_in_order.pop(id(coro), None)
            if task is not None:
                return task
        return self._task(coro, name, context, options)

    def _task(self, coro: Any, name: object, context: contextvars.Context | None, options: dict[str, Any]) -> JobTask:
        context = context if context is not None else contextvars.copy_context()
        self._tasks_made += 1
        task = JobTask.__new__(JobTask)
        task.number = self._salt + self._tasks_made  # before initialisation, which registers the task by its hash
        task.own_context = context
        called = str(name) if name is not None else f"task-{self._tasks_made}"
        JobTask.__init__(task, coro, loop=self, name=called, context=context, **options)
        if len(self._tasks) >= self._prune_at:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._prune_at = 2 * len(self._tasks) + 64
        self._tasks.append(task)
        return task

    def _start_in_order(self) -> None:
        """Start the coroutines passed to `as_completed` in the order of its list, not of a set of addresses."""
        frame: Any = sys._getframe(2)  # noqa: SLF001 - see above
        for _ in range(4):
            frame = frame.f_back
            if frame is None or frame.f_globals.get("__name__") != "asyncio.tasks":
                return
            if frame.f_code.co_name in {"as_completed", "__init__"}:
                break
        else:
            return
        awaitables = frame.f_locals.get("fs", frame.f_locals.get("aws"))
        if awaitables is None or self._started_in_order:
            return
        if not isinstance(awaitables, (list, tuple, dict)) or not all(map(_is_ordered, awaitables)):
            raise NotInJobCode(
                "as_completed over a set or a generator of coroutines, or over other awaitables, whose order is lost",
                "pass a list, or tasks: asyncio.as_completed([asyncio.create_task(c) for c in calls])",
            )
        for awaitable in awaitables:
            if asyncio.iscoroutine(awaitable) and id(awaitable) not in self._started_in_order:
                self._started_in_order[id(awaitable)] = self._task(awaitable, None, None, {})

    def unfinished(self) -> list[JobTask]:
        """List the tasks of the code that have not ended."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def busy_with(self) -> str | None:
        """Return what keeps the job in memory although the code rests. None if only durable calls are open."""
        if self._running:
            return f"{self._running} timers, threads or calls of the loop are under way"
        self._transports = [each for each in self._transports if not each.is_closing()]
        if self._transports or self._watched:
            return f"{len(self._transports) + len(self._watched)} connections are open"
        if self.has_foreign_work:
            return "a future of the code's own is not done"
        for task in self.unfinished():
            if not _is_blocked(getattr(task, "_fut_waiter", None)):
                return f"{task.get_name()} waits for something else"
        return None

    @property
    def has_foreign_work(self) -> bool:
        """Return whether a thread or process that is not of this loop works for the code."""
        return self._foreign is not None and any(not future.done() for future in self._foreign)

    @property
    def may_move(self) -> bool:
        """Return whether the code may make another call without being handed anything: slow, not changed, code."""
        if self.works or self.has_foreign_work:
            return True
        waiters = (getattr(task, "_fut_waiter", None) for task in self.unfinished())
        return any(waiter is not None and not _is_blocked(waiter) for waiter in waiters)

    # Threads

    def run_in_executor(  # type: ignore[override]  # - what it returns is a future
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread. Durable calls in it belong to the job."""
        if isinstance(executor, ProcessPoolExecutor):
            if isinstance(func, Call) and func.tool:
                raise NotRecorded(func.name, "in another process")
            return self._in_thread(executor, func, args, None)
        return self._in_thread(executor or self._threads, func, args, contextvars.copy_context())

    def run_code(self, func: Callable[..., Any], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        """Run the job's own plain function in a thread. It is the code itself, and has no number."""
        native = Native(self, 0, "code", None)
        self._running += 1
        context = contextvars.copy_context()
        return self._in_thread(self._threads, lambda: func(**kwargs), (), context, native)

    def _in_thread(
        self,
        executor: Executor,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        native: Native | None = None,
    ) -> asyncio.Future[Any]:
        future = _PrimitiveFuture(loop=self)
        native = native if native is not None else self.begin_native("thread")
        try:
            if context is None:
                thread = executor.submit(func, *args)
            else:
                for entered in (context, _context_of(func)):
                    if entered is not None:
                        entered.run(job_thread.set, native)
                thread = executor.submit(_in_own_thread, native, context, func, args)
        except BaseException:  # the executor accepts no work, or no more
            self.end_native(native)
            raise
        if not native.number:
            self.code_thread = thread
        native.deliver = lambda: _copy_outcome(thread, future)
        future.add_done_callback(lambda _: self._abandon_thread(native, thread))
        thread.add_done_callback(lambda _: self._thread_done(native))
        return future

    def _thread_done(self, native: Native) -> None:
        try:
            self._threads.inbox.put(self.complete, native)
        except RuntimeError:
            return  # the worker's loop is closed

    def _abandon_thread(self, native: Native, thread: ThreadFuture[Any]) -> None:
        """Stop counting a thread whose future the code has cancelled. A running thread continues."""
        if not native.over:
            self.end_native(native)
            thread.cancel()

    # What the worker's loop does for the code

    async def outside(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the worker's loop, as native work."""
        if self._closed:
            work.close()
            raise asyncio.CancelledError
        future = _PrimitiveFuture(loop=self)
        context = contextvars.copy_context()
        context.run(conductor.set, None)  # this work is not a call of the code
        task = self.host.create_task(work, context=context)
        native = self.begin_native("other", lambda: _copy_outcome(task, future))
        task.add_done_callback(lambda _: self.complete(native), context=self._empty_context)
        try:
            return await future
        except BaseException:
            self.end_native(native)
            task.cancel()
            task.add_done_callback(_discard_result, context=self._empty_context)  # it may have ended by now
            raise

    def watch(self, transport: asyncio.BaseTransport, protocol: Any) -> None:
        """Count a connection as work until it is closed."""
        self._transports.append(transport)
        lost = getattr(protocol, "connection_lost", None)
        if lost is None:
            return

        def connection_lost(error: Exception | None) -> None:
            lost(error)
            self._unwatch(transport)

        try:
            protocol.connection_lost = connection_lost
        except AttributeError:  # the protocol has slots
            self._poll_closed(transport)

    def _unwatch(self, transport: asyncio.BaseTransport) -> None:
        self._transports = [each for each in self._transports if each is not transport]
        if not self._closed:
            self._wake()

    def _poll_closed(self, transport: asyncio.BaseTransport) -> None:
        """Check repeatedly whether a connection is closed, because its protocol cannot report it."""
        if transport.is_closing():
            self._unwatch(transport)
        elif not self._closed:
            self.host.call_later(LOOK_SECONDS, self._poll_closed, transport, context=self._empty_context)

    getaddrinfo = _outside("getaddrinfo")
    getnameinfo = _outside("getnameinfo")
    sendfile = _outside("sendfile")
    sock_recv = _outside("sock_recv")
    sock_recv_into = _outside("sock_recv_into")
    sock_recvfrom = _outside("sock_recvfrom")
    sock_recvfrom_into = _outside("sock_recvfrom_into")
    sock_sendall = _outside("sock_sendall")
    sock_sendto = _outside("sock_sendto")
    sock_connect = _outside("sock_connect")
    sock_accept = _outside("sock_accept")
    sock_sendfile = _outside("sock_sendfile")
    create_connection = _connecting("create_connection")
    create_unix_connection = _connecting("create_unix_connection")
    create_datagram_endpoint = _connecting("create_datagram_endpoint")
    connect_accepted_socket = _connecting("connect_accepted_socket")
    connect_read_pipe = _connecting("connect_read_pipe")
    connect_write_pipe = _connecting("connect_write_pipe")

    async def start_tls(self, transport: Any, protocol: Any, *args: Any, **kwargs: Any) -> Any:
        upgraded = await self.outside(self.host.start_tls(transport, protocol, *args, **kwargs))
        self._transports = [each for each in self._transports if each is not transport]
        self.watch(upgraded, protocol)
        return upgraded

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]  # - any
        self._add("reader", fd, callback, args)

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]  # - any
        self._add("writer", fd, callback, args)

    def _add(self, kind: str, fd: Any, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        watch = _Watch(kind, fd, callback, args, contextvars.copy_context(), (kind, _number(fd)))
        self._listen(watch)
        self._watched[watch.key] = watch

    def _listen(self, watch: _Watch) -> None:
        add = self.host.add_reader if watch.kind == "reader" else self.host.add_writer
        add(watch.fd, self._fd_ready, watch)

    def _fd_ready(self, watch: _Watch) -> None:
        """Queue the callback of a ready descriptor. Listen again after it has run, or it would run once too often."""
        self._unlisten(watch)
        self.call_soon(self._run_watch, watch, context=watch.context)

    def _unlisten(self, watch: _Watch) -> None:
        remove = self.host.remove_reader if watch.kind == "reader" else self.host.remove_writer
        remove(watch.fd)

    def _run_watch(self, watch: _Watch) -> None:
        at = watch.key
        if self._watched.get(at) is not watch:
            return  # removed or replaced meanwhile
        try:
            watch.callback(*watch.args)
        finally:
            if self._watched.get(at) is watch:
                self._listen(watch)

    def remove_reader(self, fd: Any) -> bool:
        return self._remove("reader", fd)

    def remove_writer(self, fd: Any) -> bool:
        return self._remove("writer", fd)

    def _remove(self, kind: str, fd: Any) -> bool:
        watch = self._watched.pop((kind, _number(fd)), None)
        if watch is not None:
            self._unlisten(watch)
        return watch is not None

    # What is refused

    subprocess_exec = _refusing("a subprocess")
    subprocess_shell = _refusing("a subprocess")
    create_server = _refusing("a server")
    create_unix_server = _refusing("a server")

    def add_signal_handler(self, *args: Any) -> None:  # type: ignore[override]  # - refused
        del args
        refuse("a signal handler")

    def remove_signal_handler(self, sig: int) -> bool:
        del sig
        return False

    def run_forever(self) -> None:
        raise RuntimeError("this loop is run by Holdfast's engine")

    def run_until_complete(self, future: Any) -> Any:
        del future
        self.run_forever()

    def stop(self) -> None:
        self.run_forever()

    def set_default_executor(self, executor: Any) -> None:
        """Refuse: the job uses the worker's threads."""
        del executor
        refuse("a default executor of its own")

    def set_task_factory(self, factory: Any) -> None:
        """Refuse a factory: the engine must know every task."""
        if factory is not None:
            refuse("a task factory")

    # What every loop has

    def get_task_factory(self) -> None:
        """Return None."""

    def is_running(self) -> bool:
        """Return whether the code runs at this moment, or may run."""
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001 - as asyncio has it
        """Ignore: debug mode is the host's."""

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: the engine does so."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as asyncio has it
        """Do nothing: the threads are the worker's."""

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Do nothing: this loop's timers report their own cancellation."""

    def get_exception_handler(self) -> Any:
        return self._handler

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that nothing waits for."""
        error = context.get("exception")
        trace = (type(error), error, error.__traceback__) if isinstance(error, BaseException) else None
        _log.error("%s", context.get("message", "an error in a job's code"), exc_info=trace)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that nothing waits for. Errors of closed code are not reported."""
        if self._closed or self.host.is_closed():
            return
        try:
            if self._handler is not None:
                self._handler(self, context)
            else:
                self.default_exception_handler(context)
        except Exception:  # the code's handler must not end the loop
            _log.exception("the exception handler of a job's code failed")

    def _first_iteration(self, generator: Any) -> None:
        if self._generators is None:
            self._generators = weakref.WeakSet()
        self._generators.add(generator)

    def _finalize(self, generator: Any) -> None:
        if self._generators is not None:
            self._generators.discard(generator)
        if not self._closed:
            self.call_soon_threadsafe(self.create_task, generator.aclose())

    # The end

    def forget(self) -> None:
        """Drop references to the engine."""
        self._wake = _nothing

    def close(self) -> None:
        """End the code without a cancellation: its coroutines are closed, and see GeneratorExit (E14)."""
        if self._closed:
            return
        self._closed = True
        self.ready.clear()
        if self._armed is not None:
            self._armed[1].cancel()
        for transport in self._transports:
            abort = getattr(transport, "abort", transport.close)
            abort()
        for watch in self._watched.values():
            with contextlib.suppress(ValueError):  # the file was closed
                self._unlisten(watch)
        self._watched.clear()
        outer = _get_running_loop()
        outer_task = None if outer is None else _swap_current_task(outer, None)
        _set_running_loop(self)
        try:
            generators = list(self._generators or ())  # held: the coroutines closed next have the only references
            for _ in range(CLOSES_MAX):
                left, self._tasks = self.unfinished(), []
                for task in left:  # a `finally` may create other tasks
                    _close(task.get_coro(), task.own_context)
                if not left:
                    break
            for generator in generators:
                _close_generator(generator)
        finally:
            _set_running_loop(outer)
            if outer is not None and outer_task is not None:
                _swap_current_task(outer, outer_task)
        self._tasks.clear()
        self._natives.clear()
        self.completed.clear()
        self._timers.clear()
        self._started_in_order.clear()


_unclosed: deque[Any] = deque(maxlen=1000)


def _nothing() -> None:
    """Do nothing."""


CLOSES_MAX = 100  # times to close a coroutine that keeps awaiting in its `finally`
_WRAPPERS = frozenset({"_wait", "shield"})  # functions of asyncio.tasks whose future ends with other futures
_ENSURES = frozenset({"ensure_future", "_ensure_future"})


def _close(coroutine: Any, context: contextvars.Context) -> None:
    """Close a coroutine and what it awaits, from the inside out.

    If a coroutine awaits in its `finally`, `close` raises RuntimeError. The code around it must not see that (E14).
    """
    chain = [coroutine]
    while (inner := getattr(chain[-1], "cr_await", None)) is not None and hasattr(inner, "cr_frame"):
        chain.append(inner)
    for each in reversed(chain):
        _close_one(each, context)


def _close_one(coroutine: Any, context: contextvars.Context) -> None:
    for _ in range(CLOSES_MAX):
        try:
            context.run(coroutine.close)
        except RuntimeError:  # it awaits in its `finally` or catches GeneratorExit: close it again
            continue
        except BaseException as error:  # errors of closed code are ignored
            _log.debug("code that was suspended raised %s", type(error).__name__)
        return
    _log.warning("code that was suspended does not end: it catches BaseException in a loop; let GeneratorExit pass")
    _unclosed.append(coroutine)  # otherwise Python would try again and report on stderr


def _close_generator(generator: Any) -> None:
    """Close an async generator that its code has left. What it awaits while it is closed is refused."""
    closing = generator.aclose()
    try:
        closing.send(None)
    except BaseException as error:  # StopIteration is the normal end; other errors are ignored
        _log.debug("an async generator was closed: %s", type(error).__name__)
    _close_one(closing, contextvars.Context())


def _is_blocked(waiter: Any) -> bool:
    """Return whether a task that waits for this can only continue through code of the job or a durable call."""
    left = [waiter]
    while left:
        future = left.pop()
        if isinstance(future, (DurableFuture, _PrimitiveFuture, JobTask)) or (future is not waiter and future.done()):
            continue
        children: Iterable[Any] | None = getattr(future, "_children", None)
        if children is None:
            return False
        left += children
    return True


def _is_ordered(awaitable: Any) -> bool:
    """Return whether `as_completed` can start this in its turn. It refuses what is not awaitable itself."""
    return asyncio.iscoroutine(awaitable) or asyncio.isfuture(awaitable) or not hasattr(awaitable, "__await__")


def _discard_result(task: asyncio.Task[Any]) -> None:
    """Drop the result of work that the code no longer waits for. Ignore an error, and close a connection."""
    if task.cancelled() or task.exception() is not None:
        return
    result = task.result()
    close = getattr(result[0], "close", None) if isinstance(result, tuple) and result else None
    if close is not None:  # a transport, or the socket from `sock_accept`
        close()


def _timer_label(kind: str, delay_seconds: float) -> str:
    """Return the kind of a timer, and its delay in milliseconds if it is a whole number of them."""
    delay_ms = 1000 * delay_seconds
    if not -1 < delay_ms < LABELLED_MS:
        return kind
    whole = round(delay_ms)
    return f"{kind}:{whole}" if abs(delay_ms - whole) < EXACT_MS else kind


def _is_alike(one: str, other: str, *, at_its_place: bool) -> bool:
    """Return whether two timers of the same number are taken for the same one although their labels differ."""
    kind, _, delay = one.partition(":")
    other_kind, _, other_delay = other.partition(":")
    return kind == other_kind and (at_its_place or not delay or not other_delay)


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _in_own_thread(native: Native, context: contextvars.Context, func: Callable[..., Any], args: Any) -> Any:
    native.ident = threading.get_ident()
    return context.run(func, *args)


def _context_of(func: Any) -> contextvars.Context | None:
    """Return the context that a function enters itself, as that of `asyncio.to_thread` does."""
    bound = getattr(func.func if isinstance(func, partial) else func, "__self__", None)
    return bound if isinstance(bound, contextvars.Context) else None


def _copy_outcome(source: Any, future: asyncio.Future[Any]) -> None:
    """Copy the result or error of another future to a future of the job."""
    if future.done():
        return
    if source.cancelled():
        future.cancel()
        return
    error = source.exception()
    if isinstance(error, StopIteration):  # a future does not accept it, and it would end a coroutine
        future.set_exception(as_runtime_error(error))
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(source.result())


def refuse(what: str) -> NoReturn:
    """Raise the error for something that job code cannot use."""
    raise NotInJobCode(what, "call it in a step")
