"""Several gates as one: open when all are, taken together or not at all.

- *Not ready if any is not.* What holds any of its gates closed holds the composition; each hold is told once, and
  whoever waits is Pending with the sources of all gates that hold it, and of no other. An open gate wakes nobody.
- *One timer.* It is set for the time when the last of the timed holds ends, because before that it cannot open.
- *All or none.* A look, and the taking after it, happen with the locks of all gates held. If one refuses all the same,
  by a ledger that other processes share, what was taken of the others is put back before anybody could see it.
- *Its gates are polled with it*, and count it: a gate that is only used in compositions shows its state and its times.

Each composition has a line of its own, first come first served. Between the lines of a gate and of the compositions it
is in there is no order, except that those in a gate's own line are served first.

A composition of compositions is one of all their gates; a gate that is named twice is taken once.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from types import TracebackType

from holdfast.errors import InvalidArguments
from holdfast.ready.base_gate import BaseGate
from holdfast.ready.gate import Gate, OnViolation, log_violation
from holdfast.ready.leaf_gate import LeafGate
from holdfast.ready.monitor import Waker
from holdfast.ready.next_reading import Hold

__all__ = ["AllOf", "all_of"]


class _Locks:
    """Several locks, taken in one order everywhere, so that two compositions cannot wait for each other."""

    def __init__(self, locks: Sequence[Lock]) -> None:
        self._locks = locks

    def __enter__(self) -> None:
        taken: list[Lock] = []
        try:
            for lock in self._locks:
                lock.acquire()
                taken.append(lock)
        except BaseException:  # a thread can be interrupted while it waits for a lock
            for lock in taken:
                lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lock in reversed(self._locks):
            lock.release()


class AllOf(BaseGate):
    """A composition; made by `all_of`."""

    def __init__(self, name: str, leaves: tuple[LeafGate, ...], on_violation: OnViolation) -> None:
        super().__init__(name, leaves, _Locks([leaf.lock for leaf in leaves]), on_violation)
        for leaf in leaves:
            leaf.add_composition(self)

    def _look(self, after: list[Waker], *, waits: bool) -> Sequence[Hold]:
        holds: list[Hold] = []
        for leaf in self._leaves:
            holds += leaf.poll_within(after, waits=waits)
        return tuple(holds)


def all_of(*gates: Gate, name: str | None = None, on_violation: OnViolation = log_violation) -> Gate:
    """Compose gates of this package into one.

    Raises:
        InvalidArguments: no gate, or something that is none of this package.
    """
    leaves: dict[int, LeafGate] = {}
    for gate in gates:
        if not isinstance(gate, BaseGate):
            raise InvalidArguments("all_of", f"takes the gates of holdfast.ready, not {gate!r}")
        leaves |= {leaf.number: leaf for leaf in gate.leaves}
    if not leaves:
        raise InvalidArguments("all_of", "needs a gate")
    ordered = tuple(leaves[number] for number in sorted(leaves))
    return AllOf(" & ".join(leaf.name for leaf in ordered) if name is None else name, ordered, on_violation)
