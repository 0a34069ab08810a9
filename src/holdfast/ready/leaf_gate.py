"""What a single gate decides for itself: whether it is open, what a share takes of it, and what comes back.

A leaf writes four methods, all called with its lock held: `look`, `take`, `undo`, `release`. Everything else, lines and
wakes and reports, is `BaseGate`. A leaf that changes in any other way, by a new limit or an answer of an upstream,
does so inside `change`, which announces it under the same lock.

Compositions that a leaf is part of wait for it too. They are told of its wakes while its lock is held, and kept weakly:
a composition that nobody uses any more is forgotten.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence

from holdfast.errors import InvalidSetting
from holdfast.machines.ready import WakeSource
from holdfast.ready.base_gate import BaseGate, fire_all
from holdfast.ready.gate import OnViolation
from holdfast.ready.monitor import Waker
from holdfast.ready.next_reading import Hold

__all__ = ["LeafGate", "positive", "whole"]

_numbers = itertools.count(1)


MOST = 1e12  # of anything: with millionths it is still counted exactly


def positive(name: str, value: object) -> float:
    """Give a number over 0 that can be counted with, or refuse it by the name of its setting."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST:
        raise InvalidSetting(name, value, f"it must be a number over 0, {MOST:g} at most")
    return value


def whole(name: str, value: object) -> int:
    """Give a whole number, 1 or more, or refuse it by the name of its setting."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetting(name, value, "it must be a whole number, 1 or more")
    return value


class LeafGate(BaseGate):
    """A gate that is not made of others."""

    def __init__(self, name: str, now: Callable[[], float], on_violation: OnViolation) -> None:
        if not callable(now):
            raise InvalidSetting("now", now, "it must be a function that gives seconds, as time.monotonic does")
        self.number = next(_numbers)
        self.lock = threading.Lock()
        self._now = now
        self._compositions: weakref.WeakValueDictionary[int, BaseGate] = weakref.WeakValueDictionary()
        super().__init__(name, (self,), self.lock, on_violation)

    def clock_ns(self) -> int:
        """Read the gate's clock, in whole nanoseconds: sums and comparisons of times are exact from here on."""
        return round(self._now() * 1e9)

    def add_composition(self, composition: BaseGate) -> None:
        """Tell `composition` of wakes from now on."""
        with self.lock:
            self._compositions[next(_numbers)] = composition

    def announce(self, source: WakeSource, after: list[Waker]) -> None:
        """Mark a wake here and in every composition that waits for this gate; the lock is held."""
        after += self.mark(self.number, source)
        if self._compositions:
            for composition in self._compositions.values():
                after += composition.mark(self.number, source)

    def change(self, source: WakeSource, make: Callable[[], bool]) -> None:
        """Change what this gate would say and, if `make` says that it did, have those who wait look again."""
        after: list[Waker] = []
        with self.lock:
            if make():
                self.announce(source, after)
        fire_all(after)

    def _look(self, after: list[Waker], *, waits: bool) -> Sequence[Hold]:
        del after, waits  # what holds a single gate closed does not depend on who asks
        hold = self.look()
        return () if hold is None else (hold,)

    def poll_within(self, after: list[Waker], *, waits: bool) -> Sequence[Hold]:
        """Be polled as part of a composition, whose locks are held; those in this gate's own line come first."""
        self._serve_line(after)
        self._poll(after, waits=waits)
        return self._holds

    # What a kind of gate decides

    @abstractmethod
    def look(self) -> Hold | None:
        """Say what holds it closed, if anything does."""
        ...

    @abstractmethod
    def take(self) -> object | None:
        """Take a share and give a receipt for it. None refuses; `look` must then say why, until something changes."""
        ...

    @abstractmethod
    def undo(self, receipt: object) -> bool:
        """Take back a share that was not used; say whether somebody else may go on because of it."""
        ...

    @abstractmethod
    def release(self, receipt: object, error: BaseException | None) -> bool:
        """End a share that was used; say whether somebody else may go on because of it."""
        ...
