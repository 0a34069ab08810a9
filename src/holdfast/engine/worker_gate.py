"""May this worker take more jobs? A gate like any other, which its loop polls before it claims (SPEC S7).

=================================== ================================== =====================================
what holds it                       it says first                      and is woken by
=================================== ================================== =====================================
the store is away                   RetryAfter                         time, or a commit that was heard of
all slots are taken                 Busy                               a job that ends, more slots
a queue's rate is used up           BudgetExhausted                    its next token, a changed limit
a queue is full or paused           Busy                               a lease that ends, a changed limit
nothing is due                      nothing: Pending                   a commit, a due time, changed settings
=================================== ================================== =====================================

It is written by its worker alone, on the worker's loop, and may be looked at from any thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.machines.ready import BudgetExhausted, Busy, RetryAfter, WakeSource
from holdfast.ready import Gate, OnViolation, log_violation
from holdfast.ready.base_gate import WatchedGate
from holdfast.ready.leaf_gate import LeafGate
from holdfast.ready.next_reading import Hold, HoldKey
from holdfast.store.limits import Held
from holdfast.store.rows import GateCard

__all__ = ["WorkGate", "gate_cards"]

_log = logging.getLogger("holdfast.ready")
_ALL = frozenset(WakeSource)
_TIME = frozenset({WakeSource.TIMER, WakeSource.IO_READY})
SOON_SECONDS = 0.001  # between two claims that time alone brings about
PACE_SECONDS = (
    0.02  # for which tokens of a rate are let gather, as far as none is lost, by the worker that got the last
)
FOLLOW_SECONDS = 0.05  # and by others, which so leave them to that one, and take over when it does not come
_FAR_SECONDS = 1e9  # beyond, a time is looked at again: a float can hold more than a clock can count
JOBS_SHOWN = 100  # of those that a gate holds
_IDLE, _FULL = 0, 1  # episodes that are the same however often they come; those of limits and outages are counted


class WorkGate(LeafGate):
    """The readiness of one worker; see the module's text."""

    def __init__(
        self,
        slots: int,
        *,
        name: str = "worker",
        now: Callable[[], float] = time.monotonic,
        on_violation: OnViolation = log_violation,
    ) -> None:
        self.slots = slots
        self.busy = 0  # slots in use: attempts whose code has not ended
        self.fresh = True  # whether a claim may find something that the last one did not
        self.held: Sequence[Held] = ()  # what held the last claim back
        self._held_ns: int | None = None  # when time alone ends one of those
        self._due_ns: int | None = None  # when time alone brings something about
        self._away_ns: int | None = None  # until when the store is left alone
        self._episode = _FULL
        super().__init__(name, now, on_violation)

    # What the worker learns

    def heard(self, source: WakeSource = WakeSource.IO_READY) -> None:
        """There may be something to claim that was not there before."""
        self.change(source, self._freshen)

    def _freshen(self) -> bool:
        self.fresh = True
        return True

    def freed(self) -> None:
        """A slot is free; and if limits held the last claim back, there may be room for another."""
        self.busy -= 1
        self.fresh = self.fresh or self._may_have_room()
        self.change(WakeSource.IO_READY, lambda: True)

    def _may_have_room(self) -> bool:
        return any(held.until is None for held in self.held)

    def resized(self, slots: int) -> None:
        """The worker runs so many jobs at once from now on."""

        def resize() -> bool:
            self.slots = slots
            return True

        self.change(WakeSource.CONFIG_RELOAD, resize)

    def claimed(
        self, *, all_there_was: bool, held: Sequence[Held], now: float, took: Collection[str] = frozenset()
    ) -> None:
        """A claim has ended, at the store's time given; what it was held back by, and the queues that it took from."""

        def take() -> bool:
            self.fresh, self._away_ns = not all_there_was, None
            untils = [limit.until + _token_delay(limit, took) for limit in held if limit.until is not None]
            if held and (held != self.held or untils):
                self._episode += 1  # another token, another limit: it is told anew
            self.held = held
            soon_ns = self._at(SOON_SECONDS)
            self._held_ns = max(self._at(min(untils) - now), soon_ns) if untils else None
            if self._due_ns is not None:  # the claim has found what was due, or the store's clock is not there yet
                self._due_ns = max(self._due_ns, soon_ns)
            return True

        self.change(WakeSource.IO_READY, take)

    def due(self, seconds: float | None) -> None:
        """Time alone brings something about after so many seconds; None is never."""

        def take() -> bool:
            before, self._due_ns = self._due_ns, self._at(seconds) if seconds is not None else None
            return self._due_ns is not None and (before is None or self._due_ns < before)  # sooner than was waited for

        self.change(WakeSource.TIMER, take)

    def away(self, seconds: float) -> None:
        """The store does not answer: leave it alone for so long."""

        def take() -> bool:
            self._episode += 1
            self._away_ns = self._at(max(seconds, 1e-6))
            return True

        self.change(WakeSource.IO_READY, take)

    def _at(self, seconds: float) -> int:
        return self.clock_ns() + round(min(seconds, _FAR_SECONDS) * 1e9)

    # What it says

    def look(self) -> Hold | None:
        """Say what keeps the worker from claiming."""
        if self._away_ns is not None and self._away_ns <= self.clock_ns():
            # It is tried again now, unless it was known before that it is too early.
            self._away_ns, self.fresh = None, self.fresh or not self.held or self._may_have_room()
            self._episode += 1  # what holds it then is told anew
        return self._hold(fresh=self.fresh)

    def standing(self) -> Hold | None:
        """Say the same for those who look on: a claim that is about to be made has found nothing new yet."""
        with self.lock:
            return self._hold(fresh=False)

    def _hold(self, *, fresh: bool) -> Hold | None:
        now_ns = self.clock_ns()
        if self._away_ns is not None and (left := self._away_ns - now_ns) > 0:
            reason = f"the store is away: tried again in {left / 1e9:.1f} s"
            key = HoldKey(self.number, self._episode)
            return Hold(key, reason, _TIME, self.clock_ns, RetryAfter(left / 1e9), self._away_ns)
        if self.busy >= self.slots:
            reason = f"all {self.slots} slots are taken"
            return Hold(HoldKey(self.number, _FULL), reason, _ALL, self.clock_ns, Busy(reason), self._due_ns)
        until_ns = min((at for at in (self._due_ns, self._held_ns) if at is not None), default=None)
        if fresh or (until_ns is not None and until_ns <= now_ns):
            return None
        if not self.held:
            return Hold(HoldKey(self.number, _IDLE), "nothing is due", _ALL, self.clock_ns, None, until_ns)
        return self._limited(until_ns)

    def _limited(self, until_ns: int | None) -> Hold:
        key = HoldKey(self.number, self._episode)
        reason = "; ".join(sorted({f"queue {held.queue}: {_REASONS.get(held.why, held.why)}" for held in self.held}))
        rates = [held for held in self.held if held.why == "rate"]
        if rates and self._held_ns is not None:
            news = BudgetExhausted(rates[0].limit, rates[0].remaining)
            return Hold(key, reason, _ALL, self.clock_ns, news, until_ns)
        return Hold(key, reason, _ALL, self.clock_ns, Busy(reason), until_ns)

    def opens_in_seconds(self) -> float | None:
        """How long until time alone lets it claim; a look at leases that may have run out by then is no opening."""
        with self.lock:
            if self._away_ns is None and self.busy >= self.slots:
                return None
            at_ns = self._away_ns or (self._held_ns if self.held else self._due_ns)
            return max(0, at_ns - self.clock_ns()) / 1e9 if at_ns is not None else None

    # A worker takes jobs, not shares; whoever else passes through this gate takes nothing of it

    def take(self) -> object:
        """Take nothing."""
        return True

    def undo(self, receipt: object) -> bool:
        """Give nothing back."""
        del receipt
        return False

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """Give nothing back."""
        del receipt, error
        return False


