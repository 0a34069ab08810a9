"""How every gate of this package polls, waits and serves, checked by its `ReadyMonitor`.

Guarantees:

- *Ready means yes.* Every poll serves the line first. If a caller is left in line after that, the gate is closed. So a
  poll that returns Ready can take a share, and a new caller never passes those who wait.
- *First come, first served.* The caller that frees a share hands it to the first in line.
- *No wake is lost.* A change of a gate and the wake that announces it happen under one lock. Time needs no
  announcement: the first in line has a timer. A poll that finds the time passed counts it as the timer's wake.
- *Nothing leaks.* A caller that gives up leaves the line. If it was already served, its share goes to the next one. So
  does the share of a task whose loop was closed.
- *Errors go to the caller that asks.* If the check raises, for example because a ledger is unavailable, the first in
  line gets the error and leaves the line. A caller that releases or polls does not. The next in line checks again.
- *A violation does no harm.* If the monitor refuses a gate's report, the gate restarts at Ready, wakes every waiter and
  continues. The refusal is counted and passed to `on_violation`.

Construction: a gate has *leaves*: itself or, for `all_of`, several. It holds the locks of all leaves while it checks,
acquired in the order of creation. Wakers, bells and callbacks are called after the locks are released. Methods that run
with the locks held collect them in a list, `after`.
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
from holdfast.machines.ready_table import Reading, ReadyState, WakeSource
from holdfast.ready import next_reading
from holdfast.ready.gate import GateCounts, OnViolation, Share
from holdfast.ready.line import EnterableGate, TaskWaiter, ThreadWaiter, Waiter, running_loop
from holdfast.ready.monitor import ReadyMonitor, Waker, fire
from holdfast.ready.next_reading import Hold, HoldKey

if TYPE_CHECKING:
    from holdfast.ready.leaf_gate import LeafGate

_READY, _PENDING = ReadyState.READY, ReadyState.PENDING


def fire_all(after: Sequence[Waker]) -> None:
    """Call everything that was collected under a lock. A single error is raised as itself, not in a group."""
    if not after:
        return
    try:
        fire(after)
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


def _can_be_shown(name: object) -> bool:
    """Return whether a name can be stored with each heartbeat and shown in tables."""
    return isinstance(name, str) and name.isprintable()


def _sooner(first: float | None, second: float | None) -> float | None:
    return min((wait for wait in (first, second) if wait is not None), default=None)


class BaseGate(EnterableGate):
    """The base class of all gates here, which implements `Gate`. The module's docstring has its guarantees."""

    def __init__(
        self,
        name: str,
        leaves: tuple[LeafGate, ...],
        locks: AbstractContextManager[Any],
        on_violation: OnViolation,
    ) -> None:
        if not name:
            raise InvalidSetting("name", name, "must not be empty: counts and displays show it")
        if not _can_be_shown(name):
            raise InvalidSetting("name", name, "must be text that can be shown")
        self._name = name
        self._leaves = leaves
        self._locks = locks
        self._on_violation = on_violation
        self._monitor = ReadyMonitor()
        self._holds: Sequence[Hold] = ()  # what held it closed at the last poll
        self._reported: frozenset[HoldKey] = frozenset()
        self._line: OrderedDict[Waiter, None] = OrderedDict()
        super().__init__()
        self._line_has_waker = False  # whether the open Pending interval will wake the line
        self._violations = 0
        self._violation: HoldfastError | None = None  # the last
        self._spent_ns = dict.fromkeys(ReadyState, 0)  # time in each state, up to the last change
        self._state = _READY  # the state published last; its time is running
        self._since_ns = leaves[0].clock_ns()

    # Polling

    @property
    def name(self) -> str:
        """The name of the gate in counts and displays."""
        return self._name

    @property
    def leaves(self) -> tuple[LeafGate, ...]:
        """The single gates it consists of."""
        return self._leaves

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}: {self._state}>"

    def poll_ready(self, waker: Waker | None = None) -> Reading:
        """Return whether a share can be taken now. If Pending, keep `waker`, and call it when to poll again."""
        after: list[Waker] = []
        try:
            with self._locks:
                return self._ask(after, waker)
        finally:  # also if the check raised: it may have served callers in line before
            fire_all(after)

    def wake_in_seconds(self) -> float | None:
        """Return when to poll again without a wake, in seconds; None if time alone changes nothing."""
        with self._locks:
            return next_reading.seconds_until_due(self._holds)

    def holds(self) -> list[Hold]:
        """Return what holds the gate closed at this moment. This does not count as a poll."""
        with self._locks:
            return [hold for leaf in self._leaves if (hold := leaf.look()) is not None]

    def why(self) -> str | None:
        """Return what holds the gate closed, as text; None if it is open."""
        return "; ".join(hold.reason for hold in self.holds()) or None

    def counts(self) -> GateCounts:
        """Return the totals so far."""
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

    # Acquiring

    def try_acquire(self) -> Share | None:
        """Take a share if one is free and no caller waits for it; else return None. Never waits."""
        after: list[Waker] = []
        share = None
        try:
            try:
                with self._locks:
                    share = self._take_share() if self._ask(after, None).state is _READY else None
            finally:  # also if the check raised: it may have served callers in line before
                fire_all(after)
        except BaseException:  # from another caller's waker: this caller never learns of its share
            if share is not None:
                fire_all(self._put_back(share))
            raise
        return share

    async def acquire(self) -> Share:
        """Take a share. Wait in line, first come first served, until one is free."""
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
        """Take a share in a thread that may block.

        Args:
            timeout_seconds: how long to wait at most, in real time; None waits without a limit.

        Returns:
            The share; None if the time ran out first.

        Raises:
            InvalidArguments: an event loop runs in this thread. Blocking it could stop the task that releases a share.
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
        """Wait until a share is free and no caller is in line for it. Take nothing."""
        waiter = TaskWaiter()
        waker: Waker = waiter.ring
        try:
            while (state := self.poll_ready(waker).state) is not _READY:
                if state is _PENDING:
                    await waiter.wait(self.wake_in_seconds())
        finally:
            self._monitor.remove_waker(waker)

    # The line. Each method is one locked section, and returns the callbacks to call after it.

    def _join(self, waiter: Waiter) -> list[Waker]:
        """Add a waiter to the line, then serve the line."""
        after: list[Waker] = []
        with self._locks:
            self._line[waiter] = None
            self._serve_line(after)
        return after

    def _leave(self, waiter: Waiter) -> list[Waker]:
        """Remove a waiter that gives up. If it was served meanwhile, pass its share to the next."""
        with self._locks:
            if waiter in self._line:
                del self._line[waiter]
                return self._nudge_first()
        return self._put_back(waiter.share) if waiter.share is not None else []

    def _serve(self) -> list[Waker]:
        """Check again, for the callers in line."""
        after: list[Waker] = []
        with self._locks:
            self._serve_line(after)
        return after

    def _arm(self, waiter: Waiter) -> float | None:
        """Return how long to wait without a ring. Only the first in line has a timer.

        A waiter that got an error instead of a share raises it here: it is no longer in line.
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
            for leaf, receipt in zip(self._leaves, receipts, strict=False):  # empty if the share was ended before
                if end(leaf, receipt):
                    leaf.announce(WakeSource.IO_READY, after)
        return after

    # With the locks held

    def _ask(self, after: list[Waker], waker: Waker | None) -> Reading:
        """Serve the callers in line, then poll for one that is not in line."""
        self._serve_line(after)
        reading = self._poll(after, waits=waker is not None)
        while self._line and reading.state is _READY:  # time opened the gate in between
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
            except Exception as raised:  # noqa: BLE001 - the first in line gets it, not this caller
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
        """Return whether nothing has happened since the line had to wait."""
        return self._line_has_waker and not (self._monitor.woken or next_reading.due(self._holds))

    def _look_again(self) -> None:
        fire_all(self._serve())

    def _keep(self, waker: Waker) -> None:
        self._monitor.remove_waker(waker)  # a waker that polls twice is called once
        self._monitor.add_waker(waker)

    def _nudge_first(self) -> list[Waker]:
        """Ring the first in line if its timer is not set for what holds the gate closed now."""
        first = next(iter(self._line), None)
        timers = next_reading.timers(self._holds)
        if first is None or not timers or first.armed == timers:
            return []
        return [partial(self._ring, first)]

    def _ring(self, waiter: Waiter) -> None:
        if not waiter.ring():  # its loop was closed, so the task cannot leave the line
            fire_all(self._leave(waiter))

    def _poll(self, after: list[Waker], *, waits: bool) -> Reading:
        """Check what holds the gate, and publish the next reading."""
        held, holds = self._holds, self._look(after, waits=waits)
        self._holds = holds
        woken = self._state is _PENDING and self._monitor.woken
        if self._state is _PENDING and not woken and next_reading.due(held):
            # Time is read after the check, so whatever the check found opened by time is due by now.
            after += self._monitor.mark(WakeSource.TIMER)
            woken = True
        reading = next_reading.next_reading(self._state, holds, self._reported, woken=woken, waits=waits)
        if holds or self._reported:
            self._reported = next_reading.reported_with(reading, holds, self._reported)
        return self._publish(reading, after)

    @abstractmethod
    def _look(self, after: list[Waker], *, waits: bool) -> Sequence[Hold]:
        """Return what holds the gate closed."""

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
            self._line_has_waker = False  # a waker does not outlive its interval
        return published

    def _take_share(self) -> Share | None:
        """Take from every leaf or from none. A leaf may refuse although it looked open, if it shares its ledger."""
        receipts: list[object] = []
        for leaf in self._leaves:
            try:
                receipt = leaf.take()
            except BaseException:
                self._undo(receipts)
                raise
            if receipt is None:
                self._undo(receipts)
                assert leaf.look() is not None, "a gate that refuses says why, or callers would ask without end"
                return None
            receipts.append(receipt)
        return Share(self, receipts)

    def _undo(self, receipts: Sequence[object]) -> None:
        for leaf, receipt in zip(self._leaves, receipts, strict=False):  # only the leaves already taken from
            leaf.undo(receipt)

    def mark(self, leaf: int, source: WakeSource) -> list[Waker]:
        """Mark a wake of a leaf, whose lock is held, if this gate waits for it. Return the wakers to call."""
        waits_for_it = self._state is _PENDING and any(
            hold.key.gate == leaf and source in hold.sources for hold in self._holds
        )
        return self._monitor.mark(source) if waits_for_it else []
