"""A definition that cannot work is refused when it is written, with what to do."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.errors import InvalidArguments
from holdfast.schedules.definition import Definition, define, options_of

BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "needs either cron='30 2 * * *' or every='15m'"),
    ({"cron": "@daily", "every": "1h"}, "and not both"),
    ({"cron": "61 * * * *"}, "Bad minute"),
    ({"cron": "* * *"}, "five fields"),
    ({"cron": "0 0 1 1 * 2026"}, "five fields"),
    ({"cron": "@sometimes"}, "@daily"),
    ({"cron": "0 0 31 2 *"}, "day-of-month"),
    ({"cron": "0 0 31 4,6 *"}, "day-of-month"),
    ({"cron": 5}, "five fields"),
    ({"cron": "*" * 1000}, "five fields"),
    ({"every": -3}, "every"),
    ({"every": "0.5s"}, "one second or more"),
    ({"every": "soon"}, "'1h30m'"),
    ({"every": "1h", "phase": "2h"}, "less than every (1h)"),
    ({"every": "1h", "phase": -1}, "phase"),
    ({"every": "1h", "fold": "both"}, "keeps real time"),
    ({"cron": "@daily", "phase": "2m"}, "with every"),
    ({"cron": "@daily", "tz": "europe/berln"}, "did you mean 'Europe/Berlin'?"),
    ({"cron": "@daily", "tz": "../../etc/passwd"}, "must be the name of a time zone"),
    ({"cron": "@daily", "tz": 3}, "must be the name of a time zone"),
    ({"cron": "@daily", "exclude": "christmas"}, "'2026-12-25'"),
    ({"cron": "@daily", "exclude": 7}, "list of dates and cron expressions"),
    ({"cron": "@daily", "exclude": [None]}, "five fields"),
    ({"cron": "@daily", "exclude": ["2026-01-01"] * 1001}, "1000 entries"),
    ({"cron": "@daily", "start": "tomorrow"}, "'2026-11-30T12:00'"),
    ({"cron": "@daily", "start": "2026-12-02", "end": "2026-12-01"}, "must not be before start"),
    ({"cron": "@daily", "remaining": 0}, "integer from 1"),
    ({"cron": "@daily", "remaining": True}, "integer from 1"),
    ({"cron": "@daily", "overlap": "wait"}, "skip, buffer_one, buffer_all, allow, cancel_other"),
    ({"cron": "@daily", "catch_up": "some"}, "none, last, all"),
    ({"cron": "@daily", "buffer": 3}, "belongs to overlap='buffer_all'"),
    ({"cron": "@daily", "overlap": "buffer_all", "buffer": 5000}, "from 1 to 1000"),
    ({"cron": "@daily", "catch_up": "none", "window": "1h"}, "belongs to catch_up"),
    ({"cron": "@daily", "gap": "move"}, "shift, skip"),
    ({"cron": "@daily", "jitter": "x"}, "jitter"),
    ({"cron": "@daily", "pause_after_failures": -1}, "pause_after_failures"),
    ({"cron": "@daily", "splay": "60s"}, "unknown options splay; valid options are cron, every"),
]


@pytest.mark.parametrize(("options", "cure"), BAD)
def test_what_cannot_work_is_refused_with_what_to_do(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(InvalidArguments) as refusal:
        define(**options)
    assert cure in str(refusal.value)


GOOD: list[dict[str, Any]] = [
    {"cron": "30 2 * * *"},
    {"cron": "  30   2 * * MON-FRI ", "tz": "Europe/Berlin", "gap": "skip", "fold": "both"},
    {"every": timedelta(minutes=15), "phase": "2m", "jitter": 60, "tz": "Asia/Kolkata"},
    {"cron": "@daily", "exclude": [date(2026, 12, 25), "* * 24 12 *"], "start": datetime(2026, 1, 1, tzinfo=UTC)},
    {"cron": "@hourly", "end": "2026-03-29T02:30", "tz": "Europe/Berlin", "remaining": 3, "overlap": "cancel_other"},
    {"every": 1, "overlap": "buffer_all", "buffer": 5, "catch_up": "all", "window": "1d", "pause_after_failures": 2},
]


@pytest.mark.parametrize("options", GOOD)
def test_a_definition_is_the_same_after_json_and_from_its_own_options(options: dict[str, Any]) -> None:
    definition = define(**options)
    assert msgspec.json.decode(msgspec.json.encode(definition), type=Definition) == definition
    assert define(**msgspec.json.decode(msgspec.json.encode(options_of(definition)))) == definition


def test_a_definition_says_its_times_in_words() -> None:
    assert define(cron="30 2 * * *", tz="Europe/Berlin").text() == "cron 30 2 * * * in Europe/Berlin"
    assert define(every="90m", phase="2m").text() == "every 1h30m + 2m"
    assert define(every=0.5 * 86400 + 1.5).text() == "every 12h1.5s"


def test_a_time_without_an_offset_is_in_the_zone_of_the_schedule() -> None:
    definition = define(cron="@daily", tz="Europe/Berlin", start="2026-07-01T00:00", end="2026-07-01T00:00+00:00")
    assert definition.end is not None
    assert definition.start == definition.end - 7200
