"""What the commands about schedules do in a transaction, for every backend.

A backend implements `ScheduleTable`: it locks rows, reads and writes. `holdfast.schedules.decision` decides. The
events, the row and the runs of one decision are written together.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import InvalidArguments, ScheduleExists, UnknownSchedule
from holdfast.machines import TERMINAL_JOB_STATES, Event
from holdfast.machines.event import freeze, freeze_plain, seal_frozen, vouch
from holdfast.schedules.decision import Decision, NewRun
from holdfast.schedules.schedule import Schedule, ScheduleEvent, ScheduleState, follow, stream_of
from holdfast.schedules.tick import tick_key
from holdfast.store import commands as c
from holdfast.store import schedule_commands as s
from holdfast.store.continuation import current
from holdfast.store.rows import Job

_PLAIN = frozenset({ScheduleEvent.FIRED, ScheduleEvent.SKIPPED, ScheduleEvent.MISSED})  # of plain values, and often
REMOVED = "removed"  # the reason of a pause: the newest build does not declare the schedule


class ScheduleTable(ABC):
    """The schedules of a store, inside one transaction."""

    @abstractmethod
    def time(self) -> float:
        """Return the time of the transaction, read after the locks."""

    @abstractmethod
    def lock_schedule(self, schedule: str) -> Schedule | None:
        """Lock a schedule and read its row."""

    @abstractmethod
    def lock_due_schedules(self, limit: int) -> list[Schedule]:
        """Lock schedules that are due or have ended runs, and read their rows. Those that others have locked are left.

        Ended runs of schedules that were deleted are dropped.
        """

    @abstractmethod
    def lock_declarations(self, plugin: str) -> dict[str, int]:
        """Lock out other declarations of an app; return the numbers of the builds that have declared schedules."""

    @abstractmethod
    def put_build(self, plugin: str, build: str, number: int) -> None:
        """Write the number of a build."""

    @abstractmethod
    def schedules_of(self, plugin: str) -> list[Schedule]:
        """Lock and read all schedules of an app, by id."""

    @abstractmethod
    def take_ended(self, schedules: Sequence[str]) -> list[s.EndedRun]:
        """Remove and return the ended runs of schedules, in the order in which they have ended."""

    @abstractmethod
    def put_schedule(self, row: Schedule, events: list[tuple[Event, bytes]], *, wakes: bool) -> None:
        """Write a row with the new events of its stream. `wakes`: a worker may have to look earlier than it thinks."""

    @abstractmethod
    def drop_schedule(self, schedule: str) -> None:
        """Remove a row, its stream and its ended runs."""

    @abstractmethod
    def expect_runs(self, submits: Sequence[tuple[str, str, str]], queues: Sequence[str]) -> None:
        """Prepare for new runs: look for their keys (plugin, entry, key), and lock queues that have a maximum depth."""

    @abstractmethod
    def runs_at(self, names: Sequence[str]) -> Mapping[str, Job]:
        """Read rows of jobs as the transaction sees them, without a lock. A job that was removed is left out."""

    @abstractmethod
    def start_run(self, command: c.Submit) -> tuple[str, bool]:
        """Create a job under its idempotency key; return its id, and whether it existed.

        Raises:
            QueueFull: the queue has reached its depth limit.
        """

    @abstractmethod
    def cancel_run(self, job: str, reason: str) -> None:
        """Cancel a job."""


class _Runs:
    """The runs of one schedule, for a decision."""

    def __init__(self, table: ScheduleTable) -> None:
        self._table = table

    def still_open(self, runs: Sequence[str]) -> list[str]:
        rows = self._table.runs_at(runs)
        return [name for name in runs if name in rows and not self._has_ended(rows[name])]

    def _has_ended(self, job: Job) -> bool:
        """Return whether a job has ended, or the newest of those that continue it."""
        newest = current(job, lambda name: self._table.runs_at([name]).get(name))
        return newest.state in TERMINAL_JOB_STATES

    def start(self, run: NewRun) -> tuple[str, bool]:
        return self._table.start_run(submission_of(run, self._table.time()))

    def cancel(self, run: str, reason: str) -> None:
        self._table.cancel_run(run, reason)


def ends_run(job: Job) -> bool:
    """Return whether a job that has just changed has ended for its schedule: nothing continues it."""
    return job.state in TERMINAL_JOB_STATES and job.course.continued_as is None


def submission_of(run: NewRun, now: float) -> c.Submit:
    """Return the command that creates the run of a tick."""
    job = run.job
    return c.Submit(
        job=run.id,
        plugin=job.plugin,
        entry=job.entry,
        args=run.args,
        queue=job.queue,
        priority=job.priority,
        deadline=now + job.deadline_seconds if job.deadline_seconds else None,
        max_attempts=job.max_attempts,
        idempotency_key=run.key,
        fingerprint=run.key,
        attributes=job.attributes,
        group=job.group,
        budget=job.budget,
        plan=job.plan,
        schedule=run.schedule,
        tells_schedule=run.is_awaited or None,
    )


def schedule_answer(table: ScheduleTable, command: Any) -> Any:
    """Execute a command about schedules."""
    return _HANDLERS[type(command)](table, command)


def _advance(table: ScheduleTable, command: s.Advance) -> s.Advanced:
    rows = table.lock_due_schedules(command.limit)
    if not rows:
        return s.Advanced([], [])
    ended: dict[str, list[tuple[str, str]]] = {row.id: [] for row in rows}
    for run in table.take_ended([row.id for row in rows]):
        ended[run.schedule].append((run.job, run.status))
    table.runs_at([name for row in rows for name in {*row.open, row.last_run} if name is not None])  # read at once
    _expect_runs(table, rows)
    runs: list[str] = []
    for row in rows:
        decision = Decision(row, table.time(), _Runs(table))
        try:
            decision.advance(ended[row.id])
        except InvalidArguments as error:  # the time zone data of this process do not know the zone
            decision = Decision(row, table.time(), _Runs(table))
            decision.pause("error", note=str(error))
        _write(table, row, decision)
        runs += decision.started
    return s.Advanced([row.id for row in rows], runs)


def _expect_runs(table: ScheduleTable, rows: Sequence[Schedule]) -> None:
    due = [row for row in rows if row.due_at is not None and row.next is not None and row.due_at <= table.time()]
    keys = [(row.job.plugin, row.job.entry, tick_key(row.id, row.next)) for row in due if row.next is not None]
    table.expect_runs(keys, sorted({row.job.queue for row in rows}))


def _create(table: ScheduleTable, command: s.CreateSchedule) -> Schedule:
    existing = table.lock_schedule(f"{command.plugin}.{command.name}")
    if existing is not None:
        raise ScheduleExists(existing.id)
    return _declare(table, command, {"source": "api", **_given(by=command.actor)})


def _declare(table: ScheduleTable, command: s.CreateSchedule | s.Declaration, fields: dict[str, Any]) -> Schedule:
    payload = {
        "name": command.name,
        "definition": msgspec.to_builtins(command.definition),
        "job": msgspec.to_builtins(command.template),
        "plugin": getattr(command, "plugin", None),
        **fields,
    }
    decision = Decision(None, table.time(), _Runs(table))
    decision.declare(payload, command.definition)
    return _write(table, None, decision)


def _about_one(
    decide: Callable[[Decision, Any], Any],
) -> Callable[[ScheduleTable, Any], Any]:
    """Return a handler of a command about one schedule. It returns the decision's answer, or else the new row."""

    def handle(table: ScheduleTable, command: Any) -> Any:
        row = table.lock_schedule(command.schedule)
        if row is None:
            raise UnknownSchedule(command.schedule)
        decision = Decision(row, table.time(), _Runs(table))
        answer = decide(decision, command)
        written = _write(table, row, decision)
        return written if answer is None else answer

    return handle


