"""Every order in which a few actors can take their steps, tried one after the other.

An actor is a generator. It runs from one ``yield`` to the next without interruption: a step. Between steps any other
actor may run. ``yield`` means "go on whenever"; ``yield condition`` means "not before ``condition()`` is true".

`explore` covers every schedule there is. Nothing is random and nothing is a thread, so a failure is one schedule, and
the same schedule fails again. If at some point every actor that is left waits for a condition that is false, nobody
will ever go on: that is a `Deadlock`, which is how a lost wake shows.

The scenario is built anew for each schedule, and a stack of choices is counted upwards like the digits of a number
until every branch was taken. Orders grow with the factorial of the steps, so a scenario may also say what state it is
in: where two schedules meet in one state, what follows is walked once and counted for both. That is sound only if the
state holds everything that what follows depends on, the actors' own variables included.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass

__all__ = ["Actor", "Deadlock", "Outcome", "Schedule", "explore"]

Condition = Callable[[], bool]
Actor = Generator[Condition | None, None, None]
Schedule = tuple[str, ...]


class Deadlock(AssertionError):
    """Actors are left that wait for something nobody will do any more."""

    def __init__(self, schedule: Schedule, stuck: list[str]) -> None:
        self.schedule = schedule
        self.stuck = stuck
        super().__init__(f"after {' → '.join(schedule)}: {', '.join(stuck)} waits for ever")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an exploration covered: so many different orders, walked in so many steps."""

    schedules: int
    steps: int


@dataclass(slots=True)
class _Fork:
    """A point where one of several actors goes on: the branch being walked, of how many, and orders counted so far."""

    key: Hashable
    width: int
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
        scenario: builds fresh actors by name; called once per walk.
        after_each_step: looks at what the actors share, and raises if it is wrong.
        state: everything that what follows depends on, apart from how far each actor is, which is added to it.
            Without it every schedule is walked to its end.
        walks_max: a bound, so that a scenario grown too large says so instead of running for ever.

    Raises:
        Deadlock: a schedule after which somebody waits for ever.
        AssertionError: the bound was passed; or whatever an actor or `after_each_step` raises, with the schedule
            added to it as a note.
    """
    forks: list[_Fork] = []
    known: dict[Hashable, int] = {}  # for each state whose future was walked whole: how many orders it holds
    steps = 0
    for _ in range(walks_max):
        walk = _Walk(scenario(), after_each_step)
        found = _follow(walk, forks, known, state)
        steps += len(walk.schedule)
        while forks:
            forks[-1].schedules += found
            forks[-1].branch += 1
            if forks[-1].branch < forks[-1].width:
                break
            done = forks.pop()
            found = done.schedules
            if state is not None:
                known[done.key] = found
        else:
            return Outcome(found, steps)
    raise AssertionError(f"more than {walks_max} walks: make the scenario smaller or give it a state")


def _follow(
    walk: _Walk, forks: list[_Fork], known: Mapping[Hashable, int], state: Callable[[], Hashable] | None
) -> int:
    """Walk along `forks`, then on by first branches, to the end or to a known state; return the orders found there."""
    while walk.waiting:
        able = walk.able()
        depth = len(walk.schedule)
        if depth == len(forks):
            key = (state(), walk.progress()) if state is not None else None
            if state is not None and key in known:
                return known[key]
            forks.append(_Fork(key, len(able)))
        walk.step(able[forks[depth].branch])
    return 1


class _Walk:
    """One schedule being walked."""

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

    def step(self, name: str) -> None:
        self.schedule.append(name)
        self._taken[name] += 1
        try:
            self.waiting[name] = next(self._actors[name])
        except StopIteration:
            del self.waiting[name]
        except BaseException as error:
            error.add_note(f"in the schedule {' → '.join(self.schedule)}")
            raise
        try:
            self._look()
        except BaseException as error:
            error.add_note(f"after the schedule {' → '.join(self.schedule)}")
            raise
