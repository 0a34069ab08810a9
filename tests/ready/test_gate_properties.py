"""Invariants of random gates and compositions after every random event (S2 to S6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from hypothesis import strategies as st

from holdfast.ready import (
    BackoffGate,
    BudgetGate,
    ConcurrencyGate,
    Pending,
    RateGate,
    Reading,
    ReadyMonitor,
    Share,
    all_of,
)
from holdfast.ready.base_gate import BaseGate, fire_all
from holdfast.ready.leaf_gate import LeafGate
from support import spec
from support.gates import STRICT, Clock, Hand
from support.timeless import given, settings


class Recorder(ReadyMonitor):
    """A monitor that also checks every report by the specification's table, typed in by hand."""

    def report(self, reading: Reading) -> Reading:
        before, woken = self.state, self.woken
        published = super().report(reading)
        if before == published.state == "pending":
            assert not woken, "a second interval straight from Pending"
        else:
            assert spec.READY_CELLS[before.value, published.state.value]
        assert before != "pending" or published.state == "pending" or woken, "Pending left without a wake"
        if before in {"budget_exhausted", "retry_after"} and isinstance(published, Pending):
            assert "timer" in published.sources
        return published


KINDS: list[Callable[[Clock], LeafGate]] = [
    lambda clock: ConcurrencyGate(1, now=clock, on_violation=STRICT),
    lambda clock: ConcurrencyGate(2, now=clock, on_violation=STRICT),
    lambda clock: RateGate(1, burst=2, now=clock, on_violation=STRICT),
    lambda clock: RateGate(3, per=7, burst=1, now=clock, on_violation=STRICT),
    lambda clock: BudgetGate(2, per=3, now=clock, on_violation=STRICT),
    lambda clock: BudgetGate(5, per=2, unit="tokens", now=clock, on_violation=STRICT),
    lambda clock: BackoffGate(1, cap_seconds=4, trip_after=1, now=clock, on_violation=STRICT),
    lambda clock: BackoffGate(2, cap_seconds=4, trip_after=2, now=clock, on_violation=STRICT),
]
ERRORS: list[BaseException | None] = [None, OSError("down"), KeyboardInterrupt()]


