"""What a gate says next, so that it cannot say anything the ReadyState table forbids (SPEC S2, S6).

A gate knows what holds it closed: its `Hold`s. What it *says* depends as well on what it said last. `next_reading` is
the whole of that rule, as a pure function:

1. Nothing holds: Ready.
2. Pending that no wake has ended stays Pending: the same interval.
3. A hold that has not been told yet is told once: Busy, BudgetExhausted or RetryAfter. Holds that would be told the
   same way are told together, by the one that lasts longest.
4. After that there is nothing new to say. Pending that was woken for nothing says Busy, because Pending may not follow
   Pending. Otherwise whoever waits is told Pending, with the sources of all holds; so is everybody during a back-off.
5. Whoever only asks is told Busy. So is a waiter, once, where Pending would have no timer to end what time must end.

A caller that waits asks again until the answer is Ready or Pending. That ends soon: each hold is told once, and rules 4
and 5 say Busy at most once for each wake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.machines.ready import READY, Busy, Pending, Reading, Ready, ReadyState, WakeSource

__all__ = ["Hold", "HoldKey", "due", "next_reading", "seconds_until_due", "timers", "told_with"]

_READY = Ready()
_ALLOWED = {state: frozenset(READY.allowed(state)) for state in ReadyState}
_pending = functools.cache(Pending)  # there are seven sets of sources
_ENDED_BY_TIME = frozenset({ReadyState.BUDGET_EXHAUSTED, ReadyState.RETRY_AFTER})


class HoldKey(NamedTuple):
    """Which gate holds, and which of its holds it is: another window or another back-off is another hold."""

    gate: int
    episode: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a gate is closed.

    Attributes:
        key: what makes it the same hold when it is looked at again.
        reason: for people.
        sources: what may end it.
        news: how it is told the first time; None if what it follows from has been told already.
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
        """How long until time ends it; 0 if time does not."""
        return self.until_ns - self.clock_ns() if self.until_ns is not None else 0

    @property
    def backs_off(self) -> bool:
        """Whether it is a back-off, which is Pending for everybody until it ends (S6)."""
        return self.news is not None and self.news.state is ReadyState.RETRY_AFTER


def next_reading(
    state: ReadyState, holds: Sequence[Hold], told: AbstractSet[HoldKey], *, woken: bool, waits: bool
) -> Reading:
    """Say what follows `state`, by the rules of the module's text.

    Args:
        state: what was said last.
        holds: what holds the gate closed now.
        told: holds that were told before.
        woken: whether the Pending interval that is open, if one is, has seen a wake.
        waits: whether the caller will wait for a wake.
    """
    if not holds:
        return _READY
    sources = holds[0].sources.union(*(hold.sources for hold in holds[1:]))
    pending = state is ReadyState.PENDING
    if pending and not woken:
        return _pending(sources)
    news = [hold for hold in holds if hold.news is not None and hold.key not in told]
    for hold in sorted(news, key=lambda hold: hold.left_ns, reverse=True):
        if hold.news is not None and hold.news.state in _ALLOWED[state]:
            return hold.news
    endless = state in _ENDED_BY_TIME and WakeSource.TIMER not in sources
    if not pending and not endless and (waits or any(hold.backs_off for hold in holds)):
        return _pending(sources)
    return Busy("; ".join(hold.reason for hold in holds))


def told_with(reading: Reading, holds: Sequence[Hold], told: AbstractSet[HoldKey]) -> frozenset[HoldKey]:
    """Give the holds that are told once `reading` was said; those that ended are forgotten, and may be told anew."""
    now_told = {hold.key for hold in holds if hold.news is not None and hold.news.state is reading.state}
    return frozenset((told & {hold.key for hold in holds}) | now_told)


def timers(holds: Sequence[Hold]) -> tuple[tuple[HoldKey, int], ...]:
    """Give what a timer must be set for; equal if the same timer will do."""
    return tuple((hold.key, hold.until_ns) for hold in holds if hold.until_ns is not None)


def due(holds: Sequence[Hold]) -> bool:
    """Whether time has ended every hold that time ends; False if there is none."""
    timed = [hold for hold in holds if hold.until_ns is not None]
    return bool(timed) and all(hold.left_ns <= 0 for hold in timed)


def seconds_until_due(holds: Sequence[Hold]) -> float | None:
    """How long until `due`, never negative; None if time ends none of them."""
    waits_ns = [hold.left_ns for hold in holds if hold.until_ns is not None]
    return max(0, *waits_ns) / 1e9 if waits_ns else None
