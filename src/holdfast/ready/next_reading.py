"""The next reading of a gate, chosen so that it never breaks the ReadyState table (SPEC S2, S6).

A gate knows what holds it closed: its `Hold`s. Its next reading also depends on its last one. `next_reading` is the
whole rule, as a pure function:

1. Nothing holds the gate: Ready.
2. Pending that no wake has ended stays Pending: the same interval.
3. A hold that was not reported yet is reported once: Busy, BudgetExhausted or RetryAfter. Holds with the same state are
   reported together, by the one that lasts longest.
4. After that there is nothing new to report. Pending that was woken for nothing becomes Busy, because Pending may not
   follow Pending. Otherwise a waiting caller gets Pending, with the sources of all holds. So does every caller during a
   back-off.
5. A caller that does not wait gets Busy. So does a waiting caller, once, if Pending would have no timer for a hold that
   only time ends.

A waiting caller polls again until the reading is Ready or Pending. That ends soon: each hold is reported once, and
rules 4 and 5 give Busy at most once per wake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.machines.ready_table import READY, Busy, Pending, Reading, Ready, ReadyState, WakeSource

_READY = Ready()
_ALLOWED = {state: frozenset(READY.allowed(state)) for state in ReadyState}
_pending = functools.cache(Pending)  # there are only seven sets of sources
_ENDED_BY_TIME = frozenset({ReadyState.BUDGET_EXHAUSTED, ReadyState.RETRY_AFTER})


class HoldKey(NamedTuple):
    """The identity of a hold: the gate, and which of its windows or back-offs."""

    gate: int
    episode: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a gate is closed.

    Attributes:
        key: identifies the same hold in later checks.
        reason: text for people.
        sources: the wake sources that may end it.
        news: the reading that reports it the first time; None if its cause was already reported.
        until_ns: when time ends it, on `clock_ns`; None if time does not.
        clock_ns: the clock of the gate that holds.
    """

    key: HoldKey
    reason: str
    sources: frozenset[WakeSource]
    clock_ns: Callable[[], int]
    news: Reading | None = None
    until_ns: int | None = None

    @property
    def left_ns(self) -> int:
        """The time until it ends; 0 if time does not end it."""
        return self.until_ns - self.clock_ns() if self.until_ns is not None else 0

    @property
    def backs_off(self) -> bool:
        """Whether it is a back-off, which is Pending for every caller until it ends (S6)."""
        return self.news is not None and self.news.state is ReadyState.RETRY_AFTER


def next_reading(
    state: ReadyState, holds: Sequence[Hold], reported: AbstractSet[HoldKey], *, woken: bool, waits: bool
) -> Reading:
    """Return the reading that follows `state`, by the rules of the module's docstring.

    Args:
        state: the state of the last reading.
        holds: what holds the gate closed now.
        reported: holds that were already reported.
        woken: whether the open Pending interval, if any, has seen a wake.
        waits: whether the caller will wait for a wake.
    """
    if not holds:
        return _READY
    sources = holds[0].sources.union(*(hold.sources for hold in holds[1:]))
    pending = state is ReadyState.PENDING
    if pending and not woken:
        return _pending(sources)
    news = [hold for hold in holds if hold.news is not None and hold.key not in reported]
    for hold in sorted(news, key=lambda hold: hold.left_ns, reverse=True):
        if hold.news is not None and hold.news.state in _ALLOWED[state]:
            return hold.news
    endless = state in _ENDED_BY_TIME and WakeSource.TIMER not in sources
    if not pending and not endless and (waits or any(hold.backs_off for hold in holds)):
        return _pending(sources)
    return Busy("; ".join(hold.reason for hold in holds))


def reported_with(reading: Reading, holds: Sequence[Hold], reported: AbstractSet[HoldKey]) -> frozenset[HoldKey]:
    """Return the holds that are reported once `reading` is published. Ended holds are dropped."""
    now_reported = {hold.key for hold in holds if hold.news is not None and hold.news.state is reading.state}
    return frozenset((reported & {hold.key for hold in holds}) | now_reported)


def timers(holds: Sequence[Hold]) -> tuple[tuple[HoldKey, int], ...]:
    """Return what a timer must be set for. Equal values need no new timer."""
    return tuple((hold.key, hold.until_ns) for hold in holds if hold.until_ns is not None)


def due(holds: Sequence[Hold]) -> bool:
    """Return whether time has ended every hold that time ends; False if there is none."""
    timed = [hold for hold in holds if hold.until_ns is not None]
    return bool(timed) and all(hold.left_ns <= 0 for hold in timed)


def seconds_until_due(holds: Sequence[Hold]) -> float | None:
    """Return the seconds until `due`, at least 0; None if time ends none of the holds."""
    waits_ns = [hold.left_ns for hold in holds if hold.until_ns is not None]
    return max(0, *waits_ns) / 1e9 if waits_ns else None
