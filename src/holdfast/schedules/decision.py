"""The decisions about one schedule: what happens to each tick that is due, and what an operator's command does.

Pure: the row and the time are arguments. Runs are started, cancelled and looked at through `Runs`. A store calls this
inside the transaction that has locked the row. It writes the events, the row and the runs together. So a tick has one
outcome, and a fired tick has one run, whatever dies in between.

A tick that is due is handled in this order:

1. A time in a gap that is not shifted, or an exclusion: skipped.
2. A tick that is over `ON_TIME_SECONDS` late, or that a later due tick follows, is caught up or missed (`catch_up`).
3. While a run of the schedule is open: `overlap`.
4. Otherwise it is fired.

One decision handles at most `STEPS_MAX` ticks. The schedule stays due if there are more, and another transaction goes
on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from holdfast.errors import InvalidArguments, QueueFull
from holdfast.schedules import zones
from holdfast.schedules.calendar import Calendar, Occurrence, calendar_of
from holdfast.schedules.definition import Definition
from holdfast.schedules.schedule import (
    JobTemplate,
    Schedule,
    ScheduleEvent,
    ScheduleState,
    follow,
)
from holdfast.schedules.tick import Tick, instant, run_id, tick_json, tick_key

ON_TIME_SECONDS = 60.0  # a tick that is handled within this time after it was due is not late
STEPS_MAX = 100  # ticks in one decision
COUNTED_MAX = 1000  # ticks that are counted for a range; a longer range has no count
BACKFILL_MAX = 1000

FAILED = frozenset({"failed", "timeout"})


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a schedule starts: its id, its idempotency key, and its arguments with the tick."""

    id: str
    key: str
    schedule: str
    job: JobTemplate
    args: dict[str, Any]
    is_awaited: bool = False  # whether the schedule has something to do when it ends


class Runs(Protocol):
    """The runs of a schedule, as the transaction sees them."""

    def still_open(self, runs: Sequence[str]) -> list[str]:
        """Return those of these runs that have not ended, in order. A run that waits or is paused is open."""
        ...

    def start(self, run: NewRun) -> tuple[str, bool]:
        """Create a run, unless its key exists. Return its id, and whether it existed.

        Raises:
            QueueFull: the queue has reached its depth limit; nothing was created.
        """
        ...

    def cancel(self, run: str, reason: str) -> None:
        """Cancel a run, or ask it to cancel."""
        ...


