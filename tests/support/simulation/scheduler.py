"""The scheduler of a simulation: virtual time, and which process runs next.

Each simulated process has an event loop of its own. Within one process, callbacks run in the order in which they were
scheduled, as asyncio promises. Which process runs next is drawn from the seed. Time moves only when no process can run.
A process that has crashed never runs again. A paused process does not run while time passes.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from asyncio import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import count
from typing import Any

TICK = 2.0**-20  # times are multiples of it, so that their sums with the date are exact
SPIN_MAX = 20_000  # callbacks at one moment; more of them never end


class Spins(AssertionError):
    """The processes run on and on while time stands still."""


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self.number = number  # first: asyncio keeps a set of all tasks
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    """A future whose hash is its number."""

    number = 0  # of this future, once it is set

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Scheduler:
    """Runs the processes of one simulation.

    Args:
        seed: decides which process runs next.
        burst: the most callbacks that one process runs before another one may.
    """

    def __init__(self, seed: int, burst: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.running: ProcessLoop | None = None
        self.loops: list[ProcessLoop] = []
        self._burst = burst
        self._timers: list[tuple[float, int, ProcessLoop | None, asyncio.Handle | Callable[[], object]]] = []
        self._numbers = count()
        self._last_move = 0
        self.over = False

    def number(self) -> int:
        """Return the next number, for objects that must have an order."""
        return next(self._numbers)

    def at(self, when: float, loop: ProcessLoop | None, call: asyncio.Handle | Callable[[], object]) -> None:
        """Call something at a time: a callback of a process, or one of the world outside."""
        when = math.ceil(max(when, self.now) / TICK) * TICK
        heappush(self._timers, (when, next(self._numbers), loop, call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function of the world outside after so many seconds."""
        self.at(self.now + seconds, None, call)

    def run(self, until: float) -> None:
        """Run until `over` is set, or until a time.

        Raises:
            Spins: callbacks never end, and time does not move.
        """
        try:
            self._run(until)
        finally:
            self._switch(None)

    def _switch(self, loop: ProcessLoop | None) -> None:
        if loop is not self.running:  # asyncio asks the system for the process id each time
            self.running = loop
            _set_running_loop(loop)

    def _run(self, until: float) -> None:
        while not self.over:
            ready = [loop for loop in self.loops if (loop.ready or loop.threads) and loop.alive and not loop.paused]
            if ready:
                loop = ready[0] if len(ready) == 1 else ready[int(self.random.random() * len(ready))]
                most = 1 + int(self.random.random() * self._burst) if self._burst > 1 else 1
                self._turn(loop, most)
                if self.steps - self._last_move > SPIN_MAX:
                    raise Spins(f"{SPIN_MAX:,} callbacks at {self.now:.3f} s, and time does not move")
            elif not self._move(until):
                return

    def _turn(self, loop: ProcessLoop, most: int) -> None:
        self._switch(loop)
        for _ in range(most):
            if loop.threads and (not loop.ready or self.random.random() < 0.5):
                handle = loop.threads.popleft()
            elif loop.ready:
                handle = loop.ready.popleft()
            else:
                return
            self.steps += 1
            if not handle.cancelled():
                handle._run()
            if not loop.alive or loop.paused:
                return

    def _move(self, until: float) -> bool:
        """Move the time to the next timer, and take all that are due then. Return False if none is before `until`."""
        while self._timers and isinstance(self._timers[0][3], asyncio.Handle) and self._timers[0][3].cancelled():
            heappop(self._timers)
        if not self._timers or self._timers[0][0] > until:
            return False
        self.now, self._last_move = self._timers[0][0], self.steps
        while self._timers and self._timers[0][0] <= self.now:
            _, _, loop, call = heappop(self._timers)
            if loop is None:
                assert callable(call), "the world outside has functions"
                call()
            elif isinstance(call, asyncio.Handle) and not call.cancelled():
                loop.due(call)
        return True


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process. Its threads are callbacks that may run between any two of its own."""

    def __init__(self, scheduler: Scheduler, failed: Callable[[dict[str, Any]], object]) -> None:
        self.ready: deque[asyncio.Handle] = deque()
        self.threads: deque[asyncio.Handle] = deque()
        self.alive = True
        self.paused = False
        self._scheduler = scheduler
        self._failed = failed
        scheduler.loops.append(self)

    def kill(self) -> None:
        """End the process: nothing of it runs any more."""
        self.alive = False
        self._scheduler.loops.remove(self)
        self.ready.clear()
        self.threads.clear()

    def due(self, handle: asyncio.Handle) -> None:
        """Take a timer that is due. A process that is paused sees it when it goes on."""
        if self.alive:
            (self.threads if isinstance(handle, _ThreadHandle) else self.ready).append(handle)

    def thread_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.Handle:
        """Call a function as a thread of the process would, after so many seconds."""
        handle = _ThreadHandle(callback, (), self)
        self._scheduler.at(self._scheduler.now + seconds, self, handle)
        return handle

    # What asyncio and the engine use of a loop

    def time(self) -> float:
        return self._scheduler.now

    def call_soon(  # type: ignore[override]  # - any arguments
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.alive:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]  # - any arguments
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self.alive:
            self._scheduler.at(when, self, handle)
        return handle

    def call_later(  # type: ignore[override]  # - any arguments
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._scheduler.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        future.number = self._scheduler.number()
        return future

    def create_task(  # type: ignore[override]  # - as every loop's
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return _Task(self._scheduler.number(), coro, loop=self, name=name or "simulated", context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when it is due."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that nothing waits for. A process that has crashed reports nothing."""
        if self.alive and not self._scheduler.over:
            self._failed(context)


class _ThreadHandle(asyncio.Handle):
    """A callback of a thread."""
