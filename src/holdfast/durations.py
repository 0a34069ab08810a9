"""Durations: seconds, a timedelta, or text such as "3d", "1h30m", "250ms"."""

from __future__ import annotations

import math
import re
from datetime import date, timedelta

Duration = float | int | str | timedelta

LONGEST_SECONDS = 100 * 366 * 86400.0  # a hundred years: longer times overflow clocks

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
TEXT_MAX = 50  # characters of a duration as text
_NUMBER = r"[0-9]++(?:\.[0-9]++)?"  # possessive: linear time
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|d|w)")
_TEXT = re.compile(rf"(?>(?:{_NUMBER}(?:ms|s|m|h|d|w))+)")  # atomic


def seconds(duration: Duration) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: it is not a duration, is negative or infinite, or is more than a hundred years.
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        value = _parsed(duration)
    else:
        value = _number(duration)
    if math.isnan(value) or value < 0:
        raise ValueError(f"a duration is seconds, 0 or more, a timedelta, or text such as '3d', got {duration!r:.60}")
    if value > LONGEST_SECONDS:
        raise ValueError(f"a duration must be at most a hundred years, got {duration!r:.60}")
    return value


def _number(duration: object) -> float:
    if isinstance(duration, date):
        message = "a duration is not a point in time: pass the time until then, as in when - datetime.now(UTC)"
        raise ValueError(message)  # noqa: TRY004 - as for every other value that is not a duration
    try:
        return math.nan if isinstance(duration, bool) else float(duration)  # type: ignore[arg-type]  # - any number
    except TypeError:
        return math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if isinstance(duration, int) and duration > 0 else -math.inf


def _parsed(text: str) -> float:
    compact = text.replace(" ", "") if len(text) <= TEXT_MAX else ""
    if not _TEXT.fullmatch(compact):
        raise ValueError(f"{text!r:.60} is not a duration: use text such as '90s', '1h30m', '3d' or '250ms'")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(compact))
