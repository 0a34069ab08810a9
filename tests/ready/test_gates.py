"""Waiting at gates: lines, wakes, cancellation, threads, loops, violations (S3 to S5)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial

import pytest

from holdfast.ready import (
    BackoffGate,
    Busy,
    ConcurrencyGate,
    Gate,
    InvalidTransition,
    MissingWake,
    Pending,
    RateGate,
    Ready,
    RetryAfter,
    Share,
    WakeSource,
    all_of,
)
from holdfast.ready.all_of import _Locks
from holdfast.ready.base_gate import fire_all
from holdfast.ready.line import TaskWaiter, ThreadWaiter
from support.gates import STRICT, Clock, Hand

IO, TIMER, RELOAD = WakeSource.IO_READY, WakeSource.TIMER, WakeSource.CONFIG_RELOAD


def slots(limit: int = 1, name: str = "concurrency", now: Clock | None = None) -> ConcurrencyGate:
    return ConcurrencyGate(limit, name=name, now=now or Clock(), on_violation=STRICT)


def taken(gate: Gate) -> Share:
    share = gate.try_acquire()
    assert share is not None
    return share


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# Asking


def test_a_gate_says_yes_and_lets_through_as_many_as_it_has() -> None:
    gate = slots(2)
    assert gate.poll_ready() == Ready()
    shares = [taken(gate), taken(gate)]
    assert gate.try_acquire() is None
    assert gate.poll_ready() == Busy("concurrency: 2 of 2 are taken")
    shares[0].release()
    assert gate.poll_ready() == Ready()
    assert isinstance(gate, Gate)


def test_ready_is_kept_until_it_is_taken() -> None:
    gate = slots()
    for _ in range(3):
        assert gate.poll_ready() == Ready()
    assert gate.taken == 0


def test_full_is_told_once_and_then_whoever_waits_is_pending() -> None:
    gate = slots()
    share = taken(gate)
    woken: list[str] = []
    waker = partial(woken.append, "woken")
    assert gate.poll_ready(waker).state == "busy"
    assert gate.poll_ready(waker) == Pending(frozenset({IO, RELOAD}))
    assert gate.poll_ready(waker).state == "pending"
    assert woken == []
    share.release()
    assert woken == ["woken"], "polling twice with a waker keeps it once"
    assert gate.poll_ready() == Ready()


def test_every_waker_is_called() -> None:
    gate = slots()
    share = taken(gate)
    woken: list[int] = []
    gate.poll_ready()
    for number in range(5):
        gate.poll_ready(partial(woken.append, number))
    share.release()
    assert woken == [0, 1, 2, 3, 4]


def test_a_share_is_given_back_once() -> None:
    gate = slots(2)
    first, second = taken(gate), taken(gate)
    first.release()
    first.release()
    assert (first.released, second.released, gate.taken) == (True, False, 1)
    with second:
        pass
    assert gate.taken == 0


def test_a_limit_that_is_raised_wakes_and_one_that_is_lowered_takes_nothing_away() -> None:
    gate = slots(2)
    shares = [taken(gate), taken(gate)]
    woken: list[str] = []
    gate.poll_ready()
    gate.poll_ready(partial(woken.append, "reload"))
    gate.set_limit(3)
    assert (woken, gate.limit, gate.poll_ready()) == (["reload"], 3, Ready())
    assert gate.counts().wakes == {"io_ready": 0, "timer": 0, "config_reload": 1}
    gate.set_limit(1)
    assert gate.taken == 2
    shares[0].release()
    assert gate.try_acquire() is None
    shares[1].release()
    assert gate.try_acquire()


def test_a_gate_says_why_it_is_closed_and_this_is_no_poll() -> None:
    gate = slots(name="openai")
    assert gate.why() is None
    taken(gate)
    assert gate.why() == "openai: 1 of 1 are taken"
    assert gate.wake_in_seconds() is None
    assert sum(gate.counts().polls.values()) == 1
    assert repr(gate) == "<ConcurrencyGate openai: ready>"


def test_polls_wakes_and_time_are_counted() -> None:
    clock = Clock()
    gate = slots(name="api", now=clock)
    clock.advance(2)
    share = taken(gate)
    gate.poll_ready()
    clock.advance(3)
    gate.poll_ready(lambda: None)
    clock.advance(5)
    share.release()
    counts = gate.counts()
    assert (counts.gate, counts.state, counts.waiting, counts.violations) == ("api", "pending", 0, 0)
    assert counts.polls == {"ready": 1, "busy": 1, "budget_exhausted": 0, "retry_after": 0, "pending": 1}
    assert counts.wakes == {"io_ready": 1, "timer": 0, "config_reload": 0}
    assert counts.seconds == {"ready": 2, "busy": 3, "budget_exhausted": 0, "retry_after": 0, "pending": 5}


def test_the_real_clock_is_the_default() -> None:
    gate = ConcurrencyGate(1)
    before = time.monotonic_ns()
    assert before <= gate.clock_ns() + 1_000 <= time.monotonic_ns() + 1_000_000


# The line


def served(*hands: Hand) -> list[str]:
    return [hand.name for hand in hands if hand.share is not None]


def test_first_come_first_served() -> None:
    gate = slots()
    share = taken(gate)
    hands = [Hand(str(number)) for number in range(4)]
    order: list[str] = []
    for hand in hands:
        fire_all(gate._join(hand))
    assert gate.counts().waiting == 4
    for _ in hands:
        share.release()
        (got,) = [hand for hand in hands if hand.share is not None and hand.name not in order]
        order.append(got.name)
        assert got.rings == 1
        assert got.share is not None
        share = got.share
    assert order == ["0", "1", "2", "3"]
    assert gate.counts().waiting == 0


def test_nobody_who_has_just_come_passes_those_who_wait() -> None:
    gate = slots()
    share = taken(gate)
    hand = Hand("first")
    fire_all(gate._join(hand))
    after = gate._end(
        share, lambda leaf, receipt: leaf.release(receipt, None)
    )  # the share is back, no waiter woken yet
    assert gate.try_acquire() is None
    assert served(hand) == ["first"]
    fire_all(after)
    assert gate.poll_ready().state == "busy"


def test_what_becomes_free_at_once_is_given_to_as_many() -> None:
    gate = slots(1)
    taken(gate)
    hands = [Hand(str(number)) for number in range(4)]
    for hand in hands:
        fire_all(gate._join(hand))
    gate.set_limit(3)
    assert served(*hands) == ["0", "1"]
    assert gate.counts().state == "pending"


def test_whoever_gives_up_leaves_nothing_behind() -> None:
    gate = slots()
    share = taken(gate)
    first, second = Hand("first"), Hand("second")
    fire_all(gate._join(first))
    fire_all(gate._join(second))
    fire_all(gate._leave(first))
    fire_all(gate._leave(first))
    share.release()
    assert served(first, second) == ["second"]


def test_whoever_gives_up_after_it_was_served_passes_it_on() -> None:
    gate = slots()
    share = taken(gate)
    first, second = Hand("first"), Hand("second")
    fire_all(gate._join(first))
    fire_all(gate._join(second))
    share.release()
    assert served(first, second) == ["first"]
    fire_all(gate._leave(first))
    assert second.share is not None
    assert gate.taken == 1


def test_a_share_served_to_a_closed_loop_goes_to_the_next() -> None:
    gate = slots()
    share = taken(gate)
    gone, there = Hand("gone"), Hand("there")
    gone.there = False
    fire_all(gate._join(gone))
    fire_all(gate._join(there))
    share.release()
    assert there.share is not None
    assert gate.taken == 1


def test_the_first_in_line_has_the_timer_and_hands_it_on() -> None:
    clock = Clock()
    gate = RateGate(1, burst=1, now=clock, on_violation=STRICT)
    taken(gate)
    first, second = Hand("first"), Hand("second")
    fire_all(gate._join(first))
    fire_all(gate._join(second))
    assert (gate._arm(first), gate._arm(second)) == (1.0, None)
    rings = second.rings
    fire_all(gate._serve())
    assert (first.rings, second.rings) == (1, rings), "a timer that is right is left alone"
    fire_all(gate._leave(first))
    assert second.rings == rings + 1, "the next in line is told to set its timer"
    assert gate._arm(second) == 1.0
    clock.advance(1)
    fire_all(gate._serve())
    assert second.share is not None
    assert gate.counts().wakes["timer"] == 1


@pytest.mark.parametrize("reads_before", range(8))
def test_time_that_comes_in_the_middle_of_a_poll_is_seen_as_a_wake_and_serves_the_line_first(reads_before: int) -> None:
    """Every look at the clock takes a nanosecond, and the token comes after so many of them."""
    for in_line in (False, True):
        clock = Clock()
        gate = RateGate(1, burst=1, now=clock, on_violation=STRICT)
        taken(gate)
        hand = Hand()
        gate.poll_ready()
        gate.poll_ready(lambda: None)
        if in_line:
            fire_all(gate._join(hand))
        clock.now_ns, clock.tick_ns = 1_000_000_000 - 1 - reads_before, 1
        share = gate.try_acquire()
        assert share is None or not in_line, "those in line come first"
        states = [gate.poll_ready().state for _ in range(8)]
        assert (hand.share is not None) == in_line
        assert states[-1] == ("ready" if share is None and not in_line else "busy")
        assert gate.counts().wakes["timer"] == 1


def test_a_line_that_nothing_has_happened_to_is_left_alone() -> None:
    gate = slots()
    taken(gate)
    fire_all(gate._join(Hand()))
    before = gate.counts().polls
    fire_all(gate._join(Hand()))
    fire_all(gate._serve())
    assert gate.counts().polls == before


# Tasks


def test_a_block_waits_takes_and_releases() -> None:
    async def scenario() -> list[str]:
        gate = slots()
        log: list[str] = []

        async def work(name: str) -> None:
            async with gate as share:
                assert not share.released
                log.append(f"{name} in")
                await turns(2)
                log.append(f"{name} out")

        await asyncio.gather(*(work(name) for name in "abc"))
        assert gate.taken == 0
        return log

    assert asyncio.run(scenario()) == ["a in", "a out", "b in", "b out", "c in", "c out"]


def test_a_block_inside_a_block_gives_back_its_own() -> None:
    async def scenario() -> int:
        gate = slots(2)
        async with gate as outer:
            async with gate as inner:
                pass
            assert inner.released
            assert not outer.released
        return gate.taken

    assert asyncio.run(scenario()) == 0


def test_a_block_may_be_left_by_another_task_than_entered_it() -> None:
    async def scenario() -> int:
        gate = slots()
        await asyncio.create_task(gate.__aenter__())
        await asyncio.create_task(gate.__aexit__(None, None, None))
        return gate.taken

    assert asyncio.run(scenario()) == 0


@pytest.mark.parametrize("was_served", [False, True])
def test_a_task_that_is_cancelled_passes_its_wake_on(was_served: bool) -> None:
    async def scenario() -> None:
        gate = slots()
        share = taken(gate)
        first = asyncio.create_task(gate.acquire())
        second = asyncio.create_task(gate.acquire())
        await turns()
        assert gate.counts().waiting == 2
        if was_served:
            share.release()
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        if not was_served:
            share.release()
        (await second).release()
        assert (gate.taken, gate.counts().waiting) == (0, 0)

    asyncio.run(scenario())


def test_a_task_that_only_waits_takes_nothing_and_cancelled_leaves_nothing() -> None:
    async def scenario() -> None:
        gate = slots()
        await gate.ready()
        share = taken(gate)
        waiting = [asyncio.create_task(gate.ready()) for _ in range(3)]
        await turns()
        assert len(gate._monitor._wakers) == 3
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert len(gate._monitor._wakers) == 2
        share.release()
        await asyncio.gather(*waiting[1:])
        assert gate.taken == 0

    asyncio.run(scenario())


def test_a_task_whose_timer_has_run_out_looks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    waits: list[float | None] = []

    async def run_out(_: TaskWaiter, timeout_seconds: float | None) -> bool:
        waits.append(timeout_seconds)
        clock.advance(timeout_seconds or 0)
        return False

    async def scenario() -> dict[str, int]:
        gate = RateGate(4, burst=1, now=clock, on_violation=STRICT)
        for _ in range(3):
            async with gate:
                pass
        await gate.ready()
        return dict(gate.counts().wakes)

    monkeypatch.setattr(TaskWaiter, "wait", run_out)
    assert asyncio.run(scenario())["timer"] == 3
    assert waits == [0.25, 0.25, 0.25]


def test_a_thread_whose_timer_has_run_out_looks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    waits: list[float | None] = []

    def run_out(_: ThreadWaiter, timeout_seconds: float | None) -> bool:
        waits.append(timeout_seconds)
        clock.advance(timeout_seconds or 0)
        return False

    monkeypatch.setattr(ThreadWaiter, "wait", run_out)
    gate = RateGate(4, burst=1, now=clock, on_violation=STRICT)
    taken(gate)
    with gate:
        pass
    assert gate.acquire_blocking(10) is not None
    assert waits == [0.25, 0.25]


def test_a_wait_for_a_bell_ends_by_the_bell_or_by_time() -> None:
    async def scenario() -> list[bool]:
        waiter = TaskWaiter()
        waiter.ring()
        return [await waiter.wait(None), await waiter.wait(0)]

    assert asyncio.run(scenario()) == [True, False]
    waiter = ThreadWaiter()
    waiter.ring()
    assert [waiter.wait(None), waiter.wait(0)] == [True, False]


def test_a_task_is_woken_from_a_thread_and_a_thread_from_a_task() -> None:
    async def scenario() -> None:
        gate = slots()
        share = taken(gate)
        waiting = asyncio.create_task(gate.acquire())
        await turns()
        await asyncio.to_thread(share.release)
        share = await waiting
        in_thread = asyncio.create_task(asyncio.to_thread(gate.acquire_blocking, 30))
        while gate.counts().waiting == 0:  # noqa: ASYNC110 - a thread comes into line, which no event tells
            await asyncio.sleep(0)
        share.release()
        got = await in_thread
        assert got is not None
        got.release()
        assert gate.taken == 0

    asyncio.run(scenario())


def test_a_bell_of_a_closed_loop_says_that_nobody_hears_it() -> None:
    async def make() -> TaskWaiter:
        return TaskWaiter()

    assert not asyncio.run(make()).ring()


# Threads


def test_a_thread_waits_with_a_plain_block() -> None:
    gate = slots(2)
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(50):
            with gate:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 2
    assert (gate.taken, gate.counts().waiting, len(most)) == (0, 0, 300)


@pytest.mark.parametrize("timeout_seconds", [0, 0.001])
def test_a_thread_whose_time_runs_out_takes_nothing(timeout_seconds: float) -> None:
    gate = slots()
    share = taken(gate)
    assert gate.acquire_blocking(timeout_seconds) is None
    assert gate.counts().waiting == 0
    share.release()
    assert gate.acquire_blocking(0) is not None


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slots()
    taken(gate)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadWaiter, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gate.acquire_blocking()
    assert gate.counts().waiting == 0


def test_a_loop_is_not_blocked_by_mistake() -> None:
    async def scenario() -> None:
        with slots():
            pass

    with pytest.raises(TypeError, match="use `async with`"):
        asyncio.run(scenario())


def test_a_composition_that_is_interrupted_at_a_lock_keeps_none() -> None:
    class Interrupted:
        def acquire(self) -> None:
            raise KeyboardInterrupt

    lock = threading.Lock()
    locks = _Locks([lock, Interrupted()])  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt), locks:
        pass
    assert not lock.locked()


# Violations


class Forgetful(ConcurrencyGate):
    """The seeded bug: what opens it is not announced."""

    def release(self, receipt: object, error: BaseException | None) -> bool:
        super().release(receipt, error)
        return False


def test_a_gate_that_opens_in_silence_raises_in_tests() -> None:
    gate = Forgetful(1, now=Clock(), on_violation=STRICT)
    share = taken(gate)
    gate.poll_ready()
    gate.poll_ready(lambda: None)
    share.release()
    with pytest.raises(MissingWake) as refused:
        gate.poll_ready()
    assert refused.value.__notes__ == ["at the gate concurrency"]


def test_in_production_it_is_reported_counted_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    gate = Forgetful(1, now=Clock())
    share = taken(gate)
    woken: list[str] = []
    gate.poll_ready()
    gate.poll_ready(partial(woken.append, "woken"))
    share.release()
    with caplog.at_level(logging.ERROR, "holdfast.ready"):
        assert gate.poll_ready() == Ready()
    assert "gate concurrency broke the contract of readiness and was reset" in caplog.text
    assert (gate.counts().violations, woken) == (1, ["woken"])
    assert "wake" in (gate.counts().violation or "")
    assert [(one.gate, one.violation) for one in caplog.records] == [("concurrency", "MissingWake")]  # type: ignore[attr-defined]
    assert gate.try_acquire() is not None


def test_a_gate_that_repeats_itself_is_refused_by_its_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that keeps gates legal is switched off: the monitor is a second guard, not the first."""
    from holdfast.ready import next_reading

    def repeats(*_: object, **__: object) -> RetryAfter:
        return RetryAfter(5)

    gate = BackoffGate(now=Clock(), on_violation=STRICT)
    gate.retry_after(5)
    monkeypatch.setattr(next_reading, "next_reading", repeats)
    gate.poll_ready()
    with pytest.raises(InvalidTransition, match="ReadyState in retry_after refuses retry_after"):
        gate.poll_ready()
    assert gate.counts().violations == 1


