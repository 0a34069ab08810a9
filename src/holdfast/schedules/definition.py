"""The definition of a schedule: its times and its policies, as one frozen, checked value.

`define` takes what users write, and refuses what cannot work, with what to do. The definition is stored as JSON. Its
fields carry their units, so a stored definition needs no parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

import msgspec

from holdfast.durations import Duration, seconds
from holdfast.errors import InvalidArguments
from holdfast.schedules import cron as cron_expressions
from holdfast.schedules import zones

OVERLAP = ("skip", "buffer_one", "buffer_all", "allow", "cancel_other")
CATCH_UP = ("none", "last", "all")
GAP = ("shift", "skip")
FOLD = ("first", "last", "both")
EVERY_SECONDS_MIN = 1.0
BUFFER_MAX = 1000
EXCLUSIONS_MAX = 1000
COUNT_MAX = 1_000_000_000
OPTIONS = (
    "cron", "every", "phase", "jitter", "tz", "exclude", "start", "end", "remaining", "overlap", "buffer", "catch_up",
    "window", "gap", "fold", "pause_after_failures",
)  # fmt: skip


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """The times and policies of a schedule. `define` makes it.

    Attributes:
        cron: five fields, in local time. None: the schedule has an interval.
        every_seconds: the interval. Its ticks are multiples of it since 1970-01-01 UTC, plus the phase.
        phase_seconds: see above.
        jitter_seconds: the longest delay of a tick. The delay follows from the schedule and the time of the tick.
        tz: the time zone of `cron`, and of the exclusions.
        exclude: cron expressions and dates. A tick at such a local time is skipped.
        start: the earliest tick, in UTC epoch seconds.
        end: the latest tick.
        remaining: how many ticks may start a run.
        overlap: what happens to a tick while a run of the schedule is open.
        buffer: the size of the buffer of ``buffer_all``.
        catch_up: what happens to ticks that were due while no worker ran.
        window_seconds: how old a tick may be that is caught up.
        gap: what happens to a local time that does not exist. None: ``shift``; silent if `cron` repeats in a day.
        fold: which of two equal local times counts. None: ``first``; ``both`` if `cron` repeats in a day.
        pause_after_failures: how many failed runs in a row pause the schedule.
    """

    cron: str | None = None
    every_seconds: float | None = None
    phase_seconds: float = 0.0
    jitter_seconds: float = 0.0
    tz: str = "UTC"
    exclude: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None
    remaining: int | None = None
    overlap: str = "skip"
    buffer: int = 100
    catch_up: str = "last"
    window_seconds: float | None = None
    gap: str | None = None
    fold: str | None = None
    pause_after_failures: int | None = None

    @property
    def awaits_ends(self) -> bool:
        """Whether the end of a run changes something at once: a buffered tick may fire, or failures are counted."""
        return self.overlap in {"buffer_one", "buffer_all", "cancel_other"} or self.pause_after_failures is not None

    @property
    def skips_gaps(self) -> bool:
        """Whether a local time in a gap is recorded as skipped."""
        return self.gap == "skip"

    @property
    def shifts_gaps(self) -> bool:
        """Whether a local time in a gap is moved to the end of the gap."""
        fixed = self.cron is not None and not cron_expressions.is_repeating(self.cron)
        return self.gap == "shift" or (self.gap is None and fixed)

    @property
    def fold_rule(self) -> str:
        """Which of two equal local times counts: first, last or both."""
        repeating = self.cron is not None and cron_expressions.is_repeating(self.cron)
        return self.fold or ("both" if repeating else "first")

    def text(self) -> str:
        """Return the times in words, such as ``cron 30 2 * * * in Europe/Berlin``."""
        times = f"cron {self.cron}" if self.cron is not None else f"every {_duration_text(self.every_seconds or 0.0)}"
        phase = f" + {_duration_text(self.phase_seconds)}" if self.phase_seconds else ""
        return f"{times}{phase}" if self.cron is None and self.tz == "UTC" else f"{times}{phase} in {self.tz}"


def define(**options: Any) -> Definition:
    """Check the options of a schedule, and return its definition.

    Args:
        options: any of `OPTIONS`. ``cron`` or ``every`` is required. Durations are seconds, timedeltas or text such as
            ``"15m"``. ``start`` and ``end`` are datetimes, or text in ISO format. A time without an offset is in `tz`.

    Raises:
        InvalidArguments: an option is unknown, or has an invalid value. The message says what to do.
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise InvalidArguments(
            "schedule", f"unknown options {', '.join(unknown)}; valid options are {', '.join(OPTIONS)}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    if ("cron" in given) == ("every" in given):
        raise InvalidArguments("schedule", "needs either cron='30 2 * * *' or every='15m', and not both")
    tz = _zone(given.get("tz", "UTC"))
    definition = Definition(
        cron=cron_expressions.checked("cron", given["cron"]) if "cron" in given else None,
        every_seconds=_every(given["every"]) if "every" in given else None,
        phase_seconds=_seconds("phase", given.get("phase", 0)),
        jitter_seconds=_seconds("jitter", given.get("jitter", 0)),
        tz=tz,
        exclude=_exclusions(given.get("exclude", ())),
        start=_instant("start", given.get("start"), tz),
        end=_instant("end", given.get("end"), tz),
        remaining=_count("remaining", given.get("remaining"), COUNT_MAX),
        overlap=_choice("overlap", given.get("overlap", "skip"), OVERLAP),
        buffer=_count("buffer", given.get("buffer", 100), BUFFER_MAX) or 0,
        catch_up=_choice("catch_up", given.get("catch_up", "last"), CATCH_UP),
        window_seconds=_seconds("window", given["window"]) if "window" in given else None,
        gap=_choice("gap", given["gap"], GAP) if "gap" in given else None,
        fold=_choice("fold", given["fold"], FOLD) if "fold" in given else None,
        pause_after_failures=_count("pause_after_failures", given.get("pause_after_failures"), COUNT_MAX),
    )
    _check_together(definition, given)
    return definition


def options_of(definition: Definition) -> dict[str, Any]:
    """Return the options that make this definition, as JSON values; `define` takes them."""
    names = {"every_seconds": "every", "phase_seconds": "phase", "jitter_seconds": "jitter", "window_seconds": "window"}
    usual = Definition()
    fields = {name: getattr(definition, name) for name in Definition.__struct_fields__}
    options = {names.get(name, name): value for name, value in fields.items() if value != getattr(usual, name)}
    for name in ("start", "end"):
        if name in options:
            options[name] = zones.local_time(definition.tz, options[name]).isoformat()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _check_together(definition: Definition, given: dict[str, Any]) -> None:
    """Refuse options that do not work with each other."""
    every = definition.every_seconds
    if every is None and "phase" in given:
        raise InvalidArguments(
            "phase", "moves the ticks of an interval: give it with every, or change the cron expression"
        )
    if every is not None and definition.phase_seconds >= every:
        raise InvalidArguments(
            "phase", f"must be less than every ({_duration_text(every)}), got {given['phase']!r:.60}"
        )
    if every is not None and (definition.gap or definition.fold):
        name = "gap" if definition.gap else "fold"
        raise InvalidArguments(name, "is about local times: an interval keeps real time, so leave it out, or give cron")
    if definition.start is not None and definition.end is not None and definition.end < definition.start:
        raise InvalidArguments("end", f"must not be before start, got {given['start']!s:.60} and {given['end']!s:.60}")
    if "buffer" in given and definition.overlap != "buffer_all":
        raise InvalidArguments("buffer", f"belongs to overlap='buffer_all', and overlap is {definition.overlap!r}")
    if "window" in given and definition.catch_up == "none":
        raise InvalidArguments("window", "belongs to catch_up='last' or 'all', and catch_up is 'none'")


def _zone(tz: object) -> str:
    if not isinstance(tz, str):
        raise InvalidArguments("tz", f"must be the name of a time zone, such as 'Europe/Berlin', got {tz!r:.60}")
    zones.zone(tz)
    return tz


def _every(every: Duration) -> float:
    interval = _seconds("every", every)
    if interval < EVERY_SECONDS_MIN:
        raise InvalidArguments("every", f"must be one second or more, got {every!r:.60}")
    return interval


def _seconds(name: str, duration: Duration) -> float:
    try:
        return seconds(duration)
    except ValueError as error:
        raise InvalidArguments(name, str(error)) from None


def _choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidArguments(name, f"must be one of {', '.join(choices)}, got {value!r:.60}")
    return value


def _count(name: str, value: object, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidArguments(name, f"must be an integer from 1 to {most}, got {value!r:.60}")
    return value


def _instant(name: str, value: object, tz: str) -> float | None:
    """Return a point in time in UTC epoch seconds."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        at = None
    if not isinstance(at, datetime):
        example = "a datetime, or text such as '2026-11-30T12:00' or '2026-11-30T12:00+01:00'"
        raise InvalidArguments(name, f"must be {example}, got {value!r:.60}")
    try:
        return (at if at.tzinfo is not None else at.replace(tzinfo=zones.zone(tz))).timestamp()
    except (OverflowError, ValueError) as error:
        raise InvalidArguments(name, f"is out of range: {error}, got {value!r:.60}") from None


def _exclusions(given: object) -> tuple[str, ...]:
    """Return exclusions as text: dates in ISO format, and cron expressions."""
    entries = [given] if isinstance(given, (str, date)) else given
    if not isinstance(entries, Iterable):
        raise InvalidArguments("exclude", f"must be a list of dates and cron expressions, got {given!r:.60}")
    excluded: list[str] = []
    for entry in entries:
        if len(excluded) == EXCLUSIONS_MAX:
            raise InvalidArguments("exclude", f"may have {EXCLUSIONS_MAX} entries: use cron expressions for many dates")
        excluded.append(_exclusion(entry))
    return tuple(excluded)


def _exclusion(entry: object) -> str:
    if isinstance(entry, date) and not isinstance(entry, datetime):
        return entry.isoformat()
    if isinstance(entry, str) and " " not in entry.strip() and not entry.strip().startswith("@"):
        try:
            return date.fromisoformat(entry.strip()).isoformat()
        except ValueError:
            text = f"must be dates such as '2026-12-25' or cron expressions such as '* * 25 12 *', got {entry!r:.60}"
            raise InvalidArguments("exclude", text) from None
    return cron_expressions.checked("exclude", entry)


def _duration_text(value: float) -> str:
    """Return a duration as short text, such as ``1h30m``."""
    units = (("d", 86400), ("h", 3600), ("m", 60))
    text, rest = "", value
    for unit, size in units:
        whole, rest = divmod(rest, size)
        text += f"{int(whole)}{unit}" if whole else ""
    return f"{text}{rest:g}s" if rest or not text else text