class World:
    """Gates and what happens to them, each event picked by two numbers."""

    def __init__(self, kinds: list[int], wholes: list[set[int]], tick_ns: int) -> None:
        self.clock = Clock(tick_ns)
        self.leaves = [KINDS[kind](self.clock) for kind in kinds]
        self.gates: list[BaseGate] = list(self.leaves)
        for members in wholes:
            parts = [self.leaves[member % len(self.leaves)] for member in members]
            whole = all_of(*parts, on_violation=STRICT)
            assert isinstance(whole, BaseGate)
            self.gates.append(whole)
        for gate in self.gates:
            gate._monitor = Recorder()
        self.shares: list[Share] = []
        self.lines: list[tuple[BaseGate, Hand]] = []  # in the order of joining
        self.asleep: list[tuple[BaseGate, int]] = []  # wakers that were kept and not called yet
        self.wakers = 0
        self.events = [
            self.poll, self.wait, self.take, self.take, self.give_back, self.give_back, self.join, self.leave,
            self.advance, self.advance, self.reconfigure, self.upstream,
        ]  # fmt: skip

    def happen(self, event: int, which: int) -> None:
        self.events[event % len(self.events)](which)
        self.look()

    def gate(self, which: int) -> BaseGate:
        return self.gates[which % len(self.gates)]

    def poll(self, which: int) -> None:
        gate = self.gate(which)
        if gate.poll_ready().state == "ready":
            assert not gate._line, "those in line come first"
            share = gate.try_acquire()
            assert share is not None, "Ready means yes"
            self.shares.append(share)

    def wait(self, which: int) -> None:
        gate = self.gate(which)
        for _ in range(9):
            self.wakers += 1
            kept = (gate, self.wakers)
            self.asleep.append(kept)
            state = gate.poll_ready(partial(self.asleep.remove, kept)).state
            if state == "pending":
                return
            self.asleep.remove(kept)
            if state == "ready":
                return
        raise AssertionError("a waiting caller soon gets Ready or Pending")

    def take(self, which: int) -> None:
        gate = self.gate(which)
        closed = gate.why()
        share = gate.try_acquire()
        if share is not None:
            assert closed is None or self.clock.tick_ns
            self.shares.append(share)

    def give_back(self, which: int) -> None:
        if self.shares:
            self.shares.pop(which % len(self.shares)).release(ERRORS[which % 3])

    def join(self, which: int) -> None:
        hand = Hand()
        self.lines.append((self.gate(which), hand))
        fire_all(self.gate(which)._join(hand))
        self.gate(which)._arm(hand)

    def leave(self, which: int) -> None:
        if self.lines:
            gate, hand = self.lines.pop(which % len(self.lines))
            fire_all(gate._leave(hand))
            assert hand not in gate._line

    def advance(self, which: int) -> None:
        self.clock.advance((0.25, 1, 1 / 3, 3, 10)[which % 5])

    def reconfigure(self, which: int) -> None:
        leaf = self.leaves[which % len(self.leaves)]
        if isinstance(leaf, ConcurrencyGate):
            leaf.set_limit(1 + which % 3)
        elif isinstance(leaf, RateGate):
            leaf.set_rate(1 + which % 3, burst=1 + which % 2)
        elif isinstance(leaf, BudgetGate):
            leaf.set_limit(1 + which % 4)
        elif isinstance(leaf, BackoffGate):
            leaf.reset()

    def upstream(self, which: int) -> None:
        leaf = self.leaves[which % len(self.leaves)]
        if isinstance(leaf, BackoffGate):
            (leaf.failed, leaf.succeeded, partial(leaf.retry_after, 1 + which % 3))[which % 3]()
        elif isinstance(leaf, BudgetGate):
            leaf.spend(1 + which % 3)

    def look(self) -> None:
        """No share is lost, and no caller sleeps at an open gate."""
        for gate, hand in list(self.lines):
            if hand.share is not None:
                waiting = [other for line, other in self.lines if line is gate and other.share is None]
                assert all(self.lines.index((gate, other)) > self.lines.index((gate, hand)) for other in waiting)
                self.lines.remove((gate, hand))
                self.shares.append(hand.share)
        for gate in self.gates:
            closed = gate.why()
            due = gate.wake_in_seconds() == 0  # the first in line has a timer for it, or the caller that polled
            sleeps = bool(gate._line) or any(asleep is gate for asleep, _ in self.asleep)
            assert not sleeps or closed is not None or due, "a caller sleeps at an open gate"
            assert gate.counts().violations == 0
        self.look_at_timers()

    def look_at_timers(self) -> None:
        """Whoever is first in line will look when time may open the gate: its timer is set for that."""
        for gate in self.gates:
            for hand in list(gate._line)[:1]:
                assert isinstance(hand, Hand)
                if hand.rings:
                    hand.rings = 0
                    gate._arm(hand)
                timers = [hold for hold in gate._holds if hold.until_ns is not None]
                assert not timers or hand.armed, "the first in line has no timer"

    def settle(self) -> None:
        """Everybody goes home: nothing stays taken."""
        while self.lines:
            self.leave(0)
            self.look()
        while self.shares:
            self.shares.pop().release()
        for leaf in self.leaves:
            if isinstance(leaf, BackoffGate):
                leaf.reset()
        self.clock.advance(1000)
        assert all(leaf.taken == 0 for leaf in self.leaves if isinstance(leaf, ConcurrencyGate))
        assert [gate.poll_ready().state for gate in self.gates] == ["ready"] * len(self.gates)
        assert self.asleep == []


