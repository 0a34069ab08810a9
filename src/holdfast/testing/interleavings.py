"""Exploration of every order in which a few actors can take their steps.

An actor is a generator. It runs from one ``yield`` to the next without interruption: a step. Any other actor may run
between two steps. ``yield`` means that the actor can go on at any time. ``yield condition`` means that it can go on
only when ``condition()`` is true.

`explore` covers every schedule. It uses no randomness and no threads, so a failure is one schedule, which fails again.
If every remaining actor waits for a condition that is false, none can go on. That is a `Deadlock`, which is how a lost
wake shows.

The scenario is built again for each schedule. A stack of choices counts upwards, like the digits of a number, until
every branch was taken. The number of orders grows with the factorial of the steps. So a scenario may describe its
state: where two schedules reach the same state, the rest is walked once and counted for both. That is correct only if
the state includes everything that later steps depend on, also the actors' own variables.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass

__all__ = ["Actor", "Deadlock", "Outcome", "Schedule", "explore"]

Condition = Callable[[], bool]
Actor = Generator[Condition | None, None, None]
Schedule = tuple[str, ...]


class Deadlock(AssertionError):
    """Every remaining actor waits for a condition that no actor will make true."""

    def __init__(self, schedule: Schedule, stuck: list[str]) -> None:
        self.schedule = schedule
        self.stuck = stuck
        super().__init__(f"after {' → '.join(schedule)}: {', '.join(stuck)} waits for ever")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The size of an exploration: the number of different orders, and of steps walked."""

    schedules: int
    steps: int


@dataclass(slots=True)
class _Fork:
    """A point where one of several actors goes on: those that can, which one does, and orders so far."""

    key: Hashable
    able: list[str]
    branch: int = 0
    schedules: int = 0


def explore(
    scenario: Callable[[], Mapping[str, Actor]],
    after_each_step: Callable[[], None] = lambda: None,
    *,
    state: Callable[[], Hashable] | None = None,
    walks_max: int = 1_000_000,
) -> Outcome:
    """Cover every schedule of `scenario`.

    Args:
        scenario: builds new actors by name; called once per walk.
        after_each_step: checks what the actors share, and raises if it is wrong. Steps that schedules begin with in
            common are checked once.
        state: returns everything that later steps depend on, except the progress of each actor, which is added.
            Without it every schedule is walked to its end.
        walks_max: the largest number of walks, so that a scenario that is too large fails instead of running on.

    Returns:
        The numbers of orders and steps covered.

    Raises:
        Deadlock: after a schedule, no actor can go on.
        AssertionError: there are more than `walks_max` walks. Errors of an actor or of `after_each_step` are raised
            unchanged, with the schedule added as a note.
    """
    forks: list[_Fork] = []
    known: dict[Hashable, int] = {}  # for each fully explored state: the number of orders from it
    steps = 0
    for _ in range(walks_max):
        walk = _Walk(scenario(), after_each_step)
        orders = _follow(walk, forks, known, state)
        steps += len(walk.schedule)
        while forks:
            forks[-1].schedules += orders
            forks[-1].branch += 1
            if forks[-1].branch < len(forks[-1].able):
                break
            done = forks.pop()
            orders = done.schedules
            if state is not None:
                known[done.key] = orders
        else:
            return Outcome(orders, steps)
    raise AssertionError(f"more than {walks_max} walks: make the scenario smaller or give it a state")


def _follow(
    walk: _Walk, forks: list[_Fork], known: Mapping[Hashable, int], state: Callable[[], Hashable] | None
) -> int:
    """Walk along `forks`, then by first branches, to the end or to a known state. Return the orders found there.

    All forks but the last go where they went before. Those steps were checked then, so they are only taken again.
    """
    for fork in forks[:-1]:
        walk.step(fork.able[fork.branch], look=False)
    if forks:
        walk.step(forks[-1].able[forks[-1].branch])
    while walk.waiting:
        able = walk.able()
        key = (state(), walk.progress()) if state is not None else None
        if state is not None and key in known:
            return known[key]
        forks.append(_Fork(key, able))
        walk.step(able[0])
    return 1


class _Walk:
    """One schedule in progress."""

    def __init__(self, actors: Mapping[str, Actor], after_each_step: Callable[[], None]) -> None:
        self.waiting: dict[str, Condition | None] = dict.fromkeys(actors)
        self.schedule: list[str] = []
        self._actors = actors
        self._look = after_each_step
        self._taken = dict.fromkeys(actors, 0)

    def able(self) -> list[str]:
        able = [name for name, condition in self.waiting.items() if condition is None or condition()]
        if not able:
            raise Deadlock(tuple(self.schedule), sorted(self.waiting))
        return able

    def progress(self) -> Hashable:
        return tuple((taken, name in self.waiting) for name, taken in self._taken.items())

    def step(self, name: str, *, look: bool = True) -> None:
        self.schedule.append(name)
        self._taken[name] += 1
        try:
            self.waiting[name] = next(self._actors[name])
        except StopIteration:
            del self.waiting[name]
        except BaseException as error:
            error.add_note(f"in the schedule {' → '.join(self.schedule)}")
            raise
        if not look:
            return
        try:
            self._look()
        except BaseException as error:
            error.add_note(f"after the schedule {' → '.join(self.schedule)}")
            raise
