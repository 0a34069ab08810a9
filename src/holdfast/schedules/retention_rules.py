"""Retention rules: how long runs stay after their end, by job and by status.

`rules_of` takes what users write: a duration, a mapping, or the same mapping as text. It returns plain JSON values, in
seconds, with None for runs that are never removed. The rule for the job decides, then the one for the status, then
``*``. A run without a rule stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from holdfast.durations import Duration, seconds

KEEP = "keep"  # as a value: these runs are never removed
REST = "*"  # as a key: all other runs
STATUSES = ("succeeded", "failed", "canceled")  # a timeout counts as failed
SHORTEST_SECONDS = 60.0
TICK_SECONDS = (60.0, 3600.0)  # least and most between two removals

Retention = Duration | Mapping[str, Duration | None]
Rules = dict[str, float | None]

_FORMS = "'30d', or {'succeeded': '7d', 'failed': '90d', 'shop.checkout': 'keep', '*': '30d'}"
_MEANT = {"timeout": "failed", "cancelled": "canceled", "completed": "succeeded"}


def rules_of(retention: object) -> Rules:
    """Return retention rules in seconds, by key.

    Raises:
        ValueError: it is not a duration or a mapping, a key or a value is not valid, or no run would be removed.
    """
    if isinstance(retention, str) and "=" in retention:
        retention = _parsed(retention)
    elif isinstance(retention, (str, int, float, timedelta)) and not isinstance(retention, bool):
        retention = {REST: retention}
    if not isinstance(retention, Mapping):
        raise ValueError(f"must be a duration or a mapping, such as {_FORMS}")  # noqa: TRY004 - as any other value
    rules = {_key(key): _value(key, value) for key, value in retention.items()}
    if not any(value is not None for value in rules.values()):
        raise ValueError(f"removes nothing: leave it out, or give a duration, such as {_FORMS}")
    return rules


def _parsed(text: str) -> dict[str, str]:
    """Return the mapping of a text such as ``succeeded=7d, failed=90d``."""
    rules: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"{part.strip()!r:.60} needs a key and a duration, such as 'succeeded=7d, failed=90d'")
        if key in rules:
            raise ValueError(f"{key!r:.60} is there twice: give each status and job once")
        rules[key] = value
    return rules


def _key(key: object) -> str:
    names = f"{', '.join(STATUSES)}, a job such as 'shop.checkout', or '*' for all others"
    if not isinstance(key, str):
        raise ValueError(f"a key must be one of {names}, got {key!r:.60}")  # noqa: TRY004 - as any other value
    app, _, name = key.rpartition(".")
    if key in STATUSES or key == REST or (app and name):
        return key
    hint = f"; did you mean {_MEANT[key]!r}?" if key in _MEANT else ""
    raise ValueError(f"a key must be one of {names}, got {key!r:.60}{hint}")


def _value(key: str, value: object) -> float | None:
    if value is None or value == KEEP:
        return None
    try:
        age = seconds(value)  # type: ignore[arg-type]  # - it refuses what is not a duration
    except ValueError as error:
        raise ValueError(f"{key}: {error}; or 'keep' for runs that stay") from None
    if age < SHORTEST_SECONDS:
        raise ValueError(f"{key}: must be one minute or longer, so that results can be read, got {value!r:.60}")
    return age


def age_for(rules: Mapping[str, float | None], job: str, status: str) -> float | None:
    """Return how long a run of a job stays after its end with a status; None: it is not removed."""
    for key in (job, status, REST):
        if key in rules:
            return rules[key]
    return None


def shortest(rules: Mapping[str, float | None]) -> float:
    """Return the shortest time that a rule gives."""
    return min(value for value in rules.values() if value is not None)


def tick_seconds(rules: Mapping[str, float | None]) -> float:
    """Return the time between two removals: a tenth of the shortest rule, from a minute to an hour."""
    least, most = TICK_SECONDS
    return min(max(float(round(shortest(rules) / 10)), least), most)
