"""Retention by rules: a schedule of the store removes old runs, on every store, whatever crashes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import App, Config
from holdfast.cli.main import main
from holdfast.client.builtin_jobs import BuiltinJobs
from holdfast.client.retention import retention_schedule
from holdfast.clock import ManualClock
from holdfast.errors import InvalidSetting
from holdfast.schedules.retention_rules import rules_of, tick_seconds
from holdfast.store import Cancel, Store
from support.clocked import opened
from support.faults import FaultyStore
from support.postgres import fresh_schema, fresh_url, server
from support.stories import play, quick, until

DAY = 86400.0
HOUR = 3600.0
NAME = "holdfast.retention"


def shop(store: Store | None, retention: Any, **options: Any) -> App:
    """Return an app with three jobs, on a store whose time the test moves."""
    app = App("shop", config=quick("memory:", lease_seconds=3600), retention=retention, **options)
    app._opened = store

    @app.job
    async def work(number: int) -> int:
        if number < 0:
            raise ValueError("less than nothing")
        return number

    @app.job
    async def checkout() -> None: ...

    return app


class Shop:
    """A store with runs that ended at different times, and the workers of its apps."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.store, self.clock = opened(backend, folder)

    async def run_all(self, app: App, *, store: Any = None) -> None:
        app._opened = store or self.store
        await app.worker().arun(until_idle=True)

    async def fill(self, app: App) -> dict[str, str]:
        """Run each kind of job; return their ids."""
        good, bad = await app.astart("work", 1), await app.astart("work", -1)
        other, canceled = await app.astart("checkout"), await app.astart("work", 2)
        await self.store.commit([Cancel(canceled.id, None)])
        await self.run_all(app)
        return {"succeeded": good.id, "failed": bad.id, "checkout": other.id, "canceled": canceled.id}

    async def kept(self, runs: dict[str, str]) -> set[str]:
        return {name for name, run in runs.items() if await self.store.get(run) is not None}

    async def tick(self, app: App, seconds: float = 0.0, *, store: Any = None) -> None:
        """Let time pass, then let a worker handle the tick that is due."""
        self.clock.move(seconds)
        row = await self.store.schedule(NAME)
        if row is not None and row.due_at is not None:
            self.clock.move(max(0.0, row.due_at - self.clock.now()))
        await self.run_all(app, store=store)

    async def ticks(self, app: App) -> list[dict[str, Any]]:
        """Return the results of the ticks whose runs are still there, oldest first."""
        app._opened = self.store
        fired = [event for event in await app.schedules.ahistory(NAME, limit=1000) if event.type == "fired"]
        runs = [event.payload["job"] for event in fired[::-1]]
        return [await app.aoutcome(run) for run in runs if await self.store.get(run) is not None]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(request.param, tmp_path)


def told(place: Shop, story: Callable[[], Any]) -> None:
    async def whole() -> None:
        try:
            await story()
        finally:
            await place.store.close()

    play(whole())


def test_each_run_stays_as_long_as_the_rule_for_its_job_or_its_status(place: Shop) -> None:
    rules = {"succeeded": "2d", "failed": "10d", "shop.checkout": "5d"}

    async def story() -> None:
        app = shop(place.store, rules)
        runs = await place.fill(app)
        await place.tick(app, DAY)
        assert await place.kept(runs) == {*runs}
        await place.tick(app, DAY)
        assert await place.kept(runs) == {"failed", "checkout", "canceled"}
        assert await place.ticks(app) == [{"removed": 0}, {"removed": 1}]
        await place.tick(app, 3 * DAY)
        assert await place.kept(runs) == {"failed", "canceled"}
        await place.tick(app, 30 * DAY)
        assert await place.kept(runs) == {"canceled"}, "no rule is about it"
        info = await app.schedules.aget(NAME)
        assert (info.state, info.has_worker, info.options) == ("active", False, {"every": HOUR})
        assert info.args["rules"] | {NAME: None} == {
            "succeeded": 2 * DAY, "failed": 10 * DAY, "shop.checkout": 5 * DAY, NAME: None,
        }  # fmt: skip
        assert await app.averify() == {}
        assert {row.actor for row in await app.aaudit() if row.verb == "purge"} == {NAME}

    told(place, story)