def test_a_waker_that_raises_leaves_no_share_with_somebody_who_was_not_told() -> None:
    clock = Clock()
    gate = RateGate(1, burst=1, now=clock, on_violation=STRICT)
    both = all_of(gate, slots(2), on_violation=STRICT)

    def broken() -> None:
        raise ValueError("broken waker")

    taken(gate)
    gate.poll_ready()
    gate.poll_ready(broken)
    clock.advance(1)
    with pytest.raises(ValueError, match="broken waker"):
        both.try_acquire()
    assert both.try_acquire() is not None
    gate.poll_ready()
    gate.poll_ready(broken)
    with pytest.raises(ValueError, match="broken waker"):
        gate.set_rate(0.1)
    assert gate.try_acquire() is None
    gate.poll_ready(broken)
    gate.poll_ready(partial(broken))
    clock.advance(20)
    with pytest.raises(BaseExceptionGroup, match="wakers raised"):
        gate.poll_ready()


def test_a_refusal_while_a_waker_raises_takes_nothing() -> None:
    clock = Clock()
    gate = RateGate(1, burst=1, now=clock, on_violation=STRICT)
    taken(gate)
    other = slots()
    taken(other)
    both = all_of(gate, other, on_violation=STRICT)

    def broken() -> None:
        raise ValueError("broken waker")

    gate.poll_ready()
    gate.poll_ready(broken)
    clock.advance(1)
    with pytest.raises(ValueError, match="broken waker"):
        both.try_acquire()
    assert gate.try_acquire() is not None
