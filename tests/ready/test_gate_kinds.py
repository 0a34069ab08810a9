"""The guarantees of rate, budget, back-off and all-of gates, on a clock that only the test moves (S6, S8)."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

import pytest

from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.ready import (
    BackoffGate,
    BudgetExhausted,
    BudgetGate,
    Busy,
    ConcurrencyGate,
    Gate,
    MemoryLedger,
    Pending,
    RateGate,
    Ready,
    RetryAfter,
    Share,
    WakeSource,
    all_of,
)
from holdfast.ready.base_gate import fire_all
from holdfast.ready.leaf_gate import LeafGate
from support.gates import STRICT, Clock, Hand

IO, TIMER, RELOAD = WakeSource.IO_READY, WakeSource.TIMER, WakeSource.CONFIG_RELOAD


@pytest.fixture
def clock() -> Clock:
    return Clock()


def taken(gate: Gate) -> Share:
    share = gate.try_acquire()
    assert share is not None
    return share


def count(gate: Gate) -> int:
    """Take as many shares as there are."""
    shares = 0
    while gate.try_acquire() is not None:
        shares += 1
    return shares


# Rate


def test_a_bucket_starts_full_and_fills_at_its_rate(clock: Clock) -> None:
    gate = RateGate(3, per=1, burst=5, now=clock, on_violation=STRICT)
    assert count(gate) == 5
    clock.advance(1 / 3)
    assert count(gate) == 0, "a third of a second, rounded down to nanoseconds, is too soon"
    clock.now_ns += 1
    assert count(gate) == 1
    clock.advance(1)
    assert count(gate) == 3
    clock.advance(100)
    assert count(gate) == 5


def test_an_empty_bucket_is_told_once_and_then_there_is_a_timer_for_the_next_token(clock: Clock) -> None:
    gate = RateGate(2, burst=1, now=clock, on_violation=STRICT)
    woken: list[str] = []
    taken(gate)
    assert gate.poll_ready() == BudgetExhausted(limit=2)
    assert gate.poll_ready(partial(woken.append, "timer")) == Pending(frozenset({TIMER, IO, RELOAD}))
    assert gate.wake_in_seconds() == 0.5
    clock.advance(0.499999999)
    assert gate.poll_ready().state == "pending"
    clock.now_ns += 1
    assert gate.poll_ready() == Ready()
    assert woken == ["timer"]
    assert gate.counts().wakes["timer"] == 1


def test_a_timer_is_not_a_moment_early(clock: Clock) -> None:
    gate = RateGate(3, burst=1, now=clock, on_violation=STRICT)
    taken(gate)
    gate.poll_ready()
    gate.poll_ready(lambda: None)
    clock.now_ns = 333_333_333
    assert (gate.poll_ready().state, gate.wake_in_seconds(), gate.counts().wakes["timer"]) == ("pending", 1e-9, 0)
    clock.now_ns += 1
    assert gate.poll_ready() == Ready()


@pytest.mark.parametrize(("rate", "burst"), [(0.5, 1), (1, 1), (7, 7), (7.9, 7)])
def test_a_burst_is_one_period_s_worth_unless_said(clock: Clock, rate: float, burst: int) -> None:
    assert count(RateGate(rate, now=clock)) == burst


def test_nothing_comes_back_of_a_rate(clock: Clock) -> None:
    gate = RateGate(1, now=clock, on_violation=STRICT)
    with taken(gate):
        pass
    assert gate.try_acquire() is None


def test_a_new_rate_counts_from_now_and_what_is_missing_stays_missing(clock: Clock) -> None:
    gate = RateGate(1, burst=4, now=clock, on_violation=STRICT)
    assert count(gate) == 4
    woken: list[str] = []
    gate.poll_ready()
    gate.poll_ready(partial(woken.append, "reload"))
    gate.set_rate(10, burst=4)
    assert woken == ["reload"]
    assert gate.poll_ready().state == "busy", "woken for nothing"
    clock.advance(0.1)
    assert count(gate) == 1
    gate.set_rate(10, burst=6)
    assert count(gate) == 2
    gate = RateGate(1, burst=4, now=clock)
    gate.set_rate(1, burst=2)
    assert count(gate) == 2


def test_a_gate_that_follows_another_clock_goes_on_where_it_is(clock: Clock) -> None:
    gate = RateGate(1, per=10, now=clock)
    assert gate.try_acquire() is not None
    other = Clock()
    other.advance(5_000)
    assert gate.follow(other) is clock
    other.advance(9.9)
    assert gate.try_acquire() is None
    other.advance(0.1)
    assert gate.try_acquire() is not None
    clock.advance(3)
    assert gate.follow(clock) is other
    clock.advance(9.9)
    assert gate.try_acquire() is None
    clock.advance(0.1)
    assert gate.try_acquire() is not None


def test_a_token_served_to_somebody_who_gave_up_goes_to_the_next(clock: Clock) -> None:
    gate = RateGate(1, now=clock, on_violation=STRICT)
    taken(gate)
    first, second = Hand(), Hand()
    fire_all(gate._join(first))
    fire_all(gate._join(second))
    clock.advance(1)
    gate.poll_ready()
    assert first.share is not None
    fire_all(gate._leave(first))
    assert second.share is not None


# Budget


def test_a_budget_lets_its_limit_through_in_each_window(clock: Clock) -> None:
    gate = BudgetGate(3, per=60, now=clock, on_violation=STRICT)
    clock.advance(59)
    assert count(gate) == 3
    clock.advance(1)
    assert count(gate) == 3, "windows lie at whole multiples of their length"
    clock.advance(59.999999999)
    assert count(gate) == 0
    clock.now_ns += 1
    assert count(gate) == 3


def test_an_exhausted_budget_is_told_once_then_busy_or_pending_on_a_timer(clock: Clock) -> None:
    gate = BudgetGate(100, per=60, unit="tokens", now=clock, on_violation=STRICT)
    gate.spend(130)
    assert gate.remaining == -30
    assert gate.poll_ready() == BudgetExhausted(limit=100, remaining=-30)
    assert gate.poll_ready() == Busy("budget: 100 tokens are used up")
    assert gate.poll_ready(lambda: None) == Pending(frozenset({TIMER, IO, RELOAD}))
    assert gate.wake_in_seconds() == 60
    gate.set_limit(120)
    assert gate.poll_ready().state == "busy", "it is the same exhaustion, and was told"
    clock.advance(60)
    assert (gate.poll_ready(), gate.remaining) == (Ready(), 120)
    gate.spend(120)
    assert gate.poll_ready().state == "budget_exhausted", "another window is another exhaustion"


def test_a_higher_limit_opens_the_window_and_wakes(clock: Clock) -> None:
    gate = BudgetGate(1, per=60, now=clock, on_violation=STRICT)
    woken: list[str] = []
    taken(gate)
    gate.poll_ready()
    gate.poll_ready(partial(woken.append, "reload"))
    gate.set_limit(2)
    assert (woken, count(gate)) == (["reload"], 1)


def test_a_share_of_money_or_tokens_costs_nothing_until_it_is_spent(clock: Clock) -> None:
    gate = BudgetGate(2, per=60, unit="usd", now=clock, on_violation=STRICT)
    for _ in range(5):
        with taken(gate):
            pass
    assert gate.remaining == 2
    gate.spend(1.5)
    assert gate.try_acquire() is not None
    assert [gate.try_spend(0.6), gate.try_spend(0.5)] == [False, True]
    assert gate.try_acquire() is None


def test_tenths_add_up_to_one(clock: Clock) -> None:
    gate = BudgetGate(0.3, per=60, unit="usd", cost=0.1, now=clock, on_violation=STRICT)
    assert count(gate) == 3
    assert gate.remaining == 0
    tiny = BudgetGate(0.000002, per=60, unit="usd", now=clock)
    assert [tiny.try_spend(1e-9) for _ in range(3)] == [True, True, False], "nothing is free"


def test_a_clock_that_is_set_back_does_not_reopen_a_window(clock: Clock) -> None:
    gate = BudgetGate(1, per=10, now=clock, on_violation=STRICT)
    clock.advance(10)
    taken(gate)
    clock.advance(-5)
    assert gate.try_acquire() is None
    gate.poll_ready(lambda: None)
    assert gate.wake_in_seconds() == 15


def test_a_share_nobody_used_is_put_back_in_its_own_window_only(clock: Clock) -> None:
    gate = BudgetGate(1, per=10, now=clock, on_violation=STRICT)
    fire_all(gate._put_back(taken(gate)))
    assert gate.remaining == 1
    share = taken(gate)
    clock.advance(10)
    taken(gate)
    fire_all(gate._put_back(share))
    assert gate.remaining == 0
    free = BudgetGate(1, per=10, unit="usd", now=clock, on_violation=STRICT)
    fire_all(free._put_back(taken(free)))
    assert free.remaining == 1


class Shared(MemoryLedger):
    """A ledger that another process writes to between a look and the taking after it."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        if self.refuses and limit is not None:
            return False
        return super().take(budget, window_start, millionths, limit)