def _token_delay(held: Held, took: Collection[str]) -> float:
    """How long a token may lie there. Who always comes for the first finds it taken by another who does, too."""
    return min(held.slack / 4, PACE_SECONDS if held.queue in took else FOLLOW_SECONDS)


_REASONS = {
    "concurrency": "as many jobs run as it may",
    "group_concurrency": "as many jobs of a group run as it may",
    "rate": "its rate is used up",
    "paused": "paused",
    "turn": "another worker takes from it",
}


def gate_cards(gates: Sequence[Gate], now: float, held: Iterable[tuple[str, str]] = ()) -> tuple[GateCard, ...]:
    """Describe gates as they are, at the store's time given, for others to see; `held` are pairs of gate and job."""
    held = list(held)
    cards: list[GateCard] = []
    for gate in gates:
        try:
            counts, why, news = gate.counts(), gate.why(), _held(gate)
        except Exception as error:  # of a ledger, or a gate of others: leases are renewed all the same
            _log.warning("the gate %s cannot be looked at: %r", gate.name, error)
            continue
        wait = gate.opens_in_seconds() if isinstance(gate, WorkGate) else gate.wake_in_seconds()
        cards.append(
            GateCard(
                name=gate.name,
                state=counts.state.value,
                why=why,
                opens_at=now + wait if why is not None and wait is not None else None,
                waiting=counts.waiting,
                jobs=tuple(sorted({job for name, job in held if name == gate.name}))[:JOBS_SHOWN],
                polls=dict(counts.polls),
                wakes=dict(counts.wakes),
                seconds={state: round(seconds, 3) for state, seconds in counts.seconds.items()},
                violations=counts.violations,
                violation=counts.violation,
                held=news,
            )
        )
    return tuple(cards)


def _held(gate: Gate) -> str | None:
    """Say by which state what holds a gate is told; nothing if there is just nothing to do."""
    holds: list[Hold | None] = []
    if isinstance(gate, WatchedGate):
        holds += [gate.standing()] if isinstance(gate, WorkGate) else gate.holds()
    return next((hold.news.state.value for hold in holds if hold is not None and hold.news is not None), None)
