"""All 22 edges of the table, each driven through real gates (S2).

A drive returns two readings that were reported one after the other. `slots` is a ConcurrencyGate, `budget` a
BudgetGate, `backoff` a BackoffGate, and `worker` all of them: which gate takes which edge stands in `DRIVES`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.ready import BackoffGate, BudgetGate, ConcurrencyGate, Gate, Reading, all_of
from support import spec
from support.gates import STRICT, Clock


class World:
    """One gate of each kind, and two compositions."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.slots = ConcurrencyGate(1, now=self.clock, on_violation=STRICT)
        self.budget = BudgetGate(1, per=10, now=self.clock, on_violation=STRICT)
        self.backoff = BackoffGate(1, trip_after=1, now=self.clock, on_violation=STRICT)
        self.worker = all_of(self.slots, self.budget, self.backoff, on_violation=STRICT)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def twice(self, gate: Gate, *between: Callable[[], object], waits: bool = False) -> list[Reading]:
        first = gate.poll_ready()
        for happens in between:
            happens()
        return [first, gate.poll_ready(self.wake if waits else None)]

    def waiting(self, gate: Gate, *between: Callable[[], object]) -> list[Reading]:
        """Poll until Pending, then go on."""
        while (first := gate.poll_ready(self.wake)).state != "pending":
            pass
        for happens in between:
            happens()
        return [first, gate.poll_ready()]

    def full(self) -> Callable[[], None]:
        share = self.slots.try_acquire()
        assert share is not None
        return share.release

    def spent(self) -> None:
        assert self.budget.try_spend(1)

    def half_open(self) -> None:
        self.backoff.retry_after(5)
        self.clock.advance(5)


def _ready_to_pending(world: World) -> list[Reading]:
    world.half_open()
    first = world.backoff.poll_ready()
    assert world.backoff.try_acquire(), "one goes through to try"
    return [first, world.backoff.poll_ready(world.wake)]


def _busy_to_ready(world: World) -> list[Reading]:
    return world.twice(world.slots, world.full())


def _busy_to_exhausted(world: World) -> list[Reading]:
    release = world.full()
    return world.twice(world.worker, release, world.spent)


def _busy_to_retry_after(world: World) -> list[Reading]:
    release = world.full()
    return world.twice(world.worker, release, lambda: world.backoff.retry_after(5))


def _exhausted(world: World) -> World:
    world.spent()
    return world


def _retry_after_to_busy(world: World) -> list[Reading]:
    world.backoff.retry_after(5)
    return world.twice(world.worker, world.full, lambda: world.clock.advance(5))


def _off(world: World) -> World:
    world.backoff.retry_after(5)
    return world


def _pending_to_busy(world: World) -> list[Reading]:
    release = world.full()
    return world.waiting(world.worker, release, world.full)


def _pending_to_exhausted(world: World) -> list[Reading]:
    release = world.full()
    return world.waiting(world.worker, world.spent, release)


def _pending_to_retry_after(world: World) -> list[Reading]:
    world.half_open()
    share = world.backoff.try_acquire()
    assert share
    return world.waiting(world.backoff, lambda: share.release(OSError("still down")))


def _full(world: World) -> World:
    world.full()
    return world


DRIVES: dict[tuple[str, str], Callable[[World], list[Reading]]] = {
    ("ready", "ready"): lambda world: world.twice(world.slots),
    ("ready", "busy"): lambda world: world.twice(world.slots, world.full),
    ("ready", "budget_exhausted"): lambda world: world.twice(world.budget, world.spent),
    ("ready", "retry_after"): lambda world: world.twice(world.backoff, world.backoff.failed),
    ("ready", "pending"): _ready_to_pending,
    ("busy", "ready"): _busy_to_ready,
    ("busy", "busy"): lambda world: _full(world).twice(world.slots),
    ("busy", "budget_exhausted"): _busy_to_exhausted,
    ("busy", "retry_after"): _busy_to_retry_after,
    ("busy", "pending"): lambda world: _full(world).twice(world.slots, waits=True),
    ("budget_exhausted", "ready"): lambda world: _exhausted(world).twice(world.budget, lambda: world.clock.advance(10)),
    ("budget_exhausted", "busy"): lambda world: _exhausted(world).twice(world.budget),
    ("budget_exhausted", "retry_after"): lambda world: _exhausted(world).twice(world.worker, world.backoff.failed),
    ("budget_exhausted", "pending"): lambda world: _exhausted(world).twice(world.budget, waits=True),
    ("retry_after", "ready"): lambda world: _off(world).twice(world.backoff, lambda: world.clock.advance(5)),
    ("retry_after", "busy"): _retry_after_to_busy,
    ("retry_after", "budget_exhausted"): lambda world: _off(world).twice(world.worker, world.spent),
    ("retry_after", "pending"): lambda world: _off(world).twice(world.backoff),
    ("pending", "ready"): lambda world: world.waiting(world.slots, world.full()),
    ("pending", "busy"): _pending_to_busy,
    ("pending", "budget_exhausted"): _pending_to_exhausted,
    ("pending", "retry_after"): _pending_to_retry_after,
}


@pytest.mark.parametrize("edge", DRIVES, ids=" → ".join)
def test_every_edge_is_driven_through_real_gates(edge: tuple[str, str]) -> None:
    world = World()
    first, second = DRIVES[edge](world)
    assert (first.state, second.state) == edge
    assert world.woken == (1 if edge[0] == "pending" else 0), "each waiter was woken once, and no other caller"


def test_the_drives_are_all_the_edges_there_are() -> None:
    assert set(DRIVES) == {edge for edge, legal in spec.READY_CELLS.items() if legal}
    assert len(DRIVES) == 22
