"""The contract of Pending, enforced over time and across threads (SPEC S3 to S6).

A `ReadyMonitor` watches one object that can be polled for readiness. It refuses every report that the ReadyState table
does not allow. It also guarantees what a waiter needs: *a wake is never lost*.

A poll::

    with monitor.begin() as poll:           # 1  a poll is open
        poll.watch(WakeSource.IO_READY)     # 2  from here on a wake from this source counts
        if queue.empty():                   # 3  the check
            poll.finish(Pending({WakeSource.IO_READY}))   # 4  published; the sources were known before
        else:
            poll.finish(Ready())

A producer first makes the condition true (puts into the queue), then calls `wake`. If that happens before 2, the check
sees it. If it happens after 2, the open poll keeps the wake, and Pending is published *with* it: a waiter is then woken
at once. There is no moment in between at which the wake could be missed.

What can go wrong, and what happens then:

- A wake from a source that is not registered, or while nothing is Pending: refused, and recorded nowhere.
- Pending left although no registered wake was seen: refused. A producer changed the condition without a wake.
- Pending reported again by a poll that began before any wake: the same interval. Its sources may only grow, and its
  wakes are kept. By a poll that began after a wake: a new interval straight from Pending, which the table refuses.
- Several waiters: each is woken once. A waiter that comes late is woken at once.
- The check raises: the caller gets the error, every waiter is woken to check again, and the next poll starts at Ready.
- A Pending that no timer can end follows an exhausted budget or a back-off: refused, because it might never end (S6).
- A wake for something that another caller has taken meanwhile: report `Busy` and poll again. Pending right after a wake
  would be the silent self-loop that the table forbids.

A refusal changes nothing. All methods may be called from any thread, but not from a signal handler, which may have
interrupted one of them. A handler must notify a thread or a loop instead. Wakers are called without the lock held.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from holdfast.errors import (
    InvalidTransition,
    InvalidWake,
    MissingWake,
    TransitionRefused,
    WakeOutsidePending,
    WakeRefused,
)
from holdfast.machines.ready_table import READY, Pending, Reading, Ready, ReadyState, WakeSource, wake_sources

INTERVALS_KEPT = 64  # closed intervals kept for inspection; older ones are dropped


class Waker(Protocol):
    """A callback, called once and from any thread, when the awaited condition may hold."""

    def __call__(self) -> object:
        """Wake the waiter; do not block."""
        ...


@dataclass(slots=True)
class Interval:
    """One stay in Pending: the sources that may end it, and the wakes seen, counted by source in order of arrival."""

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
        """Return a copy that later wakes do not change."""
        return Interval(self.sources, dict(self.wakes))


class Poll:
    """One check of readiness, from `ReadyMonitor.begin`. It ends with `finish`, or silently when its block is left."""

    __slots__ = ("_draft", "_ended_interval", "_monitor")

    def __init__(self, monitor: ReadyMonitor, ended_interval: Interval | None) -> None:
        self._monitor = monitor
        self._ended_interval = ended_interval  # the open interval, if a wake had been seen in it when this poll began
        self._draft = Interval(frozenset())

    def watch(self, *sources: WakeSource | str) -> None:
        """Register sources before the check: from now on a wake from them counts.

        Raises:
            EmptyWakeSet: no source was named.
            InvalidWake: a name is not a wake source.
            RuntimeError: the poll is over.
        """
        self._monitor._watch(self, wake_sources(sources))

    def finish(self, reading: Reading) -> Reading:
        """Publish the result of the check and return it. Pending is returned with all sources of its interval.

        Raises:
            InvalidTransition: the table has no such edge.
            MissingWake: Pending would be left although no registered wake was seen.
        """
        return self._monitor._finish(self, reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A refusal changes nothing; an error of the check does.
        refused = isinstance(error, (TransitionRefused, WakeRefused))
        self._monitor._close(self, failed=error is not None and not refused)


class ReadyMonitor:
    """A monitor of the readiness of one object. The module's docstring has its contract."""

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
            poll = Poll(self, self._interval if woken else None)
            self._polls[poll] = poll._draft
            return poll

    def poll(self, check: Callable[[Poll], Reading]) -> Reading:
        """Run one whole poll. `check` watches its sources, checks, and returns its reading, which is published.

        An error of the check is raised here. Every waiter is woken, and the next poll starts at Ready (S6).
        """
        with self.begin() as poll:
            return poll.finish(check(poll))

    def report(self, reading: Reading) -> Reading:
        """Run one whole poll whose check was made under the caller's own lock.

        The caller also marks its wakes under that lock, so none can come between the check and the publication.
        """
        with self._lock:
            if isinstance(reading, Pending):
                woken = self._interval is not None and self._interval.woken
                poll = Poll(self, self._interval if woken else None)
                self._enter_pending(poll, poll._draft, reading)
            elif self._interval is not None:
                self._leave(Interval(frozenset()), reading)
            else:
                READY.advance(self._reading.state, reading.state)
                self._reading = reading
            self._poll_counts[reading.state] += 1
            return self._reading

    def restart(self) -> None:
        """Return to Ready after an error, outside the table, and wake every waiter to check again."""
        fire(self.reset())

    def reset(self) -> list[Waker]:
        """Do the first half of `restart`: return to Ready, and return the wakers to call."""
        with self._lock:
            self._reading = Ready()
            self._interval = None
            return self._take_wakers()

    # Waking

    def wake(self, source: WakeSource | str) -> None:
        """Announce that a condition may hold for which a waiter waits. First make it true, then call this.

        Raises:
            InvalidWake: no open interval or poll has registered this source.
            WakeOutsidePending: nothing is Pending and no poll is open that could become so.
        """
        fire(self.mark(source))

    def mark(self, source: WakeSource | str) -> list[Waker]:
        """Do the first half of `wake`: record it, and return the wakers to call."""
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
        """Call `waker` at the next registered wake; at once if one was seen or nothing is Pending."""
        with self._lock:
            waits = self._interval is not None and not self._interval.woken
            if waits:
                self._wakers.append(waker)
        if not waits:
            fire([waker])

    def remove_waker(self, waker: Waker) -> None:
        """Remove a waker that no longer waits. An unknown waker is not an error."""
        with self._lock, contextlib.suppress(ValueError):
            self._wakers.remove(waker)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block this thread until it is worth polling again. Return False if the time ran out first."""
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
            with contextlib.suppress(RuntimeError):  # its loop was closed, so there is no task to wake
                loop.call_soon_threadsafe(woken.set)

        self.add_waker(waker)
        try:
            await woken.wait()
        finally:
            self.remove_waker(waker)

    # Inspection

    @property
    def reading(self) -> Reading:
        """The reading published last."""
        return self._reading

    @property
    def state(self) -> ReadyState:
        """The state of the reading published last."""
        return self._reading.state

    @property
    def interval(self) -> Interval | None:
        """A copy of the open Pending interval with the wakes seen so far; None outside Pending."""
        with self._lock:
            return self._interval.copy() if self._interval is not None else None

    @property
    def woken(self) -> bool:
        """Whether a registered wake was seen in the open interval; False outside Pending."""
        with self._lock:
            return self._interval is not None and self._interval.woken

    @property
    def history(self) -> list[Interval]:
        """The latest closed Pending intervals, oldest first."""
        with self._lock:
            return [interval.copy() for interval in self._closed]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the totals so far: ``ready.state`` one per poll, ``wake.source`` one per accepted wake (S5)."""
        with self._lock:
            return {
                "ready.state": {state.value: self._poll_counts[state] for state in ReadyState},
                "wake.source": {source.value: self._wake_counts[source] for source in WakeSource},
            }

    # Called by polls

    def _watch(self, poll: Poll, sources: frozenset[WakeSource]) -> None:
        with self._lock:
            self._draft_of(poll).sources |= sources

    def _draft_of(self, poll: Poll) -> Interval:
        if poll not in self._polls:
            raise RuntimeError("this poll is over: begin a new one")
        return self._polls[poll]

    def _close(self, poll: Poll, *, failed: bool) -> None:
        """End a poll that was left without a report, or was refused, and drop the sources it named.

        A wake that only this poll has seen was accepted, so it still counts, and so does its source (S4).
        """
        with self._lock:
            draft = self._polls.pop(poll, None)
            if draft is None:
                return
            wakers: list[Waker] = []
            if self._interval is not None and draft.woken:
                wakers = self._merge(Interval(frozenset(draft.wakes), draft.wakes))
                self._reading = Pending(self._interval.sources)
        fire(wakers)
        if failed:
            self.restart()

    def _finish(self, poll: Poll, reading: Reading) -> Reading:
        with self._lock:
            draft = self._draft_of(poll)
            if isinstance(reading, Pending):
                wakers = self._enter_pending(poll, draft, reading)
                reading = self._reading
            else:
                wakers = self._leave(draft, reading)
            del self._polls[poll]
            self._poll_counts[reading.state] += 1
        fire(wakers)
        return reading

    def _enter_pending(self, poll: Poll, draft: Interval, reading: Pending) -> list[Waker]:
        again = self._interval is not None and poll._ended_interval is not self._interval
        if not again:
            READY.advance(self._reading.state, reading.state)  # refuses a second interval straight from Pending
            self._refuse_endless(reading.sources | draft.sources)
            self._interval = Interval(frozenset())
        assert self._interval is not None, "it was open, or was opened just now"
        self._interval.sources |= reading.sources
        wakers = self._merge(draft)
        self._reading = Pending(self._interval.sources)
        return wakers

    def _refuse_endless(self, sources: frozenset[WakeSource]) -> None:
        state = self._reading.state
        if state in {ReadyState.BUDGET_EXHAUSTED, ReadyState.RETRY_AFTER} and WakeSource.TIMER not in sources:
            detail = "a hold that only time ends needs a timer: add it to the sources"
            pending = ReadyState.PENDING.value
            raise InvalidTransition(state, pending, machine="ReadyState", target=pending, detail=detail, rule="S6")

    def _leave(self, draft: Interval, reading: Reading) -> list[Waker]:
        READY.advance(self._reading.state, reading.state)
        wakers: list[Waker] = []
        if self._interval is not None:
            if not (self._interval.woken or draft.woken):
                raise MissingWake(reading.state, self._interval.sources)
            wakers = self._merge(draft)
            self._closed.append(self._interval)
            self._interval = None
        self._reading = reading
        return wakers

    def _merge(self, draft: Interval) -> list[Waker]:
        """Add the sources and wakes of a poll to the open interval. Return the wakers to call if it was woken."""
        interval = self._interval
        assert interval is not None, "there is an interval to merge into"
        interval.sources |= draft.sources
        for source, count in draft.wakes.items():
            if source not in interval.wakes:  # an interval that was open already has seen this wake itself
                interval.mark(source, count)
        return self._take_wakers() if interval.woken else []

    def _take_wakers(self) -> list[Waker]:
        wakers, self._wakers = self._wakers, []
        return wakers


def fire(wakers: Iterable[Waker]) -> None:
    """Call every waker, even after one raises, then raise the errors as a group."""
    errors: list[BaseException] = []
    for waker in wakers:
        try:
            waker()
        except BaseException as error:  # noqa: BLE001 - one broken waker must not keep the others asleep
            errors.append(error)
    if errors:
        raise BaseExceptionGroup("wakers raised", errors)
