"""The report of crashes at every commit of a job: a table, and the case with the shortest history that failed."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.machines import Event
from holdfast.testing.faulty_store import MODES

WIDTH = 44  # of the column that says what a commit writes


class CrashFailure(AssertionError):
    """A crash made a job do something wrong."""


class Case(msgspec.Struct, frozen=True):
    """What one commit that went wrong in one way led to.

    Attributes:
        commit: the number of the commit, from 1.
        mode: the way in which it went wrong.
        outcome: ``"same"``, ``"asks"`` or ``"not reached"``.
        problems: what must not be; empty if all is well.
        history: the events of the run, if there are problems.
    """

    commit: int
    mode: str
    outcome: str
    problems: list[str]
    history: list[Event]


class CrashReport(msgspec.Struct, frozen=True):
    """What crashes at every commit of a job led to. Its text is a table.

    Attributes:
        job: the name of the job.
        commits: what each commit of the clean run wrote, in order.
        cases: the outcome of each case.
        compared: whether two clean runs had the same result, so that results can be compared.
    """

    job: str
    commits: list[str]
    cases: list[Case]
    compared: bool

    @property
    def failures(self) -> list[Case]:
        """The cases with problems, those with the shortest histories first."""
        return sorted((case for case in self.cases if case.problems), key=lambda case: len(case.history))

    def __str__(self) -> str:
        found = {(case.commit, case.mode): "FAILED" if case.problems else case.outcome for case in self.cases}
        lines = [f"{'':3} {'commit':{WIDTH}} " + " ".join(f"{mode:12}" for mode in MODES)]
        for number, text in enumerate(self.commits, 1):
            short = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
            cells = " ".join(f"{found.get((number, mode), ''):12}" for mode in MODES)
            lines.append(f"{number:3} {short:{WIDTH}} {cells}".rstrip())
        if not self.compared:
            lines.append("Two clean runs had different results, so the results were not compared.")
        return "\n".join(lines)

    def told(self, args: tuple[Any, ...], kwargs: dict[str, Any], signals: dict[str, Any]) -> str:
        """Describe the failure with the shortest history, and how to run it alone."""
        case = self.failures[0]
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        given += [f"signals={signals!r}"] if signals else []
        alone = ", ".join([self.job, *given, f"only=({case.commit}, {case.mode!r})"])
        history = [f"  {event.seq:3} {event.type} {_subject(event)}".rstrip() for event in case.history]
        problems = "; ".join(case.problems)
        return "\n".join(
            [
                f"{case.mode} at commit {case.commit}: {problems}",
                "",
                str(self),
                "",
                "history of that run:",
                *history,
                "",
                f"to run it alone: lab.crash_everywhere({alone})",
            ]
        )


def _subject(event: Event) -> str:
    names = ("node", "key", "correlation_key", "code")
    return str(next((event.payload[name] for name in names if event.payload.get(name) is not None), ""))