def test_a_single_duration_is_for_all_ended_runs_and_for_those_of_the_schedule_itself(place: Shop) -> None:
    async def story() -> None:
        app = shop(place.store, "3d")
        runs = await place.fill(app)
        open_run = await app.entry("work").options(delay="90d").astart(1)
        for _ in range(4):
            await place.tick(app)
        assert await place.kept(runs) == {*runs}
        await place.tick(app, 3 * DAY)
        assert [job.id for job in await place.store.jobs() if job.plugin == "shop"] == [open_run.id]
        own = [job.id for job in await place.store.jobs() if job.plugin == "holdfast"]
        assert len(own) == 1, "its older runs are gone, too"
        history = [event.type for event in await app.schedules.ahistory(NAME)]
        assert history == ["fired", "missed", *["fired"] * 4, "declared"], "its history has all ticks"

    told(place, story)


def test_a_tick_removes_in_batches_and_goes_on_in_another_run(place: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_schedule, "BATCH", 3)
    monkeypatch.setattr(retention_schedule, "PARTS_MAX", 2)

    async def story() -> None:
        app = shop(place.store, {"succeeded": "2d", "shop.checkout": "keep"})
        await app.astart_many("work", [{"number": number} for number in range(17)])
        await app.astart_many("checkout", [{}] * 4)
        await place.run_all(app)
        await place.tick(app, 2 * DAY)
        left = [job for job in await place.store.jobs(limit=1000) if job.plugin == "shop"]
        assert {job.entry for job in left} == {"checkout"}
        assert len(left) == 4
        assert sum(event.type == "fired" for event in await app.schedules.ahistory(NAME)) == 1
        removed = [row.detail for row in await app.aaudit() if row.verb == "purge"]
        assert len(removed) >= 6, "no transaction has removed more than a batch"

    told(place, story)


def test_two_workers_remove_by_one_tick(place: Shop) -> None:
    async def story() -> None:
        apps = [shop(place.store, "2d") for _ in range(2)]
        runs = await place.fill(apps[0])
        await place.tick(apps[0], 2 * DAY - HOUR)
        row = await place.store.schedule(NAME)
        assert row is not None
        assert row.due_at is not None
        place.clock.move(row.due_at - place.clock.now())
        await asyncio.gather(*(app.worker().arun(until_idle=True) for app in apps))
        await place.tick(apps[0], HOUR)
        assert await place.kept(runs) == set()
        fired = [event.payload for event in await apps[0].schedules.ahistory(NAME) if event.type == "fired"]
        assert len({tick["nominal"] for tick in fired}) == len(fired) == 3

    told(place, story)


@pytest.mark.parametrize("mode", ["crash", "applied"])
def test_a_tick_survives_a_fault_at_every_commit(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_schedule, "BATCH", 3)
    monkeypatch.setattr(retention_schedule, "PARTS_MAX", 2)

    async def story(fail_at: int) -> bool:
        place = Shop("memory", tmp_path)
        app = shop(place.store, {"succeeded": "2d", "failed": "30d"})
        runs = await place.fill(app)
        await app.astart_many("work", [{"number": number} for number in range(5)])
        await place.run_all(app)
        faulty = FaultyStore(place.store, fail_at, mode)
        working = asyncio.create_task(place.tick(app, 2 * DAY, store=faulty))
        gone = asyncio.create_task(faulty.gone.wait())
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        for task in (working, gone):
            task.cancel()
        await asyncio.wait([working, gone])
        place.clock.move(4 * HOUR)  # the lease of a worker that is gone has ended
        app = shop(place.store, {"succeeded": "2d", "failed": "30d"})
        await place.run_all(app)
        await place.tick(app)
        assert await place.kept(runs) == {"failed", "canceled"}
        left = [job for job in await place.store.jobs(limit=1000) if job.plugin == "shop"]
        assert len(left) == 2
        assert await app.averify() == {}
        results = await place.ticks(app)
        assert sum(result["removed"] for result in results) <= 7
        assert sum(row.detail["removed"] for row in await app.aaudit() if row.verb == "purge") == 7
        return faulty.failed

    for fail_at in itertools.count(1):
        if not play(story(fail_at)):
            assert fail_at > 8
            break


