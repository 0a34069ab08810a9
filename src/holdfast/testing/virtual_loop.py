"""An event loop with virtual time: it moves only when nothing can run, and then at once to the next timer.

A loop calls its selector when no callback is ready. That is the moment at which time may move. The selector then does
the first of these:

- Something real is under way, such as a thread: wait for it. Virtual time stands still meanwhile.
- A timer is due before the horizon: move the time to it.
- Nothing can run before the horizon: tell `settle`, which has set the horizon. Without a horizon, wait for a call from
  another thread.

What can go wrong: a thread or a socket that does not end would hold the time for good. After `REAL_SECONDS` the loop
names it. It raises `RealWork` for a thread, and ignores a silent socket from then on. Code that blocks the loop itself
is noticed by a thread beside it.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import selectors
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from heapq import heappop, heappush
from itertools import count
from typing import Any

from holdfast.engine.replay_report import line_of_frame
from holdfast.errors import HoldfastError

REAL_SECONDS = 2.0  # that real work may take
SETTLE_SECONDS = 20.0  # real seconds that one call of the lab may take
TICK = 2.0**-20  # times are multiples of it, so that their sums with the date are exact
STORE_CALL = "a call of the store"
PAUSE_SECONDS_MAX = 0.1  # between two looks: the rest is a pause of the process
WATCH_SECONDS = 0.05  # between two looks at the loop
LOOK_SECONDS = 0.005  # between two looks at threads, which may end without a word


class RealWork(HoldfastError):
    """Code of a test waits for something real, so that virtual time cannot move."""


class HoldfastTestWarning(UserWarning):
    """Something in a test, or in the code that it tests, is probably not meant."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual.

    Args:
        at_work: returns what real work is under way, in words; None if there is none.
        before_jump: gets the time to which the loop would jump, and returns how far it may; None if that is no use.
    """

    def __init__(self, at_work: Callable[[], str | None], before_jump: Callable[[float], float | None]) -> None:
        self._before_jump = before_jump
        self._virtual_time = 0.0
        self._horizon = -math.inf  # up to which time may move
        self._settling: asyncio.Future[None] | None = None
        self._stays = False
        self._settles_since = 0.0
        self._at_work = at_work
        self._threads = 0  # calls in threads
        self.progress = 0  # grows when some work ends
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap, by time
        self._numbers = count()
        self.thread_number = 0  # of the thread in which it runs
        self.turns = 0  # grows whenever no callback is ready
        self.is_resting = False  # whether it waits for something, and runs no code
        selector = _Selector(self)
        super().__init__(selector)
        selector.own_descriptors()
        self._clock_resolution = TICK  # of `BaseEventLoop`: timers that are due within it are due now

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self._virtual_time

    def call_at(  # type: ignore[override]  # - any arguments
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function at a virtual time."""
        handle = super().call_at(when, callback, *args, context=context)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _next_timer(self) -> float | None:
        """Return when the next timer is due."""
        while self._timers and (self._timers[0][2].cancelled() or self._timers[0][0] <= self._virtual_time):
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    async def settle(self, until: float, *, stay: bool = False) -> None:
        """Let time move to `until`. With `stay`, let it stand still after the last timer before that.

        Raises:
            RealWork: a thread does not end.
        """
        if self._settling is not None:
            raise RuntimeError("another call already moves the time")
        self._settling, self._horizon, self._stays = self.create_future(), until, stay
        self._settles_since = time.monotonic()
        try:
            await self._settling
        finally:
            self._settling, self._horizon = None, -math.inf

    @property
    def is_settling(self) -> bool:
        """Whether a call lets the time move."""
        return self._settling is not None

    def give_up_if_endless(self) -> bool:
        """End a `settle` that takes too long. Return whether it did."""
        if self._settling is None or time.monotonic() - self._settles_since < SETTLE_SECONDS:
            return False
        text = f"the code still runs after {SETTLE_SECONDS:g} real seconds, and {self._virtual_time:g} virtual ones"
        return self.fail(RealWork(f"{text}: a job that never ends? Use lab.advance to run it for a while"))

    def rest(self, timeout: float | None) -> bool:
        """Move the time, or tell `settle` that nothing can run. Return False if neither is possible."""
        due = self._next_timer() if timeout is not None else None
        if due is not None and due <= self._horizon and (end := self._before_jump(due)) is not None:
            self._virtual_time = math.ceil(end / TICK) * TICK
            return True
        if self._settling is None or self._settling.done():
            return False
        if not self._stays:
            self._virtual_time = max(self._virtual_time, self._horizon)
        self._settling.set_result(None)
        return True

    def run_in_executor(  # type: ignore[override]  # - as the base class
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread. Time stands still until it ends."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._threads -= 1
        self.note_progress()

    def note_progress(self) -> None:
        """Note that some work has ended: what is under way now may be other work. Any thread may call this."""
        self.progress += 1

    def real_work(self) -> str | None:
        """Return what real work is under way, in words."""
        return self._at_work() or ("a function in a thread" if self._threads else None)

    def fail(self, error: RealWork) -> bool:
        """End `settle` with an error. Return False if nothing settles."""
        if self._settling is None or self._settling.done():
            return False
        self._settling.set_exception(error)
        return True


class _Selector(selectors.DefaultSelector):
    """The system's selector, which asks the loop before it waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._own: set[int] = set()
        self._patience = Patience()  # with the real work that is under way
        self._progress = 0  # of the loop, when it was first seen
        self._ignored: set[int] = set()  # sockets that were silent for too long

    def own_descriptors(self) -> None:
        """Take the descriptors of now for the loop's own, with which other threads wake it."""
        self._own = {key.fd for key in self.get_map().values()}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.turns += 1
        self._loop.thread_number = threading.get_ident()
        self._loop.is_resting = True
        try:
            return self._selected(timeout)
        finally:
            self._loop.is_resting = False

    def _selected(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[Any] = super().select(0)
        self._loop.give_up_if_endless()
        if ready or (timeout is not None and timeout <= 0):
            return ready
        while (work := self._work()) is not None:
            if self._progress != self._loop.progress:
                self._progress = self._loop.progress
                self._patience.begin()
            ready = super().select(LOOK_SECONDS)
            if self._patience.is_over() and self._named(work):
                self._patience.begin()
                return ready
            if ready:
                return ready  # perhaps only a heartbeat: the work still counts from its begin
        self._patience.begin()
        if self._loop.rest(timeout):
            return []
        return list(super().select(None))

    def _sockets(self) -> set[int]:
        return {key.fd for key in self.get_map().values()} - self._own

    def _work(self) -> str | None:
        work = self._loop.real_work()
        if work is None and self._sockets() - self._ignored:
            work = "a socket"
        return work

    def _named(self, work: str) -> bool:
        """Say what does not end. Return whether the caller was told."""
        message = f"virtual time stands still: {work} has been under way for {REAL_SECONDS:g} real seconds"
        if work == STORE_CALL:
            return self._loop.fail(RealWork(f"{message}: is the database blocked?"))
        if work != "a socket":
            message = f"{message}{_places()}"
            cure = "replace the step or tool with lab.replace, or use asyncio.sleep in place of time.sleep"
            return self._loop.fail(RealWork(f"{message}: {cure}"))
        self._ignored = self._sockets()
        warnings.warn(f"{message}. Time moves on.", HoldfastTestWarning, stacklevel=1)
        return False


class Patience:
    """Counts the seconds that something takes, up to `REAL_SECONDS`. A pause of the whole process does not count."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now."""
        self._seconds, self._looked_at = 0.0, time.monotonic()

    def is_over(self) -> bool:
        """Look again, and return whether it takes too long."""
        now = time.monotonic()
        self._seconds += min(now - self._looked_at, PAUSE_SECONDS_MAX)
        self._looked_at = now
        return self._seconds > REAL_SECONDS


class LoopWatcher(threading.Thread):
    """Notices that code blocks the loop.

    Args:
        loop: the loop.
        on_blocked: is called once with what blocks it, in words.
    """

    def __init__(self, loop: VirtualLoop, on_blocked: Callable[[str], None]) -> None:
        super().__init__(name="holdfast-lab-watcher", daemon=True)
        self._watched = loop
        self._on_blocked = on_blocked
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until it is ended."""
        patience, turns = Patience(), -1
        while not self._ended.wait(WATCH_SECONDS):
            if self._watched.is_resting or self._watched.turns != turns:
                turns = self._watched.turns
                patience.begin()
            elif patience.is_over():
                self._on_blocked(self._description())
                return

    def _description(self) -> str:
        frame = sys._current_frames().get(self._watched.thread_number)  # noqa: SLF001 - as debuggers do
        place = line_of_frame(frame) or "an unknown line"
        cure = "use asyncio.sleep in place of time.sleep, or a function without async, or lab.replace"
        return f"the event loop has been blocked for {REAL_SECONDS:g} real seconds, at {place}: {cure}"

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()


def _places() -> str:
    """Return which lines of the user's code run in threads of jobs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    places = [
        place
        for number, frame in sys._current_frames().items()  # noqa: SLF001 - as debuggers do
        if names.get(number, "").startswith(("holdfast-job", "asyncio_"))
        and (place := line_of_frame(frame)) is not None
    ]
    return f", at {', '.join(places)}" if places else ""
