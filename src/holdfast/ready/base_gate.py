"""How every gate of this package polls, waits and serves, under the eyes of its `ReadyMonitor`.

What it promises:

- *Ready means yes.* Every poll serves the line first. If anybody is left in line then, something holds the gate closed;
  so a poll that says Ready can take a share, and nobody who has just come passes those who wait.
- *First come, first served.* Shares are put into the hands of whoever is first in line, by whoever makes one free.
- *No wake is lost.* What changes a gate, and the wake that says so, happen under one lock. Time needs nobody to
  announce it: the first in line has a timer, and any poll that finds the time come counts it as the timer's wake.
- *Nothing stays behind.* Whoever gives up leaves the line; if it had been served already, its share goes to the next.
  So does the share of a task whose loop was closed.
- *An error is for whoever asks.* If looking raises, because a ledger is away, the first in line is told and leaves it;
  whoever released, or came by, is not. The next in line asks for himself.
- *A violation does no harm.* If the monitor refuses what a gate is about to say, the gate starts anew at Ready, wakes
  all who wait, and goes on; the refusal is counted and given to `on_violation`.

How it is built: a gate is made of *leaves*, itself or, for `all_of`, several; it holds the locks of all its leaves, in
the order in which they were made, whenever it looks. Wakers, bells and callbacks are called after the locks are
released: methods that need the locks held collect them in a list, `after`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, InvalidArguments, InvalidSetting, TransitionRefused, WakeRefused
from holdfast.machines.ready import Reading, ReadyState, WakeSource
from holdfast.ready import next_reading
from holdfast.ready.gate import GateCounts, OnViolation, Share
from holdfast.ready.line import EnterableGate, TaskWaiter, ThreadWaiter, Waiter, running_loop
from holdfast.ready.monitor import ReadyMonitor, Waker, fire
from holdfast.ready.next_reading import Hold, HoldKey

if TYPE_CHECKING:
    from holdfast.ready.leaf_gate import LeafGate

__all__ = ["BaseGate", "fire_all"]

_READY, _PENDING = ReadyState.READY, ReadyState.PENDING


def fire_all(after: Sequence[Waker]) -> None:
    """Call everything that was collected under a lock; a single error comes out as itself."""
    if not after:
        return
    try:
        fire(after)
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


def _can_be_shown(name: object) -> bool:
    """Whether it can be a gate's name, which is kept with each heartbeat and shown in tables."""
    return isinstance(name, str) and name.isprintable()


def _sooner(first: float | None, second: float | None) -> float | None:
    return min((wait for wait in (first, second) if wait is not None), default=None)


