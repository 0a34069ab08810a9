"""The gate of one worker: whether it may claim more jobs (SPEC S7).

The worker's loop polls it before it claims. It is a gate like any other.

=================================== ================================== =====================================
what closes it                      first reported as                  woken by
=================================== ================================== =====================================
the store is away                   RetryAfter                         time, or a commit of the store
all slots are taken                 Busy                               a job that ends, more slots
a queue's rate is used up           BudgetExhausted                    its next token, a changed limit
a queue is full or paused           Busy                               a lease that ends, a changed limit
nothing is due                      nothing: Pending                   a commit, a due time, changed settings
=================================== ================================== =====================================

Only its worker writes to it, on the worker's loop. Any thread may read it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.machines.ready_table import BudgetExhausted, Busy, RetryAfter, WakeSource
from holdfast.ready import Gate, OnViolation, log_violation
from holdfast.ready.base_gate import BaseGate
from holdfast.ready.leaf_gate import LeafGate
from holdfast.ready.next_reading import Hold, HoldKey
from holdfast.store.limits import Blocked
from holdfast.store.rows import GateCard

_log = logging.getLogger("holdfast.ready")
_ALL = frozenset(WakeSource)
_TIME = frozenset({WakeSource.TIMER, WakeSource.IO_READY})
SOON_SECONDS = 0.001  # between two claims that time alone causes
PACE_SECONDS = 0.02  # for which the worker that got the last token of a rate lets tokens gather, as far as none is lost
FOLLOW_SECONDS = 0.05  # and by other workers, which leave them to that one and take over if it does not come
_FAR_SECONDS = 1e9  # later times are checked again: a float can hold more than a clock can count
JOBS_SHOWN = 100  # of the jobs that a gate holds
_IDLE, _FULL = 0, 1  # episodes without a counter; those of limits and outages are counted


class WorkGate(LeafGate):
    """The readiness of one worker; see the module's docstring."""

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
        self.fresh = True  # whether a claim may find a job that the last one did not
        self.held: Sequence[Blocked] = ()  # limits that held the last claim back
        self._held_ns: int | None = None  # when time alone ends one of those
        self._due_ns: int | None = None  # when time alone brings something to do
        self._away_ns: int | None = None  # until when the store is left alone
        self._episode = _FULL
        super().__init__(name, now, on_violation)

    # What the worker reports

    def heard(self, source: WakeSource = WakeSource.IO_READY) -> None:
        """Note that there may be something new to claim."""
        self.change(source, self._freshen)

    def _freshen(self) -> bool:
        self.fresh = True
        return True

    def freed(self) -> None:
        """Free a slot. If limits held back the last claim, there may be room for another job."""
        self.busy -= 1
        self.fresh = self.fresh or self._may_have_room()
        self.change(WakeSource.IO_READY, lambda: True)

    def _may_have_room(self) -> bool:
        return any(held.until is None for held in self.held)

    def resized(self, slots: int) -> None:
        """Change the number of jobs that the worker runs at once."""

        def resize() -> bool:
            self.slots = slots
            return True

        self.change(WakeSource.CONFIG_RELOAD, resize)

    def claimed(
        self, *, all_there_was: bool, held: Sequence[Blocked], now: float, took: Collection[str] = frozenset()
    ) -> None:
        """Note the end of a claim.

        Args:
            all_there_was: whether the claim took every job that it could.
            held: the limits that held the claim back.
            now: the store's time.
            took: the queues that the claim took jobs from.
        """

        def take() -> bool:
            self.fresh, self._away_ns = not all_there_was, None
            untils = [limit.until + _token_delay(limit, took) for limit in held if limit.until is not None]
            if held and (held != self.held or untils):
                self._episode += 1  # another token or another limit: it is reported again
            self.held = held
            soon_ns = self._at(SOON_SECONDS)
            self._held_ns = max(self._at(min(untils) - now), soon_ns) if untils else None
            if self._due_ns is not None:  # the claim has found what was due, or the store's clock is not there yet
                self._due_ns = max(self._due_ns, soon_ns)
            return True

        self.change(WakeSource.IO_READY, take)

    def due(self, seconds: float | None) -> None:
        """Set the seconds until time alone brings something to do. None is never."""

        def take() -> bool:
            before, self._due_ns = self._due_ns, self._at(seconds) if seconds is not None else None
            return self._due_ns is not None and (before is None or self._due_ns < before)  # sooner than before

        self.change(WakeSource.TIMER, take)

    def away(self, seconds: float) -> None:
        """Leave the store alone for so long: it does not answer."""

        def take() -> bool:
            self._episode += 1
            self._away_ns = self._at(max(seconds, 1e-6))
            return True

        self.change(WakeSource.IO_READY, take)

    def _at(self, seconds: float) -> int:
        return self.clock_ns() + round(min(seconds, _FAR_SECONDS) * 1e9)

    # What it returns

    def look(self) -> Hold | None:
        """Return what keeps the worker from claiming."""
        if self._away_ns is not None and self._away_ns <= self.clock_ns():
            # The store is tried again now, unless limits are known to still hold the claim back.
            self._away_ns, self.fresh = None, self.fresh or not self.held or self._may_have_room()
            self._episode += 1  # what holds it then is reported again
        return self._hold(fresh=self.fresh)

    def standing(self) -> Hold | None:
        """Return the same for observers. A claim that is about to be made has not found anything new yet."""
        with self.lock:
            return self._hold(fresh=False)

    def _hold(self, *, fresh: bool) -> Hold | None:
        now_ns = self.clock_ns()
        if self._away_ns is not None and (left := self._away_ns - now_ns) > 0:
            reason = f"the store is unavailable: next try in {left / 1e9:.1f} s"
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
        """Return the seconds until time alone lets the worker claim. A check for expired leases is no opening."""
        with self.lock:
            if self._away_ns is None and self.busy >= self.slots:
                return None
            at_ns = self._away_ns or (self._held_ns if self.held else self._due_ns)
            return max(0, at_ns - self.clock_ns()) / 1e9 if at_ns is not None else None


def _token_delay(held: Blocked, took: Collection[str]) -> float:
    """Return how long a token may wait to be taken.

    A worker that always comes for the first token finds it taken by another worker that does so, too.
    """
    return min(held.slack / 4, PACE_SECONDS if held.queue in took else FOLLOW_SECONDS)


_REASONS = {
    "concurrency": "its concurrency limit is reached",
    "group_concurrency": "the concurrency limit of a group is reached",
    "rate": "its rate is used up",
    "paused": "paused",
    "turn": "another worker claims from it",
}


def gate_cards(gates: Sequence[Gate], now: float, held: Iterable[tuple[str, str]] = ()) -> tuple[GateCard, ...]:
    """Describe the state of gates for other processes, at the store's time given. `held` are pairs of gate and job."""
    held = list(held)
    cards: list[GateCard] = []
    for gate in gates:
        try:
            counts, why, news = gate.counts(), gate.why(), _held(gate)
        except Exception as error:  # raised by a ledger or a user's gate: leases are renewed all the same
            _log.warning("the gate %s cannot be read: %r", gate.name, error)
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
    """Return the state by which the gate's hold was reported, or None if there is just nothing to do."""
    holds: list[Hold | None] = []
    if isinstance(gate, BaseGate):
        holds += [gate.standing()] if isinstance(gate, WorkGate) else gate.holds()
    return next((hold.news.state.value for hold in holds if hold is not None and hold.news is not None), None)
