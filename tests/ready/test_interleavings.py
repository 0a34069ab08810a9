"""Every order of one poller going Pending, its wakes and its waiters (P7); and the explorer itself.

The scenario's actors take one step at a time; `explore` walks every schedule. The monitor is the real one: each step
holds one of its locked sections, so these schedules are the orders in which threads could enter them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import pytest

from holdfast.ready import (
    Busy,
    InvalidWake,
    MissingWake,
    Pending,
    Ready,
    ReadyMonitor,
    WakeOutsidePending,
    Waker,
    WakeSource,
)
from holdfast.ready.monitor import fire
from holdfast.testing import Actor, Deadlock, Outcome, explore

IO, TIMER, RELOAD = WakeSource.IO_READY, WakeSource.TIMER, WakeSource.CONFIG_RELOAD


class Scenario:
    """One poller that watches IO and a timer, a wake from each, one from a source it did not name, and waiters."""

    looked_for = frozenset({IO, TIMER})  # by the poller's check

    def __init__(self, monitor: ReadyMonitor) -> None:
        self.monitor = monitor
        self.due: set[WakeSource] = set()  # what is true in the world, which the poller's check looks at
        self.woken: set[str] = set()
        self.saw: str = ""  # what the poller's check saw, until it reports
        self.in_flight: dict[str, list[str]] = {}  # wakers taken by a wake and not called yet, by producer
        self.owner: dict[Waker, str] = {}
        self.hasty_polls = (
            False  # whether the poll that will be refused is open: it alone names no source of the poller
        )
        self.took_reload = False  # whether a wake from the source that only the refused poll names was taken

    def actors(self, waiters: int, *, stranger: bool) -> dict[str, Actor]:
        return {
            "poller": self.poller(),
            "io": self.producer(IO),
            "timer": self.producer(TIMER),
            **({"reload": self.producer(RELOAD)} if stranger else {}),
            **{f"waiter {number}": self.waiter(f"waiter {number}") for number in range(waiters)},
        }

    def poller(self) -> Actor:
        while True:
            poll = self.monitor.begin()
            yield None
            poll.watch(IO, TIMER)
            yield None
            self.saw = "due" if self.due & self.looked_for else "nothing"
            yield None
            poll.finish(Ready() if self.saw == "due" else Pending(frozenset({IO, TIMER})))
            if self.saw == "due":
                return
            yield None
            self.wait("poller")
            yield lambda: "poller" in self.woken
            interval = self.monitor.interval
            assert interval is not None
            assert interval.woken, "woken without a registered mark to see"

    def producer(self, source: WakeSource) -> Actor:
        self.due.add(source)
        yield None
        try:
            wakers = self.monitor.mark(source)
        except WakeOutsidePending:
            return  # no caller waits now: a check sees `due`
        except InvalidWake:
            assert source is RELOAD or self.hasty_polls, "a registered wake was refused"
            return
        assert source is not RELOAD, "an unregistered wake was taken"
        for position, waker in enumerate(wakers):
            self.in_flight[source] = [self.owner[later] for later in wakers[position:]]
            yield None
            fire([waker])
        self.in_flight.pop(source, None)

    def waiter(self, name: str) -> Actor:
        self.wait(name)
        yield lambda: name in self.woken

    def wait(self, name: str) -> None:
        def waker() -> None:
            self.woken.add(name)

        self.woken.discard(name)
        self.owner[waker] = name
        self.monitor.add_waker(waker)

    def look(self) -> None:
        intervals = [*self.monitor.history, *([self.monitor.interval] if self.monitor.interval else [])]
        assert all(RELOAD not in interval.wakes for interval in intervals), "an unregistered wake was recorded"
        assert self.monitor.counts()["wake.source"]["config_reload"] == 0
        assert all(interval.woken for interval in self.monitor.history), "Pending was left without a mark"

    def state(self) -> Hashable:
        monitor = self.monitor
        interval = monitor.interval
        return (
            monitor.state,
            interval and (interval.sources, tuple(sorted(interval.wakes.items()))),
            len(monitor.history),
            tuple(monitor.counts()["wake.source"].items()),
            tuple(self.owner[waker] for waker in monitor._wakers),
            tuple(
                (poll._ended_interval is None, draft.sources, tuple(draft.wakes))
                for poll, draft in monitor._polls.items()
            ),
            frozenset(self.due),
            frozenset(self.woken),
            self.saw,
            tuple((source, tuple(names)) for source, names in sorted(self.in_flight.items())),
        )


class Refused(Scenario):
    """Beside all that, a poll that names one more source, and is refused or left: nothing of it stays (S3)."""

    looked_for = frozenset({IO, TIMER, RELOAD})

    def actors(self, waiters: int, *, stranger: bool) -> dict[str, Actor]:
        return {**super().actors(waiters, stranger=stranger), "hasty": self.hasty()}

    def hasty(self) -> Actor:
        poll = self.monitor.begin()
        self.hasty_polls = True
        yield None
        poll.watch(RELOAD)
        yield None
        interval, refusal = self.monitor.interval, None
        if interval is not None and not interval.woken and not self.took_reload:
            with pytest.raises(MissingWake) as refused:
                poll.finish(Busy("it says too early that Pending is over"))
            refusal = refused.value
        yield None
        self.hasty_polls = False
        poll.__exit__(type(refusal) if refusal is not None else None, refusal, None)

    def producer(self, source: WakeSource) -> Actor:
        if source is not RELOAD:
            yield from super().producer(source)
            return
        self.due.add(source)
        yield None
        named = any(RELOAD in draft.sources for draft in self.monitor._polls.values())
        kept = self.monitor.interval is not None and RELOAD in self.monitor.interval.sources
        assert not kept, "the source of a poll that did not report is in the interval"
        try:
            fire(self.monitor.mark(source))
        except (InvalidWake, WakeOutsidePending):
            assert not named, "a registered wake was refused"
            return
        assert named, "an unregistered wake was taken"
        self.took_reload = True

    def look(self) -> None:
        interval = self.monitor.interval
        if interval is not None:
            assert self.monitor.reading == Pending(interval.sources)
            assert RELOAD not in interval.sources or RELOAD in interval.wakes
        assert self.monitor.counts()["wake.source"]["config_reload"] == self.took_reload
        assert all(interval.woken for interval in self.monitor.history), "Pending was left without a mark"

    def state(self) -> Hashable:
        return super().state(), self.took_reload, self.hasty_polls


class OneSource(Scenario):
    """The same with one producer less: few enough orders to walk each, with a waiter."""

    def actors(self, waiters: int, *, stranger: bool) -> dict[str, Actor]:
        actors = super().actors(waiters, stranger=stranger)
        return {name: actor for name, actor in actors.items() if name != "timer"}


def walk(
    make_monitor: Callable[[], ReadyMonitor],
    waiters: int = 2,
    *,
    stranger: bool = True,
    merge: bool = True,
    of: type[Scenario] = Scenario,
) -> Outcome:
    current: list[Scenario] = []

    def scenario() -> Mapping[str, Actor]:
        current[:] = [of(make_monitor())]
        return current[0].actors(waiters, stranger=stranger)

    def look() -> None:
        current[0].look()

    def state() -> Hashable:
        return current[0].state()

    return explore(scenario, look, state=state if merge else None)


def test_no_order_loses_a_wake_records_a_stranger_or_leaves_pending_unseen() -> None:
    assert walk(ReadyMonitor).schedules > 100_000_000


def test_no_order_leaves_a_source_of_a_refused_poll_or_loses_a_wake_that_it_has_seen() -> None:
    assert walk(ReadyMonitor, 0, of=Refused).schedules > 1_000_000


class KeepsRefusedSources(ReadyMonitor):
    """The seeded bug: a poll that did not report leaves the sources that it named."""

    def _close(self, poll: Any, *, failed: bool) -> None:
        if self._interval is not None and poll in self._polls:
            self._interval.sources |= self._polls[poll].sources
        super()._close(poll, failed=failed)


def test_the_explorer_catches_a_monitor_that_keeps_the_sources_of_a_refused_poll() -> None:
    with pytest.raises(AssertionError):
        walk(KeepsRefusedSources, 0, of=Refused)


def test_merging_equal_states_covers_the_same_orders_as_walking_each_to_its_end() -> None:
    """On scenarios small enough to do both."""
    for waiters, scenario in [(0, Scenario), (1, OneSource)]:
        merged = walk(ReadyMonitor, waiters, stranger=False, of=scenario)
        whole = walk(ReadyMonitor, waiters, stranger=False, of=scenario, merge=False)
        assert merged.schedules == whole.schedules > 100
        assert merged.steps < whole.steps


class OneWakerSlot(ReadyMonitor):
    """The seeded bug: room for one waker, so that the second waiter evicts the first."""

    def add_waker(self, waker: Waker) -> None:
        self._wakers.clear()
        super().add_waker(waker)


class RegistersTooLate(ReadyMonitor):
    """The seeded bug: sources are known only once Pending is published, so a wake before that is dropped."""

    def _watch(self, poll: Any, sources: Any) -> None:
        pass


class ForgetsTheDraft(ReadyMonitor):
    """The seeded bug: wakes that came during the poll are not carried into the interval."""

    def _enter_pending(self, poll: Any, draft: Any, reading: Any) -> Any:
        draft.wakes.clear()
        return super()._enter_pending(poll, draft, reading)


class SleepsThroughAnOldWake(ReadyMonitor):
    """The seeded bug: a waiter that registers after the wake is not woken."""

    def add_waker(self, waker: Waker) -> None:
        if self._interval is not None:
            self._wakers.append(waker)
        else:
            fire([waker])


@pytest.mark.parametrize("broken", [OneWakerSlot, RegistersTooLate, ForgetsTheDraft, SleepsThroughAnOldWake])
def test_the_explorer_catches_a_monitor_that_can_lose_a_wake(broken: type[ReadyMonitor]) -> None:
    with pytest.raises(Deadlock) as found:
        walk(broken)
    assert found.value.stuck
    assert "waits for ever" in str(found.value)


class TakesStrangers(ReadyMonitor):
    """The seeded bug: every wake counts, registered or not."""

    def mark(self, source: WakeSource | str) -> list[Waker]:
        if self._interval is not None:
            self._interval.mark(WakeSource(source))
            return self._take_wakers()
        return super().mark(source)


def test_the_explorer_catches_a_monitor_that_takes_unregistered_wakes() -> None:
    with pytest.raises(AssertionError, match="unregistered wake was"):
        walk(TakesStrangers)


# The explorer


def steps(log: list[str], name: str, count: int) -> Iterator[None]:
    for number in range(count):
        log.append(f"{name}{number}")
        yield None


@pytest.mark.parametrize(("lengths", "schedules"), [((0,), 1), ((2,), 1), ((1, 1), 6), ((2, 2), 20), ((1, 1, 1), 90)])
def test_every_schedule_is_walked_once(lengths: tuple[int, ...], schedules: int) -> None:
    """n yields are n + 1 steps; the orders of a and b steps are (a + b)! / (a! b!)."""
    walked: list[list[str]] = []

    def scenario() -> Mapping[str, Actor]:
        walked.append([])
        return {name: steps(walked[-1], name, count) for name, count in zip("abc", lengths, strict=False)}  # type: ignore[misc]

    assert explore(scenario).schedules == schedules == len(walked)
    assert all(len(log) == sum(lengths) for log in walked)


def test_the_orders_walked_are_different_ones() -> None:
    orders: set[str] = set()
    order: list[str] = []

    def actor(name: str) -> Actor:
        order.append(name)
        yield None
        order.append(name)
        if len(order) == 4:
            orders.add("".join(order))

    def scenario() -> Mapping[str, Actor]:
        order.clear()
        return {"a": actor("a"), "b": actor("b")}

    outcome = explore(scenario)
    assert orders == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}
    assert (outcome.schedules, outcome.steps) == (6, 24)


def test_a_beginning_that_orders_share_is_looked_at_once_and_every_other_step_too() -> None:
    order: list[str] = []
    looked: list[str] = []

    def scenario() -> Mapping[str, Actor]:
        order.clear()
        return {name: steps(order, name, 1) for name in "ab"}  # type: ignore[misc]

    def look() -> None:
        looked.append(" ".join(order))

    outcome = explore(scenario, look)
    assert (outcome.schedules, outcome.steps) == (6, 24)
    # A last step writes nothing: after "a0" come its own end, b0, and so on. There are 18 different beginnings.
    assert len(looked) == 18
    assert set(looked) == {"a0", "b0", "a0 b0", "b0 a0"}


def test_a_deadlock_names_its_schedule_and_who_is_stuck() -> None:
    def waits() -> Actor:
        yield lambda: False

    with pytest.raises(Deadlock) as found:
        explore(lambda: {"a": waits(), "b": waits()})
    assert (found.value.schedule, found.value.stuck) == (("a", "b"), ["a", "b"])


def test_an_error_carries_its_schedule() -> None:
    def raises() -> Actor:
        yield None
        raise ValueError("found it")

    with pytest.raises(ValueError, match="found it") as found:
        explore(lambda: {"a": raises()})
    assert found.value.__notes__ == ["in the schedule a → a"]


def test_a_failed_look_carries_its_schedule() -> None:
    def one() -> Actor:
        yield None

    def look() -> None:
        raise AssertionError("wrong")

    with pytest.raises(AssertionError, match="wrong") as found:
        explore(lambda: {"a": one()}, look)
    assert found.value.__notes__ == ["after the schedule a"]


def test_a_scenario_too_large_says_so() -> None:
    with pytest.raises(AssertionError, match="more than 5 walks"):
        explore(lambda: {name: steps([], name, 3) for name in "ab"}, walks_max=5)  # type: ignore[misc]