class BaseGate(EnterableGate):
    """What `Gate` asks for; see the module's text."""

    def __init__(
        self,
        name: str,
        leaves: tuple[LeafGate, ...],
        locks: AbstractContextManager[Any],
        on_violation: OnViolation,
    ) -> None:
        if not name:
            raise InvalidSetting("name", name, "a gate is counted and shown by its name: give it one")
        if not _can_be_shown(name):
            raise InvalidSetting("name", name, "it must be text that can be shown")
        self._name = name
        self._leaves = leaves
        self._locks = locks
        self._on_violation = on_violation
        self._monitor = ReadyMonitor()
        self._holds: Sequence[Hold] = ()  # what held it closed at the last poll
        self._told: frozenset[HoldKey] = frozenset()
        self._line: OrderedDict[Waiter, None] = OrderedDict()
        super().__init__()
        self._line_has_waker = False  # whether the Pending interval that is open will wake the line
        self._violations = 0
        self._violation: HoldfastError | None = None  # the last
        self._spent_ns = dict.fromkeys(ReadyState, 0)  # time in each state, up to the last change
        self._state = _READY  # what was published last; its time is running
        self._since_ns = leaves[0].clock_ns()

    # Asking

    @property
    def name(self) -> str:
        """The name under which it is counted and shown."""
        return self._name

    @property
    def leaves(self) -> tuple[LeafGate, ...]:
        """The single gates it is made of."""
        return self._leaves

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}: {self._state}>"

    def poll_ready(self, waker: Waker | None = None) -> Reading:
        """Say whether a share can be taken now; with Pending, keep `waker`, to be called when it is worth it."""
        after: list[Waker] = []
        try:
            with self._locks:
                return self._ask(after, waker)
        finally:  # also if looking raised: those in line may have been served before
            fire_all(after)

    def wake_in_seconds(self) -> float | None:
        """How long until a poll is worth it without a wake; None if time alone changes nothing."""
        with self._locks:
            return next_reading.seconds_until_due(self._holds)

    def holds(self) -> list[Hold]:
        """What holds it closed at this moment. This is no poll and counts as none."""
        with self._locks:
            return [hold for leaf in self._leaves if (hold := leaf.look()) is not None]

    def why(self) -> str | None:
        """Say the same for people; None if nothing holds it."""
        return "; ".join(hold.reason for hold in self.holds()) or None

    def counts(self) -> GateCounts:
        """Give the totals so far."""
        with self._locks:
            spent_ns = dict(self._spent_ns)
            spent_ns[self._state] += max(0, self._leaves[0].clock_ns() - self._since_ns)
            counts = self._monitor.counts()
            return GateCounts(
                gate=self._name,
                state=self._state,
                polls=counts["ready.state"],
                wakes=counts["wake.source"],
                seconds={state.value: spent / 1e9 for state, spent in spent_ns.items()},
                waiting=len(self._line),
                violations=self._violations,
                violation=str(self._violation) if self._violation is not None else None,
            )

    # Taking

    def try_acquire(self) -> Share | None:
        """Take a share if one is free and nobody waits for it; never waits."""
        after: list[Waker] = []
        share = None
        try:
            try:
                with self._locks:
                    share = self._take_share() if self._ask(after, None).state is _READY else None
            finally:  # also if looking raised: those in line may have been served before
                fire_all(after)
        except BaseException:  # of somebody else's waker: this caller must not keep what it is not told of
            if share is not None:
                fire_all(self._put_back(share))
            raise
        return share

    async def acquire(self) -> Share:
        """Take a share; wait in line, first come first served, until there is one."""
        share = self.try_acquire()
        if share is not None:
            return share
        waiter = TaskWaiter()
        try:
            fire_all(self._join(waiter))
            while waiter.share is None:
                if not await waiter.wait(self._arm(waiter)):
                    fire_all(self._serve())
        except BaseException:
            fire_all(self._leave(waiter))
            raise
        return waiter.share

    def acquire_blocking(self, timeout_seconds: float | None = None) -> Share | None:
        """Take a share in a thread that may block; None if the time, which is real time, ran out first.

        Raises:
            InvalidArguments: a loop runs in this thread, and blocking it could keep away whoever releases.
        """
        if running_loop() is not None:
            raise InvalidArguments(
                self._name, "blocks its thread, and a loop runs in it: use `async with` or `acquire`"
            )
        share = self.try_acquire()
        if share is not None:
            return share
        waiter = ThreadWaiter()
        give_up_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        try:
            fire_all(self._join(waiter))
            while waiter.share is None:
                left_seconds = None if give_up_at is None else give_up_at - time.monotonic()
                if left_seconds is not None and left_seconds <= 0:
                    fire_all(self._leave(waiter))
                    return None
                if not waiter.wait(_sooner(self._arm(waiter), left_seconds)):
                    fire_all(self._serve())
        except BaseException:
            fire_all(self._leave(waiter))
            raise
        return waiter.share

    async def ready(self) -> None:
        """Wait until a share is free and nobody is in line for it; take nothing."""
        waiter = TaskWaiter()
        waker: Waker = waiter.ring
        try:
            while (state := self.poll_ready(waker).state) is not _READY:
                if state is _PENDING:
                    await waiter.wait(self.wake_in_seconds())
        finally:
            self._monitor.remove_waker(waker)

    # The line. Each of these is one locked section, and returns what to call after it.

    def _join(self, waiter: Waiter) -> list[Waker]:
        """Stand in line; whoever can be served is."""
        after: list[Waker] = []
        with self._locks:
            self._line[waiter] = None
            self._serve_line(after)
        return after

    def _leave(self, waiter: Waiter) -> list[Waker]:
        """Give up. A share that was served meanwhile goes on to the next."""
        with self._locks:
            if waiter in self._line:
                del self._line[waiter]
                return self._nudge_first()
        return self._put_back(waiter.share) if waiter.share is not None else []

    def _serve(self) -> list[Waker]:
        """Look again, for those in line."""
        after: list[Waker] = []
        with self._locks:
            self._serve_line(after)
        return after

    def _arm(self, waiter: Waiter) -> float | None:
        """Say how long to wait without a ring: the first in line has the timer, the others have none.

        Whoever was told an error instead of served raises it here: he is not in line any more.
        """
        with self._locks:
            if waiter.error is not None:
                raise waiter.error
            first = next(iter(self._line), None)
            waiter.armed = next_reading.timers(self._holds) if waiter is first else None
            return next_reading.seconds_until_due(self._holds) if waiter is first else None

    def _put_back(self, share: Share) -> list[Waker]:
        """Undo a share that was not used."""
        return self._end(share, lambda leaf, receipt: leaf.undo(receipt))

    def _give_back(self, share: Share, error: BaseException | None) -> None:
        fire_all(self._end(share, lambda leaf, receipt: leaf.release(receipt, error)))

    def _end(self, share: Share, end: Callable[[LeafGate, object], bool]) -> list[Waker]:
        after: list[Waker] = []
        with self._locks:
            receipts, share.receipts = share.receipts or (), None
            for leaf, receipt in zip(self._leaves, receipts, strict=False):  # there are none if it was ended before
                if end(leaf, receipt):
                    leaf.announce(WakeSource.IO_READY, after)
        return after

    # With the locks held

    def _ask(self, after: list[Waker], waker: Waker | None) -> Reading:
        """Serve those in line, then poll for somebody who is not."""
        self._serve_line(after)
        reading = self._poll(after, waits=waker is not None)
        while self._line and reading.state is _READY:  # time has opened it between the two
            self._serve_line(after)
            reading = self._poll(after, waits=waker is not None)
        if waker is not None and reading.state is _PENDING:
            self._keep(waker)
        return reading

    def _serve_line(self, after: list[Waker]) -> None:
        while self._line and not self._line_is_asleep():
            share, error = None, None
            try:
                state = self._poll(after, waits=True).state
                share = self._take_share() if state is _READY else None
            except Exception as raised:  # noqa: BLE001 - it is for whoever is first in line, not for who has come by
                state, error = _READY, raised
            if state is _PENDING:
                self._keep(self._look_again)
                self._line_has_waker = True
                after += self._nudge_first()
                return
            if share is not None or error is not None:
                waiter, _ = self._line.popitem(last=False)
                waiter.share, waiter.error = share, error
                after.append(partial(self._ring, waiter))

    def _line_is_asleep(self) -> bool:
        """Whether nothing has happened since the line was found to have to wait."""
        return self._line_has_waker and not (self._monitor.woken or next_reading.due(self._holds))

    def _look_again(self) -> None:
        fire_all(self._serve())

    def _keep(self, waker: Waker) -> None:
        self._monitor.remove_waker(waker)  # one that polls twice is called once
        self._monitor.add_waker(waker)

    def _nudge_first(self) -> list[Waker]:
        """Have the first in line set its timer, if the one it has is not for what holds the gate closed now."""
        first = next(iter(self._line), None)
        timers = next_reading.timers(self._holds)
        if first is None or not timers or first.armed == timers:
            return []
        return [partial(self._ring, first)]

    def _ring(self, waiter: Waiter) -> None:
        if not waiter.ring():  # its loop was closed, and nobody is there to leave the line
            fire_all(self._leave(waiter))

    def _poll(self, after: list[Waker], *, waits: bool) -> Reading:
        """Look, and publish what is to be said of it."""
        held, holds = self._holds, self._look(after, waits=waits)
        self._holds = holds
        woken = self._state is _PENDING and self._monitor.woken
        if self._state is _PENDING and not woken and next_reading.due(held):
            # Time is read after the look: what the look found opened by time is then due, however late that was.
            after += self._monitor.mark(WakeSource.TIMER)
            woken = True
        reading = next_reading.next_reading(self._state, holds, self._told, woken=woken, waits=waits)
        if holds or self._told:
            self._told = next_reading.told_with(reading, holds, self._told)
        return self._publish(reading, after)

    @abstractmethod
    def _look(self, after: list[Waker], *, waits: bool) -> Sequence[Hold]:
        """Say what holds the gate closed."""
        ...

    def _publish(self, reading: Reading, after: list[Waker]) -> Reading:
        try:
            published = self._monitor.report(reading)
        except (TransitionRefused, WakeRefused) as error:
            self._violations, self._violation = self._violations + 1, error
            after += self._monitor.reset()
            after.append(partial(self._on_violation, self._name, error))
            published = self._monitor.report(reading)
        if published.state is not self._state:
            now_ns = self._leaves[0].clock_ns()
            self._spent_ns[self._state] += max(0, now_ns - self._since_ns)
            self._state, self._since_ns = published.state, now_ns
            self._line_has_waker = False  # none outlives its interval
        return published

    def _take_share(self) -> Share | None:
        """Take from every leaf, or from none: one may refuse although it looked open, if others share its ledger."""
        receipts: list[object] = []
        for leaf in self._leaves:
            try:
                receipt = leaf.take()
            except BaseException:
                self._undo(receipts)
                raise
            if receipt is None:
                self._undo(receipts)
                assert leaf.look() is not None, "a gate that refuses says why, or it would be asked for ever"
                return None
            receipts.append(receipt)
        return Share(self, receipts)

    def _undo(self, receipts: Sequence[object]) -> None:
        for leaf, receipt in zip(self._leaves, receipts, strict=False):  # the leaves that had been taken from
            leaf.undo(receipt)

    def mark(self, leaf: int, source: WakeSource) -> list[Waker]:
        """Take a wake from a leaf, whose lock is held, if this gate waits for it; return the wakers that are due."""
        waits_for_it = self._state is _PENDING and any(
            hold.key.gate == leaf and source in hold.sources for hold in self._holds
        )
        return self._monitor.mark(source) if waits_for_it else []
