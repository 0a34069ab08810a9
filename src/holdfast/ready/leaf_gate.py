"""A single gate, which decides whether it is open, what a share takes, and what comes back.

A subclass implements four methods, all called with its lock held: `look`, `take`, `undo` and `release`. `BaseGate` does
the rest: lines, wakes and reports. A gate that changes in any other way, by a new limit or an outcome of an upstream,
does so inside `change`, which announces the change under the same lock.

Compositions also wait for their leaves. A leaf marks its wakes in them while its lock is held. It references them
weakly, so an unused composition is garbage-collected.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence

from holdfast.errors import InvalidSetting
from holdfast.machines.ready_table import WakeSource
from holdfast.ready.base_gate import BaseGate, fire_all
from holdfast.ready.gate import OnViolation
from holdfast.ready.monitor import Waker
from holdfast.ready.next_reading import Hold

_numbers = itertools.count(1)


MOST = 1e12  # the largest number: in millionths it is still exact


def positive(name: str, value: object) -> float:
    """Return a number over 0 that can be counted exactly, or raise `InvalidSetting` with this name."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST:
        raise InvalidSetting(name, value, f"it must be a number over 0, {MOST:g} at most")
    return value


def whole(name: str, value: object) -> int:
    """Return an integer of 1 or more, or raise `InvalidSetting` with this name."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetting(name, value, "it must be a whole number, 1 or more")
    return value


class LeafGate(BaseGate):
    """A gate that does not consist of others."""

    def __init__(self, name: str, now: Callable[[], float], on_violation: OnViolation) -> None:
        if not callable(now):
            raise InvalidSetting("now", now, "it must be a function that gives seconds, as time.monotonic does")
        self.number = next(_numbers)
        self.lock = threading.Lock()
        self._clock = now
        self._ahead = 0.0  # seconds by which the gate's time is ahead of that clock
        self._compositions: weakref.WeakValueDictionary[int, BaseGate] = weakref.WeakValueDictionary()
        super().__init__(name, (self,), self.lock, on_violation)

    def clock_ns(self) -> int:
        """Read the gate's clock in whole nanoseconds, so that sums and comparisons of times are exact."""
        return round((self._clock() + self._ahead) * 1e9)

    def follow(self, clock: Callable[[], float]) -> Callable[[], float]:
        """Use another clock from now on, and return the one before. The gate's time does not jump."""
        with self.lock:
            before, self._ahead = self._clock, self._ahead + self._clock() - clock()
            self._clock = clock
        return before

    def add_composition(self, composition: BaseGate) -> None:
        """Mark wakes of this gate in `composition` from now on."""
        with self.lock:
            self._compositions[next(_numbers)] = composition

    def announce(self, source: WakeSource, after: list[Waker]) -> None:
        """Mark a wake here and in every composition that waits for this gate. The lock is held."""
        after += self.mark(self.number, source)
        if self._compositions:
            for composition in self._compositions.values():
                after += composition.mark(self.number, source)

    def change(self, source: WakeSource, make: Callable[[], bool]) -> None:
        """Change the gate inside `make`. If `make` returns True, wake the waiting callers."""
        after: list[Waker] = []
        with self.lock:
            if make():
                self.announce(source, after)
        fire_all(after)

    def _look(self, after: list[Waker], *, waits: bool) -> Sequence[Hold]:
        del after, waits  # a single gate's hold does not depend on the caller
        hold = self.look()
        return () if hold is None else (hold,)

    def poll_within(self, after: list[Waker], *, waits: bool) -> Sequence[Hold]:
        """Poll as part of a composition, whose locks are held. This gate's own line is served first."""
        self._serve_line(after)
        self._poll(after, waits=waits)
        return self._holds

    # Implemented by each kind of gate. By default a share takes nothing from the gate.

    @abstractmethod
    def look(self) -> Hold | None:
        """Return what holds the gate closed; None if it is open."""

    def take(self) -> object | None:
        """Take a share and return a receipt. None refuses; `look` must then return a hold until something changes."""
        return True

    def undo(self, receipt: object) -> bool:
        """Put back a share that was not used. Return whether another caller may go on because of it."""
        del receipt
        return False

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """End a share that was used. Return whether another caller may go on because of it."""
        del receipt, error
        return False