def test_budgets_of_one_ledger_and_name_are_one_budget(clock: Clock) -> None:
    ledger = MemoryLedger()
    first = BudgetGate(3, per=10, name="api", ledger=ledger, now=clock)
    second = BudgetGate(3, per=10, name="api", ledger=ledger, now=clock)
    other = BudgetGate(3, per=10, name="other", ledger=ledger, now=clock)
    taken(first)
    taken(second)
    assert (first.remaining, second.remaining, other.remaining) == (1, 1, 3)


def test_a_ledger_that_refuses_closes_the_window_until_somebody_says_otherwise(clock: Clock) -> None:
    ledger = Shared()
    gate = BudgetGate(3, per=10, ledger=ledger, now=clock, on_violation=STRICT)
    ledger.refuses = True
    hand = Hand()
    fire_all(gate._join(hand))
    assert gate.counts().waiting == 1
    assert gate.counts().polls["budget_exhausted"] == 1
    ledger.refuses = False
    assert gate.try_acquire() is None
    gate.wake()
    assert hand.share is not None
    ledger.refuses = True
    assert gate.try_acquire() is None
    ledger.refuses = False
    clock.advance(10)
    assert gate.try_acquire() is not None


# Back-off


def breaker(clock: Clock, **options: Any) -> BackoffGate:
    return BackoffGate(1, cap_seconds=5, trip_after=2, now=clock, on_violation=STRICT, **options)