def _change(decision: Decision, command: s.ChangeSchedule) -> None:
    row = decision.row
    if (command.definition, command.template) != (row.definition, row.job):
        decision.change(command.definition, command.template, declared=row.declared, build=row.build, by=command.actor)


def _pause(decision: Decision, command: s.PauseSchedule) -> None:
    decision.pause("operator", note=command.note, by=command.actor)


def _resume(decision: Decision, command: s.ResumeSchedule) -> None:
    decision.resume(by=command.actor)


def _fire(decision: Decision, command: s.FireSchedule) -> s.FiredRun:
    return s.FiredRun(decision.fire_now(by=command.actor, allow_overlap=command.allow_overlap))


def _backfill(decision: Decision, command: s.BackfillSchedule) -> dict[str, Any]:
    return decision.backfill(command.start, command.end, by=command.actor)


def _delete(table: ScheduleTable, command: s.DeleteSchedule) -> Schedule:
    row = table.lock_schedule(command.schedule)
    if row is None:
        raise UnknownSchedule(command.schedule)
    table.drop_schedule(row.id)
    return row


def _declare_all(table: ScheduleTable, command: s.DeclareSchedules) -> s.Declared:
    numbers = table.lock_declarations(command.plugin)
    build = command.build or ""
    newest = max(numbers, key=lambda name: numbers[name], default=None)
    if build in numbers and newest != build:
        return s.Declared(newer=newest)
    known = {row.name: row for row in table.schedules_of(command.plugin)}
    for declaration in command.declarations:  # before anything is written: a refusal changes nothing
        if declaration.name in known and known[declaration.name].source != "code":
            raise ScheduleExists(known[declaration.name].id)
    if build not in numbers:
        table.put_build(command.plugin, build, max(numbers.values(), default=0) + 1)
    done = s.Declared([], [], [], [])
    for declaration in command.declarations:
        _declare_one(table, command, declaration, known.pop(declaration.name, None), done)
    for row in known.values():
        if row.source == "code" and row.state is ScheduleState.ACTIVE:
            decision = Decision(row, table.time(), _Runs(table))
            by = f"the build {command.build}" if command.build is not None else "the newest code"
            decision.pause(REMOVED, note=f"{by} does not declare it")
            _write(table, row, decision)
            done.paused.append(row.name)
    return done


