"""An oracle for the ticks of cron expressions: it walks UTC minute by minute and reads the local clock at each.

It shares nothing with the product but the time zone data. It knows no segments, gaps or folds: a gap is a local clock
that jumped forward since the minute before, and a fold is a local time that was or will be seen a second time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from zoneinfo import ZoneInfo

__all__ = ["EXPRESSIONS", "ZONES", "Rule", "days_around_changes", "oracle_ticks"]

ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata", "Asia/Tehran",
    "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "America/St_Johns", "Asia/Kathmandu", "Pacific/Chatham",
]  # fmt: skip
EXPRESSIONS = [
    "30 2 * * *",
    "0 0 * * *",
    "*/15 * * * *",
    "10,40 1,2,3 * * *",
    "5 * * * *",
    "45 23 * * 0,6",
    "0 2 31 * *",
]
MINUTE = dt.timedelta(minutes=1)
HOURS = 180  # minutes; no clock is set by more than this at once, but for days that a zone leaves out


@dataclass(frozen=True)
class Rule:
    """A cron expression with the policies for clock changes, as users write them; None is the default."""

    expression: str
    gap: str | None = None
    fold: str | None = None


def zone(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def days_around_changes(name: str, start: dt.datetime, end: dt.datetime) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """Yield the hours around each change of the offset, and one ordinary day of each year."""
    here, day, margin = zone(name), dt.timedelta(days=1), dt.timedelta(hours=3)
    at, number = start, 0
    while at + day <= end:
        if at.astimezone(here).utcoffset() != (at + day).astimezone(here).utcoffset():
            yield at - margin, at + day + margin
        elif number % 365 == 0:
            yield at, at + day
        at, number = at + day, number + 1


def oracle_ticks(name: str, rules: Iterable[Rule], start: dt.datetime, end: dt.datetime) -> dict[Rule, list[float]]:
    """Return the instants of each rule's ticks from `start` to before `end`, in UTC epoch seconds."""
    here = zone(name)
    first, count = int(start.timestamp()), int((end - start) / MINUTE)
    clock = [dt.datetime.fromtimestamp(first + 60 * n, here).replace(tzinfo=None) for n in range(-HOURS, count + HOURS)]
    ticks = {}
    for rule in rules:
        matcher = Matcher(rule.expression)
        places = [n for n in range(HOURS, HOURS + count) if _is_tick(rule, matcher, clock, n)]
        ticks[rule] = [float(first + 60 * (n - HOURS)) for n in places]
    return ticks


def _is_tick(rule: Rule, matcher: Matcher, clock: list[dt.datetime], n: int) -> bool:
    wall, before = clock[n], clock[n - 1]
    if matcher(wall):
        fold = rule.fold or ("both" if matcher.repeats else "first")
        others = () if fold == "both" else clock[n - HOURS : n] if fold == "first" else clock[n + 1 : n + 1 + HOURS]
        if wall.replace(fold=0) not in others:
            return True
    shifts = (rule.gap or ("" if matcher.repeats else "shift")) == "shift"
    skipped = int((wall - before) / MINUTE) if shifts else 0
    return any(matcher(before + MINUTE * m) for m in range(1, skipped))


class Matcher:
    """A cron expression of numbers, lists, steps and stars, read by hand."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.split()
        self.repeats = minute.startswith("*") or hour.startswith("*")
        self.minutes, self.hours = _numbers(minute, 60), _numbers(hour, 24)
        self.days, self.months, self.weekdays = _numbers(day, 32), _numbers(month, 13), _numbers(weekday, 8)

    def __call__(self, wall: dt.datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.day in self.days
            and wall.month in self.months
            and wall.isoweekday() % 7 in self.weekdays
        )


def _numbers(field: str, end: int) -> set[int]:
    if field.startswith("*"):
        return set(range(0, end, int(field[2:] or 1)))
    return {int(part) for part in field.split(",")}