def fail(gate: Gate) -> None:
    taken(gate).release(OSError("down"))


def test_a_back_off_is_told_once_and_then_pending_until_it_ends(clock: Clock) -> None:
    gate = breaker(clock)
    woken: list[str] = []
    gate.retry_after(30)
    assert gate.poll_ready() == RetryAfter(30)
    assert gate.poll_ready() == Pending(frozenset({TIMER, IO}))
    assert gate.poll_ready(partial(woken.append, "timer")) == Pending(frozenset({TIMER, IO}))
    assert gate.why() == "backoff: closed for 30 s"
    clock.advance(29)
    assert (gate.poll_ready().state, gate.wake_in_seconds()) == ("pending", 1)
    assert gate.try_acquire() is None
    clock.advance(1)
    assert gate.poll_ready() == Ready()
    assert woken == ["timer"]


def test_an_upstream_that_asks_again_is_heard_and_never_for_less(clock: Clock) -> None:
    gate = breaker(clock)
    woken: list[str] = []
    gate.retry_after(30)
    gate.poll_ready()
    gate.poll_ready(partial(woken.append, "again"))
    gate.retry_after(10)
    assert (woken, gate.poll_ready().state, gate.wake_in_seconds()) == ([], "pending", 30)
    gate.retry_after(40)
    assert (woken, gate.poll_ready()) == (["again"], RetryAfter(40))


def test_failures_in_a_row_open_the_circuit_and_a_success_between_starts_anew(clock: Clock) -> None:
    gate = breaker(clock)
    fail(gate)
    taken(gate).release()
    fail(gate)
    assert gate.poll_ready() == Ready()
    fail(gate)
    assert gate.poll_ready() == RetryAfter(1)


def test_each_opening_lasts_longer_up_to_a_cap_and_a_success_closes(clock: Clock) -> None:
    gate = breaker(clock)
    fail(gate)
    waits = []
    for _ in range(5):
        fail(gate)
        reading = gate.poll_ready()
        assert isinstance(reading, RetryAfter)
        waits.append(reading.wait_seconds)
        clock.advance(reading.wait_seconds)
    assert waits == [1, 2, 4, 5, 5]
    taken(gate).release()
    assert gate.poll_ready() == Ready()
    fail(gate)
    fail(gate)
    assert gate.poll_ready() == RetryAfter(1)


