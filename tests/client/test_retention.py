"""Old runs are forgotten through the app and the command line, on every store, with their files."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

from holdfast import App, Config, wait_for
from holdfast.cli.main import main
from holdfast.client.retention import removal
from holdfast.errors import InvalidArguments, StoreUnavailable, UnknownJob
from holdfast.store import Purge
from support.postgres import fresh_schema, fresh_url, server
from support.scripts import ROOT
from support.shell import Shell


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}", "postgres": ""}
    url = urls[request.param] or fresh_url()
    made = App("shop", config=Config(url=url, effects=str(tmp_path / "effects")))

    @made.step
    async def double(number: int) -> int:
        return number * 2

    @made.job
    async def work(number: int) -> int:
        if number < 0:
            raise ValueError("less than nothing")
        return await double(number)

    @made.job
    async def patient() -> Any:
        return await wait_for("never")

    yield made
    made.close()


def test_ended_runs_are_removed_in_batches_with_their_files_and_active_ones_never(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "BATCH", 3)
    names = app.start_many("work", [{"number": number} for number in range(-2, 6)])
    waiting = app.start("patient")
    app.worker().run(until_idle=True)
    queued = app.entry("work").options(delay="1d").start(9)
    assert sorted(path.name for path in (tmp_path / "effects").iterdir()) == sorted([*names, waiting.id])
    assert app.purge(older_than="1h") == 0
    assert app.purge(older_than=0, limit=4) == 4
    assert [record.run_id for record in app.list()] == [queued.id, waiting.id, *reversed(names[4:])], "oldest first"
    with pytest.raises(UnknownJob):
        app.get(names[0])
    assert app.purge(older_than=0) == 4
    assert [path.name for path in (tmp_path / "effects").iterdir()] == [waiting.id]
    assert {record.run_id for record in app.list()} == {waiting.id, queued.id}
    assert app.verify() == {}
    assert waiting.signal("never", 1) == "delivered"
    app.worker().run(until_idle=True)
    assert waiting.result(60) == 1


def test_only_the_statuses_named_are_removed_and_a_key_is_free_again(app: App) -> None:
    work = app.entry("work")
    good, bad = work.options(key="k").start(1), work.options(key="bad").start(-1)
    app.worker().run(until_idle=True)
    assert app.purge(older_than=0, statuses=["canceled"]) == 0
    assert app.purge(older_than=0, statuses=["succeeded"]) == 1
    assert app.get(bad.id).status == "failed"
    assert work.options(key="k").start(2).id != good.id, "the same key, other arguments: nobody remembers"
    assert work.options(key="bad").start(-1).id == bad.id
    for wrong in ({"older_than": "soon"}, {"older_than": -1}, {"older_than": 0, "statuses": ["running"]}):
        with pytest.raises(InvalidArguments):
            app.purge(**wrong)
    with pytest.raises(InvalidArguments):
        app.purge(older_than=0, statuses=[])


def test_purge_on_the_command_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shop = str(ROOT / "examples" / "shop.py")
    run = shell.run("start", shop, "notify", "text=hello")
    canceled = shell.run("start", shop, "notify", "text=there")
    shell.run("cancel", canceled)
    shell.run("worker", shop, "--until-idle")
    assert shell.run("purge", "--older-than", "30d") == "removed 0"
    assert shell.run("purge", "--older-than", "0s", "--status", "succeeded", "--status", "failed") == "removed 1"
    assert "no job has the id" in shell.run("show", run, code=3)
    assert shell.json("purge", "--older-than", "0s", "--limit", "5") == {"removed": 1}
    assert shell.run("runs") == f"no runs in sqlite:///{shell.folder}/jobs.db"
    assert "is not a duration" in shell.run("purge", "--older-than", "soon", code=2)
    assert shell.run("purge", code=2)


def test_a_role_that_may_not_delete_is_refused_and_nothing_is_gone() -> None:
    name, role = fresh_schema(), f"r{fresh_schema()}"
    app = App("shop", f"{server().url}?schema={name}")
    app.job(name="work")(lambda: 1)
    app.start("work")
    app.worker().run(until_idle=True)
    with psycopg.connect(server().url, autocommit=True) as owner:
        for grant in ("USAGE ON SCHEMA", "SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA"):
            made = "CREATE ROLE {role} LOGIN;" if grant.startswith("USAGE") else ""
            owner.execute(f"{made} GRANT {grant} {name} TO {role}".replace("{role}", role).encode())
    other = App("shop", f"{server().url.replace('postgres@', f'{role}@')}?schema={name}")
    with pytest.raises(StoreUnavailable, match="permission denied"):
        other.purge(older_than=0)
    refused = CliRunner().invoke(main, ["purge", "--older-than", "0s", "--url", other.url])
    assert (refused.exit_code, "permission denied" in refused.output) == (7, True), "not an unavailable store"
    other.close()
    assert len(app.list()) == 1
    assert app.verify() == {}
    app.close()


def test_the_cost_of_a_purge_does_not_grow_with_what_is_kept() -> None:
    """The plan walks the index of what has ended, from the oldest on, and stops where what is kept begins."""
    name = fresh_schema()
    app = App("shop", f"{server().url}?schema={name}")
    app.job(name="work")(lambda: 1)
    app.verify()
    columns = (
        "id, plugin, entry, queue, priority, created_at, max_attempts, fingerprint, version, head, state, attempt,"
    )
    columns += " attempts, run, started, due_at, updated_at, pause, claimable"
    with psycopg.connect(server().url, autocommit=True) as sql:
        sql.execute(
            f"INSERT INTO {name}.jobs ({columns}) SELECT 'j' || n, 'shop', 'work', 'q', 0, {time.time()} + n, 1, '',"
            f" 1, '', 'completed', 1, 1, 1, true, 0, {time.time()} + n, false, false"
            " FROM generate_series(1, 20000) n".encode()
        )
        sql.execute(f"ANALYZE {name}.jobs".encode())
        store: Any = app.store()
        statement = f"EXPLAIN (ANALYZE, FORMAT JSON) {store._sql.finished}"
        said = {"states": ["completed"], "before": time.time() - 60, "limit": 1000}
        found = sql.execute(statement.encode(), said).fetchone()
        assert found is not None
        assert "jobs_finished" in str(found[0])
        assert not re.search(r"Rows Removed by [\w ]+': [1-9]", str(found[0])), "nothing is looked at in vain"
    assert asyncio.run(store.commit([Purge(0)]))[0].jobs == []
    app.close()


def test_rows_of_the_audit_log_stay_unless_a_setting_says_how_long(app: App) -> None:
    run = app.start("work", 1)
    app.cancel(run.id)
    assert app.block(app.aevict()) == 0
    assert [row.verb for row in app.audit()] == ["cancel"]
    short, app.config = app.config, msgspec.structs.replace(app.config, keep_audit_seconds=3600.0)
    app.worker().run(until_idle=True)
    assert len(app.audit()) == 1
    app.config = msgspec.structs.replace(short, keep_audit_seconds=1e-6)
    app.worker().run(until_idle=True)
    assert app.audit() == []
    assert app.get(run.id).status == "canceled"
