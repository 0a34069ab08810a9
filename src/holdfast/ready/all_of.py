"""Composition of several gates into one, open when all of them are. A share takes from all gates or from none.

- *Closed if any gate is closed.* Each hold of its gates is reported once. A waiting caller is Pending with the wake
  sources of the gates that hold it, and of no others. A gate that is open wakes no caller.
- *One timer.* It is set for the end of the last timed hold, because the composition cannot open before that.
- *All or none.* The check and the acquisition happen with the locks of all gates held. A gate may still refuse, if its
  ledger is shared with other processes. The shares of the other gates are then put back before any caller sees them.
- *Its gates are polled with it.* A gate that is used only in compositions still shows its state and its times.

Each composition has its own line, first come first served. There is no order between the lines of a gate and of its
compositions, except that a gate serves its own line first.

A composition of compositions consists of all their gates. A gate that is named twice is acquired once.
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


class _Locks:
    """Several locks, acquired in one order everywhere, so that two compositions cannot deadlock."""

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
    """A composition, created by `all_of`."""

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
    """Return a gate that is open when all these gates are.

    Args:
        gates: gates of this package.
        name: the name in counts and displays; by default the names of the gates, joined with ``&``.
        on_violation: called if the gate breaks its own contract.

    Raises:
        InvalidArguments: there is no gate, or one is not a gate of this package.
    """
    leaves: dict[int, LeafGate] = {}
    for gate in gates:
        if not isinstance(gate, BaseGate):
            raise InvalidArguments("all_of", f"takes gates of holdfast.ready, got {gate!r}")
        leaves |= {leaf.number: leaf for leaf in gate.leaves}
    if not leaves:
        raise InvalidArguments("all_of", "needs a gate")
    ordered = tuple(leaves[number] for number in sorted(leaves))
    return AllOf(" & ".join(leaf.name for leaf in ordered) if name is None else name, ordered, on_violation)
