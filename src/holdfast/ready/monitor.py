"""The contract of Pending, kept over time, by many threads (SPEC S3 to S6).

A `ReadyMonitor` watches one thing that can be polled for readiness. It refuses every report that the ReadyState table
does not allow, and it makes the promise that a waiter needs: *a wake is never lost*.

How a poll goes::

    with monitor.begin() as poll:           # 1  a poll is open
        poll.watch(WakeSource.IO_READY)     # 2  from here on a wake from this source counts
        if queue.empty():                   # 3  the check
            poll.finish(Pending({WakeSource.IO_READY}))   # 4  published; the sources were known before
        else:
            poll.finish(Ready())

A producer first makes the thing true (puts into the queue), then calls `wake`. If that happens before 2, the check sees
it. If it happens after 2, the wake is kept in the open poll, and Pending is published *with* it: whoever waits then is
woken at once. There is no moment between in which it could be missed.

What can go wrong, and what happens then:

- A wake from a source that nobody registered, or while nothing is Pending: refused, recorded nowhere.
- Pending left although no registered wake was seen: refused. Somebody made it ready and forgot to say so.
- Pending reported again by a poll that began before any wake: the same interval. Its sources may only grow and its
  wakes are kept. By a poll that began after a wake: a new interval straight from Pending, which the table refuses.
- Several waiters: all are woken, each once. A waiter that comes late is woken at once.
- The check raises: the caller gets the error, every waiter is woken to look for itself, the next poll starts at Ready.

Every refusal changes nothing. All methods may be called from any thread; wakers are called without the lock held.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from holdfast.errors import InvalidWake, MissingWake, WakeOutsidePending
from holdfast.machines.ready import READY, Pending, Reading, Ready, ReadyState, WakeSource, wake_sources

__all__ = ["Interval", "Poll", "ReadyMonitor", "Waker"]

INTERVALS_KEPT = 64  # closed intervals kept for people to look at; older ones are forgotten


class Waker(Protocol):
    """Called once, from any thread, when what it waited for may have happened."""

    def __call__(self) -> object:
        """Wake somebody up; do not block."""


@dataclass(slots=True)
class Interval:
    """One stay in Pending: which sources may end it, and which did, counted, in the order first seen."""

    sources: frozenset[WakeSource]
    wakes: dict[WakeSource, int] = field(default_factory=dict)

    @property
    def woken(self) -> bool:
        """Whether a registered wake was seen."""
        return bool(self.wakes)

    def mark(self, source: WakeSource, count: int = 1) -> None:
        """Record wakes from a registered source."""
        self.wakes[source] = self.wakes.get(source, 0) + count

    def copy(self) -> Interval:
        """Give a copy that later wakes do not change."""
        return Interval(self.sources, dict(self.wakes))


class Poll:
    """One look at readiness, from `ReadyMonitor.begin`. Ends with `finish`, or silently when its block is left."""

    __slots__ = ("_began_after_wake", "_draft", "_monitor")

    def __init__(self, monitor: ReadyMonitor, *, began_after_wake: bool) -> None:
        self._monitor = monitor
        self._began_after_wake = began_after_wake
        self._draft = Interval(frozenset())

    def watch(self, *sources: WakeSource | str) -> None:
        """Register sources before the check: from now on a wake from them counts.

        Raises:
            EmptyWakeSet: no source was named.
            InvalidWake: a name that is no wake source.
        """
        self._monitor._watch(self._draft, wake_sources(sources))  # noqa: SLF001 - the two are one object seen from two sides

    def finish(self, reading: Reading) -> Reading:
        """Publish what the check found and return it; Pending comes back with all sources of its interval.

        Raises:
            InvalidTransition: the table has no such edge.
            MissingWake: Pending would be left although no registered wake was seen.
        """
        return self._monitor._finish(self, self._draft, reading, began_after_wake=self._began_after_wake)  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._monitor._close(self)  # noqa: SLF001


class ReadyMonitor:
    """Watches the readiness of one thing; see the module's text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: Reading = Ready()
        self._interval: Interval | None = None
        self._closed: deque[Interval] = deque(maxlen=INTERVALS_KEPT)
        self._polls: dict[Poll, Interval] = {}
        self._wakers: list[Waker] = []
        self._poll_counts: Counter[ReadyState] = Counter()
        self._wake_counts: Counter[WakeSource] = Counter()

    # Polling

    def begin(self) -> Poll:
        """Open a poll. Use it in a ``with`` block, so that it is closed even if the check raises."""
        with self._lock:
            woken = self._interval is not None and self._interval.woken
            poll = Poll(self, began_after_wake=woken)
            self._polls[poll] = poll._draft  # noqa: SLF001
            return poll

    def poll(self, check: Callable[[Poll], Reading]) -> Reading:
        """Run one whole poll: `check` watches its sources, looks, and returns its reading, which is published.

        An error of the check raises here; every waiter is woken and the next poll starts at Ready (S6).
        """
        with self.begin() as poll:
            try:
                reading = check(poll)
            except BaseException:
                self.restart()
                raise
            return poll.finish(reading)

    def restart(self) -> None:
        """Go back to Ready after an error, outside the table; every waiter is woken to look for itself."""
        with self._lock:
            self._reading = Ready()
            self._interval = None
            wakers = self._take_wakers()
        fire(wakers)

    # Waking

    def wake(self, source: WakeSource | str) -> None:
        """Announce that something a waiter may wait for has happened. First make it true, then call this.

        Raises:
            InvalidWake: no open interval or poll has registered this source.
            WakeOutsidePending: nothing is Pending and no poll is about to be.
        """
        fire(self.mark(source))

    def mark(self, source: WakeSource | str) -> list[Waker]:
        """Do the first half of `wake`: record it, and return the wakers that are now due to be called."""
        (known,) = wake_sources([source])
        with self._lock:
            open_intervals = [draft for draft in self._polls.values() if draft.sources]
            if self._interval is not None:
                open_intervals.append(self._interval)
            registered = [interval for interval in open_intervals if known in interval.sources]
            if not open_intervals:
                raise WakeOutsidePending(known, self._reading.state)
            if not registered:
                raise InvalidWake(known, frozenset().union(*(interval.sources for interval in open_intervals)))
            for interval in registered:
                interval.mark(known)
            self._wake_counts[known] += 1
            published = self._interval is not None and known in self._interval.sources
            return self._take_wakers() if published else []

    # Waiting

    def add_waker(self, waker: Waker) -> None:
        """Have `waker` called at the next registered wake; at once if one was seen already or nothing is Pending."""
        with self._lock:
            waits = self._interval is not None and not self._interval.woken
            if waits:
                self._wakers.append(waker)
        if not waits:
            fire([waker])

    def remove_waker(self, waker: Waker) -> None:
        """Forget a waker that no longer waits; one that is not there is no error."""
        with self._lock:
            self._wakers = [kept for kept in self._wakers if kept is not waker]

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block this thread until it is worth polling again; False if the time ran out first."""
        woken = threading.Event()
        waker: Waker = woken.set
        self.add_waker(waker)
        try:
            return woken.wait(timeout_seconds)
        finally:
            self.remove_waker(waker)

    async def wait_async(self) -> None:
        """Suspend this task until it is worth polling again. Wakes may come from any thread."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def waker() -> None:
            loop.call_soon_threadsafe(woken.set)

        self.add_waker(waker)
        try:
            await woken.wait()
        finally:
            self.remove_waker(waker)

    # Looking

    @property
    def reading(self) -> Reading:
        """What was published last."""
        return self._reading

    @property
    def state(self) -> ReadyState:
        """The state of what was published last."""
        return self._reading.state

    @property
    def interval(self) -> Interval | None:
        """The open Pending interval, with the wakes seen so far; None outside Pending."""
        with self._lock:
            return self._interval.copy() if self._interval is not None else None

    @property
    def history(self) -> list[Interval]:
        """The last closed Pending intervals, oldest first."""
        with self._lock:
            return [interval.copy() for interval in self._closed]

    def counts(self) -> dict[str, dict[str, int]]:
        """Give the totals so far: ``ready.state`` one per poll, ``wake.source`` one per accepted wake (S5)."""
        with self._lock:
            return {
                "ready.state": {state.value: self._poll_counts[state] for state in ReadyState},
                "wake.source": {source.value: self._wake_counts[source] for source in WakeSource},
            }

    # What a poll does to its monitor

    def _watch(self, draft: Interval, sources: frozenset[WakeSource]) -> None:
        with self._lock:
            draft.sources |= sources

    def _close(self, poll: Poll) -> None:
        with self._lock:
            self._polls.pop(poll, None)

    def _finish(self, poll: Poll, draft: Interval, reading: Reading, *, began_after_wake: bool) -> Reading:
        with self._lock:
            if poll not in self._polls:
                raise RuntimeError("this poll is over: begin a new one")
            if isinstance(reading, Pending):
                wakers = self._enter_pending(draft, reading, began_after_wake=began_after_wake)
                reading = self._reading
            else:
                self._leave(reading)
                wakers = []
            del self._polls[poll]
            self._poll_counts[reading.state] += 1
        fire(wakers)
        return reading

    def _enter_pending(self, draft: Interval, reading: Pending, *, began_after_wake: bool) -> list[Waker]:
        interval = self._interval
        if interval is None or began_after_wake:
            READY.advance(self._reading.state, reading.state)  # refuses a second interval straight from Pending
            interval = Interval(frozenset())
        interval.sources |= reading.sources | draft.sources
        for source, count in draft.wakes.items():
            if source not in interval.wakes:  # an interval that was open already has seen this wake itself
                interval.mark(source, count)
        self._interval = interval
        self._reading = Pending(interval.sources)
        return self._take_wakers() if interval.woken else []

    def _leave(self, reading: Reading) -> None:
        READY.advance(self._reading.state, reading.state)
        if self._interval is not None:
            if not self._interval.woken:
                raise MissingWake(reading.state, self._interval.sources)
            self._closed.append(self._interval)
            self._interval = None
        self._reading = reading

    def _take_wakers(self) -> list[Waker]:
        wakers, self._wakers = self._wakers, []
        return wakers


def fire(wakers: Iterable[Waker]) -> None:
    """Call every waker, also those after one that raises; then raise what was raised."""
    errors: list[Exception] = []
    for waker in wakers:
        try:
            waker()
        except Exception as error:  # noqa: BLE001 - one broken waiter must not keep the others asleep
            errors.append(error)
    if errors:
        raise ExceptionGroup("wakers raised", errors)
