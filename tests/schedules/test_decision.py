"""Every tick has one outcome, and every fired tick one run, for every policy and however late a worker looks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidArguments, QueueFull
from holdfast.schedules import zones
from holdfast.schedules.calendar import calendar_of
from holdfast.schedules.decision import Decision, NewRun
from holdfast.schedules.definition import CATCH_UP, OVERLAP, define
from holdfast.schedules.schedule import JobTemplate, Schedule, ScheduleState, follow

NOW = datetime.fromisoformat("2026-10-24T12:00:00+00:00").timestamp()
JOB = JobTemplate(plugin="shop", entry="report", args={"a": 1})


class World:
    """A schedule without a store: its stream, its row, and its runs, which a test ends."""

    def __init__(self, job: JobTemplate = JOB, **options: Any) -> None:
        self.now = NOW
        self.open: dict[str, bool] = {}  # by run, whether it obeys a cancel at once
        self.runs: dict[str, str] = {}  # by key
        self.args: dict[str, dict[str, Any]] = {}
        self.full = False
        self.obeys = True
        self.canceled: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.events: list[tuple[str, dict[str, Any], float]] = []
        self.row: Schedule | None = None
        definition = define(**options)
        decision = Decision(None, self.now, self)
        given = {"plugin": "shop", "name": "nightly", "source": "api"}
        given |= {"definition": msgspec.to_builtins(definition), "job": msgspec.to_builtins(job)}
        decision.declare(given, definition)
        self.keep(decision)

    def still_open(self, runs: Sequence[str]) -> list[str]:
        return [run for run in runs if run in self.open]

    def start(self, run: NewRun) -> tuple[str, bool]:
        if run.key in self.runs:
            return self.runs[run.key], True
        if self.full:
            raise QueueFull("default", 3, 1.0)
        self.runs[run.key] = run.id
        self.args[run.id] = run.args
        self.open[run.id] = self.obeys
        return run.id, False

    def cancel(self, run: str, reason: str) -> None:
        assert "shop.nightly" in reason
        self.canceled.append(run)
        if self.open[run]:
            del self.open[run]

    def decision(self) -> Decision:
        return Decision(self.row, self.now, self)

    def keep(self, decision: Decision) -> list[tuple[str, dict[str, Any]]]:
        """Take over the events; check that the row follows from the stream, and survives JSON."""
        events = [(kind, msgspec.json.decode(msgspec.json.encode(payload))) for kind, payload in decision.events]
        self.events += [(kind, payload, self.now) for kind, payload in events]
        row: Schedule | None = None
        for kind, payload, at in self.events:
            row = follow(row, kind, payload, at)
        assert row is not None
        self.row = decision.row
        present = {name: getattr(self.row, name) for name in ("open", "failures", "updated_at")}
        assert msgspec.structs.replace(row, **present) == self.row
        assert msgspec.json.decode(msgspec.json.encode(self.row), type=Schedule) == self.row
        return events

    def advance(self, seconds: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
        """Let time pass, and look until nothing is due."""
        self.now += seconds
        events: list[tuple[str, dict[str, Any]]] = []
        while True:
            ended, self.ended = self.ended, []
            decision = self.decision()
            decision.advance(ended)
            events += self.keep(decision)
            if decision.row.due_at is None or decision.row.due_at > self.now:
                return events

    def until_next(self) -> list[tuple[str, dict[str, Any]]]:
        assert self.row is not None
        assert self.row.due_at is not None
        return self.advance(self.row.due_at - self.now)

    def end(self, run: str, status: str = "succeeded") -> None:
        del self.open[run]
        self.ended.append((run, status))


def kinds(events: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str | None]]:
    return [(kind, payload.get("reason")) for kind, payload in events]


def outcomes(world: World) -> Counter[float]:
    """Count the final outcomes of each tick, with the ticks of ranges."""
    assert world.row is not None
    counted: Counter[float] = Counter()
    calendar = calendar_of(world.row.definition)
    for kind, payload, _ in world.events:
        if kind in {"fired", "skipped", "missed"} and "nominal" in payload:
            counted[payload["nominal"]] += 1
        elif kind in {"skipped", "missed"}:
            ticks = [tick.at for tick in calendar.between(payload["from"], payload["to"])]
            assert (ticks[0], ticks[-1]) == (payload["from"], payload["to"])
            assert payload["count"] in {len(ticks), None}
            counted.update(ticks)
    return counted


def assert_accounted(world: World) -> None:
    """Check that every tick up to now has one outcome, but for those that are still buffered."""
    assert world.row is not None
    waiting = {tick.at for tick in world.row.buffer}
    first = next(payload["next"] for kind, payload, _ in world.events if kind == "declared")
    end = world.now if world.row.next is None else world.row.next - 0.001
    if world.row.state is ScheduleState.ENDED:
        end = world.row.last or first
    expected = {tick.at for tick in calendar_of(world.row.definition).between(first, end)}
    counted = outcomes(world)
    assert set(counted) == expected - waiting
    assert set(counted.values()) <= {1}
    fired = [payload["job"] for kind, payload, _ in world.events if kind == "fired"]
    assert len(fired) == len(set(fired)) == len(world.runs)


def test_a_tick_fires_once_and_the_next_one_is_known() -> None:
    world = World(cron="30 2 * * *", tz="Europe/Berlin")
    ((kind, payload),) = world.until_next()
    assert (kind, payload["local"], payload["mark"]) == ("fired", "2026-10-25T02:30:00+02:00", "first")
    assert payload["tzdata"] == zones.release()
    assert world.advance() == []
    assert world.row is not None
    assert world.row.next == payload["next"] == payload["nominal"] + 25 * 3600
    assert list(world.runs) == ["schedule:shop.nightly:2026-10-25T00:30:00Z"]


def test_a_skipped_gap_and_an_exclusion_are_recorded() -> None:
    world = World(cron="30 2 * * *", tz="Europe/Berlin", gap="skip", exclude="2027-03-27")
    world.advance(datetime.fromisoformat("2027-03-26T12:00:00+00:00").timestamp() - NOW)
    events = [*world.until_next(), *world.until_next(), *world.until_next()]
    assert kinds(events) == [("skipped", "excluded"), ("skipped", "gap"), ("fired", None)] or world.open
    assert events[1][1]["gap"] == ["2027-03-28T02:30:00"]
    assert_accounted(world)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [("skipped", "overlap"), ("skipped", "overlap")]),
        ("buffer_one", [("buffered", None), ("skipped", "overlap")]),
        ("buffer_all", [("buffered", None), ("buffered", None)]),
        ("allow", [("fired", None), ("fired", None)]),
        ("cancel_other", [("fired", None), ("fired", None)]),
    ],
)
def test_a_tick_while_a_run_is_open_follows_the_overlap_policy(overlap: str, expected: list[Any]) -> None:
    world = World(every="1h", overlap=overlap)
    assert kinds(world.until_next()) == [("fired", None)]
    (first,) = world.runs.values()
    assert kinds(world.until_next()) + kinds(world.until_next()) == expected
    assert (first in world.canceled) == (overlap == "cancel_other")
    assert_accounted(world)


def test_buffered_ticks_fire_in_order_as_runs_end() -> None:
    world = World(every="1h", overlap="buffer_all", buffer=2)
    for _ in range(4):
        world.until_next()
    fired = [*world.runs.values()]
    while world.open:
        world.end(next(iter(world.open)))
        fired += [payload["job"] for kind, payload in world.advance() if kind == "fired"]
    assert fired == [*world.runs.values()]
    assert len(fired) == 3
    assert_accounted(world)


def test_a_canceled_run_that_takes_its_time_is_waited_for_and_the_newest_tick_wins() -> None:
    world = World(every="1h", overlap="cancel_other")
    world.obeys = False
    world.until_next()
    (slow,) = world.open
    assert kinds(world.until_next()) == [("buffered", None)]
    assert kinds(world.until_next()) == [("skipped", "overlap"), ("buffered", None)]
    world.end(slow, "canceled")
    ((kind, payload),) = world.advance()
    assert (kind, payload["buffered"], payload["nominal"]) == ("fired", True, NOW + 3 * 3600)
    assert_accounted(world)


def test_a_run_that_an_operator_has_retried_counts_as_open() -> None:
    world = World(every="1h")
    world.until_next()
    (run,) = world.open
    world.end(run, "failed")
    world.advance()
    world.open[run] = True
    assert kinds(world.until_next()) == [("skipped", "overlap")]


@pytest.mark.parametrize(
    ("catch_up", "window", "expected"),
    [
        ("none", None, [("missed", "none")]),
        ("last", None, [("missed", "last"), ("fired", None)]),
        ("last", "10m", [("missed", "last")]),
        ("all", None, [("fired", None)] * 5),
        ("all", "140m", [("missed", "all"), ("fired", None), ("fired", None)]),
    ],
)
def test_ticks_after_an_outage_are_caught_up_as_the_policy_says(
    catch_up: str, window: str | None, expected: list[Any]
) -> None:
    world = World(cron="0 * * * *", catch_up=catch_up, window=window, overlap="allow")
    events = world.advance(5 * 3600 + 1800)
    assert kinds(events) == expected
    assert all(payload.get("catch_up") for kind, payload in events if kind == "fired")
    assert_accounted(world)


def test_an_outage_of_a_year_is_one_range_for_an_interval_and_bounded_steps_for_cron() -> None:
    interval = World(every="1s")
    assert kinds(interval.advance(365 * 86400.0)) == [("missed", "last"), ("fired", None)]
    cron = World(cron="* * * * *", overlap="allow")
    cron.now += 86400 * 7
    decision = cron.decision()
    decision.advance()
    assert kinds(decision.events) == [("missed", "last")]
    assert decision.events[0][1]["count"] == 100
    cron.keep(decision)
    cron.advance()
    assert_accounted(cron)


def test_a_pause_skips_its_ticks_as_one_range_and_resumes_in_the_future() -> None:
    world = World(cron="0 * * * *")
    decision = world.decision()
    decision.pause("operator", note="the disk is full", by="ann")
    world.keep(decision)
    assert world.advance(5 * 3600 + 60) == []
    decision = world.decision()
    decision.resume(by="ann")
    events = world.keep(decision)
    assert kinds(events) == [("skipped", "paused"), ("resumed", None)]
    assert events[0][1]["count"] == 5
    assert kinds(world.until_next()) == [("fired", None)]
    assert_accounted(world)


def test_failures_in_a_row_pause_the_schedule_and_a_success_resets_the_count() -> None:
    world = World(every="1h", pause_after_failures=2)
    for status in ("failed", "succeeded", "failed", "canceled"):
        world.until_next()
        world.end(next(iter(world.open)), status)
        assert world.advance() == []
    world.until_next()
    run = next(iter(world.open))
    world.end(run, "timeout")
    ((kind, payload),) = world.advance()
    assert (kind, payload["reason"], run in payload["note"]) == ("paused", "failures", True)
    decision = world.decision()
    decision.resume()
    assert decision.row.failures == 0


@pytest.mark.parametrize(
    ("options", "reason"), [({"remaining": 3}, "remaining"), ({"end": "2026-10-24T15:00+00:00"}, "end")]
)
def test_a_schedule_ends_with_its_last_run_or_its_end(options: dict[str, Any], reason: str) -> None:
    world = World(every="1h", overlap="allow", **options)
    assert kinds(world.until_next()) == [("fired", None)]
    assert kinds(world.until_next()) == [("fired", None)]
    assert kinds(world.until_next()) == [("fired", None), ("ended", reason)]
    assert world.row is not None
    assert (world.row.state, world.row.next) == (ScheduleState.ENDED, None)
    assert world.advance(86400) == []


def test_a_full_queue_skips_the_tick() -> None:
    world = World(every="1h")
    world.full = True
    assert kinds(world.until_next()) == [("skipped", "queue_full")]
    assert_accounted(world)


def test_a_schedule_fired_by_hand_keeps_its_ticks_and_respects_open_runs() -> None:
    world = World(every="1h")
    assert world.row is not None
    following = world.row.next
    decision = world.decision()
    decision.fire_now(by="ann")
    world.keep(decision)
    assert world.row.next == following
    with pytest.raises(InvalidArguments, match="is open"):
        world.decision().fire_now(by="ann")
    world.now += 1
    decision = world.decision()
    assert decision.fire_now(by="ann", allow_overlap=True) in world.open
    world.keep(decision)
    assert len(world.open) == 2


def test_a_backfill_starts_each_tick_of_the_past_once() -> None:
    world = World(cron="0 * * * *", exclude="0 9 * * *")
    world.until_next()
    for fired, existing in ((4, 1), (0, 5)):
        decision = world.decision()
        result = decision.backfill(world.now - 5 * 3600, world.now)
        world.keep(decision)
        assert (len(result["fired"]), result["existing"]) == (fired, existing)
    assert len(world.runs) == 5
    for start, end in ((1, 2), (world.now, world.now + 1), (world.now - 1, world.now - 0.5), (0, world.now)):
        with pytest.raises(InvalidArguments, match="backfill"):
            world.decision().backfill(start, end)


def test_a_change_of_the_times_leaves_no_tick_without_an_outcome() -> None:
    world = World(cron="0 * * * *")
    world.now += 2 * 3600 + 60
    decision = world.decision()
    decision.change(define(cron="30 * * * *"), JOB, declared=None, build=None, by="ann")
    events = world.keep(decision)
    assert kinds(events) == [("missed", "changed"), ("changed", None)]
    assert (events[0][1]["count"], events[1][1]["fields"]) == (2, ["cron"])
    assert kinds(world.until_next()) == [("fired", None)]


def test_a_change_of_the_job_alone_keeps_the_next_tick() -> None:
    world = World(every="1h")
    assert world.row is not None
    following = world.row.next
    decision = world.decision()
    other = msgspec.structs.replace(JOB, args={"a": 2})
    decision.change(world.row.definition, other, declared=None, build=None, by=None)
    world.keep(decision)
    assert (world.row.next, world.row.job) == (following, other)


def test_an_ended_schedule_runs_again_after_a_change() -> None:
    world = World(every="1h", remaining=1)
    world.until_next()
    decision = world.decision()
    decision.change(define(every="1h", remaining=2), JOB, declared=None, build=None, by=None)
    world.keep(decision)
    assert world.row is not None
    assert (world.row.state, world.row.remaining) == (ScheduleState.ACTIVE, 2)


def test_other_time_zone_data_move_the_next_tick_and_are_recorded() -> None:
    world = World(cron="30 2 * * *", tz="Europe/Berlin")
    assert world.row is not None
    assert world.row.next is not None
    world.events[0][1]["next"] = world.row.next - 3600  # as older data had computed it
    world.row = msgspec.structs.replace(world.row, next=world.row.next - 3600, tzdata="2019a")
    ((kind, payload),) = world.until_next()
    assert (kind, payload["next"] - payload["was"]) == ("recomputed", 3600)
    assert kinds(world.until_next()) == [("fired", None)]


def test_the_job_gets_its_tick() -> None:
    world = World(msgspec.structs.replace(JOB, tick_argument="tick"), cron="30 2 * * *", tz="Europe/Berlin")
    world.until_next()
    (run,) = world.runs.values()
    assert world.args[run] == {
        "a": 1,
        "tick": {
            "schedule": "shop.nightly", "nominal": "2026-10-25T00:30:00Z", "previous": "2026-10-24T00:30:00Z",
            "next": "2026-10-26T01:30:00Z", "is_catch_up": False, "is_manual": False, "tz": "Europe/Berlin",
        },
    }  # fmt: skip


def test_a_schedule_without_a_tick_in_the_future_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="no tick in the future"):
        World(every="1h", end="2020-01-01T00:00")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    overlap=st.sampled_from(OVERLAP),
    catch_up=st.sampled_from(CATCH_UP),
    times=st.sampled_from(
        [
            {"cron": "*/20 * * * *", "tz": "Europe/Berlin"},
            {"cron": "30 2,3 * * *", "tz": "Europe/Berlin", "gap": "skip", "fold": "both"},
            {"every": "7m", "phase": "10s", "jitter": "30m"},
            {"cron": "0 * * * *", "exclude": ["* 3-5 * * *"], "jitter": "90s"},
        ]
    ),
)
def test_every_tick_has_one_outcome_and_every_fired_tick_one_run(
    seed: int, overlap: str, catch_up: str, times: dict[str, Any]
) -> None:
    chance = random.Random(seed)
    world = World(overlap=overlap, catch_up=catch_up, **times)
    for _ in range(25):
        world.obeys = chance.random() < 0.5
        for run in [run for run in world.open if chance.random() < 0.5]:
            world.end(run, chance.choice(["succeeded", "failed", "canceled"]))
        assert world.row is not None
        act = chance.random()
        decision = world.decision()
        if act < 0.05:
            decision.pause("operator")
        elif act < 0.2:
            decision.resume()
        world.keep(decision)
        world.advance(chance.choice([0.0, 30.0, 600.0, 3600.0, 20 * 3600.0]))
    assert_accounted(world)
