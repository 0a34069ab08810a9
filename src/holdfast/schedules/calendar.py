"""The times of a schedule: which instants are ticks, in UTC, and how clock changes have moved them.

Cron expressions are matched with local times, segment by segment of a constant offset (`zones`):

- A local time that exists once is one tick.
- A local time in a fold exists twice. The policy `fold` takes the first, the last, or both.
- A local time in a gap does not exist. It is moved to the end of the gap, the first instant after it, or is skipped.
  Several that are moved to the same instant are one tick.

An expression that repeats within a day (its minute or hour begins with ``*``) keeps real time, as cron does: nothing is
moved, and both times of a fold count. Intervals do not depend on the local clock.

Instants grow strictly from tick to tick. That makes the instant the name of the tick.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile

import msgspec

from holdfast.schedules import cron, zones
from holdfast.schedules.definition import Definition
from holdfast.schedules.zones import Segment

AT_MAX = datetime(zones.YEAR_MAX, 1, 1, tzinfo=UTC).timestamp()
EPSILON_SECONDS = 1e-4  # to include an instant; ticks are at least a second apart
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the origin of local times, which have no zone here


class Occurrence(msgspec.Struct, frozen=True, gc=False):
    """One instant of a schedule.

    Attributes:
        at: the instant, in UTC epoch seconds.
        local: the local time, in ISO format with its offset.
        mark: what a clock change did: ``shifted`` from a gap, the ``first`` or ``last`` of two equal local times, or
            ``skipped``, a time in a gap that does not run. Empty for most.
        gap: the local times that do not exist and that belong to this instant.
        excluded: whether an exclusion matches.
    """

    at: float
    local: str
    mark: str = ""
    gap: tuple[str, ...] = ()
    excluded: bool = False

    @property
    def runs(self) -> bool:
        """Whether the tick may start a run."""
        return not self.excluded and self.mark != "skipped"


class Calendar:
    """The ticks of one definition. `calendar_of` returns it."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._dates = frozenset(entry for entry in definition.exclude if " " not in entry)
        self._expressions = tuple(entry for entry in definition.exclude if " " in entry)

    def after(self, at: float) -> Iterator[Occurrence]:
        """Yield the ticks later than an instant, in order, up to the end of the schedule."""
        first = max(at, self._definition.start - EPSILON_SECONDS) if self._definition.start is not None else at
        last = min(self._definition.end, AT_MAX) if self._definition.end is not None else AT_MAX
        found = self._from_interval(first) if self._definition.cron is None else self._from_cron(first)
        return takewhile(lambda tick: tick.at <= last, found)

    def next(self, at: float) -> Occurrence | None:
        """Return the first tick later than an instant; None if there is none."""
        return next(self.after(at), None)

    def at_or_after(self, at: float) -> Occurrence | None:
        """Return the first tick at an instant or later."""
        return self.next(at - EPSILON_SECONDS)

    def previous(self, at: float) -> Occurrence | None:
        """Return the last tick earlier than an instant; None if there is none within 50 years."""
        seconds = 600.0
        while seconds < 60 * 366 * zones.DAY_SECONDS:  # larger and larger ranges: the first with a tick has few
            last = None
            for last in takewhile(lambda tick: tick.at < at, self.after(at - seconds)):  # noqa: B007 - it is returned
                pass
            if last is not None:
                return last
            seconds *= 12
        return None

    def between(self, start: float, end: float) -> Iterator[Occurrence]:
        """Yield the ticks of a range of time, with both its ends."""
        return takewhile(lambda tick: tick.at <= end, self.after(start - EPSILON_SECONDS))

    def newest_of_interval(self, at: float) -> tuple[float, int] | None:
        """Return the last tick of an interval up to an instant, and its number; None if ticks must be walked."""
        every = self._definition.every_seconds
        if every is None or self._definition.exclude:
            return None
        last = min(at, self._definition.end) if self._definition.end is not None else at
        number = self._number(last)
        return self._instant(number), number

    def number_of(self, at: float) -> int:
        """Return the number of an interval's tick."""
        return self._number(at)

    # Intervals

    def _number(self, at: float) -> int:
        """Return the number of the last tick of an interval up to an instant."""
        every = self._definition.every_seconds or 1.0
        number = math.floor((at - self._definition.phase_seconds) / every)
        while self._instant(number + 1) <= at:  # floats: the division may be off by one
            number += 1
        while self._instant(number) > at:
            number -= 1
        return number

    def _instant(self, number: int) -> float:
        every = self._definition.every_seconds or 1.0
        return round(number * every + self._definition.phase_seconds, 6)

    def _from_interval(self, at: float) -> Iterator[Occurrence]:
        number = self._number(at)
        while True:
            number += 1
            instant = self._instant(number)
            if instant > AT_MAX:
                return
            yield self._occurrence(instant)

    # Cron

    def _from_cron(self, at: float) -> Iterator[Occurrence]:
        """Yield the ticks later than an instant, one segment after another."""
        if at >= AT_MAX:
            return
        part = zones.segment(self._definition.tz, at)
        found = self._in_segment(part, at)
        misses = 0
        while True:
            empty = True
            for tick in found:
                empty = False
                yield tick
            misses = misses + 1 if empty else 0
            if part.end >= AT_MAX or misses > 200:  # noqa: PLR2004 - segments: 50 years without a match
                return
            part = zones.segment(self._definition.tz, part.end)
            found = self._with_gap(part)

    def _in_segment(self, part: Segment, after: float) -> Iterator[Occurrence]:
        """Yield the ticks of a segment that are later than an instant, without those that only a gap makes."""
        rule = self._definition.fold_rule
        twice_until = part.start + part.before  # local times before this were in the segment before, too
        twice_from = part.end + part.after  # and these will be in the next one
        for local in self._locals(after + part.offset):
            at = local - part.offset
            if at >= part.end:
                return
            mark = "last" if local < twice_until else "first" if local >= twice_from else ""
            if not mark or rule in {mark, "both"}:
                yield self._occurrence(at, mark)

    def _with_gap(self, part: Segment) -> Iterator[Occurrence]:
        """Yield the ticks of a segment from its start on, with the local times that its start has skipped."""
        ticks = self._in_segment(part, part.start - 1)
        gap = self._gap(part)
        if not gap:
            yield from ticks
            return
        first = next(ticks, None)
        if first is not None and first.at == part.start:
            yield msgspec.structs.replace(first, gap=gap)
        else:
            mark = "shifted" if self._definition.shifts_gaps else "skipped"
            yield msgspec.structs.replace(self._occurrence(part.start, mark), gap=gap)
            if first is not None:
                yield first
        yield from ticks

    def _gap(self, part: Segment) -> tuple[str, ...]:
        """Return the local times that match and that the start of a segment has skipped."""
        if part.before >= part.offset or not (self._definition.shifts_gaps or self._definition.skips_gaps):
            return ()
        skipped = takewhile(lambda local: local < part.start + part.offset, self._locals(part.start + part.before - 1))
        return tuple(_naive(local).isoformat() for local in skipped)

    def _locals(self, after: float) -> Iterator[float]:
        """Yield the local times that match, later than a local time; as seconds since a local epoch."""
        assert self._definition.cron is not None, "only a cron expression has local times"
        for match in cron.matches_after(self._definition.cron, _naive(after)):
            yield (match - _EPOCH).total_seconds()

    def _occurrence(self, at: float, mark: str = "") -> Occurrence:
        text = _local_text(self._definition.tz, at)
        if not self._definition.exclude:
            return Occurrence(at, text, mark)
        local = zones.local_time(self._definition.tz, at)
        return Occurrence(at, text, mark, excluded=self._is_excluded(local.replace(tzinfo=None, fold=0)))

    def _is_excluded(self, local: datetime) -> bool:
        minute = local.replace(second=0, microsecond=0)
        return local.date().isoformat() in self._dates or any(cron.matches(each, minute) for each in self._expressions)


def _naive(local: float) -> datetime:
    return _EPOCH + timedelta(seconds=math.floor(local))


@lru_cache(maxsize=4096)  # many schedules have a tick at the same time
def _local_text(tz: str, at: float) -> str:
    return zones.local_time(tz, at).isoformat()


@lru_cache(maxsize=16384)
def calendar_of(definition: Definition) -> Calendar:
    """Return the calendar of a definition."""
    return Calendar(definition)


def delay_seconds(schedule: str, at: float, jitter_seconds: float) -> float:
    """Return the delay of a tick: the same in every process, and different for each schedule and tick."""
    if not jitter_seconds:
        return 0.0
    digest = hashlib.sha256(f"{schedule}\0{at!r}".encode()).digest()
    return round(int.from_bytes(digest[:8], "big") / 2**64 * jitter_seconds, 6)