def test_half_open_one_at_a_time_tries(clock: Clock) -> None:
    gate = breaker(clock)
    gate.retry_after(3)
    clock.advance(3)
    share = taken(gate)
    assert gate.try_acquire() is None
    assert gate.why() == "backoff: a trial call is running"
    assert gate.poll_ready(lambda: None) == Pending(frozenset({IO})), "nothing is known of when it ends"
    assert gate.wake_in_seconds() is None
    share.release()
    assert gate.try_acquire() is not None
    assert gate.try_acquire() is not None, "closed again, so every caller is admitted"


def test_a_try_that_was_cancelled_says_nothing_and_the_next_one_tries(clock: Clock) -> None:
    gate = breaker(clock)
    gate.retry_after(3)
    clock.advance(3)
    hands = [Hand("first"), Hand("second")]
    share = taken(gate)
    for hand in hands:
        fire_all(gate._join(hand))
    share.release(asyncio.CancelledError())
    assert [hand.share is not None for hand in hands] == [True, False]
    assert hands[0].share is not None
    hands[0].share.release(OSError("still down"))
    assert [gate.poll_ready().state, hands[1].share] == ["pending", None]
    clock.advance(1)
    gate.poll_ready()
    assert hands[1].share is not None


def test_errors_that_say_nothing_of_the_upstream_are_no_failures(clock: Clock) -> None:
    gate = breaker(clock, errors=(OSError, TimeoutError))
    for _ in range(5):
        taken(gate).release(ValueError("ours"))
    assert gate.poll_ready() == Ready()
    fail(gate)
    fail(gate)
    assert gate.poll_ready().state == "retry_after"


def test_shares_from_before_the_circuit_opened_are_old_news(clock: Clock) -> None:
    gate = breaker(clock)
    old = [taken(gate) for _ in range(3)]
    gate.retry_after(3)
    clock.advance(3)
    share = taken(gate)
    old[0].release()
    old[1].release(OSError("late"))
    fire_all(gate._put_back(old[2]))
    assert gate.try_acquire() is None, "the one that tries is still at it"
    share.release()
    assert gate.poll_ready() == Ready()


def test_what_is_learnt_while_open_changes_nothing(clock: Clock) -> None:
    gate = breaker(clock)
    gate.retry_after(3)
    gate.poll_ready()
    gate.poll_ready()
    gate.succeeded()
    gate.failed()
    assert (gate.poll_ready().state, gate.wake_in_seconds()) == ("pending", 3)
    clock.advance(3)
    gate.failed()
    assert gate.poll_ready() == RetryAfter(1), "half-open, one failure is enough"
    clock.advance(1)
    gate.succeeded()
    gate.failed()
    assert gate.poll_ready() == Ready(), "closed, it is one of two"


def test_a_reset_closes_the_circuit_now(clock: Clock) -> None:
    gate = breaker(clock)
    woken: list[str] = []
    gate.retry_after(3)
    gate.poll_ready()
    gate.poll_ready(partial(woken.append, "reset"))
    gate.reset()
    assert (woken, gate.poll_ready()) == (["reset"], Ready())


def test_the_end_of_a_block_tells_the_breaker(clock: Clock) -> None:
    async def scenario() -> None:
        gate = breaker(clock)
        for _ in range(2):
            with pytest.raises(OSError, match="down"):
                async with gate:
                    raise OSError("down")
        assert gate.poll_ready() == RetryAfter(1)

    asyncio.run(scenario())


# All of


def test_a_composition_is_open_when_all_are_and_takes_of_all_or_none(clock: Clock) -> None:
    slots = ConcurrencyGate(2, now=clock, on_violation=STRICT)
    budget = BudgetGate(1, per=10, now=clock, on_violation=STRICT)
    both = all_of(slots, budget, on_violation=STRICT)
    assert both.name == "concurrency & budget"
    share = taken(both)
    assert (slots.taken, budget.remaining) == (1, 0)
    assert both.try_acquire() is None
    assert slots.taken == 1
    assert both.why() == "budget: 1 calls are used up"
    share.release()
    share.release()
    assert slots.taken == 0


