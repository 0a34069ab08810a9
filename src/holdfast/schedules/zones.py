"""Time zones from the `tzdata` package: names, the release of the data, and the offsets of a zone over time.

The zones of the operating system are not used. So every process with the same lock file computes the same times, and
the release that a time was computed with is known.

A zone is read as segments of constant offset. Between two segments the local clock is set forward, and a range of local
times does not exist (a gap), or it is set back, and a range of local times exists twice (a fold).
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from typing import NamedTuple
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]  # - it has no types

from holdfast.errors import InvalidArguments

DAY_SECONDS = 86400.0
YEAR_MAX = 9998  # the last year whose end a datetime can hold


class Segment(NamedTuple):
    """A range of time with one offset from UTC. The segment before or after it may have the same offset.

    Attributes:
        start: its first instant, in UTC epoch seconds.
        end: the first instant after it.
        offset: local time minus UTC, in seconds.
        before: the offset of the segment before it.
        after: the offset of the segment after it.
    """

    start: float
    end: float
    offset: float
    before: float
    after: float


def release() -> str:
    """Return the release of the time zone data, such as ``2026f``."""
    return str(tzdata.IANA_VERSION)


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """Return the names of all zones."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text().split())


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """Return a zone by its name.

    Raises:
        InvalidArguments: there is no such zone.
    """
    if name not in names():
        lower = {known.lower(): known for known in names()}
        close = difflib.get_close_matches(name.lower()[:60], lower, 1)
        hint = f"; did you mean {lower[close[0]]!r}?" if close else ""
        text = f"must be the name of a time zone, such as 'Europe/Berlin' or 'UTC', got {name[:60]!r}{hint}"
        raise InvalidArguments("tz", f"{text} (time zone data {release()})")
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def local_time(name: str, at: float) -> datetime:
    """Return the local time of an instant, with its offset."""
    return datetime.fromtimestamp(at, zone(name))


def segment(name: str, at: float) -> Segment:
    """Return the segment that contains an instant."""
    year = min(max(datetime.fromtimestamp(at, UTC).year, 2), YEAR_MAX)
    segments = _segments(name, year)
    return segments[bisect_right(segments, at, key=lambda part: part.start) - 1]


@lru_cache(maxsize=4096)
def _segments(name: str, year: int) -> list[Segment]:
    """Return the segments of one year. The first may continue a segment of the year before."""
    first, end = (datetime(number, 1, 1, tzinfo=UTC).timestamp() for number in (year, year + 1))
    changes = []  # the first instant of each new offset
    at, offset = first, _offset(name, first)
    offsets = [offset]
    while at < end:  # by days: no zone changes its offset twice in a day
        following = min(at + DAY_SECONDS, end)
        if (new := _offset(name, following)) != offset:
            changed = _change(name, at, following)
            if changed < end:
                changes.append(changed)
                offsets.append(new)
            offset = new
        at = following
    bounds = [first, *changes, end]
    around = [_offset(name, first - 1), *offsets, offset]
    return [Segment(bounds[i], bounds[i + 1], around[i + 1], around[i], around[i + 2]) for i in range(len(offsets))]


def _change(name: str, low: float, high: float) -> float:
    """Return the first second after `low` that has the offset of `high`."""
    new = _offset(name, high)
    while high - low > 1:
        middle = float((low + high) // 2)
        low, high = (low, middle) if _offset(name, middle) == new else (middle, high)
    return high


def _offset(name: str, at: float) -> float:
    offset = datetime.fromtimestamp(at, zone(name)).utcoffset()
    assert offset is not None, "a time in a zone has an offset"
    return offset.total_seconds()
