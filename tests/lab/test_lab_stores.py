"""The stores of a lab: their time is the lab's, and nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from holdfast import App, Limits
from holdfast.errors import InvalidArguments, StoreUnavailable
from holdfast.testing import Lab, World
from holdfast.testing.lab_stores import PREFIX, URL_VARIABLE
from support import lab_shop as shop
from support.postgres import server

PLUGIN = "holdfast.testing.pytest_plugin"


def schemas() -> set[str]:
    with psycopg.connect(server().url) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", (PREFIX,))
        return {name for (name,) in rows}


def test_a_lab_on_postgres_has_a_schema_that_it_removes() -> None:
    before = schemas()
    with Lab(server().url) as lab, Lab(server().url) as other:
        assert len(schemas() - before) == 2
        assert lab.result(lab.start(shop.plain, 1)) == 3
        assert other.now < lab.now
    assert schemas() == before


def test_a_schema_is_removed_when_a_test_fails() -> None:
    before = schemas()

    def failing() -> None:
        with Lab(server().url) as lab:
            lab.start(shop.dated)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert schemas() == before


def test_all_times_of_postgres_are_those_of_the_lab() -> None:
    with Lab(server().url) as lab:
        begun = lab.now
        run = lab.start(shop.dated)
        lab.result(run)
        record = run.record()
        assert record.finished_at is not None
        assert record.finished_at - record.created_at == timedelta(days=2).total_seconds()
        assert lab.history(run)[0].at == begun.timestamp()
        assert lab.now == begun + timedelta(days=2)


def test_a_crash_on_postgres_leads_to_what_it_leads_to_in_memory(world: World) -> None:
    app = App("small", "memory:")

    @app.tool
    async def charge() -> str:
        raise AssertionError("it is replaced")

    @app.job
    async def job() -> str:
        return await charge()

    with Lab(server().url) as lab:
        lab.replace(charge, world.tool(lambda: "receipt"))
        report = lab.crash_everywhere(job, only=(2, "crash after"))
        assert report.commits[1:] == ["charge begins", "charge has ended, ends"]
        assert [case.outcome for case in report.cases] == ["asks"]
        report = lab.crash_everywhere(job, only=(2, "overtaken"))
        assert [case.outcome for case in report.cases] == ["same"]
    assert world.at_most_once(charge)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_the_rate_of_a_queue_uses_the_virtual_time(kind: str) -> None:
    app = App("limited", "memory:")

    @app.job
    async def job() -> None: ...

    with Lab(server().url if kind == "postgres" else kind) as lab:
        lab.use(app)
        app.set_limits(Limits(queue="default", rate=1, rate_seconds=3600))
        begun = lab.now
        runs = [lab.start(job) for _ in range(3)]
        for run in runs:
            lab.result(run)
        assert timedelta(hours=2) <= lab.now - begun < timedelta(hours=2, minutes=1)


def test_postgres_needs_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(InvalidArguments, match=r"--holdfast-postgres URL, set HOLDFAST_TEST_URL, or use Lab\("):
        Lab("postgres")
    monkeypatch.setenv(URL_VARIABLE, "mysql://user:geheim@host/db")
    with pytest.raises(InvalidArguments, match=r"HOLDFAST_TEST_URL: must begin with postgresql://") as caught:
        Lab("postgres")
    assert "geheim" not in str(caught.value)
    monkeypatch.setenv(URL_VARIABLE, server().url)
    with Lab("postgres") as lab:
        assert lab.result(lab.start(shop.plain, 1)) == 3


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
        Lab("postgresql://127.0.0.1:1/none?connect_timeout=2")


CODE = """
import pytest
from holdfast import App, sleep
app = App("shop", "memory:")

@app.job
async def job() -> str:
    await sleep("3d")
    return "done"

@pytest.mark.holdfast(store="postgres")
def test_job(lab):
    assert lab.result(lab.start(job)) == "done"
"""


def run_pytest(folder: Path, code: str, *options: str, url: str = "") -> str:
    (folder / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, "test_it.py", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", URL_VARIABLE: url}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment).stdout


def test_a_marker_chooses_postgres_and_an_option_the_server(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, CODE, "--holdfast-postgres", server().url)
    assert "1 passed" in ran, ran
    ran = run_pytest(tmp_path, CODE + CODE.replace("test_job", "test_bad").replace("store=", "stoer="))
    assert "'postgres' needs the URL of a database for tests" in ran
    assert "the marker holdfast takes store and start_at, not stoer" in ran