def test_a_gate_that_refuses_at_the_last_moment_leaves_the_others_as_they_were(clock: Clock) -> None:
    ledger = Shared()
    slots = ConcurrencyGate(1, now=clock, on_violation=STRICT)
    rate = RateGate(1, now=clock, on_violation=STRICT)
    backoff = BackoffGate(now=clock, on_violation=STRICT)
    budget = BudgetGate(1, per=10, ledger=ledger, now=clock, on_violation=STRICT)
    whole = all_of(slots, rate, backoff, budget, on_violation=STRICT)
    backoff.retry_after(1)
    clock.advance(1)
    ledger.refuses = True
    assert whole.poll_ready() == Ready()
    assert whole.try_acquire() is None
    assert (slots.taken, rate.why(), backoff.why(), budget.remaining) == (0, None, None, 1)
    assert whole.poll_ready().state == "budget_exhausted"


def test_each_hold_is_told_once_and_then_pending_names_every_source(clock: Clock) -> None:
    slots = ConcurrencyGate(1, now=clock, on_violation=STRICT)
    budget = BudgetGate(1, per=10, now=clock, on_violation=STRICT)
    backoff = BackoffGate(now=clock, on_violation=STRICT)
    whole = all_of(slots, budget, backoff, name="worker", on_violation=STRICT)
    taken(whole)
    backoff.retry_after(30)
    said = [whole.poll_ready(lambda: None) for _ in range(4)]
    assert [reading.state for reading in said] == ["retry_after", "budget_exhausted", "busy", "pending"]
    assert said[-1] == Pending(frozenset(WakeSource))
    assert whole.wake_in_seconds() == 30, "before the last of them ends it cannot open"
    assert {gate.counts().state for gate in (slots, budget, backoff)} == {"pending"}


def test_a_gate_that_does_not_hold_a_composition_does_not_wake_it(clock: Clock) -> None:
    first = ConcurrencyGate(2, now=clock, on_violation=STRICT)
    second = ConcurrencyGate(1, now=clock, on_violation=STRICT)
    both = all_of(first, second, on_violation=STRICT)
    share_of_first, share_of_second = taken(first), taken(second)
    woken: list[str] = []
    both.poll_ready()
    both.poll_ready(partial(woken.append, "woken"))
    share_of_first.release()
    assert woken == []
    share_of_second.release()
    assert woken == ["woken"]
    assert both.counts().wakes["io_ready"] == 1


def test_whoever_waits_for_a_composition_gets_all_of_it(clock: Clock) -> None:
    async def scenario() -> None:
        first = ConcurrencyGate(1, now=clock, on_violation=STRICT)
        second = ConcurrencyGate(1, now=clock, on_violation=STRICT)
        both = all_of(first, second, on_violation=STRICT)
        shares = [taken(first), taken(second)]
        waiting = asyncio.create_task(both.acquire())
        for share in shares:
            await asyncio.sleep(0)
            assert not waiting.done()
            share.release()
        with await waiting:
            assert (first.taken, second.taken) == (1, 1)
        assert (first.taken, second.taken) == (0, 0)

    asyncio.run(scenario())


def test_those_in_a_gate_s_own_line_come_before_a_composition(clock: Clock) -> None:
    rate = RateGate(1, now=clock, on_violation=STRICT)
    both = all_of(rate, ConcurrencyGate(5, now=clock), on_violation=STRICT)
    taken(rate)
    hand = Hand()
    fire_all(rate._join(hand))
    clock.advance(1)
    assert both.try_acquire() is None
    assert hand.share is not None


def test_a_gate_named_twice_is_taken_once_and_compositions_flatten(clock: Clock) -> None:
    slots = ConcurrencyGate(2, now=clock)
    whole = all_of(all_of(slots, RateGate(5, now=clock)), slots)
    taken(whole)
    assert slots.taken == 1
    assert whole.name == "concurrency & rate"