def test_the_newest_build_decides_and_without_rules_the_schedule_is_paused(place: Shop) -> None:
    async def story() -> None:
        await place.run_all(shop(None, "2d", build="1"))
        newer = shop(None, {"failed": "9d"}, build="2")
        await place.run_all(newer)
        await place.run_all(shop(None, "2d", build="1"))
        row = await place.store.schedule(NAME)
        assert row is not None
        assert row.job.args["rules"]["failed"] == 9 * DAY
        await place.run_all(BuiltinJobs(newer))
        other = App("mail", config=quick("memory:"), build="3")
        await place.run_all(other)
        assert (await newer.schedules.aget(NAME)).state == "active", "only the app that has declared it may pause it"
        without = shop(None, None, build="3")
        await place.run_all(without)
        paused = await without.schedules.aget(NAME)
        assert paused.pause is not None
        assert (paused.state, paused.pause.reason) == ("paused", "removed")

    told(place, story)


def test_other_jobs_get_the_slot_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_schedule, "BATCH", 1)
    monkeypatch.setattr(retention_schedule, "PARTS_IN_A_ROW", 1)

    async def story() -> None:
        place = Shop("memory", Path())
        app = shop(place.store, "2d")
        await app.astart_many("work", [{"number": number} for number in range(3)])
        await place.run_all(app)
        place.clock.move(2 * DAY)
        worker = app.worker(concurrency=1)
        working = asyncio.create_task(worker.arun())
        await until(lambda: _has_removed_one(place.store))
        run = await app.astart("checkout")  # time stands still, so the removal does not go on
        assert await run.aresult(60) is None
        assert await _has_removed_one(place.store)
        worker.stop()
        await working

    play(story())


async def _has_removed_one(store: Store) -> bool:
    return sum(job.entry == "work" for job in await store.jobs()) == 2


def test_a_worker_of_one_queue_removes_old_runs_too() -> None:
    async def story() -> None:
        store, clock = opened("memory", Path())
        app = shop(store, "2d")
        run = await app.astart("checkout")
        await app.worker().arun(until_idle=True)
        clock.move(2 * DAY)
        await app.worker(queues=["mail"]).arun(until_idle=True)
        assert await store.get(run.id) is None
        assert isinstance(clock, ManualClock)

    play(story())


def test_an_app_without_rules_declares_nothing_and_asks_for_nothing() -> None:
    async def story() -> None:
        app = shop(opened("memory", Path())[0], None)
        await app.worker().arun(until_idle=True)
        assert await app.schedules.alist() == []
        assert await app.store().next_due() is None

    play(story())


GOOD = [
    ("30d", {"*": 30 * DAY}),
    (timedelta(hours=1), {"*": HOUR}),
    (7200, {"*": 7200.0}),
    (
        "succeeded=7d, failed = 90d,shop.checkout=keep",
        {"succeeded": 7 * DAY, "failed": 90 * DAY, "shop.checkout": None},
    ),
    ({"canceled": None, "*": 3600}, {"canceled": None, "*": HOUR}),
]
BAD = [
    ("soon", "is not a duration"),
    ("-1d", "is not a duration"),
    ("5s", "one minute or longer"),
    (0, "one minute or longer"),
    (-60, "0 or more"),
    (True, "must be a duration or a mapping"),
    ([("succeeded", "7d")], "must be a duration or a mapping"),
    ({}, "removes nothing"),
    ({"*": "keep"}, "removes nothing"),
    ({"timeout": "7d"}, "did you mean 'failed'"),
    ({"cancelled": "7d"}, "did you mean 'canceled'"),
    ({"checkout": "7d"}, r"a job such as 'shop\.checkout'"),
    ({".checkout": "7d"}, "a key must be"),
    ({7: "7d"}, "a key must be"),
    ({"failed": "soon"}, "failed: .*is not a duration"),
    ({"failed": {"a": 1}}, "failed: "),
    ("failed=7d,30d", "needs a key and a duration"),
    ("failed=7d,failed=8d", "twice"),
    ("failed=", "is not a duration"),
    ("90000d", "hundred years"),
]


