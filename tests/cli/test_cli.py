"""The command line as a user meets it: a real process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import App, __version__
from holdfast.machines import JOB, READY, RUN

COMMAND = Path(sys.executable).with_name("holdfast")


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_machines_alone_shows_all_three() -> None:
    shown = holdfast("machines")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == f"{JOB.text()}\n\n{RUN.text()}\n\n{READY.text()}\n"


@pytest.mark.parametrize(("name", "table"), [("job", JOB), ("run", RUN), ("ready", READY)])
def test_each_machine_is_drawn_in_each_format(name: str, table: object) -> None:
    for form, draw in [("table", "text"), ("mermaid", "mermaid"), ("dot", "dot")]:
        shown = holdfast("machines", name, "--format", form)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout == getattr(table, draw)() + "\n"
    shown = holdfast("machines", name, "--format", "json")
    assert json.loads(shown.stdout) == table.as_dict()  # type: ignore[attr-defined]


def test_json_of_all_machines_is_one_document() -> None:
    described = json.loads(holdfast("machines", "--format", "json").stdout)
    assert [machine["machine"] for machine in described] == ["Job", "Run", "ReadyState"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["machines", "engine"], "'engine' is not one of 'job', 'run', 'ready'"),
        (["machines", "--format", "png"], "'png' is not one of 'table', 'mermaid', 'dot', 'json'"),
        (["machine"], "No such command 'machine'"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_right(arguments: list[str], said: str) -> None:
    refused = holdfast(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr


def test_the_version_and_the_help_are_there() -> None:
    assert holdfast("--version").stdout == f"holdfast, version {__version__}\n"
    assert "machines" in holdfast("-h").stdout
    assert "\n  Exit codes: 0 done, 1 the run failed" in holdfast("--help").stdout
    assert "Example: holdfast machines run --format mermaid" in holdfast("machines", "--help").stdout


def test_python_dash_m_is_the_same_command() -> None:
    command = [sys.executable, "-m", "holdfast", "machines", "run"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == RUN.text() + "\n"


def test_a_terminal_that_cannot_show_an_arrow_is_no_reason_to_fail() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    shown = subprocess.run(
        [COMMAND, "machines"], env=environment, capture_output=True, encoding="cp1252", check=True, timeout=60
    )
    assert "job_created    ? queued" in shown.stdout


def test_start_up_imports_nothing_that_is_not_used() -> None:
    """First output well under 0.2 s: a matter of what is imported, which a slow machine does not change."""
    code = "import sys, holdfast.cli.main; print(*sorted(sys.modules))"
    command = [sys.executable, "-I", "-c", code]  # -I: nothing of the test run's own environment
    loaded = subprocess.run(command, env={}, capture_output=True, text=True, check=True, timeout=60)
    heavy = {"asyncio", "msgspec", "holdfast.machines", "holdfast.ready", "psycopg", "starlette", "rich", "sqlite3"}
    assert not (heavy | {"httpx", "uvicorn"}) & set(loaded.stdout.split())


def test_a_listing_imports_neither_the_engine_nor_what_terminals_and_servers_need(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App("shop", url)
    assert app.list() == [], "a store that exists: a look creates none"
    app.close()
    command = [sys.executable, "-X", "importtime", "-m", "holdfast", "runs", "--url", url]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "holdfast.store.sqlite.store" in loaded
    assert not {"rich", "httpx", "starlette", "uvicorn", "psycopg", "holdfast.engine.worker"} & loaded