class Decision:
    """The events of one decision about a schedule, and its row after them."""

    def __init__(self, row: Schedule | None, now: float, runs: Runs) -> None:
        self._row = row
        self._now = now
        self._runs = runs
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.started: list[str] = []
        self._missed: dict[str, Any] | None = None  # a range that is not written yet
        self._steps = 0
        self._wanted_calendar: tuple[Definition, Calendar] | None = None  # looked up once: it costs time

    @property
    def row(self) -> Schedule:
        """The row, updated to every event."""
        assert self._row is not None, "the schedule was declared"
        return self._row

    @property
    def _calendar(self) -> Calendar:
        definition = self.row.definition
        if self._wanted_calendar is None or self._wanted_calendar[0] is not definition:
            self._wanted_calendar = definition, calendar_of(definition)
        return self._wanted_calendar[1]

    # Declarations and commands

    def declare(self, payload: Mapping[str, Any], definition: Definition) -> None:
        """Create the schedule. Its first tick is the first one after now.

        Raises:
            InvalidArguments: it has no tick in the future. Of a declaration in code, such as one whose end has passed
                since, workers could not start any more: that schedule has ended.
        """
        first = calendar_of(definition).next(self._now)
        if first is None and payload["source"] != "code":
            raise InvalidArguments("schedule", "has no tick in the future: check its end, and its day and month")
        next_at = first.at if first is not None else None
        self._put(ScheduleEvent.DECLARED, {**payload, "next": next_at, "tzdata": zones.release()})
        if first is None:
            self._put(ScheduleEvent.ENDED, {"reason": "end"})

    def change(
        self, definition: Definition, job: JobTemplate, *, declared: str | None, build: str | None, by: str | None
    ) -> None:
        """Change the times or the job. Due ticks of the old definition that have no outcome yet are missed."""
        row = self.row
        if row.definition != definition and row.next is not None and row.next <= self._now:
            is_paused = row.state is ScheduleState.PAUSED
            kind = ScheduleEvent.SKIPPED if is_paused else ScheduleEvent.MISSED
            self._leave_out(kind, "paused" if is_paused else "changed", row.next)
        since = self._now if row.definition != definition else None
        following = calendar_of(definition).next(since) if since is not None else None
        next_at = row.next if since is None else following.at if following is not None else None
        fields = [
            name for name in Definition.__struct_fields__ if getattr(definition, name) != getattr(row.definition, name)
        ]
        fields += ["job"] if job != row.job else []
        counts_again = definition.remaining != row.definition.remaining
        payload = {
            "definition": msgspec.to_builtins(definition),
            "job": msgspec.to_builtins(job),
            "fields": fields,
            **_given(declared=declared, build=build, by=by, counts_again=counts_again or None),
        }
        self._put(ScheduleEvent.CHANGED, {**payload, "next": next_at, "tzdata": zones.release()})
        if self.row.next is None and self.row.state is not ScheduleState.ENDED:
            self._put(ScheduleEvent.ENDED, {"reason": "end"})

    def pause(self, reason: str, *, note: str | None = None, by: str | None = None) -> None:
        """Pause the schedule: from now on its ticks are skipped. A second pause changes the note."""
        if self.row.state is ScheduleState.ENDED:
            return
        self._put(ScheduleEvent.PAUSED, {"reason": reason, **_given(note=note, by=by)})

    def resume(self, *, by: str | None = None) -> None:
        """Resume a paused schedule with the first tick after now. The ticks of the pause are recorded as skipped."""
        row = self.row
        if row.state is not ScheduleState.PAUSED:
            return
        if row.next is not None and row.next <= self._now:
            self._leave_out(ScheduleEvent.SKIPPED, "paused", row.next)
        following = self._calendar.next(self._now)
        self._row = msgspec.structs.replace(self.row, failures=0)
        payload = {"next": following.at if following is not None else None, "tzdata": zones.release()}
        self._put(ScheduleEvent.RESUMED, {**payload, **_given(by=by)})
        if following is None:
            self._put(ScheduleEvent.ENDED, {"reason": "end"})
        else:
            self._fire_buffered()

    def _leave_out(self, kind: str, reason: str, first: float) -> None:
        """Record the ticks from one on, up to now, as a range."""
        calendar = self._calendar
        ticks = list(islice(calendar.between(first, self._now), COUNTED_MAX + 1))
        last = ticks[-1] if len(ticks) <= COUNTED_MAX else calendar.previous(self._now + 1e-3)
        if not ticks or last is None:  # other time zone data: there is no tick in the range
            return
        count = len(ticks) if len(ticks) <= COUNTED_MAX else None
        self._put(kind, {"reason": reason, "from": ticks[0].at, "to": last.at, "count": count})

    def fire_now(self, *, by: str | None = None, allow_overlap: bool = False) -> str:
        """Start a run now, outside of the ticks, and return its id.

        Raises:
            InvalidArguments: a run is open, and `overlap` does not allow a second one.
            QueueFull: the queue has reached its depth limit.
        """
        row = self.row
        running = self._open()
        if running and row.definition.overlap != "allow" and not allow_overlap:
            policy = f"overlap is {row.definition.overlap!r}: wait until the run has ended, or allow the overlap"
            text = f"the run {running[0]} is open, and {policy}"
            raise InvalidArguments(f"the schedule {row.id!r}", text)
        seed = f"{row.id}:{row.version + len(self.events)}"
        key = f"schedule:{row.id}:now:{run_id(seed, self._now)}"
        run, _ = self._start(self._now, key, seed, is_manual=True)
        self._put(ScheduleEvent.FIRED, {"manual": True, "job": run, **_given(by=by)})
        return run

    def backfill(self, start: float, end: float, *, by: str | None = None) -> dict[str, Any]:
        """Start a run for each tick of a range of the past. A tick that has a run keeps it.

        Raises:
            InvalidArguments: the range is not in the past, has no tick, or too many.
            QueueFull: the queue takes no run at all. If it takes some, the others are left.
        """
        ticks = backfill_ticks(self.row.definition, start, end, self._now)
        made: list[dict[str, Any]] = []
        existing: list[dict[str, Any]] = []
        for tick in ticks:
            try:
                run, existed = self._start_tick(tick.at, is_catch_up=True)
            except QueueFull:
                if not made and not existing:
                    raise
                break  # what was started stays, and a second backfill starts the rest
            (existing if existed else made).append({"nominal": tick.at, "job": run})
        left = len(ticks) - len(made) - len(existing)
        payload = {"from": start, "to": end, "fired": made, "existing": len(existing), "left": left, **_given(by=by)}
        self._put(ScheduleEvent.BACKFILLED, payload)
        return payload

    # Ticks

    def advance(self, ended: Sequence[tuple[str, str]] = ()) -> None:
        """Give every tick that is due its outcome, up to `STEPS_MAX`.

        Args:
            ended: the runs that have ended since the last time, in order, with their statuses.
        """
        if ended:
            self._count_failures(ended)
        if self.row.buffer:
            self._fire_buffered()
        while self._is_due():
            self._handle_due()
        self._flush_missed()

    def _is_due(self) -> bool:
        due_at = self.row.due_at if self._steps < STEPS_MAX else None
        return due_at is not None and due_at <= self._now

    def _count_failures(self, ended: Sequence[tuple[str, str]]) -> None:
        failures = self.row.failures
        for _, status in ended:
            failures = failures + 1 if status in FAILED else 0 if status == "succeeded" else failures
        self._row = msgspec.structs.replace(self.row, failures=failures)
        limit = self.row.definition.pause_after_failures
        if limit is not None and failures >= limit and self.row.state is ScheduleState.ACTIVE:
            runs = f"{failures} runs in a row have" if failures > 1 else "a run has"
            self.pause("failures", note=f"{runs} failed, the last is {ended[-1][0]}")

    def _fire_buffered(self) -> None:
        while self.row.buffer and self.row.state is not ScheduleState.PAUSED and not self._open():
            tick = self.row.buffer[0]
            if self.row.remaining == 0:
                self._put(ScheduleEvent.SKIPPED, {"nominal": tick.at, "reason": "remaining", "buffered": True})
            else:
                self._fire(tick.at, {"buffered": True, **_given(catch_up=tick.is_catch_up or None)})

    def _handle_due(self) -> None:
        """Give the ticks that are due their outcomes, until none is left, or something else has to come first."""
        row, calendar = self.row, self._calendar
        assert row.next is not None, "it is due"
        newest_at, every = self._now - row.definition.jitter_seconds, row.definition.every_seconds
        if every is not None and newest_at > row.next + every / 2 and row.definition.catch_up != "all":
            jump = calendar.newest_of_interval(newest_at)
            if jump is not None and jump[0] > row.next:
                self._miss_interval(calendar, row.next, jump)
                return
        ticks = Lookahead(calendar.after(row.next - 1e-3))
        first = ticks.peek(0)
        if first is None or first.at != row.next:  # computed with other time zone data
            self._recompute(first)
            return
        while self._is_due():
            tick = ticks.peek(0)
            assert tick is not None, "it is the next one"
            self._steps += 1
            self._handle(tick, ticks)
            ticks.pop()

    def _recompute(self, first: Occurrence | None) -> None:
        self._flush_missed()
        was = self.row.next
        payload = {"was": was, "next": first.at if first is not None else None, "tzdata": zones.release()}
        self._put(ScheduleEvent.RECOMPUTED, payload)
        if first is None:
            self._put(ScheduleEvent.ENDED, {"reason": "end"})

    def _miss_interval(self, calendar: Calendar, first: float, newest: tuple[float, int]) -> None:
        """Record all ticks of an interval but the newest due one as missed, without a walk over them."""
        at, number = newest
        count = number - calendar.number_of(first)
        before = calendar.previous(at)
        last = before.at if before is not None else first
        self._missed = {"from": first, "to": last, "count": count, "reason": self.row.definition.catch_up}
        self._steps += 1
        self._flush_missed(next_at=at)

    def _handle(self, tick: Occurrence, ticks: Lookahead) -> None:
        """Give one tick its outcome."""
        following = ticks.peek(1)
        after = {"next": following.at if following is not None else None, "tzdata": zones.release()}
        if not tick.runs:
            reason = "gap" if tick.mark == "skipped" else "excluded"
            self._outcome(ScheduleEvent.SKIPPED, tick, {"reason": reason}, after)
        elif self._is_late(tick, ticks):
            if self._is_caught_up(tick, ticks):
                self._on_turn(tick, after, is_catch_up=True)
            else:
                self._miss(tick, after)
        else:
            self._on_turn(tick, after, is_catch_up=False)
        if self.row.state is ScheduleState.ACTIVE and (following is None or self.row.remaining == 0):
            self._flush_missed()
            reason = "remaining" if self.row.remaining == 0 else "end"
            self._put(ScheduleEvent.ENDED, {"reason": reason, "next": None, "tzdata": zones.release()})

    def _is_late(self, tick: Occurrence, ticks: Lookahead) -> bool:
        return self._now - self.row.due_time(tick.at) > ON_TIME_SECONDS or self._is_superseded(ticks)

    def _is_superseded(self, ticks: Lookahead) -> bool:
        """Return whether a later tick that may start a run is due, too."""
        for place in range(1, COUNTED_MAX):
            later = ticks.peek(place)
            if later is None or self.row.due_time(later.at) > self._now:
                return False
            if later.runs:
                return True
        return True

    def _is_caught_up(self, tick: Occurrence, ticks: Lookahead) -> bool:
        definition = self.row.definition
        in_window = definition.window_seconds is None or self._now - tick.at <= definition.window_seconds
        if definition.catch_up == "last":
            return in_window and not self._is_superseded(ticks)
        return definition.catch_up == "all" and in_window

    def _miss(self, tick: Occurrence, after: dict[str, Any]) -> None:
        """Add a tick to the range of missed ones, which is written when another event follows."""
        if self._missed is None:
            self._missed = {"from": tick.at, "to": tick.at, "count": 0, "reason": self.row.definition.catch_up}
        self._missed |= {"to": tick.at, "count": self._missed["count"] + 1}
        self._row = msgspec.structs.replace(self.row, next=after["next"])

    def _flush_missed(self, next_at: float | None = None) -> None:
        if self._missed is not None:
            payload, self._missed = self._missed, None
            following = self.row.next if next_at is None else next_at
            self._put(ScheduleEvent.MISSED, {**payload, "next": following, "tzdata": zones.release()})

    def _outcome(self, kind: str, tick: Occurrence, payload: dict[str, Any], after: dict[str, Any]) -> None:
        self._flush_missed()
        clock_change = _given(mark=tick.mark or None, gap=list(tick.gap) or None)
        self._put(kind, {"nominal": tick.at, "local": tick.local, **payload, **clock_change, **after})

    def _on_turn(self, tick: Occurrence, after: dict[str, Any], *, is_catch_up: bool) -> None:
        """Fire a tick, or do what the overlap policy says while a run is open."""
        policy = self.row.definition.overlap
        running = self._open() if policy != "allow" else []
        if running and policy == "cancel_other":
            for run in running:
                self._runs.cancel(run, f"the schedule {self.row.id} has its next tick")
            running = self._open()
        if not running and (policy == "allow" or not self.row.buffer):
            self._flush_missed()
            fields = _given(mark=tick.mark or None, gap=list(tick.gap) or None, catch_up=is_catch_up or None)
            self._fire(tick.at, {"local": tick.local, **fields, **after})
            return
        size = {"buffer_one": 1, "cancel_other": 1, "buffer_all": self.row.definition.buffer}.get(policy, 0)
        if policy == "cancel_other" and self.row.buffer:
            old = self.row.buffer[0]
            self._flush_missed()
            detail = {"reason": "overlap", "detail": "a newer tick takes its place", "buffered": True}
            self._put(ScheduleEvent.SKIPPED, {"nominal": old.at, **detail})
        if len(self.row.buffer) < size:
            self._outcome(
                ScheduleEvent.BUFFERED, tick, _given(catch_up=is_catch_up or None, run=_first(running)), after
            )
        else:
            full = f"the buffer has {len(self.row.buffer)} ticks" if size else None
            detail = _given(run=_first(running), detail=full)
            self._outcome(ScheduleEvent.SKIPPED, tick, {"reason": "overlap", **detail}, after)

    def _fire(self, at: float, fields: dict[str, Any]) -> None:
        """Start the run of a tick, and record it."""
        is_catch_up = bool(fields.get("catch_up"))
        try:
            run, existed = self._start_tick(at, is_catch_up=is_catch_up)
        except QueueFull as refusal:
            detail = f"the queue {refusal.queue} has reached its depth of {refusal.depth}"
            self._put(ScheduleEvent.SKIPPED, {"nominal": at, "reason": "queue_full", "detail": detail, **fields})
            return
        self._put(ScheduleEvent.FIRED, {"nominal": at, "job": run, **_given(existing=existed or None), **fields})

    def _start_tick(self, at: float, *, is_catch_up: bool) -> tuple[str, bool]:
        key = tick_key(self.row.id, at)
        return self._start(at, key, key, is_catch_up=is_catch_up)

    def _start(
        self, at: float, key: str, seed: str, *, is_catch_up: bool = False, is_manual: bool = False
    ) -> tuple[str, bool]:
        row = self.row
        args = row.job.args
        if row.job.tick_argument is not None:  # most jobs have none, and the ticks around it cost time
            tick = self._tick(at, is_catch_up=is_catch_up, is_manual=is_manual)
            args = {**args, row.job.tick_argument: tick_json(tick)}
        awaited = row.definition.awaits_ends
        run = NewRun(id=run_id(seed, self._now), key=key, schedule=row.id, job=row.job, args=args, is_awaited=awaited)
        name, existed = self._runs.start(run)
        self.started.append(name)
        if row.definition.overlap != "allow":
            others = tuple(each for each in row.open if each != name)
            self._row = msgspec.structs.replace(row, open=(*others, name))
        return name, existed

    def _tick(self, at: float, *, is_catch_up: bool = False, is_manual: bool = False) -> Tick:
        before, after = self._calendar.previous(at), self._calendar.next(at)
        return Tick(
            schedule=self.row.id,
            nominal=instant(at),
            previous=instant(before.at) if before is not None else None,
            next=instant(after.at) if after is not None else None,
            is_catch_up=is_catch_up,
            is_manual=is_manual,
            tz=self.row.definition.tz,
        )

    def _open(self) -> list[str]:
        """Return the runs that have not ended. The newest run counts also if an operator has retried it."""
        row = self.row
        known = row.open if row.last_run is None or row.last_run in row.open else (*row.open, row.last_run)
        running = self._runs.still_open(known) if known else []
        self._row = msgspec.structs.replace(row, open=tuple(running))
        return running

    def _put(self, kind: str, payload: dict[str, Any]) -> None:
        self._row = follow(self._row, kind, payload, self._now)
        self.events.append((str(kind), payload))


