"""Every order in which a few actors can take their steps, tried one after the other.

An actor is a generator. It runs from one ``yield`` to the next without interruption: a step. Between steps any other
actor may run. ``yield`` means "go on whenever"; ``yield condition`` means "not before ``condition()`` is true".

`explore` runs a scenario under every schedule there is. Nothing is random and nothing is a thread, so a failure is one
schedule, and the same schedule fails again. If at some point every actor that is left waits for a condition that is
false, nobody will ever go on: that is a `Deadlock`, which is how a lost wake shows.

The scenario is built anew for each schedule (stateless exploration): a choice stack is counted upwards like the digits
of a number until every branch was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

__all__ = ["Deadlock", "Outcome", "Schedule", "explore"]

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
    """What an exploration covered."""

    schedules: int
    steps: int


def explore(
    scenario: Callable[[], Mapping[str, Actor]],
    after_each_step: Callable[[], None] = lambda: None,
    *,
    schedules_max: int = 1_000_000,
) -> Outcome:
    """Run `scenario` under every schedule.

    Args:
        scenario: builds fresh actors by name; called once per schedule.
        after_each_step: looks at what the actors share, and raises if it is wrong.
        schedules_max: a bound, so that a scenario grown too large says so instead of running for ever.

    Raises:
        Deadlock: a schedule after which somebody waits for ever.
        AssertionError: the bound was passed; or whatever an actor or `after_each_step` raises, with the schedule
            added to it as a note.
    """
    choices: list[tuple[int, int]] = []  # at each step: the branch taken, and how many there were
    schedules = steps = 0
    while True:
        schedules += 1
        if schedules > schedules_max:
            raise AssertionError(f"more than {schedules_max} schedules: make the scenario smaller")
        steps += _run(scenario(), choices, after_each_step)
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return Outcome(schedules, steps)
        branch, width = choices.pop()
        choices.append((branch + 1, width))


def _run(actors: Mapping[str, Actor], choices: list[tuple[int, int]], after_each_step: Callable[[], None]) -> int:
    """Run one schedule: along `choices` as far as they go, then always the first branch, which is added to them."""
    waiting: dict[str, Condition | None] = dict.fromkeys(actors)
    schedule: list[str] = []
    while waiting:
        able = [name for name, condition in waiting.items() if condition is None or condition()]
        if not able:
            raise Deadlock(tuple(schedule), sorted(waiting))
        depth = len(schedule)
        if depth == len(choices):
            choices.append((0, len(able)))
        name = able[choices[depth][0]]
        schedule.append(name)
        try:
            waiting[name] = next(actors[name])
        except StopIteration:
            del waiting[name]
        except BaseException as error:
            error.add_note(f"in the schedule {' → '.join(schedule)}")
            raise
        try:
            after_each_step()
        except BaseException as error:
            error.add_note(f"after the schedule {' → '.join(schedule)}")
            raise
    return len(schedule)
