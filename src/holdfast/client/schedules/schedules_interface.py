"""Schedules at run time: `app.schedules`, with an async and a blocking form of each operation.

An app implements the operations on its store (`StoreSchedules`), a remote client on an HTTP server. A schedule is named
by its name in the app, or by ``app.name``.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.interface import Client, blocking
from holdfast.errors import InvalidArguments
from holdfast.machines import Event
from holdfast.schedules.outcome import TickOutcome
from holdfast.schedules.schedule import Schedule, SchedulePause

if TYPE_CHECKING:
    from holdfast.authoring.functions import JobFunction

LISTED = 100  # schedules of a page
HISTORY = 50  # events of a page
NAME_MAX = 100  # characters of a name


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Times are UTC epoch seconds.

    Attributes:
        id: ``app.name``.
        app: The app that it belongs to.
        name: Its name in the app.
        job: The job that its ticks start, as ``app.job``.
        args: The arguments of its runs, without the tick.
        state: ``active``, ``paused`` or ``ended``.
        options: The options that define it, as in ``@app.schedule``.
        text: Its times in words.
        next: When the next tick is due by the definition. None if there is none, or the schedule is paused.
        due_at: When the next tick starts its run: `next`, and the delay of the tick if the schedule has a jitter.
        last: The newest tick that has an outcome.
        last_run: Its newest run.
        open_runs: The runs that had not ended when the schedule was last looked at.
        buffered: How many ticks wait for open runs to end.
        remaining: How many ticks may still start a run. None is without limit.
        failures: How many of its newest runs in a row have failed, if `pause_after_failures` is set.
        pause: Why it is paused, since when, and by whom.
        source: ``code`` if an app declares it, ``api`` if it was created at run time.
        build: The build that has declared it.
        tzdata: The release of the time zone data that `next` was computed with.
        has_worker: Whether a live worker can run its job. None if that was not looked up.
        created_at: When it was created.
        updated_at: When its newest event was written.
        version: The number of its events.
        outcomes: What happened to its newest ticks, newest first. None if that was not asked for.
    """

    id: str
    app: str
    name: str
    job: str
    args: dict[str, Any]
    state: str
    options: dict[str, Any]
    text: str
    next: float | None
    due_at: float | None
    last: float | None
    last_run: str | None
    open_runs: list[str]
    buffered: int
    remaining: int | None
    failures: int
    pause: SchedulePause | None
    source: str
    build: str | None
    tzdata: str
    has_worker: bool | None
    created_at: float
    updated_at: float
    version: int
    outcomes: list[TickOutcome] | None = None


class TickTime(msgspec.Struct, frozen=True):
    """A tick of the past or the future.

    Attributes:
        at: The instant, in UTC epoch seconds.
        local: The local time, with its offset.
        utc: The time in UTC.
        mark: What a clock change did: ``shifted``, ``skipped``, ``first`` or ``last``. Empty for most.
        gap: The local times that do not exist and that this tick stands for.
        excluded: Whether an exclusion matches, so that the tick starts no run.
    """

    at: float
    local: str
    utc: str
    mark: str = ""
    gap: list[str] = []
    excluded: bool = False


class Backfill(msgspec.Struct, frozen=True):
    """The result of a backfill. A dry run starts none.

    Attributes:
        ticks: The ticks of the range.
        started: The runs that were started, in the order of their ticks.
        existing: How many ticks had a run.
        left: How many ticks were left because the queue is full. A second backfill starts them.
    """

    ticks: list[TickTime]
    started: list[str]
    existing: int = 0
    left: int = 0