class Lookahead:
    """Ticks in order, of which later ones can be looked at."""

    def __init__(self, ticks: Iterator[Occurrence]) -> None:
        self._ticks = ticks
        self._ahead: list[Occurrence] = []

    def peek(self, place: int) -> Occurrence | None:
        """Return the tick at a place, from 0; None if there is none."""
        while len(self._ahead) <= place:
            tick = next(self._ticks, None)
            if tick is None:
                return None
            self._ahead.append(tick)
        return self._ahead[place]

    def pop(self) -> None:
        """Go on to the next tick."""
        self._ahead = self._ahead[1:]


def backfill_ticks(definition: Definition, start: float, end: float, now: float) -> list[Occurrence]:
    """Return the ticks that a backfill of a range starts.

    Raises:
        InvalidArguments: the range is not in the past, has no tick, or too many.
    """
    if not start <= end <= now:
        raise InvalidArguments(
            "backfill", "needs a range of the past: start must not be after end, and end not after now"
        )
    ticks = [tick for tick in islice(calendar_of(definition).between(start, end), 2 * BACKFILL_MAX) if tick.runs]
    if not ticks:
        raise InvalidArguments(
            "backfill", "finds no tick in this range: see `holdfast schedules next NAME --around DATE`"
        )
    if len(ticks) > BACKFILL_MAX:
        raise InvalidArguments("backfill", f"may start {BACKFILL_MAX} runs at once: choose a shorter range")
    return ticks


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _first(runs: Sequence[str]) -> str | None:
    return runs[0] if runs else None