@settings(max_examples=300, deadline=None)
@given(
    kinds=st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=4),
    wholes=st.lists(st.sets(st.integers(0, 3), min_size=1, max_size=4), max_size=3),
    events=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 12)), max_size=60),
    tick_ns=st.sampled_from([0, 0, 90_000_000, 400_000_000]),
)
def test_whatever_happens_gates_stay_legal_fair_and_awake(
    kinds: list[int], wholes: list[set[int]], events: list[tuple[int, int]], tick_ns: int
) -> None:
    """With a tick time passes at every look at the clock, so that it may come between any two steps of a poll."""
    world = World(kinds, wholes, tick_ns)
    for event, which in events:
        world.happen(event, which)
    world.settle()


gaps_ns = st.lists(st.integers(0, 2_000_000_000), min_size=1, max_size=60)


@settings(deadline=None)
@given(
    rate=st.one_of(st.integers(1, 50), st.floats(0.1, 50, allow_nan=False).map(lambda rate: round(rate, 3))),
    per=st.sampled_from([1, 0.7, 3, 60]),
    burst=st.integers(1, 6),
    gaps=gaps_ns,
)
def test_no_stretch_of_time_sees_more_than_the_burst_and_the_rate(
    rate: float, per: float, burst: int, gaps: list[int]
) -> None:
    clock = Clock()
    gate = RateGate(rate, per=per, burst=burst, now=clock, on_violation=STRICT)
    per_ns = Fraction(str(rate)) / Fraction(str(per)) / 1_000_000_000
    taken: list[int] = []
    for gap in gaps:
        clock.now_ns += gap
        while gate.try_acquire() is not None:
            taken.append(clock.now_ns)
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - start) * per_ns
    level = Fraction(burst)  # and not fewer: the plain bucket, in fractions
    at, plain = 0, []
    for gap in gaps:
        at += gap
        level = min(Fraction(burst), level + gap * per_ns)
        while level >= 1:
            level -= 1
            plain.append(at)
    assert taken == plain


@settings(deadline=None)
@given(
    limit=st.integers(1, 5),
    per=st.sampled_from([0.1, 0.7, 1, 2.5]),
    gaps=gaps_ns,
    asks=st.integers(1, 8),
)
def test_no_window_sees_more_than_its_budget_and_none_sees_less_than_was_asked_for(
    limit: int, per: float, gaps: list[int], asks: int
) -> None:
    clock = Clock()
    gate = BudgetGate(limit, per=per, now=clock, on_violation=STRICT)
    taken: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    for gap in gaps:
        clock.now_ns += gap
        window = clock.now_ns // round(per * 1e9)
        for _ in range(asks):
            asked[window] += 1
            taken[window] += gate.try_acquire() is not None
    assert all(taken[window] == min(limit, count) for window, count in asked.items())


@given(amounts=st.lists(st.integers(1, 2_000_000), max_size=40))
def test_money_is_counted_exactly(amounts: list[int]) -> None:
    gate = BudgetGate(10, per=60, unit="usd", now=Clock(), on_violation=STRICT)
    spent = 0
    for micros in amounts:
        fits = spent + micros <= 10_000_000
        assert gate.try_spend(micros / 1_000_000) == fits
        spent += micros * fits
    assert gate.remaining == (10_000_000 - spent) / 1_000_000


def test_the_recorder_notices_what_it_looks_for() -> None:
    """A gate whose rule is broken on purpose does not pass as legal."""
    from holdfast.machines.ready_table import Busy, RetryAfter

    recorder: Any = Recorder()
    recorder.report(RetryAfter(1))
    for wrong in (RetryAfter(1), Pending(frozenset({"io_ready"}))):  # type: ignore[arg-type]
        try:
            recorder.report(wrong)
        except (RuntimeError, AssertionError):
            continue
        raise AssertionError(f"{wrong} passed")
    assert recorder.report(Busy("")).state == "busy"
