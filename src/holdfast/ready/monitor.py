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
- An exhausted budget or a back-off is followed by a Pending that no timer can end: refused, it might never end (S6).
- A wake for something that somebody else has taken meanwhile: report `Busy` and poll again. Pending straight after a
  wake would be the silent self-loop that the table forbids.

Every refusal changes nothing. All methods may be called from any thread, but not from a signal handler, which may have
interrupted one of them: let the handler tell a thread or a loop. Wakers are called without the lock held.
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

    __slots__ = ("_draft", "_ended_interval", "_monitor")

    def __init__(self, monitor: ReadyMonitor, ended_interval: Interval | None) -> None:
        self._monitor = monitor
        self._ended_interval = ended_interval  # the open interval, if a wake had been seen in it when this poll began
        self._draft = Interval(frozenset())

    def watch(self, *sources: WakeSource | str) -> None:
        """Register sources before the check: from now on a wake from them counts.

        Raises:
            EmptyWakeSet: no source was named.
            InvalidWake: a name that is no wake source.
            RuntimeError: the poll is over.
        """
        self._monitor._watch(self, wake_sources(sources))  # noqa: SLF001 - the two are one object seen from two sides

    def finish(self, reading: Reading) -> Reading:
        """Publish what the check found and return it; Pending comes back with all sources of its interval.

        Raises:
            InvalidTransition: the table has no such edge.
            MissingWake: Pending would be left although no registered wake was seen.
        """
        return self._monitor._finish(self, reading)  # noqa: SLF001 - as above

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refused = isinstance(
            error, (TransitionRefused, WakeRefused)
        )  # a refusal changes nothing; an error of the check does
        self._monitor._close(self, failed=error is not None and not refused)  # noqa: SLF001 - as above


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
            poll = Poll(self, self._interval if woken else None)
            self._polls[poll] = poll._draft  # noqa: SLF001 - as above
            return poll

    def poll(self, check: Callable[[Poll], Reading]) -> Reading:
        """Run one whole poll: `check` watches its sources, looks, and returns its reading, which is published.

        An error of the check raises here; every waiter is woken and the next poll starts at Ready (S6).
        """
        with self.begin() as poll:
            return poll.finish(check(poll))

    def report(self, reading: Reading) -> Reading:
        """Run one whole poll whose check was made under a lock of the caller's own.

        Under that lock the caller marks its wakes as well, so none can come between check and publication.
        """
        with self._lock:
            if isinstance(reading, Pending):
                woken = self._interval is not None and self._interval.woken
                poll = Poll(self, self._interval if woken else None)
                self._enter_pending(poll, poll._draft, reading)  # noqa: SLF001 - as above
            elif self._interval is not None:
                self._leave(Interval(frozenset()), reading)
            else:
                READY.advance(self._reading.state, reading.state)
                self._reading = reading
            self._poll_counts[reading.state] += 1
            return self._reading

    def restart(self) -> None:
        """Go back to Ready after an error, outside the table; every waiter is woken to look for itself."""
        fire(self.reset())

    def reset(self) -> list[Waker]:
        """Do the first half of `restart`: go back to Ready, and return the wakers that are now due to be called."""
        with self._lock:
            self._reading = Ready()
            self._interval = None
            return self._take_wakers()

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
        with self._lock, contextlib.suppress(ValueError):
            self._wakers.remove(waker)

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
            with contextlib.suppress(RuntimeError):  # its loop was closed: nobody is left to be woken
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
    def woken(self) -> bool:
        """Whether a registered wake was seen in the open interval; False outside Pending."""
        with self._lock:
            return self._interval is not None and self._interval.woken

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

    def _watch(self, poll: Poll, sources: frozenset[WakeSource]) -> None:
        with self._lock:
            self._draft_of(poll).sources |= sources

    def _draft_of(self, poll: Poll) -> Interval:
        if poll not in self._polls:
            raise RuntimeError("this poll is over: begin a new one")
        return self._polls[poll]

    def _close(self, poll: Poll, *, failed: bool) -> None:
        """End a poll that was left without a report, or was refused: the sources that it named are dropped.

        A wake that only this poll has seen was accepted, so it still counts, and its source with it (S4).
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
        again = self._interval is not None and poll._ended_interval is not self._interval  # noqa: SLF001 - as above
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
            detail = "what time alone will end is waited for with a timer: add it to the sources"
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
        """Take over what an open poll has registered and seen; return the wakers that are due if there was a wake."""
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
    """Call every waker, also those after one that raises; then raise what was raised."""
    errors: list[BaseException] = []
    for waker in wakers:
        try:
            waker()
        except BaseException as error:  # noqa: BLE001 - one broken waiter must not keep the others asleep
            errors.append(error)
    if errors:
        raise BaseExceptionGroup("wakers raised", errors)