def test_gates_of_one_composition_may_tell_the_time_by_different_clocks(clock: Clock) -> None:
    other = Clock()
    other.advance(1_000_000.3)
    rate = RateGate(1, now=clock, on_violation=STRICT)
    budget = BudgetGate(1, per=3, now=other, on_violation=STRICT)
    both = all_of(rate, budget, on_violation=STRICT)
    taken(both)
    both.poll_ready()
    both.poll_ready(lambda: None)
    clock.advance(1)
    other.advance(1)
    assert both.poll_ready(lambda: None).state == "pending"
    other.advance(both.wake_in_seconds() or 0)
    assert both.poll_ready() == Ready()


def test_a_composition_that_nobody_uses_is_forgotten(clock: Clock) -> None:
    slots = ConcurrencyGate(1, now=clock)
    both = all_of(slots, RateGate(1, now=clock))
    assert len(slots._compositions) == 1
    del both
    gc.collect()
    assert len(slots._compositions) == 0


# Arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConcurrencyGate(0), "limit=0: it must be a whole number, 1 or more"),
        (lambda: ConcurrencyGate(limit=True), "limit=True: it must be a whole number"),
        (lambda: ConcurrencyGate(2.5), "limit=2.5: it must be a whole number"),  # type: ignore[arg-type]
        (lambda: ConcurrencyGate(1).set_limit(-1), "limit=-1: it must be a whole number"),
        (lambda: ConcurrencyGate(1, name=""), "name='': must not be empty"),
        (lambda: ConcurrencyGate(1, name="\ud800"), "must be text that can be shown"),
        (lambda: ConcurrencyGate(1, now=3), "now=3: it must be a function that gives seconds"),  # type: ignore[arg-type]
        (lambda: RateGate(0), "rate=0: it must be a number over 0, 1e+12 at most"),
        (lambda: RateGate(float("nan")), "rate=nan: it must be a number over 0, 1e+12 at most"),
        (lambda: RateGate("3"), "rate='3': it must be a number over 0, 1e+12 at most"),  # type: ignore[arg-type]
        (lambda: RateGate(rate=True), "rate=True: it must be a number over 0, 1e+12 at most"),
        (lambda: RateGate(1, per=float("inf")), "per=inf: it must be a number over 0, 1e+12 at most"),
        (lambda: RateGate(10**400), "it must be a number over 0, 1e+12 at most"),
        (lambda: BudgetGate(1e308, per=1), "limit=1e+308: it must be a number over 0, 1e+12 at most"),
        (lambda: BudgetGate(1, per=1e308), "per=1e+308: it must be a number over 0, 1e+12 at most"),
        (lambda: BackoffGate(1).retry_after(1e308), "1e+12 at most"),
        (lambda: RateGate(1, burst=0), "burst=0: it must be a whole number, 1 or more"),
        (lambda: BudgetGate(-1, per=1), "limit=-1: it must be a number over 0, 1e+12 at most"),
        (lambda: BudgetGate(1, per=1e-12), "per=1e-12: it must be a nanosecond or more"),
        (lambda: BudgetGate(1, per=1, unit=""), "unit='': it must be a word, such as calls, tokens or usd"),
        (lambda: BudgetGate(1, per=1, cost=-1), "cost=-1: it must be a number over 0, 1e+12 at most"),
        (lambda: BudgetGate(1, per=1, cost=2), "limit=1: a share costs 2, so it would never open"),
        (lambda: BudgetGate(1, per=1).spend(0), "amount=0: it must be a number over 0, 1e+12 at most"),
        (lambda: BudgetGate(1, per=1).try_spend(-1), "amount=-1: it must be a number over 0, 1e+12 at most"),
        (lambda: BackoffGate(0), "first_seconds=0: it must be a number over 0, 1e+12 at most"),
        (lambda: BackoffGate(9, cap_seconds=3), "cap_seconds=3: must not be below first_seconds=9"),
        (lambda: BackoffGate(factor=0.5), "factor=0.5: waits must not get shorter: give 1 or more"),
        (lambda: BackoffGate(trip_after=0), "trip_after=0: it must be a whole number, 1 or more"),
        (lambda: BackoffGate().retry_after(0), "seconds=0: it must be a number over 0, 1e+12 at most"),
        (lambda: all_of(ConcurrencyGate(1), name=""), "name='': must not be empty"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        make()
    assert message in str(refused.value)


def test_a_refused_change_changes_nothing(clock: Clock) -> None:
    rate = RateGate(5, now=clock)
    with pytest.raises(InvalidSetting):
        rate.set_rate(2, burst=0)
    assert count(rate) == 5
    budget = BudgetGate(2, per=1, cost=2, now=clock)
    with pytest.raises(InvalidSetting, match="never open"):
        budget.set_limit(1)
    assert count(budget) == 1


@pytest.mark.parametrize("gates", [(), ("gate",)])
def test_a_composition_needs_gates(gates: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"needs a gate|takes gates of holdfast.ready, got 'gate'"):
        all_of(*gates)


class Away(MemoryLedger):
    """A ledger that is away for so many looks and takes."""

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.takes = 0, 0

    def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
        if self.takes:
            self.takes -= 1
            raise OSError("away")
        return super().take(budget, window_start, millionths, limit)

    def peek(self, budget: str, window_start: float) -> int:
        if self.looks:
            self.looks -= 1
            raise OSError("away")
        return super().peek(budget, window_start)


def test_a_ledger_that_is_away_takes_nothing_of_the_other_gates(clock: Clock) -> None:
    slots, ledger = ConcurrencyGate(1, now=clock), Away()
    gate = all_of(slots, BudgetGate(9, per=10, ledger=ledger, now=clock), on_violation=STRICT)
    ledger.takes = 1
    with pytest.raises(OSError, match="away"):
        gate.try_acquire()
    assert slots.taken == 0
    taken(gate)


def test_what_a_ledger_that_is_away_cannot_take_back_stays_spent_and_the_rest_is_given_back(clock: Clock) -> None:
    slots, ledger = ConcurrencyGate(1, now=clock), Away()

    class Breaks(MemoryLedger):
        def take(self, budget: str, window_start: float, millionths: int, limit: int | None) -> bool:
            del budget, window_start, millionths, limit
            ledger.takes = 1  # it goes away, too
            raise OSError("away")

    kinds = slots, BudgetGate(9, per=10, ledger=ledger, now=clock), BudgetGate(9, per=10, ledger=Breaks(), now=clock)
    with pytest.raises(OSError, match="away"):
        all_of(*kinds, on_violation=STRICT).try_acquire()
    assert (slots.taken, ledger.takes) == (0, 0)


def test_a_ledger_that_is_away_is_told_to_the_first_in_line_and_not_to_who_releases(clock: Clock) -> None:
    slots, ledger = ConcurrencyGate(1, now=clock), Away()
    gate = all_of(slots, BudgetGate(9, per=10, ledger=ledger, now=clock), on_violation=STRICT)

    async def story() -> None:
        inside = taken(gate)
        first, second = asyncio.create_task(gate.acquire()), asyncio.create_task(gate.acquire())
        await asyncio.sleep(0)
        assert gate.counts().waiting == 2
        ledger.looks = 1
        inside.release()
        with pytest.raises(OSError, match="away"):
            await first
        (await asyncio.wait_for(second, 5)).release()

    asyncio.run(story())
    assert (slots.taken, gate.counts().waiting) == (0, 0)


def test_who_comes_by_and_is_told_an_error_leaves_nobody_in_line_without_a_word(clock: Clock) -> None:
    ledger = Away()
    gate = BudgetGate(1, per=10, ledger=ledger, now=clock, on_violation=STRICT)
    taken(gate)
    hands = Hand("first"), Hand("second")
    for hand in hands:
        fire_all(gate._join(hand))
    before = [hand.rings for hand in hands]
    clock.advance(10)
    ledger.looks = 3
    with pytest.raises(OSError, match="away"):
        gate.try_acquire()
    assert [hand.rings > rings for hand, rings in zip(hands, before, strict=True)] == [True, True]
    assert [str(hand.error) for hand in hands] == ["away", "away"]
    taken(gate)


def test_a_gate_without_shares_of_its_own_admits_every_caller_and_wakes_none() -> None:
    class Open(LeafGate):
        def look(self) -> None:
            return None

    gate, full = Open("open", Clock(), STRICT), ConcurrencyGate(1)
    both = all_of(gate, full, name="both")
    first = both.try_acquire()
    assert first is not None
    assert both.try_acquire() is None
    first.release()
    assert gate.undo(gate.take()) is False
    assert gate.poll_ready() == Ready()
