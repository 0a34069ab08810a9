"""Durations: seconds, a timedelta, or text such as "3d", "1h30m", "250ms"."""

from __future__ import annotations

import math
import re
from datetime import timedelta

__all__ = ["LONGEST_SECONDS", "Duration", "seconds"]

Duration = float | int | str | timedelta

LONGEST_SECONDS = 100 * 366 * 86400.0  # a hundred years: longer times overflow clocks

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


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
        value = float(duration) if not isinstance(duration, bool) else math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"a duration is seconds, 0 or more, a timedelta, or text such as '3d', got {duration!r}")
    if value > LONGEST_SECONDS:
        raise ValueError(f"a duration is a hundred years at most, got {duration!r:.60}")
    return value


def _parsed(text: str) -> float:
    compact = text.replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is no duration: use text such as '90s', '1h30m', '3d' or '250ms'")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
