"""Schedules as users write them: declared in code or made at run time, and run by workers, on every store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, Tick
from holdfast.client.schedules.store_schedules import declare
from holdfast.errors import InvalidArguments, ScheduleExists, UnknownEntry, UnknownSchedule
from support.stories import drain, play, quick, until


def job_of(app: App, runs: list[Any]) -> Any:
    @app.job
    async def report(day: Tick, kind: str = "short") -> str:
        runs.append((day, kind))
        return kind

    return report


def test_a_declared_schedule_runs_by_itself(app: App) -> None:
    runs: list[Any] = []
    job = job_of(app, runs)
    assert app.schedule("poll", job, every="1s", args={"kind": "long"}) is job

    async def story() -> None:
        worker = app.worker()
        task = asyncio.create_task(worker.arun())
        await until(lambda: _is(len(runs) >= 2))
        worker.stop()
        await task
        (info,) = await app.schedules.alist()
        assert (info.id, info.job, info.state, info.source) == ("shop.poll", "shop.report", "active", "code")
        history = await app.schedules.ahistory("poll")
        fired = [event.payload for event in history if event.type == "fired"][::-1]
        ticks = [tick.nominal.timestamp() for tick, kind in runs if kind == "long"]
        assert ticks == [payload["nominal"] for payload in fired][: len(ticks)]
        assert len(set(ticks)) == len(ticks)
        assert runs[1][0].previous is not None
        assert await app.averify() == {}

    play(story())


async def _is(value: bool) -> bool:
    return value


def test_the_decorator_declares_above_the_job_and_refuses_what_cannot_work(app: App) -> None:
    @app.schedule("nightly", cron="30 2 * * *", tz="Europe/Berlin", overlap="skip", catch_up="last")
    @app.job
    async def nightly(tick: Tick | None = None) -> None: ...

    assert app.declared_schedules["nightly"].template.tick_argument == "tick"
    assert nightly.name == "nightly"

    @app.job
    async def needy(order: int, tick: Tick) -> None: ...

    with pytest.raises(ScheduleExists, match=r"shop\.nightly"):
        app.schedule("nightly", nightly, every="1h")
    with pytest.raises(InvalidArguments, match="order"):
        app.schedule("needy", needy, every="1h")
    with pytest.raises(InvalidArguments, match="leave it out of args"):
        app.schedule("needy", needy, every="1h", args={"order": 1, "tick": None})
    with pytest.raises(InvalidArguments, match="order"):
        app.schedule("needy", needy, every="1h", args={"order": "x"})
    with pytest.raises(InvalidArguments, match="cron"):
        app.schedule("needy", needy, cron="never", args={"order": 1})
    with pytest.raises(InvalidArguments, match=r"app\.schedule above @app\.job"):
        app.schedule("plain", lambda: None, every="1h")  # type: ignore[call-overload]  # - the mistake
    with pytest.raises(InvalidArguments, match="each tick has a key"):
        app.schedule("keyed", nightly.options(key="k"), every="1h")
    for name in ("", "a.b", "a b", 5, "x" * 101):
        with pytest.raises(InvalidArguments, match="name of a schedule"):
            app.schedule(name, nightly, every="1h")  # type: ignore[arg-type]  # - the mistake
    assert list(app.declared_schedules) == ["nightly"]


def test_schedules_are_made_changed_and_removed_at_run_time(app: App) -> None:
    runs: list[Any] = []
    job_of(app, runs)
    made = app.schedules.create("nightly", "report", cron="30 2 * * *", tz="Europe/Berlin", args={"kind": "a"})
    assert (made.state, made.options) == ("active", {"cron": "30 2 * * *", "tz": "Europe/Berlin"})
    with pytest.raises(ScheduleExists):
        app.schedules.create("nightly", "report", every="1h")
    with pytest.raises(UnknownEntry):
        app.schedules.create("other", "unknown", every="1h")
    changed = app.schedules.change("nightly", every="6h", phase="2m", tz=None, args={"kind": "b"}, actor="ann")
    assert (changed.options, changed.args) == ({"every": 21600.0, "phase": 120.0}, {"kind": "b"})
    assert app.schedules.change("nightly", overlap="allow").options["every"] == 21600.0
    paused = app.schedules.pause("nightly", "the disk is full", actor="ann")
    assert paused.pause is not None
    assert (paused.state, paused.next, paused.pause.note) == ("paused", None, "the disk is full")
    assert "paused by ann" in app.schedules.explain("nightly")
    assert app.schedules.resume("nightly").state == "active"
    assert [event.type for event in app.schedules.history("nightly")] == [
        "resumed", "paused", "changed", "changed", "declared",
    ]  # fmt: skip
    assert [event.seq for event in app.schedules.history("nightly", before=3, limit=1)] == [2]
    app.schedules.delete("nightly")
    with pytest.raises(UnknownSchedule, match="nightly"):
        app.schedules.get("nightly")
    verbs = [row.verb for row in app.audit()]
    assert verbs[0] == "delete_schedule"
    assert {"create_schedule", "change_schedule", "pause_schedule", "resume_schedule"} <= {*verbs}


def test_a_schedule_is_fired_and_backfilled_by_hand(app: App) -> None:
    runs: list[Any] = []
    job_of(app, runs)
    app.schedules.create("hourly", "report", cron="0 * * * *", overlap="allow")
    run = app.schedules.fire("shop.hourly", actor="ann")
    end = datetime.now(UTC)
    planned = app.schedules.backfill("hourly", end - timedelta(hours=3), end, dry_run=True)
    assert (len(planned.ticks), planned.started) == (3, [])
    done = app.schedules.backfill("hourly", end - timedelta(hours=3), end)
    assert (len(done.started), done.existing) == (3, 0)
    assert app.schedules.backfill("hourly", end - timedelta(hours=3), end).existing == 3
    play(drain(app))
    assert len(runs) == 4
    by_hand = [tick for tick, _ in runs if tick.is_manual]
    assert len(by_hand) == 1
    assert sorted(tick.nominal for tick, _ in runs if tick.is_catch_up) == [
        datetime.fromtimestamp(tick.at, UTC) for tick in done.ticks
    ]
    assert app.get(run).status == "succeeded"


def test_the_ticks_around_a_clock_change_show_local_and_utc_times(app: App) -> None:
    job_of(app, [])
    app.schedules.create("nightly", "report", cron="30 2 * * *", tz="Europe/Berlin", fold="both")
    around = app.schedules.ticks("nightly", around="2026-10-25")
    assert [(tick.local, tick.utc, tick.mark) for tick in around] == [
        ("2026-10-24T02:30:00+02:00", "2026-10-24T00:30:00Z", ""),
        ("2026-10-25T02:30:00+02:00", "2026-10-25T00:30:00Z", "first"),
        ("2026-10-25T02:30:00+01:00", "2026-10-25T01:30:00Z", "last"),
        ("2026-10-26T02:30:00+01:00", "2026-10-26T01:30:00Z", ""),
    ]
    assert len(app.schedules.ticks("nightly", limit=3)) == 3
    with pytest.raises(InvalidArguments, match="2026-10-25"):
        app.schedules.ticks("nightly", around="sunday")


def test_an_explanation_says_why_a_tick_did_not_run(app: App) -> None:
    job_of(app, [])
    app.schedules.create("nightly", "report", cron="30 2 * * *", tz="Europe/Berlin", gap="skip", exclude="2030-01-01")
    text = app.schedules.explain("nightly")
    assert "No live worker has the job shop.report" in text
    assert "Its next tick is" in text
    assert "has no tick at" in app.schedules.explain("nightly", "2030-01-02T03:00")
    assert "exclusion" in app.schedules.explain("nightly", "2030-01-01T02:30")
    assert "in the future" in app.schedules.explain("nightly", "2030-01-02T02:30")
    assert "does not exist" in app.schedules.explain("nightly", "2030-03-31T02:30")
    assert "before the schedule was created" in app.schedules.explain("nightly", "2020-01-02T02:30")


def test_an_older_build_and_a_removed_declaration_delete_nothing(url: str) -> None:
    def build(number: str, *names: str) -> App:
        made = App("shop", config=quick(url), build=number)
        job = job_of(made, [])
        for name in names:
            made.schedule(name, job, every="1h" if number == "1" else "2h")
        return made

    if url == "memory:":
        return  # one process has one build
    first, second = build("1", "a", "b"), build("2", "b")
    try:
        assert first.block(declare(first)).created == ["a", "b"]
        assert second.block(declare(second)).paused == ["a"]
        assert first.block(declare(first)).newer == "2"
        states = {info.name: (info.state, info.options["every"], info.build) for info in first.schedules.list()}
        assert states == {"a": ("paused", 3600.0, "1"), "b": ("active", 7200.0, "2")}
        assert "does not declare it" in first.schedules.explain("a")
    finally:
        first.close()
        second.close()


def test_verify_finds_an_edited_history_of_a_schedule(app: App) -> None:
    job_of(app, [])
    app.schedules.create("nightly", "report", every="1h")
    assert app.verify() == {}
    if app.url != "memory:":
        return
    store: Any = app.store()
    event, text = store._events["schedule:shop.nightly"][0]
    store._events["schedule:shop.nightly"][0] = event, text.replace(b"3600", b"7200")
    assert list(app.verify()) == ["schedule:shop.nightly"]