@pytest.mark.parametrize(("value", "expected"), GOOD, ids=str)
def test_rules_are_read_from_a_duration_a_mapping_or_text(value: Any, expected: dict[str, float | None]) -> None:
    assert rules_of(value) == expected
    assert App("shop", "memory:", retention=value).config.retention_rules() == expected


@pytest.mark.parametrize(("value", "reason"), BAD, ids=str)
def test_bad_rules_are_refused_where_they_are_given(value: Any, reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as refused:
        App("shop", "memory:", retention=value)
    assert refused.value.name == "retention"
    with pytest.raises(InvalidSetting, match=reason):
        Config(retention=value)


def test_rules_come_from_the_environment_and_the_command_line() -> None:
    config = Config.read(environment={"HOLDFAST_RETENTION": "failed=90d, *=30d"})
    assert config.retention_rules() == {"failed": 90 * DAY, "*": 30 * DAY}
    with pytest.raises(InvalidSetting, match=r"HOLDFAST_RETENTION.*is not a duration"):
        Config.read(environment={"HOLDFAST_RETENTION": "soon"})
    refused = CliRunner().invoke(main, ["worker", "--retention", "soon", "--url", "memory:", "examples/shop.py"])
    assert (refused.exit_code, "is not a duration" in refused.output) == (2, True)


def test_the_time_between_ticks_follows_from_the_shortest_rule() -> None:
    found = [tick_seconds(rules_of(text)) for text in ("30d", "failed=90d,succeeded=2h", "1m")]
    assert found == [HOUR, 720.0, 60.0]


def test_a_role_that_may_not_delete_says_what_to_do() -> None:
    name, role = fresh_schema(), f"r{fresh_schema()}"
    owner_app = shop(None, None)
    owner_app.url = f"{server().url}?schema={name}"
    run = owner_app.start("checkout")
    owner_app.worker().run(until_idle=True)
    with psycopg.connect(server().url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN".encode())
        owner.execute(f"GRANT USAGE ON SCHEMA {name} TO {role}".encode())
        owner.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {name} TO {role}".encode())
        owner.execute(f"GRANT DELETE ON {name}.workers, {name}.schedule_ends, {name}.request_keys TO {role}".encode())
        owner.execute(f"UPDATE {name}.jobs SET created_at = 1, updated_at = 1".encode())
    app = shop(None, "30d")
    app.url = f"{server().url.replace('postgres@', f'{role}@')}?schema={name}"
    app.worker().run(until_idle=True)
    fired = app.schedules.fire(NAME)
    app.worker().run(until_idle=True)
    record = app.get(fired)
    assert record.status == "failed"
    assert "permission denied" in str(record.error)
    assert "grant the role DELETE" in str(record.error)
    found = CliRunner().invoke(main, ["doctor", "--url", app.url], env={"HOLDFAST_RETENTION": "30d"})
    assert "retention" in found.output
    assert "GRANT DELETE" in found.output
    assert owner_app.get(run.id).status == "succeeded"
    app.close()
    owner_app.close()


def test_the_doctor_is_content_with_a_role_that_may_delete() -> None:
    app = App("shop", fresh_url())
    app.verify()
    found = CliRunner().invoke(main, ["doctor", "--url", app.url], env={"HOLDFAST_RETENTION": "30d"})
    assert "this role may remove runs" in found.output
    app.close()