def _declare_one(
    table: ScheduleTable,
    command: s.DeclareSchedules,
    declaration: s.Declaration,
    row: Schedule | None,
    done: s.Declared,
) -> None:
    declared = hashlib.sha256(msgspec.json.encode(declaration, order="sorted")).hexdigest()
    if row is None:
        fields = {"source": "code", "plugin": command.plugin, "declared": declared, **_given(build=command.build)}
        _declare(table, declaration, fields)
        done.created.append(declaration.name)
        return
    decision = Decision(row, table.time(), _Runs(table))
    if row.declared != declared:
        decision.change(declaration.definition, declaration.template, declared=declared, build=command.build, by=None)
        done.changed.append(row.name)
    if row.pause is not None and row.pause.reason == REMOVED:
        decision.resume()
        done.resumed.append(row.name)
    _write(table, row, decision)


_HANDLERS: dict[type, Callable[[ScheduleTable, Any], Any]] = {
    s.Advance: _advance,
    s.CreateSchedule: _create,
    s.DeclareSchedules: _declare_all,
    s.ChangeSchedule: _about_one(_change),
    s.PauseSchedule: _about_one(_pause),
    s.ResumeSchedule: _about_one(_resume),
    s.FireSchedule: _about_one(_fire),
    s.BackfillSchedule: _about_one(_backfill),
    s.DeleteSchedule: _delete,
}
SCHEDULE_COMMANDS = tuple(_HANDLERS)


def _write(table: ScheduleTable, before: Schedule | None, decision: Decision) -> Schedule:
    """Write the events of a decision and the row after them; return the row."""
    row, at = decision.row, table.time()
    stream = stream_of(row.id)
    seq, head = (before.version, before.head) if before is not None else (0, row.head)
    sealed = []
    for kind, payload in decision.events:
        frozen, plain = (freeze_plain(payload), payload) if kind in _PLAIN else freeze(payload)
        seq += 1
        event = seal_frozen(stream, seq, head, kind, frozen, at=at, attempt=None, payload=plain)
        head = vouch(event).hash if seq == 1 else event.hash
        sealed.append((event, frozen.text))
    if sealed:
        row = msgspec.structs.replace(row, version=seq, head=head, updated_at=at)
    if row != before:
        due, was = row.due_at, before.due_at if before is not None else None
        table.put_schedule(row, sealed, wakes=due is not None and (was is None or due < was))
    return row


def rebuilt_schedule(row: Schedule, events: Sequence[Event]) -> Schedule | None:
    """Return a schedule's row, new again from its stream. The fields about the present are copied."""
    again: Schedule | None = None
    for event in events:
        again = follow(again, event.type, event.payload, event.at)
        again = msgspec.structs.replace(again, version=event.seq, head=event.hash)
    return msgspec.structs.replace(again, open=row.open, failures=row.failures) if again is not None else None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
