"""Every order in which threads can enter a gate's locked sections and call what came out of them (P7).

Each step is one locked section of the real gate, or the call of one waker or bell that it returned. If an order exists
after which a caller sleeps although a share is free, `explore` ends in a `Deadlock`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import pytest

from holdfast.ready import ConcurrencyGate, Share, Waker, WakeSource
from holdfast.ready.all_of import AllOf
from holdfast.ready.base_gate import BaseGate
from holdfast.ready.monitor import fire
from holdfast.testing import Actor, Deadlock, Outcome, explore
from support.gates import STRICT, Clock, Hand


class Scenario:
    """A holder that releases, tasks in line, one that gives up, a caller that polls, a change of the limit."""

    def __init__(self, make: Callable[[], tuple[ConcurrencyGate, BaseGate]]) -> None:
        self.leaf, self.gate = make()  # what is released, and what is waited for: the same, or a composition of it
        self.hands: dict[str, Hand] = {}
        self.woken: set[str] = set()
        self.done: dict[str, str] = {}
        self.saw: str = ""  # what the poller's last poll said
        self.in_flight: dict[str, list[str]] = {}
        share = self.leaf.try_acquire()
        assert share is not None
        self.first_share: Share = share

    def calls(self, actor: str, after: list[Waker]) -> Actor:
        """Call what came out of a locked section, one a step."""
        for position, waker in enumerate(after):
            self.in_flight[actor] = [self.name(later) for later in after[position:]]
            yield None
            yield from self.called(actor, waker)
        self.in_flight.pop(actor, None)

    def called(self, actor: str, waker: Any) -> Actor:
        """Take a call apart into its own locked section and what comes out of that."""
        if waker == self.gate._look_again:
            yield from self.calls(actor, self.gate._serve())
        else:
            fire([waker])

    def name(self, waker: Any) -> str:
        if isinstance(waker, partial):
            return next((hand.name for hand in self.hands.values() if hand in waker.args), "poller")
        return "line"

    def release(self, actor: str, share: Share) -> Actor:
        gate: Any = share._gate
        yield from self.calls(actor, gate._end(share, lambda leaf, receipt: leaf.release(receipt, None)))

    def holder(self) -> Actor:
        yield None
        yield from self.release("holder", self.first_share)

    def task(self, name: str) -> Actor:
        hand = self.hands[name] = Hand(name, lambda: self.woken.add(name))
        yield from self.calls(name, self.gate._join(hand))
        while hand.share is None:
            yield lambda: name in self.woken
            self.woken.discard(name)
        assert self.leaf.taken <= self.leaf.limit
        self.done[name] = "served"
        yield None
        yield from self.release(name, hand.share)

    def quitter(self, name: str) -> Actor:
        """Is cancelled at any moment after it joined: before or after it was served, rung or not."""
        hand = self.hands[name] = Hand(name, lambda: self.woken.add(name))
        yield from self.calls(name, self.gate._join(hand))
        yield None
        yield from self.calls(name, self.gate._leave(hand))
        self.done[name] = "gone"

    def poller(self) -> Actor:
        """Polls and waits as a worker would, until it has seen Ready."""

        def wake() -> None:
            self.woken.add("poller")

        while True:
            yield None
            after: list[Waker] = []
            with self.gate._locks:
                self.saw = self.gate._ask(after, partial(wake)).state
            yield from self.calls("poller", after)
            if self.saw == "ready":
                self.done["poller"] = "ready"
                return
            if self.saw == "pending":
                yield lambda: "poller" in self.woken
                self.woken.discard("poller")

    def look(self) -> None:
        assert self.leaf.taken <= self.leaf.limit
        assert self.gate._violations == self.leaf._violations == 0

    def state(self) -> Hashable:
        return (
            *(self.of_gate(gate) for gate in (self.leaf, self.gate)),
            self.leaf.taken,
            tuple(
                (hand.name, hand.share is None or hand.share.released, hand.share is None)
                for hand in self.hands.values()
            ),
            self.first_share.released,
            frozenset(self.woken),
            self.saw,
            tuple(sorted(self.done.items())),
            tuple((actor, tuple(names)) for actor, names in sorted(self.in_flight.items())),
        )

    def of_gate(self, gate: BaseGate) -> Hashable:
        interval = gate._monitor.interval
        return (
            gate._state,
            interval and (interval.sources, interval.woken),
            tuple(hand.name for hand in gate._line if isinstance(hand, Hand)),
            tuple(self.name(waker) for waker in gate._monitor._wakers),
            gate._reported,
            bool(gate._holds),
            gate._line_has_waker,
        )


def alone(kind: type[ConcurrencyGate]) -> tuple[ConcurrencyGate, BaseGate]:
    gate = kind(1, now=Clock(), on_violation=STRICT)
    gate.number = 0  # the same in every walk
    return gate, gate


def composed(kind: type[ConcurrencyGate]) -> tuple[ConcurrencyGate, BaseGate]:
    leaf, _ = alone(kind)
    other, _ = alone(kind)
    other.number = 1
    return leaf, AllOf("both", (leaf, other), STRICT)


def walk(
    make: Callable[[type[ConcurrencyGate]], tuple[ConcurrencyGate, BaseGate]],
    actors: Callable[[Scenario], dict[str, Actor]],
    kind: type[ConcurrencyGate] = ConcurrencyGate,
    *,
    merge: bool = True,
) -> Outcome:
    current: list[Scenario] = []

    def scenario() -> Mapping[str, Actor]:
        current[:] = [Scenario(lambda: make(kind))]
        return actors(current[0])

    def look() -> None:
        current[0].look()

    def state() -> Hashable:
        return current[0].state()

    return explore(scenario, look, state=state if merge else None)


def line(scenario: Scenario) -> dict[str, Actor]:
    return {
        "holder": scenario.holder(),
        "a": scenario.task("a"),
        "b": scenario.task("b"),
        "quitter": scenario.quitter("quitter"),
    }


def few(scenario: Scenario) -> dict[str, Actor]:
    return {"holder": scenario.holder(), "a": scenario.task("a"), "quitter": scenario.quitter("quitter")}


def poller(scenario: Scenario) -> dict[str, Actor]:
    return {"holder": scenario.holder(), "a": scenario.task("a"), "poller": scenario.poller()}


def line_and_poller(scenario: Scenario) -> dict[str, Actor]:
    return {
        "holder": scenario.holder(),
        "a": scenario.task("a"),
        "quitter": scenario.quitter("quitter"),
        "poller": scenario.poller(),
    }


def reload(scenario: Scenario) -> dict[str, Actor]:
    """Nobody releases; the limit is raised while others join and poll."""

    def raised() -> Actor:
        yield None
        after: list[Waker] = []
        with scenario.leaf.lock:
            scenario.leaf._limit = 2
            scenario.leaf.announce(WakeSource.CONFIG_RELOAD, after)
        yield from scenario.calls("reload", after)

    return {
        "reload": raised(),
        "a": scenario.task("a"),
        "poller": scenario.poller(),
    }


@pytest.mark.parametrize(
    ("make", "actors", "orders"),
    [
        (alone, line, 28_000),
        (alone, line_and_poller, 700_000),
        (alone, reload, 1_000),
        (composed, few, 300),
        (composed, poller, 1_000),
        (composed, reload, 1_000),
    ],
)
def test_no_order_leaves_anybody_asleep_at_an_open_gate_or_lets_too_many_in(
    make: Any, actors: Any, orders: int
) -> None:
    assert walk(make, actors).schedules > orders


@pytest.mark.parametrize("make", [alone, composed])
@pytest.mark.parametrize("actors", [few, poller, reload])
def test_merging_equal_states_covers_the_same_orders_as_walking_each_to_its_end(make: Any, actors: Any) -> None:
    merged, whole = walk(make, actors), walk(make, actors, merge=False)
    assert merged.schedules == whole.schedules
    assert merged.steps < whole.steps


class KeepsTheShareOfWhoLeft(ConcurrencyGate):
    """The seeded bug: a share served to a cancelled task is lost."""

    def _put_back(self, share: Share) -> list[Waker]:
        super()._put_back(share)
        self._taken += 1
        return []


class WakesBeforeItIsTrue(ConcurrencyGate):
    """The seeded bug: what makes a share free does not wake."""

    def release(self, receipt: object, error: BaseException | None) -> bool:
        super().release(receipt, error)
        return False


class ForgetsTheLine(ConcurrencyGate):
    """The seeded bug: the line has no waker of its own."""

    def _keep(self, waker: Any) -> None:
        if waker != self._look_again:
            super()._keep(waker)


@pytest.mark.parametrize("broken", [KeepsTheShareOfWhoLeft, WakesBeforeItIsTrue, ForgetsTheLine])
def test_the_explorer_catches_a_gate_that_leaves_somebody_asleep(broken: type[ConcurrencyGate]) -> None:
    with pytest.raises((Deadlock, RuntimeError)):
        walk(alone, line, broken)
