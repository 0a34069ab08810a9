"""The ticks of a schedule equal those of an oracle that walks UTC minute by minute, whatever the local clock does."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.schedules import zones
from holdfast.schedules.calendar import Calendar, calendar_of, delay_seconds
from holdfast.schedules.definition import define
from support.slow_calendar import EXPRESSIONS, ZONES, Rule, days_around_changes, oracle_ticks

START, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
RULES = [
    *(Rule(expression) for expression in EXPRESSIONS),
    *(Rule("30 2 * * *", gap, fold) for gap in ("shift", "skip") for fold in ("first", "last", "both")),
    Rule("*/15 * * * *", "skip", "first"),
    Rule("10,40 1,2,3 * * *", "skip", "last"),
]


def computed(tz: str, rule: Rule, start: float, end: float) -> list[float]:
    calendar = calendar_of(define(cron=rule.expression, tz=tz, gap=rule.gap, fold=rule.fold))
    return [tick.at for tick in calendar.between(start, end - 1) if tick.runs]


def test_twelve_zones_have_the_ticks_of_the_oracle_around_every_clock_change_of_ten_years(tz: str) -> None:
    everywhere = os.environ.get("HOLDFAST_WHOLE_YEARS") == "1"
    ranges = list(months(START, END) if everywhere else days_around_changes(tz, START, END))
    assert ranges
    compared = 0
    for start, end in ranges:
        for rule, expected in oracle_ticks(tz, RULES, start, end).items():
            assert computed(tz, rule, start.timestamp(), end.timestamp()) == expected, (tz, rule, start)
            compared += len(expected)
    assert compared > 1000
    sys.stdout.write(f"{tz}: {len(ranges)} ranges of time, {compared:,} ticks compared\n")  # for `make schedules`


def months(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    while start < end:
        following = (start + timedelta(days=31)).replace(day=1)
        yield start, following
        start = following


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tz" in metafunc.fixturenames:
        metafunc.parametrize("tz", ZONES)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def locals_of(calendar: Calendar, start: str, count: int) -> list[tuple[str, str]]:
    return [(tick.local, tick.mark) for tick in islice(calendar.after(at(start)), count)]


def test_a_fixed_time_in_a_gap_is_shifted_to_its_end_and_recorded() -> None:
    calendar = calendar_of(define(cron="30 2 * * *", tz="Europe/Berlin"))
    tick = calendar.next(at("2026-03-28T12:00Z"))
    assert tick is not None
    assert (tick.local, tick.mark, tick.gap) == ("2026-03-29T03:00:00+02:00", "shifted", ("2026-03-29T02:30:00",))


def test_a_fixed_time_in_a_gap_that_is_skipped_is_no_run_but_is_known() -> None:
    calendar = calendar_of(define(cron="30 2 * * *", tz="Europe/Berlin", gap="skip"))
    tick = calendar.next(at("2026-03-28T12:00Z"))
    assert tick is not None
    assert (tick.mark, tick.runs, tick.gap) == ("skipped", False, ("2026-03-29T02:30:00",))


def test_times_that_are_shifted_onto_another_tick_are_one_tick() -> None:
    calendar = calendar_of(define(cron="0,30 2,3 * * *", tz="Europe/Berlin"))
    first, second = islice(calendar.after(at("2026-03-28T12:00Z")), 2)
    assert (first.local, first.gap) == ("2026-03-29T03:00:00+02:00", ("2026-03-29T02:00:00", "2026-03-29T02:30:00"))
    assert second.local == "2026-03-29T03:30:00+02:00"


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        ("first", [("2026-10-25T02:30:00+02:00", "first")]),
        ("last", [("2026-10-25T02:30:00+01:00", "last")]),
        ("both", [("2026-10-25T02:30:00+02:00", "first"), ("2026-10-25T02:30:00+01:00", "last")]),
    ],
)
def test_a_time_that_exists_twice_runs_as_the_policy_says(fold: str, expected: list[tuple[str, str]]) -> None:
    calendar = calendar_of(define(cron="30 2 * * *", tz="Europe/Berlin", fold=fold))
    assert locals_of(calendar, "2026-10-24T12:00Z", len(expected)) == expected
    assert locals_of(calendar, "2026-10-24T12:00Z", len(expected) + 1)[-1] == ("2026-10-26T02:30:00+01:00", "")


def test_an_interval_keeps_real_time_over_a_clock_change() -> None:
    calendar = calendar_of(define(every="6h", phase="2m", tz="Europe/Berlin"))
    ticks = [tick.at for tick in islice(calendar.after(at("2026-03-28T12:00Z")), 8)]
    assert {later - earlier for earlier, later in pairwise(ticks)} == {6 * 3600}
    assert ticks[0] == at("2026-03-28T12:02Z")


def test_exclusions_are_ticks_that_do_not_run() -> None:
    calendar = calendar_of(define(cron="0 9 * * *", tz="Asia/Tokyo", exclude=["2026-12-25", "* * * * 0"]))
    days = {tick.local[:10]: tick.runs for tick in islice(calendar.after(at("2026-12-23T12:00Z")), 5)}
    assert days == {
        "2026-12-24": True, "2026-12-25": False, "2026-12-26": True, "2026-12-27": False, "2026-12-28": True,
    }  # fmt: skip


def test_start_and_end_are_the_first_and_last_instants() -> None:
    calendar = calendar_of(define(cron="0 9 * * *", start="2026-12-24T09:00", end="2026-12-26T09:00"))
    assert [tick.local[:10] for tick in calendar.after(0)] == ["2026-12-24", "2026-12-25", "2026-12-26"]


def test_a_tick_once_in_four_years_is_found_and_a_schedule_past_its_end_has_none() -> None:
    leap = calendar_of(define(cron="0 0 29 2 *", tz="Pacific/Apia"))
    assert [tick.local[:10] for tick in islice(leap.after(at("2026-01-01T00:00Z")), 2)] == ["2028-02-29", "2032-02-29"]
    assert calendar_of(define(every="1h", end="2020-01-01T00:00")).next(at("2026-01-01T00:00Z")) is None


@given(
    seconds=st.floats(1.0, 40 * 86400.0),
    share=st.floats(0.0, 0.999),
    when=st.floats(0, 4e9),
)
def test_an_interval_has_neither_gaps_nor_repeats(seconds: float, share: float, when: float) -> None:
    calendar = calendar_of(define(every=seconds, phase=seconds * share))
    tick = calendar.next(when)
    assert tick is not None
    assert when < tick.at <= when + seconds + 1e-3
    assert calendar.at_or_after(tick.at) == tick
    newest = calendar.newest_of_interval(tick.at)
    assert newest is not None
    assert newest[0] == tick.at


@given(when=st.floats(1.2e9, 3e9), tz=st.sampled_from(ZONES), expression=st.sampled_from(EXPRESSIONS))
def test_previous_and_next_are_inverse(when: float, tz: str, expression: str) -> None:
    calendar = calendar_of(define(cron=expression, tz=tz))
    tick = calendar.next(when)
    assert tick is not None
    before = calendar.previous(tick.at)
    assert before is not None
    assert before.at <= when
    assert calendar.next(before.at) == tick


def test_the_delay_of_a_tick_is_the_same_everywhere_and_differs_between_schedules() -> None:
    delays = {delay_seconds(f"shop.{number}", 1.8e9, 60.0) for number in range(100)}
    assert len(delays) == 100
    assert all(0 <= delay <= 60 for delay in delays)
    assert delay_seconds("shop.nightly", 1.8e9, 60.0) == 49.835989
    assert delay_seconds("shop.nightly", 1.8e9, 0.0) == 0.0


def test_the_release_of_the_time_zone_data_is_known() -> None:
    assert zones.release()[:2] == "20"
    assert {"UTC", "Europe/Berlin"} <= zones.names()


def test_the_segments_of_every_zone_join_without_holes() -> None:
    for name in sorted(zones.names()):
        here, end = at("2025-06-01T00:00Z"), at("2027-01-01T00:00Z")
        while here < end:
            part = zones.segment(name, here)
            following = zones.segment(name, part.end)
            assert part.start <= here < part.end
            assert following.start == part.end
            assert (part.after, following.before) == (following.offset, part.offset)
            here = part.end
    assert math.isfinite(here)
