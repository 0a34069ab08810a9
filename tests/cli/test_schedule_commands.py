"""Schedules over HTTP, from a remote client, and on the command line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast import InvalidArguments, ScheduleExists, UnknownSchedule
from support.postgres import fresh_url
from support.shell import Shell
from support.stories import play
from support.web import near, served, shop

CODE = """
from holdfast import App, Tick
app = App("shop")

@app.schedule("nightly", cron="30 2 * * *", tz="Europe/Berlin", gap="skip")
@app.job
async def report(tick: Tick) -> str:
    return tick.nominal.isoformat()
"""
NEW = {"name": "hourly", "job": "greet", "args": {"name": "Ada"}, "options": {"every": "1h", "overlap": "allow"}}


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_schedules_over_http(backend: str, tmp_path: Path) -> None:
    app = shop(fresh_url() if backend == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}")

    async def story() -> None:
        async with near(app) as client:
            assert (await client.get("/api/v1/schedules")).json() == {"items": [], "next": None}
            made = await client.post("/api/v1/schedules", json=NEW)
            assert (made.status_code, made.json()["id"]) == (201, "shop.hourly"), made.text
            assert (await client.post("/api/v1/schedules", json=NEW)).json()["code"] == "schedule_exists"
            for wrong in ({"every": -1}, {"every": "1h", "actor": "x"}, {"cron": "x"}, {"every": "1h", "tz": "Mars"}):
                refused = await client.post("/api/v1/schedules", json={**NEW, "name": "other", "options": wrong})
                assert refused.status_code == 422, refused.text
            missing = await client.get("/api/v1/schedules/shop.other")
            assert (missing.status_code, missing.json()["code"]) == (404, "unknown_schedule")
            one = "/api/v1/schedules/shop.hourly"
            key = {"Idempotency-Key": "k1"}
            fired = [(await client.post(f"{one}/fire", json={}, headers=key)).json()["run_id"] for _ in range(2)]
            assert fired[0] == fired[1], "a repeat with the same key is the same run"
            paused = [await client.post(f"{one}/pause", json={"note": "why"}, headers={"Idempotency-Key": "k2"})] * 2
            assert [answer.json()["state"] for answer in paused] == ["paused", "paused"]
            assert (await client.post(f"{one}/resume")).json()["state"] == "active"
            changed = await client.post(f"{one}/change", json={"options": {"cron": "@daily", "overlap": None}})
            assert changed.json()["options"] == {"cron": "0 0 * * *"}
            ticks = (await client.get(f"{one}/ticks?around=2026-10-25&limit=2")).json()["items"]
            assert [tick["utc"] for tick in ticks] == ["2026-10-24T00:00:00Z", "2026-10-25T00:00:00Z"]
            events = (await client.get(f"{one}/events?limit=2")).json()
            assert [event["type"] for event in events["items"]] == ["changed", "resumed"]
            rest = (await client.get(f"{one}/events?cursor={events['next']}")).json()["items"]
            assert [event["type"] for event in rest] == ["paused", "fired", "declared"]
            assert "cron 0 0 * * *" in (await client.get(f"{one}/explain")).json()["explanation"]
            assert (await client.delete(one)).json()["id"] == "shop.hourly"
            assert (await client.get(one)).status_code == 404

    play(story())
    app.close()


def test_schedules_from_a_remote_client(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CODE)
    with (
        served(tmp_path / "shop.py", f"sqlite:///{tmp_path / 'jobs.db'}") as server,
        holdfast.connect(server.url) as client,
    ):
        made = client.schedules.create("hourly", "shop.report", every=timedelta(hours=1), overlap="allow", actor="ann")
        assert (made.id, made.options) == ("shop.hourly", {"every": 3600.0, "overlap": "allow"})
        with pytest.raises(ScheduleExists, match=r"shop\.hourly"):
            client.schedules.create("hourly", "report", every="1h")
        with pytest.raises(InvalidArguments, match="cron"):
            client.schedules.create("other", "report", cron="x")
        with pytest.raises(UnknownSchedule, match="other"):
            client.schedules.pause("shop.other")
        assert client.schedules.pause("shop.hourly", "why").state == "paused"
        assert client.schedules.resume("shop.hourly").state == "active"
        assert client.get(client.schedules.fire("shop.hourly")).status == "queued"
        done = client.schedules.backfill("shop.hourly", "2026-01-01T00:00", "2026-01-01T03:00", dry_run=True)
        assert [tick.utc[11:16] for tick in done.ticks] == ["00:00", "01:00", "02:00", "03:00"]
        assert len(client.schedules.backfill("hourly", "2026-01-01T00:00", "2026-01-01T03:00").started) == 4
        assert client.schedules.change("hourly", every="2h").options["every"] == 7200.0
        assert [info.id for info in client.schedules.list()] == ["shop.hourly"]
        assert [event.type for event in client.schedules.history("hourly", limit=2)] == ["changed", "backfilled"]
        assert len(client.schedules.ticks("hourly", limit=3)) == 3
        assert "shop.hourly starts shop.report" in client.schedules.explain("hourly")
        client.schedules.delete("hourly")
        with pytest.raises(UnknownSchedule):
            client.schedules.get("hourly")


def test_schedules_on_the_command_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "shop.py").write_text(CODE)
    shell.run("worker", "shop.py", "--until-idle")
    listed = shell.run("schedules", "list")
    assert "shop.nightly  shop.report  cron 30 2 * * * in Europe/Berlin  active" in listed
    assert "no live worker has the job" in listed
    assert shell.json("schedules", "list")[0]["id"] == "shop.nightly"
    around = shell.run("schedules", "next", "nightly", "--around", "2027-03-28")
    assert "2027-03-28T03:00:00+02:00  2027-03-28T01:00:00Z  skipped for 2027-03-28T02:30:00" in around
    assert "paused" in shell.run("schedules", "pause", "nightly", "--note", "the disk is full")
    shown = shell.run("schedules", "show", "nightly")
    assert "paused by cli" in shown
    assert "the disk is full" in shown
    assert "gap: skip" in shown
    assert "active" in shell.run("schedules", "resume", "nightly")
    run = shell.run("schedules", "fire", "nightly")
    assert "is open" in shell.run("schedules", "fire", "nightly", code=2)
    shell.run("worker", "shop.py", "--until-idle")
    assert "succeeded" in shell.run("show", run)
    dry = shell.run("schedules", "backfill", "nightly", "2026-10-24", "2026-10-26", "--dry-run")
    assert dry.endswith("2 ticks; nothing was started")
    done = shell.run("schedules", "backfill", "nightly", "2026-10-24", "2026-10-26")
    assert done == "2 runs started, 0 ticks had a run"
    assert "Its next tick is" in shell.run("explain", "schedule", "nightly")
    assert "does not exist" in shell.run("explain", "schedule", "nightly", "--at", "2027-03-28T02:30")
    assert "no schedule has the name" in shell.run("schedules", "show", "other", code=3)
    assert "declares it again" in shell.run("schedules", "delete", "nightly", "--yes")
    assert "no schedules" in shell.run("schedules", "list")
