"""Schedules over HTTP: lists with what happened to the newest ticks, in pages, as the app itself tells it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import holdfast
from holdfast import App
from holdfast.clock import ManualClock
from holdfast.http.handlers import schedules
from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate
from holdfast.server import asgi
from holdfast.store.schedule_commands import CreateSchedule
from holdfast.store.sqlite.store import SqliteStore
from support.stories import play
from support.web import jobs, near, serving


def test_a_list_has_the_newest_outcomes_in_pages_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "WITH_OUTCOMES_MAX", 2)
    app = jobs(App("shop", f"sqlite:///{tmp_path / 'jobs.db'}"))
    for number in range(5):
        app.schedules.create(f"s{number}", "greet", args={"name": "ada"}, every="1h", overlap="allow")
    runs = [app.schedules.fire("s1", actor="ann") for _ in range(3)]
    own = app.schedules.list(outcomes=2)
    assert [[each.run_id for each in info.outcomes or ()] for info in own] == [[], [runs[2], runs[1]], [], [], []]
    with serving(asgi(app)) as address, holdfast.connect(address) as remote:
        assert remote.schedules.list(outcomes=2) == own
        assert remote.schedules.list(after="shop.s3", outcomes=2) == own[4:]
        assert remote.schedules.get("s1", outcomes=2) == own[1]
        assert remote.schedules.get("s1").outcomes is None
        assert [info.outcomes for info in remote.schedules.list()] == [None] * 5
    app.close()


def test_no_request_reads_more_outcomes_than_it_may_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "WITH_OUTCOMES_MAX", 2)
    app = jobs(App("shop", f"sqlite:///{tmp_path / 'jobs.db'}"))

    async def story() -> None:
        for name in ("hourly", "other", "third"):
            await app.schedules.acreate(name, "greet", args={"name": "ada"}, every="1h")
        async with near(app) as client:
            for outcomes, count in ((0, 3), (1, 2)):
                asked = {"limit": 1000, "outcomes": outcomes}
                found = (await client.get("/api/v1/schedules", params=asked)).json()
                assert (len(found["items"]), found["next"] is None) == (count, count == 3)
            for path in ("/api/v1/schedules", "/api/v1/schedules/hourly"):
                assert (await client.get(path, params={"outcomes": 50})).status_code == 200
                assert (await client.get(path, params={"outcomes": 51})).status_code == 422
                assert (await client.get(path, params={"outcomes": -1})).status_code == 422
        await app.aclose()

    play(story())


def test_metrics_tell_how_long_the_oldest_tick_has_waited(tmp_path: Path) -> None:
    clock = ManualClock()
    begun = time.time() - 2 * 3600
    clock.move(begun - clock.now())
    app = jobs(App("shop", f"sqlite:///{tmp_path / 'jobs.db'}"))

    async def scraped() -> float:
        async with near(app) as client:
            text = (await client.get("/metrics")).text
        return float(text.partition("\nholdfast_schedule_lag_seconds ")[2].partition("\n")[0])

    async def story() -> None:
        assert await scraped() == 0
        store = SqliteStore(tmp_path / "jobs.db", clock)
        template = JobTemplate(plugin="shop", entry="greet", args={"name": "ada"})
        command = CreateSchedule(plugin="shop", name="old", definition=define(every="1h"), template=template)
        (row,) = await store.commit([command])
        await store.close()
        assert begun < row.due_at <= begun + 3600
        earliest = time.time() - row.due_at
        assert earliest <= await scraped() <= time.time() - row.due_at
        await app.schedules.apause("old")
        assert await scraped() == 0
        await app.aclose()

    play(story())
