"""The schedules of an app in a lab: ticks start runs at their virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import App, Tick, now, sleep, wait_for
from holdfast.testing import Lab, RunStuck, World
from support.postgres import server


def reporting(seen: list[str]) -> App:
    """An app whose nightly job notes the virtual time, and the tick."""
    app = App("reports", "memory:")

    @app.schedule("nightly", cron="30 2 * * *", tz="Europe/Berlin")
    @app.job
    async def report(day: Tick) -> None:
        seen.append(f"{datetime.fromtimestamp(now(), UTC):%d %H:%M} for {day.local:%d %H:%M}")

    return app


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_ticks_start_runs_at_their_virtual_time(kind: str) -> None:
    seen: list[str] = []
    app = reporting(seen)
    with Lab(server().url if kind == "postgres" else kind, start_at=datetime(2027, 3, 26, tzinfo=UTC)) as lab:
        lab.use(app)
        lab.advance("1h")
        assert seen == []
        lab.advance("4d")
        assert seen == [
            "26 01:30 for 26 02:30",
            "27 01:30 for 27 02:30",
            "28 01:00 for 28 03:00",  # the clocks go forward: 02:30 does not exist
            "29 00:30 for 29 02:30",
            "30 00:30 for 30 02:30",
        ]
        assert lab.now == datetime(2027, 3, 30, 1, tzinfo=UTC)


def test_a_run_that_is_started_alone_brings_no_schedule() -> None:
    seen: list[str] = []
    app = reporting(seen)

    @app.job
    async def other() -> int:
        return 1

    with Lab() as lab:
        lab.result(lab.start(other))
        lab.advance("3d")
        assert seen == []
        lab.use(app)
        lab.advance("2d")
        assert len(seen) == 2
        lab.use(app)  # again: nothing changes
        lab.advance("1d")
        assert len(seen) == 3


def test_a_schedule_that_a_test_creates_follows_the_lab() -> None:
    app = App("made", "memory:")
    ticks: list[float] = []

    @app.job
    async def poll() -> None:
        ticks.append(now())

    with Lab() as lab:
        lab.use(app)
        begun = lab.now.timestamp()
        app.schedules.create("quarterly", poll, every="15m")
        lab.advance("1h")
        assert [at - begun for at in ticks] == [900, 1800, 2700, 3600]
        app.schedules.pause("quarterly", "enough")
        lab.advance("1h")
        assert len(ticks) == 4


def test_a_scheduled_tool_is_replaced_and_crashes_are_survived(lab: Lab, world: World) -> None:
    app = App("mails", "memory:")

    @app.tool
    async def send(text: str) -> None:
        raise AssertionError(f"{text} was sent for real")

    @app.schedule("weekly", cron="0 9 * * 1")
    @app.job
    async def letter() -> None:
        await send("news")

    lab.replace(send, world.tool())
    lab.use(app)
    lab.advance("21d")
    assert world.calls(send) == [{"text": "news"}] * 3
    lab.crash_everywhere(letter)


def test_a_run_that_waits_for_the_test_is_named_although_schedules_go_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.lab.IDLE_COMMITS", 20)
    seen: list[str] = []
    app = reporting(seen)

    @app.job
    async def stuck() -> None:
        await wait_for("an answer")

    @app.job
    async def slow() -> str:
        await sleep("30d")
        return "awake"

    lab.use(app)
    run = lab.start(stuck)
    with pytest.raises(RunStuck, match="'an answer'"):
        lab.result(run)
    with pytest.raises(RunStuck, match="does not wait for 'another'"):
        lab.until_waiting(run, "another")
    assert 0 < len(seen) < 1000
    assert lab.result(lab.start(slow)) == "awake", "a run that sleeps is not stuck"


def test_a_run_ends_among_the_ticks_of_a_schedule(lab: Lab) -> None:
    seen: list[str] = []
    app = reporting(seen)

    @app.job
    async def patient() -> str:
        return str(await wait_for("news", timeout="10d"))

    lab.use(app)
    begun = lab.now
    run = lab.start(patient)
    lab.advance("5d")
    run.signal("news", "good")
    assert lab.result(run) == "good"
    assert len(seen) == 5
    assert lab.now - begun == timedelta(days=5)
