"""The next reading of a gate is legal after every reading and for every hold: all cases, not a sample (S2, S6)."""

from __future__ import annotations

import itertools

import pytest

from holdfast.machines.ready_table import (
    READY,
    BudgetExhausted,
    Busy,
    Pending,
    Reading,
    Ready,
    ReadyState,
    RetryAfter,
    WakeSource,
)
from holdfast.ready.next_reading import Hold, HoldKey, due, next_reading, reported_with, seconds_until_due, timers
from support import spec
from support.gates import Clock

IO, TIMER, RELOAD = WakeSource.IO_READY, WakeSource.TIMER, WakeSource.CONFIG_RELOAD


def hold(gate: int, news: Reading | None, *sources: WakeSource, until: float | None = None) -> Hold:
    until_ns = None if until is None else round(until * 1e9)
    return Hold(HoldKey(gate, 0), f"gate {gate}", frozenset(sources), lambda: 0, news, until_ns)


FULL = hold(1, Busy("full"), IO, RELOAD)
SPENT = hold(2, BudgetExhausted(10), TIMER, IO, RELOAD, until=3)
SPENT_LONGER = hold(3, BudgetExhausted(20), TIMER, until=4)
OFF = hold(4, RetryAfter(5), TIMER, IO, until=5)
TRIED = hold(5, None, IO)
ALL = (FULL, SPENT, SPENT_LONGER, OFF, TRIED)
SETS = [holds for count in range(len(ALL) + 1) for holds in itertools.combinations(ALL, count)]
CASES = [
    (state, holds, frozenset(told), woken, waits)
    for state in ReadyState
    for holds in SETS
    for count in range(len(holds) + 1)
    for told in itertools.combinations([one.key for one in holds], count)
    for woken in ((False, True) if state is ReadyState.PENDING else (False,))
    for waits in (False, True)
]


def legal(state: ReadyState, reading: Reading, *, woken: bool) -> bool:
    if state == reading.state == ReadyState.PENDING:
        return not woken  # the same interval
    return spec.READY_CELLS[state.value, reading.state.value]


def test_whatever_was_said_and_whatever_holds_the_next_word_is_legal() -> None:
    assert len(CASES) > 2000
    for state, holds, told, woken, waits in CASES:
        if state is ReadyState.PENDING and not woken and not holds:
            continue  # cannot be: what ended the hold was announced; the monitor would refuse it as a missing wake
        reading = next_reading(state, holds, told, woken=woken, waits=waits)
        assert legal(state, reading, woken=woken), (state, holds, told, woken, waits, reading)


def test_ready_is_said_exactly_where_nothing_holds() -> None:
    for state, holds, told, woken, waits in CASES:
        reading = next_reading(state, holds, told, woken=woken, waits=waits)
        assert (reading == Ready()) == (not holds)


def test_after_what_time_ends_pending_has_a_timer() -> None:
    for state, holds, told, woken, waits in CASES:
        reading = next_reading(state, holds, told, woken=woken, waits=waits)
        if state in {"budget_exhausted", "retry_after"} and isinstance(reading, Pending):
            assert TIMER in reading.sources


def test_pending_names_the_sources_of_all_that_holds() -> None:
    for state, holds, told, woken, waits in CASES:
        reading = next_reading(state, holds, told, woken=woken, waits=waits)
        if isinstance(reading, Pending):
            assert reading.sources == {source for one in holds for source in one.sources}


def test_a_hold_that_was_told_is_not_told_again() -> None:
    for state, holds, told, woken, waits in CASES:
        reading = next_reading(state, holds, told, woken=woken, waits=waits)
        if reading.state in {"budget_exhausted", "retry_after"}:
            untold = [one for one in holds if one.key not in told]
            assert reading in [one.news for one in untold]


def test_whoever_waits_is_soon_told_ready_or_pending() -> None:
    """Polling on without a wake in between: each hold is told once, then there is nothing left to say."""
    for first, holds, told, woken, _ in CASES:
        state, known = first, told
        said: list[Reading] = []
        for _ in range(6):
            reading = next_reading(state, holds, known, woken=woken and not said, waits=True)
            known = reported_with(reading, holds, known)
            state = reading.state
            said.append(reading)
            if state in {"ready", "pending"}:
                break
        assert said[-1].state in {"ready", "pending"}, said


def test_a_back_off_is_pending_for_whoever_only_asks_too() -> None:
    told = frozenset({OFF.key})
    assert next_reading(ReadyState.RETRY_AFTER, [OFF], told, woken=False, waits=False) == Pending(
        frozenset({TIMER, IO})
    )
    assert next_reading(ReadyState.BUSY, [OFF], told, woken=False, waits=False).state == "pending"


def test_whoever_only_asks_a_full_gate_is_told_busy_and_why() -> None:
    told = frozenset({FULL.key, SPENT.key})
    reading = next_reading(ReadyState.BUDGET_EXHAUSTED, [FULL, SPENT], told, woken=False, waits=False)
    assert reading == Busy("gate 1; gate 2")


def test_of_two_that_are_told_alike_the_longer_is_told_for_both() -> None:
    holds = [SPENT, SPENT_LONGER]
    reading = next_reading(ReadyState.READY, holds, frozenset(), woken=False, waits=False)
    assert reading == BudgetExhausted(20)
    assert reported_with(reading, holds, frozenset()) == {SPENT.key, SPENT_LONGER.key}


def test_a_hold_that_ended_may_be_told_anew() -> None:
    assert reported_with(Ready(), [], frozenset({FULL.key})) == frozenset()
    assert reported_with(Busy("x"), [SPENT], frozenset({FULL.key, SPENT.key})) == {SPENT.key}


@pytest.mark.parametrize(("holds", "seconds"), [([], None), ([FULL], None), ([SPENT], 3), ([FULL, SPENT, OFF], 5)])
def test_the_timer_is_set_for_the_last_of_what_time_ends(holds: list[Hold], seconds: float | None) -> None:
    assert seconds_until_due(holds) == seconds
    assert len(timers(holds)) == sum(one.until_ns is not None for one in holds)


def test_time_has_come_when_it_has_come_for_every_hold() -> None:
    clock = Clock()

    def timed(gate: int, until: int) -> Hold:
        return Hold(HoldKey(gate, 0), "", frozenset({TIMER}), lambda: clock.now_ns, None, until)

    holds = [timed(1, 5), timed(2, 7), FULL]
    seen = []
    for clock.now_ns in (4, 5, 6, 7, 8):
        seen.append(due(holds))
    assert seen == [False, False, False, True, True]
    assert seconds_until_due(holds) == 0
    assert not due([FULL])


def test_the_table_is_the_one_that_is_enforced() -> None:
    assert {(a, b) for a in ReadyState for b in READY.allowed(a)} == {
        cell for cell, ok in spec.READY_CELLS.items() if ok
    }
