"""The commands about schedules, and their results. Each is one decision in one transaction (`schedule_writes`).

`Advance` is the command of workers. It needs no leader: it locks the schedules that are due, and gives their ticks
their outcomes. The row of a schedule has its next tick, so a tick that another transaction has handled is no longer
there. The other commands are those of operators and of code that declares schedules.
"""

from __future__ import annotations

import msgspec

from holdfast.schedules.definition import Definition
from holdfast.schedules.schedule import JobTemplate


class Advance(msgspec.Struct, frozen=True):
    """Handle the ticks that are due, and the runs that have ended, of up to `limit` schedules. Result: `Advanced`."""

    limit: int = 100


class Advanced(msgspec.Struct, frozen=True):
    """The schedules that were looked at, and the runs that were started, in order."""

    schedules: list[str]
    runs: list[str]


class CreateSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Create a schedule. Result: its `Schedule`, or `ScheduleExists`."""

    plugin: str
    name: str
    definition: Definition
    template: JobTemplate
    actor: str | None = None


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as code declares it."""

    name: str
    definition: Definition
    template: JobTemplate


class DeclareSchedules(msgspec.Struct, frozen=True):
    """Make the schedules of an app as its code declares them. Result: `Declared`.

    Builds are ordered by their first declaration. A build that is older than another one changes nothing. A schedule
    that the newest build no longer declares is paused, and is resumed when a build declares it again. A declaration
    that has not changed since the last one leaves alone what an operator has changed.
    """

    plugin: str
    build: str | None
    declarations: tuple[Declaration, ...]


class Declared(msgspec.Struct, frozen=True):
    """What declarations have changed: the names of schedules. `newer` is the newer build that has declared before."""

    created: list[str] = []
    changed: list[str] = []
    paused: list[str] = []
    resumed: list[str] = []
    newer: str | None = None


class ChangeSchedule(msgspec.Struct, frozen=True):
    """Change the definition or the job of a schedule. Result: the `Schedule`, or `UnknownSchedule`."""

    schedule: str
    definition: Definition
    template: JobTemplate
    actor: str | None = None


class PauseSchedule(msgspec.Struct, frozen=True):
    """Pause a schedule. Result: the `Schedule`, or `UnknownSchedule`. Open runs go on."""

    schedule: str
    note: str | None = None
    actor: str | None = None


class ResumeSchedule(msgspec.Struct, frozen=True):
    """Resume a paused schedule with its next tick. Result: the `Schedule`, or `UnknownSchedule`."""

    schedule: str
    actor: str | None = None


class FireSchedule(msgspec.Struct, frozen=True):
    """Start a run of a schedule now. Result: `FiredRun`, or `InvalidArguments` if a run is open."""

    schedule: str
    actor: str | None = None
    allow_overlap: bool = False


class FiredRun(msgspec.Struct, frozen=True):
    """The run that was started."""

    job: str


class BackfillSchedule(msgspec.Struct, frozen=True):
    """Start the runs of ticks of the past. Result: the payload of the event, or `InvalidArguments`."""

    schedule: str
    start: float
    end: float
    actor: str | None = None


class DeleteSchedule(msgspec.Struct, frozen=True):
    """Remove a schedule with its history. Result: the `Schedule` as it was, or `UnknownSchedule`. Its runs stay."""

    schedule: str
    actor: str | None = None


ScheduleCommand = (
    Advance
    | CreateSchedule
    | DeclareSchedules
    | ChangeSchedule
    | PauseSchedule
    | ResumeSchedule
    | FireSchedule
    | BackfillSchedule
    | DeleteSchedule
)


class EndedRun(msgspec.Struct, frozen=True, gc=False):
    """A run of a schedule that has ended, and that the schedule has not taken note of yet."""

    schedule: str
    job: str
    status: str