class Schedules(ABC):
    """The schedules of a client. Each operation has an async form with the prefix ``a``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @abstractmethod
    async def acreate(
        self,
        name: str,
        job: JobFunction[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        actor: str | None = None,
        **options: Any,
    ) -> ScheduleInfo:
        """Create a schedule.

        Args:
            name: Its name, which no other schedule of the app has.
            job: The job that its ticks start, or the name of the job.
            args: The arguments of the runs. A parameter of the type `Tick` gets the tick.
            actor: The name of the operator or program that creates it.
            options: The times and policies, as in ``@app.schedule``.

        Raises:
            InvalidArguments: An option or an argument is not valid.
            ScheduleExists: Another schedule has the name.
        """

    @abstractmethod
    async def alist(
        self, *, after: str | None = None, limit: int = LISTED, outcomes: int = 0
    ) -> builtins.list[ScheduleInfo]:
        """List the schedules of the store by id, from after the given one.

        Args:
            after: The id of a schedule.
            limit: How many schedules to list.
            outcomes: For how many of its newest ticks each schedule says what happened to them.
        """

    @abstractmethod
    async def aget(self, name: str, *, outcomes: int = 0) -> ScheduleInfo:
        """Return a schedule, with what happened to so many of its newest ticks.

        Raises:
            UnknownSchedule: No schedule has this name.
        """

    @abstractmethod
    async def ahistory(self, name: str, *, before: int | None = None, limit: int = HISTORY) -> builtins.list[Event]:
        """Return the events of a schedule, newest first, from before the given number."""

    @abstractmethod
    async def aticks(
        self, name: str, *, around: datetime | str | None = None, limit: int = 10
    ) -> builtins.list[TickTime]:
        """Return the next ticks of a schedule, or the ticks around a day.

        Args:
            name: The schedule.
            around: A day, as a datetime or text such as ``"2026-10-25"``. The ticks of that day, the day before and
                the day after are returned, whatever their outcome was or will be.
            limit: How many ticks to return.
        """

    @abstractmethod
    async def achange(
        self,
        name: str,
        *,
        job: JobFunction[..., Any] | str | None = None,
        args: Mapping[str, Any] | None = None,
        actor: str | None = None,
        **options: Any,
    ) -> ScheduleInfo:
        """Change a schedule. Options that are not given stay as they are; None resets an option.

        A declaration in code that changes later replaces the change.
        """

    @abstractmethod
    async def apause(self, name: str, note: str | None = None, *, actor: str | None = None) -> ScheduleInfo:
        """Pause a schedule. Its ticks are skipped until it is resumed. Open runs go on."""

    @abstractmethod
    async def aresume(self, name: str, *, actor: str | None = None) -> ScheduleInfo:
        """Resume a paused schedule with its next tick."""

    @abstractmethod
    async def afire(self, name: str, *, allow_overlap: bool = False, actor: str | None = None) -> str:
        """Start a run now, outside of the ticks, and return its id.

        Args:
            name: The schedule.
            allow_overlap: Start it although a run of the schedule is open.
            actor: The name of the operator or program.

        Raises:
            InvalidArguments: A run is open, and the schedule does not allow overlaps.
        """

    @abstractmethod
    async def abackfill(
        self,
        name: str,
        start: datetime | str,
        end: datetime | str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Backfill:
        """Start a run for each tick of a range of the past. A tick that has a run keeps it.

        Args:
            name: The schedule.
            start: The first instant, as a datetime or text in ISO format. Without an offset it is in the time zone of
                the schedule.
            end: The last instant.
            dry_run: Only return the ticks.
            actor: The name of the operator or program.
        """

    @abstractmethod
    async def adelete(self, name: str, *, actor: str | None = None) -> None:
        """Delete a schedule with its history. Its runs stay."""

    @abstractmethod
    async def aexplain(self, name: str, at: datetime | str | None = None) -> str:
        """Return in words what a schedule does now, or what happened to its tick at a time."""

    create = blocking(acreate)
    list = blocking(alist)
    get = blocking(aget)
    history = blocking(ahistory)
    ticks = blocking(aticks)
    change = blocking(achange)
    pause = blocking(apause)
    resume = blocking(aresume)
    fire = blocking(afire)
    backfill = blocking(abackfill)
    delete = blocking(adelete)
    explain = blocking(aexplain)


def checked_schedule_name(name: object) -> str:
    """Return the name of a schedule.

    Raises:
        InvalidArguments: It is not a name.
    """
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not all(map(_fits, name)):
        text = f"must be 1 to {NAME_MAX} letters, digits, '-', '_' or ':', got {name!r:.60}"
        raise InvalidArguments("the name of a schedule", text)
    return name


def _fits(character: str) -> bool:
    return character.isalnum() or character in "-_:"


def info_of(
    row: Schedule, *, has_worker: bool | None = None, outcomes: list[TickOutcome] | None = None
) -> ScheduleInfo:
    """Return what users see of a schedule's row."""
    from holdfast.schedules.definition import options_of  # noqa: PLC0415 - a remote client needs no calendar

    return ScheduleInfo(
        id=row.id,
        app=row.plugin,
        name=row.name,
        job=f"{row.job.plugin}.{row.job.entry}",
        args=row.job.args,
        state=row.state.value,
        options=options_of(row.definition),
        text=row.definition.text(),
        next=row.next if row.due_at is not None else None,
        due_at=row.due_at,
        last=row.last,
        last_run=row.last_run,
        open_runs=[*row.open],
        buffered=len(row.buffer),
        remaining=row.remaining,
        failures=row.failures,
        pause=row.pause,
        source=row.source,
        build=row.build,
        tzdata=row.tzdata,
        has_worker=has_worker,
        created_at=row.created_at,
        updated_at=row.updated_at,
        version=row.version,
        outcomes=outcomes,
    )
