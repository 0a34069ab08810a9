"""The contract of Pending, one guarantee a test (S3 to S6)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial

import pytest

from holdfast.ready import (
    BudgetExhausted,
    Busy,
    EmptyWakeSet,
    InvalidTransition,
    InvalidWake,
    MissingWake,
    Pending,
    Poll,
    Reading,
    Ready,
    ReadyMonitor,
    ReadyState,
    RetryAfter,
    WakeOutsidePending,
    WakeSource,
)
from support import spec

IO, TIMER, RELOAD = WakeSource.IO_READY, WakeSource.TIMER, WakeSource.CONFIG_RELOAD

READINGS: dict[str, Reading] = {
    "ready": Ready(),
    "busy": Busy("full"),
    "budget_exhausted": BudgetExhausted(limit=10),
    "retry_after": RetryAfter(1.5),
    "pending": Pending(frozenset({IO, TIMER})),
}


def report(monitor: ReadyMonitor, reading: Reading) -> Reading:
    with monitor.begin() as poll:
        return poll.finish(reading)


def brought_to(state: str) -> ReadyMonitor:
    monitor = ReadyMonitor()
    report(monitor, READINGS[state])
    return monitor


def seen(monitor: ReadyMonitor) -> object:
    """Everything a refusal must leave alone."""
    return monitor.reading, monitor.interval, monitor.history, monitor.counts()


# Values


def test_pending_without_a_source_cannot_be_made() -> None:
    with pytest.raises(EmptyWakeSet):
        Pending(frozenset())


def test_pending_takes_members_and_wire_names() -> None:
    pending = Pending(["timer", IO])  # type: ignore[arg-type]
    assert pending.sources == {IO, TIMER}
    assert repr(pending) == "Pending(io_ready, timer)"


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(
        InvalidWake, match="moon is not a wake source; the sources are io_ready, timer and config_reload"
    ):
        Pending(["moon"])  # type: ignore[arg-type]
    assert Pending("timer").sources == {TIMER}  # type: ignore[arg-type]
    with pytest.raises(InvalidWake) as refused:
        ReadyMonitor().wake("moon")
    assert refused.value.source == "moon"
    assert refused.value.registered == set()


@pytest.mark.parametrize("wait", [0, -1, float("nan"), float("inf")])
def test_a_back_off_must_be_a_finite_time_ahead(wait: float) -> None:
    with pytest.raises(ValueError, match="finite wait over 0"):
        RetryAfter(wait)


def test_every_reading_knows_its_state() -> None:
    assert {name: reading.state for name, reading in READINGS.items()} == {name: ReadyState(name) for name in READINGS}


# The table, through the monitor


@pytest.mark.parametrize(("cell", "legal"), spec.READY_CELLS.items(), ids=str)
def test_every_edge_is_taken_or_refused_as_the_table_says(cell: tuple[str, str], legal: bool) -> None:
    current, target = cell
    monitor = brought_to(current)
    if current == "pending":
        monitor.wake(IO)
    before = seen(monitor)
    if legal:
        assert report(monitor, READINGS[target]) == READINGS[target]
        assert monitor.state == target
    else:
        with pytest.raises(InvalidTransition) as refused:
            report(monitor, READINGS[target])
        assert (refused.value.current, refused.value.target) == (current, target)
        assert seen(monitor) == before


@pytest.mark.parametrize(("cell", "legal"), spec.READY_CELLS.items(), ids=str)
def test_a_report_in_one_step_is_judged_like_a_poll(cell: tuple[str, str], legal: bool) -> None:
    current, target = cell
    monitor = brought_to(current)
    if current == "pending":
        with pytest.raises(MissingWake):
            monitor.report(Ready())
        assert monitor.report(Pending(frozenset({RELOAD}))) == Pending(frozenset({IO, TIMER, RELOAD}))
        monitor.wake(IO)
    before = seen(monitor)
    if legal:
        assert monitor.report(READINGS[target]) == READINGS[target]
        assert (monitor.state, monitor.woken) == (target, False)
    else:
        with pytest.raises(InvalidTransition):
            monitor.report(READINGS[target])
        assert seen(monitor) == before


def test_a_new_monitor_is_ready() -> None:
    assert (ReadyMonitor().state, ReadyMonitor().interval, ReadyMonitor().history) == ("ready", None, [])


# Pending and its wakes


@pytest.mark.parametrize("target", ["ready", "busy", "budget_exhausted", "retry_after"])
def test_pending_is_not_left_without_a_wake(target: str) -> None:
    monitor = brought_to("pending")
    before = seen(monitor)
    with pytest.raises(MissingWake, match="no wake from io_ready, timer was seen") as refused:
        report(monitor, READINGS[target])
    assert refused.value.target == target
    assert refused.value.registered == {IO, TIMER}
    assert seen(monitor) == before


def test_a_wake_from_an_unregistered_source_is_refused_and_not_recorded() -> None:
    monitor = brought_to("pending")
    before = seen(monitor)
    with pytest.raises(
        InvalidWake, match="wake from config_reload refused: the registered sources are io_ready, timer"
    ):
        monitor.wake(RELOAD)
    assert seen(monitor) == before
    with pytest.raises(MissingWake):
        report(monitor, Ready())


@pytest.mark.parametrize("state", ["ready", "busy", "budget_exhausted", "retry_after"])
def test_a_wake_outside_pending_is_refused_and_not_recorded(state: str) -> None:
    monitor = brought_to(state)
    before = seen(monitor)
    with pytest.raises(WakeOutsidePending) as refused:
        monitor.wake("io_ready")
    assert (refused.value.source, refused.value.state) == (IO, state)
    assert str(refused.value) == f"wake from io_ready refused: the state is {state}; the next poll sees what changed"
    assert seen(monitor) == before


def test_polling_again_before_a_wake_is_the_same_interval_and_its_sources_only_grow() -> None:
    monitor = brought_to("pending")
    assert report(monitor, Pending(frozenset({RELOAD}))) == Pending(frozenset(WakeSource))
    assert report(monitor, Pending(frozenset({TIMER}))).state == "pending"
    assert monitor.interval is not None
    assert monitor.interval.sources == set(WakeSource)
    monitor.wake(TIMER)
    assert monitor.interval.wakes == {TIMER: 1}
    assert monitor.history == []


def test_a_second_interval_straight_from_pending_is_refused() -> None:
    monitor = brought_to("pending")
    monitor.wake(IO)
    before = seen(monitor)
    with pytest.raises(InvalidTransition, match="ReadyState in pending refuses pending"):
        report(monitor, Pending(frozenset({IO})))
    assert seen(monitor) == before


def test_a_closed_interval_is_kept_with_its_sources_and_wakes() -> None:
    monitor = ReadyMonitor()
    report(monitor, Pending(frozenset({IO, TIMER})))
    monitor.wake(TIMER)
    monitor.wake(IO)
    monitor.wake(TIMER)
    report(monitor, Busy("full"))
    (interval,) = monitor.history
    assert interval.sources == {IO, TIMER}
    assert list(interval.wakes.items()) == [(TIMER, 2), (IO, 1)]
    assert interval.woken
    assert monitor.interval is None


def test_old_intervals_are_forgotten() -> None:
    monitor = ReadyMonitor()
    for _ in range(100):
        report(monitor, Pending(frozenset({IO})))
        monitor.wake(IO)
        report(monitor, Ready())
    assert len(monitor.history) == 64
    assert monitor.counts()["wake.source"]["io_ready"] == 100


def test_a_wake_between_the_check_and_the_registration_counts() -> None:
    monitor = ReadyMonitor()
    with monitor.begin() as poll:
        poll.watch(IO)
        monitor.wake(IO)  # the check has been made, Pending is not published yet
        poll.finish(Pending(frozenset({IO})))
    assert monitor.wait(timeout_seconds=0)
    assert report(monitor, Ready()) == Ready()


def test_a_wake_during_a_poll_that_does_not_end_pending_is_forgotten_with_it() -> None:
    monitor = ReadyMonitor()
    with monitor.begin() as poll:
        poll.watch("io_ready")
        monitor.wake(IO)
        poll.finish(Busy("full"))
    report(monitor, Pending(frozenset({IO})))
    with pytest.raises(MissingWake):
        report(monitor, Ready())


def test_a_poll_that_began_before_the_wake_may_still_report_pending() -> None:
    monitor = brought_to("pending")
    with monitor.begin() as poll:
        poll.watch(IO)
        monitor.wake(IO)
        assert poll.finish(Pending(frozenset({IO}))).state == "pending"
    assert monitor.interval is not None
    assert monitor.interval.wakes == {IO: 1}  # one wake, counted once
    assert report(monitor, Ready()) == Ready()


def test_a_source_that_is_only_being_added_can_wake_already() -> None:
    monitor = brought_to("pending")
    woken: list[str] = []
    monitor.add_waker(lambda: woken.append("waiter"))
    with monitor.begin() as poll:
        poll.watch(RELOAD)
        monitor.wake(RELOAD)
        monitor.wake(RELOAD)
        assert monitor.interval is not None
        assert not monitor.interval.woken  # the open interval did not register it,
        assert woken == []  # so no waiter is woken yet
        poll.finish(Pending(frozenset({RELOAD})))
    assert monitor.interval is not None
    assert monitor.interval.wakes == {RELOAD: 2}
    assert woken == ["waiter"]
    assert monitor.wait(timeout_seconds=0)


@pytest.mark.parametrize("end", ["report", "silence", "error"])
def test_a_wake_that_only_an_open_poll_has_registered_is_not_lost_with_it(end: str) -> None:
    monitor = brought_to("pending")
    woken: list[str] = []
    monitor.add_waker(lambda: woken.append("waiter"))
    with contextlib.suppress(OSError), monitor.begin() as poll:
        poll.watch(RELOAD)
        monitor.wake(RELOAD)
        if end == "report":
            assert poll.finish(Ready()) == Ready()
        elif end == "error":
            raise OSError
    assert woken == ["waiter"]
    assert report(monitor, Ready()) == Ready()


def test_every_open_poll_sees_a_wake() -> None:
    monitor = ReadyMonitor()
    with monitor.begin() as one, monitor.begin() as two:
        one.watch(IO)
        two.watch(IO, TIMER)
        monitor.wake(IO)
        one.finish(Busy("full"))
        assert two.finish(Pending(frozenset({IO}))) == Pending(frozenset({IO, TIMER}))
    assert monitor.wait(timeout_seconds=0)
    assert monitor.counts()["wake.source"]["io_ready"] == 1


def test_a_poll_that_outlives_its_interval_may_report_pending_in_the_next() -> None:
    monitor = brought_to("pending")
    monitor.wake(IO)
    with monitor.begin() as old:
        report(monitor, Ready())
        report(monitor, Pending(frozenset({IO})))
        assert old.finish(Pending(frozenset({TIMER}))) == Pending(frozenset({IO, TIMER}))
    assert monitor.interval is not None
    assert not monitor.interval.woken


@pytest.mark.parametrize("state", ["budget_exhausted", "retry_after"])
def test_what_time_ends_is_waited_for_with_a_timer(state: str) -> None:
    monitor = brought_to(state)
    before = seen(monitor)
    with pytest.raises(InvalidTransition, match="needs a timer: add it") as refused:
        report(monitor, Pending(frozenset({IO, RELOAD})))
    assert (refused.value.rule, refused.value.current, refused.value.target) == ("S6", state, "pending")
    assert seen(monitor) == before
    with monitor.begin() as poll:
        poll.watch(TIMER)
        assert poll.finish(Pending(frozenset({IO}))) == Pending(frozenset({IO, TIMER}))


def test_the_sources_of_open_polls_are_named_when_a_wake_is_refused() -> None:
    monitor = ReadyMonitor()
    with monitor.begin() as poll:
        poll.watch(IO, TIMER)
        with pytest.raises(InvalidWake) as refused:
            monitor.wake(RELOAD)
    assert refused.value.registered == {IO, TIMER}


def test_watching_nothing_is_refused() -> None:
    with ReadyMonitor().begin() as poll, pytest.raises(EmptyWakeSet):
        poll.watch()


def test_a_poll_that_watched_nothing_does_not_take_wakes() -> None:
    monitor = ReadyMonitor()
    with monitor.begin(), pytest.raises(WakeOutsidePending):
        monitor.wake(IO)


def test_a_poll_left_without_a_report_leaves_nothing_behind() -> None:
    monitor = ReadyMonitor()
    with monitor.begin() as poll:
        poll.watch(IO)
    with pytest.raises(WakeOutsidePending):
        monitor.wake(IO)
    with pytest.raises(RuntimeError, match="this poll is over"):
        poll.finish(Ready())
    with pytest.raises(RuntimeError, match="this poll is over"):
        poll.watch(IO)
    assert sum(monitor.counts()["ready.state"].values()) == 0


def test_a_poll_reports_once_but_may_report_again_after_a_refusal() -> None:
    monitor = brought_to("retry_after")
    with monitor.begin() as poll:
        with pytest.raises(InvalidTransition):
            poll.finish(RetryAfter(3))
        poll.finish(Pending(frozenset({TIMER})))
        with pytest.raises(RuntimeError, match="this poll is over"):
            poll.finish(Ready())
    assert monitor.state == "pending"


# Counts


def test_one_state_is_counted_per_poll_and_one_source_per_wake() -> None:
    monitor = ReadyMonitor()
    report(monitor, Ready())
    report(monitor, Busy("full"))
    report(monitor, BudgetExhausted(5, 1))
    report(monitor, RetryAfter(1))
    report(monitor, Pending(frozenset({IO, TIMER})))
    report(monitor, Pending(frozenset({IO})))
    monitor.wake(IO)
    monitor.wake(TIMER)
    report(monitor, Ready())
    assert monitor.counts() == {
        "ready.state": {"ready": 2, "busy": 1, "budget_exhausted": 1, "retry_after": 1, "pending": 2},
        "wake.source": {"io_ready": 1, "timer": 1, "config_reload": 0},
    }


# Errors of the check


def test_a_whole_poll_publishes_what_the_check_returns() -> None:
    monitor = ReadyMonitor()

    def check(poll: Poll) -> Reading:
        poll.watch(IO)
        return Pending(frozenset({IO}))

    assert monitor.poll(check) == Pending(frozenset({IO}))
    assert monitor.state == "pending"


def test_an_error_of_the_check_raises_wakes_everybody_and_starts_again_at_ready() -> None:
    monitor = brought_to("pending")
    woken: list[str] = []
    monitor.add_waker(lambda: woken.append("a"))

    def check(poll: Poll) -> Reading:
        poll.watch(IO)
        raise OSError("the store is away")

    with pytest.raises(OSError, match="the store is away"):
        monitor.poll(check)
    assert (monitor.state, monitor.interval, woken) == ("ready", None, ["a"])
    report(monitor, Pending(frozenset({IO})))
    monitor.add_waker(lambda: woken.append("b"))
    with pytest.raises(OSError, match="as well"), monitor.begin():
        raise OSError("in a block of its own as well")
    woken.remove("b")
    assert (monitor.state, monitor.interval, woken) == ("ready", None, ["a"])
    assert report(monitor, BudgetExhausted(1)) == BudgetExhausted(1)
    with pytest.raises(WakeOutsidePending):
        monitor.wake(IO)


def test_a_refused_report_is_no_error_of_the_check() -> None:
    monitor = brought_to("budget_exhausted")
    with pytest.raises(InvalidTransition):
        monitor.poll(lambda _: BudgetExhausted(1))
    assert monitor.state == "budget_exhausted"


def test_a_refused_poll_leaves_none_of_its_sources_in_the_interval() -> None:
    monitor = ReadyMonitor()
    report(monitor, Pending(frozenset({TIMER})))
    before = seen(monitor)

    def check(poll: Poll) -> Reading:
        poll.watch(RELOAD)
        return Ready()

    with pytest.raises(MissingWake):
        monitor.poll(check)
    assert seen(monitor) == before
    with pytest.raises(InvalidWake, match="registered sources are timer"):
        monitor.wake(RELOAD)
    assert seen(monitor) == before


def test_a_poll_that_is_left_inside_an_interval_leaves_none_of_its_sources() -> None:
    monitor = ReadyMonitor()
    report(monitor, Pending(frozenset({TIMER})))
    before = seen(monitor)
    with monitor.begin() as poll:
        poll.watch(RELOAD, IO)
    assert seen(monitor) == before


def test_a_wake_that_only_a_refused_poll_has_seen_still_counts() -> None:
    monitor = ReadyMonitor()
    report(monitor, Pending(frozenset({TIMER})))
    woken: list[str] = []
    monitor.add_waker(lambda: woken.append("a"))

    def refused() -> None:
        with monitor.begin() as poll:
            poll.watch(RELOAD, IO)
            try:
                poll.finish(Ready())
            finally:
                monitor.wake(RELOAD)

    with pytest.raises(MissingWake):
        refused()
    assert woken == ["a"]
    interval = monitor.interval
    assert interval is not None
    assert interval.sources == {TIMER, RELOAD}
    assert interval.wakes == {RELOAD: 1}
    assert monitor.reading == Pending(frozenset({TIMER, RELOAD}))
    assert report(monitor, Ready()) == Ready()


# Waiters


def test_every_waiter_is_woken_once() -> None:
    monitor = brought_to("pending")
    woken: list[int] = []
    for number in range(5):
        monitor.add_waker(partial(woken.append, number))
    assert woken == []
    monitor.wake(IO)
    monitor.wake(IO)
    assert woken == [0, 1, 2, 3, 4]


def test_a_waiter_that_comes_after_the_wake_is_woken_at_once() -> None:
    monitor = brought_to("pending")
    monitor.wake(IO)
    assert monitor.wait(timeout_seconds=0)


def test_nobody_waits_while_nothing_is_pending() -> None:
    assert ReadyMonitor().wait(timeout_seconds=0)


def test_a_wait_whose_time_runs_out_says_so_and_leaves_nothing_behind() -> None:
    monitor = brought_to("pending")
    assert not monitor.wait(timeout_seconds=0)
    assert monitor.mark(IO) == []


class Bell:
    def __init__(self, woken: list[str]) -> None:
        self.woken = woken

    def ring(self) -> None:
        self.woken.append("goes")


def test_a_waker_that_was_removed_is_not_called() -> None:
    monitor = brought_to("pending")
    woken: list[str] = []

    def stays() -> None:
        woken.append("stays")

    goes = Bell(woken)

    monitor.add_waker(stays)
    monitor.add_waker(goes.ring)
    monitor.remove_waker(goes.ring)  # another object than the one added, as bound methods are, and equal to it
    monitor.remove_waker(goes.ring)
    monitor.wake(IO)
    assert woken == ["stays"]


@pytest.mark.parametrize("error", [ValueError("broken waker"), SystemExit(), asyncio.CancelledError()])
def test_a_waker_that_raises_does_not_keep_the_others_asleep(error: BaseException) -> None:
    monitor = brought_to("pending")
    woken: list[str] = []

    def broken() -> None:
        raise error

    monitor.add_waker(broken)
    monitor.add_waker(lambda: woken.append("other"))
    with pytest.raises(BaseExceptionGroup, match="wakers raised"):
        monitor.wake(IO)
    assert woken == ["other"]
    assert report(monitor, Ready()) == Ready()


def test_tasks_wait_without_a_thread_and_are_woken_from_another_thread() -> None:
    async def scenario() -> int:
        monitor = brought_to("pending")
        waiting = [asyncio.create_task(monitor.wait_async()) for _ in range(10)]
        await asyncio.sleep(0)  # lets every task register
        await asyncio.to_thread(monitor.wake, IO)
        await asyncio.gather(*waiting)
        return len(waiting)

    assert asyncio.run(scenario()) == 10


def test_a_task_that_no_longer_waits_leaves_nothing_behind() -> None:
    monitor = brought_to("pending")

    async def give_up() -> None:
        waiting = asyncio.create_task(monitor.wait_async())
        await asyncio.sleep(0)  # lets it register
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    assert monitor.mark(IO) == []


def test_a_waiter_whose_loop_was_closed_is_no_error_of_whoever_wakes() -> None:
    monitor = brought_to("pending")
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(monitor.wait_async())
    loop.run_until_complete(_one_turn())
    (waker,) = monitor._wakers
    waiting.cancel()
    loop.run_until_complete(asyncio.wait([waiting]))
    loop.close()
    monitor.add_waker(waker)  # as if the loop had been closed before its task could take it back
    monitor.wake(IO)
    assert report(monitor, Ready()) == Ready()


async def _one_turn() -> None:
    await asyncio.sleep(0)


def test_threads_that_wait_all_go_on() -> None:
    monitor = brought_to("pending")
    started = threading.Barrier(9)
    went_on: list[bool] = []

    def wait() -> None:
        started.wait()
        went_on.append(monitor.wait(timeout_seconds=30))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    monitor.wake(IO)
    for thread in threads:
        thread.join()
    assert went_on == [True] * 8


class Storm:
    """Producers put items and wake; one consumer polls, waits and takes. On real threads."""

    def __init__(self, items: int) -> None:
        self.monitor = ReadyMonitor()
        self.queue: list[int] = []
        self.taken: list[int] = []
        self.items = items

    def check(self, poll: Poll) -> Reading:
        poll.watch(IO)
        return Ready() if self.queue else Pending(frozenset({IO}))

    def produce(self, numbers: range) -> None:
        for number in numbers:
            self.queue.append(number)
            with contextlib.suppress(WakeOutsidePending):  # no caller waits: the next check sees the item
                self.monitor.wake(IO)

    def consume(self) -> None:
        while len(self.taken) < self.items:
            interval = self.monitor.interval
            if interval is not None and interval.woken and not self.queue:
                report(self.monitor, Busy("woken for what is gone already"))
            elif self.monitor.poll(self.check).state == "pending":
                assert self.monitor.wait(timeout_seconds=30), "a wake was lost"
            while self.queue:
                self.taken.append(self.queue.pop())


def test_many_threads_polling_waking_and_waiting_lose_nothing() -> None:
    """A storm on real threads; every order of a small scenario is covered in test_interleavings."""
    storm = Storm(2000)
    producers = [threading.Thread(target=storm.produce, args=(range(n, storm.items, 4),)) for n in range(4)]
    for thread in producers:
        thread.start()
    storm.consume()
    for thread in producers:
        thread.join()
    assert sorted(storm.taken) == list(range(storm.items))
