"""Cron expressions: five fields, read by `cronsim`, on local times without a zone.

`cronsim` has its own rules for clock changes. They do not apply to times without a zone; `calendar` has ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

from cronsim import CronSim, CronSimError

from holdfast.errors import InvalidArguments

FIELDS = 5
TEXT_MAX = 200  # characters of an expression
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - a local time


def checked(what: str, expression: object) -> str:
    """Return an expression with single spaces, and with an alias such as ``@daily`` replaced.

    Raises:
        InvalidArguments: it is not an expression, or matches no time.
    """
    text = ALIASES.get(expression.strip().lower(), expression) if isinstance(expression, str) else ""
    text = " ".join(text.split()) if len(text) <= TEXT_MAX else ""
    example = "such as '30 2 * * *' (minute, hour, day of month, month, day of week)"
    if len(text.split(" ")) != FIELDS:
        aliases = ", ".join(sorted(ALIASES))
        raise InvalidArguments(
            what, f"must have five fields, {example}, or be one of {aliases}, got {expression!r:.80}"
        )
    try:
        next(CronSim(text, _ANY_DAY))
    except CronSimError as error:
        raise InvalidArguments(
            what, f"is not a cron expression: {error}, in {text!r:.80}: write it {example}"
        ) from None
    except (StopIteration, RuntimeError):  # a generator turns the first into the second
        raise InvalidArguments(
            what, f"matches no day, got {text!r:.80}: check its day of month and its month"
        ) from None
    return text


def is_repeating(expression: str) -> bool:
    """Return whether an expression repeats within a day by its form: its minute or its hour begins with ``*``."""
    minute, hour, *_ = expression.split(" ")
    return minute.startswith("*") or hour.startswith("*")


def matches_after(expression: str, local: datetime) -> Iterator[datetime]:
    """Yield the local times that match, later than `local`, in order. It ends after 50 years without a match."""
    return iter(CronSim(expression, local))


@lru_cache(maxsize=65536)
def matches(expression: str, minute: datetime) -> bool:
    """Return whether a local time, without its seconds, matches."""
    return next(CronSim(expression, minute - timedelta(seconds=1))) == minute
