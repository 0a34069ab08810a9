"""`holdfast doctor`: what is missing in a deployment, on each store, without creating or showing anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from holdfast.cli.main import main
from support.postgres import fresh_url
from support.scripts import ROOT
from support.shell import Shell
from support.web import served, wait_until

SHOP = str(ROOT / "examples" / "shop.py")


class Here(Shell):
    """A shell whose commands run in this process, which takes milliseconds instead of a second."""

    def ran(self, *words: str) -> subprocess.CompletedProcess[str]:
        folder = Path.cwd()
        os.chdir(self.folder)
        try:
            done = CliRunner().invoke(main, words, env=self.environment)
        finally:
            os.chdir(folder)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Here(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, shell: Shell) -> Shell:
    if request.param == "postgres":
        shell.environment["HOLDFAST_URL"] = fresh_url()
    return shell


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in report["checks"]}


def test_a_store_that_is_missing_is_named_and_not_created(either: Shell) -> None:
    report = either.json("doctor", code=1)
    assert (report["ok"], report["store_works"], statuses(report)["schema"]) == (False, False, "fail")
    assert "there is no store yet: run holdfast migrate" in either.run("doctor", code=1)
    assert list(either.folder.iterdir()) == []


def test_a_store_that_works_is_reported_with_versions_and_without_workers(either: Shell) -> None:
    either.run("migrate")
    is_file = either.environment["HOLDFAST_URL"].startswith("sqlite")
    report = either.json("doctor", code=0 if is_file else 1)  # the servers of tests run without fsync
    found = statuses(report)
    assert (report["ok"], report["store_works"], report["workers"]) == (is_file, True, 0)
    assert (found["schema"], found["store"], found["clock"]) == ("ok", "ok", "ok")
    assert (found["tokens"], found["workers"]) == ("warn", "warn")
    assert either.json("doctor", "--strict", code=1)["ok"] is False
    if is_file:
        assert tuple(map(int, report["sqlite"].split("."))) >= (3, 51, 3), "older ones can corrupt a file"
        assert {found[name] for name in ("disk", "inodes", "log", "locks", "store file")} == {"ok"}
    else:
        assert (found["postgres"], found["transaction_read_only"], found["fsync"]) == ("ok", "ok", "fail")


def test_a_deployment_with_a_worker_and_a_token_has_no_warnings(either: Shell) -> None:
    either.run("migrate")
    either.run("tokens", "create", "--name", "ops", "--scope", "admin")
    command = [sys.executable, "-m", "holdfast", "worker", SHOP]
    worker = subprocess.Popen(command, cwd=either.folder, env=either.environment)
    try:
        wait_until(lambda: either.json("stats")["workers"] == 1, worker)
        report = json.loads(either.ran("doctor", "--json").stdout)
    finally:
        worker.terminate()
        worker.wait(60)
    found = statuses(report)
    durable = {"fsync", "full_page_writes", "synchronous_commit"}  # the servers of tests may be faster than safe
    assert {name for name, status in found.items() if status != "ok"} <= durable
    assert (report["workers"], found["tokens"], found["tokens file"]) == (1, "ok", "ok")


def test_files_that_other_users_can_open_are_named(shell: Shell) -> None:
    shell.run("migrate")
    shell.run("tokens", "create", "--name", "ops")
    for name in ("jobs.db", "holdfast-tokens.json"):
        (shell.folder / name).chmod(0o644)
    found = statuses(shell.json("doctor"))
    assert (found["store file"], found["tokens file"]) == ("warn", "warn")
    assert "mode 644: other users can open it: chmod go= " in shell.run("doctor")


def test_weak_and_expired_tokens_and_missing_folders_are_named(shell: Shell) -> None:
    shell.run("migrate")
    shell.environment |= {"HOLDFAST_TOKEN": "hunter2hunter2", "HOLDFAST_EFFECTS": str(shell.folder / "effects")}
    shell.environment["HOLDFAST_SETTINGS_FILE"] = str(shell.folder / "settings.toml")
    report = shell.json("doctor")
    found = statuses(report)
    assert (found["token"], found["effects"], found["settings"]) == ("warn", "warn", "warn")
    assert "hunter2" not in str(report)
    (shell.folder / "settings.toml").write_text("url = 'x'")
    assert statuses(shell.json("doctor", code=1))["settings"] == "fail"


def test_a_file_that_is_no_database_ends_the_report(shell: Shell) -> None:
    (shell.folder / "jobs.db").write_text("a letter, and long enough to be read as the first page of a database")
    ran = shell.ran("doctor")
    assert ran.returncode == 5
    assert "fail  store" in ran.stdout
    assert "file is not a database: check the path" in ran.stderr
    assert "file is not a database: check the path" in shell.run("migrate", "--check", code=5)


def test_a_store_of_an_older_release_is_not_migrated_by_the_doctor(shell: Shell) -> None:
    import apsw

    shell.run("migrate")
    connection = apsw.Connection(str(shell.folder / "jobs.db"))
    newest = connection.pragma("user_version")
    connection.pragma("user_version", newest - 1)
    report = shell.json("doctor", code=1)
    assert statuses(report)["schema"] == "fail"
    assert connection.pragma("user_version") == newest - 1
    connection.close()


def test_settings_of_postgresql_that_lose_events_fail(shell: Shell) -> None:
    """A role with `synchronous_commit = off` acknowledges events that a crash of the server loses."""
    url = fresh_url()
    shell.environment["HOLDFAST_URL"] = f"{url}&options=-csynchronous_commit%3Doff%20-cstatement_timeout%3D5000"
    shell.run("migrate")
    found = statuses(shell.json("doctor", code=1))
    assert (found["synchronous_commit"], found["statement_timeout"]) == ("fail", "warn")


def test_no_password_is_printed(shell: Shell) -> None:
    parts = urlsplit(fresh_url())
    place = parts.netloc.rpartition("@")[2]
    for url in (
        parts._replace(netloc=f"postgres:s3cret-word@{place}").geturl(),
        "postgresql://ada:s3cret-word@127.0.0.1:1/shop?password=s3cret-word",
    ):
        shell.environment["HOLDFAST_URL"] = url
        for words in (("doctor",), ("doctor", "--json")):
            ran = shell.ran(*words)
            assert "s3cret-word" not in ran.stdout + ran.stderr
            assert ran.returncode in {1, 5}


def test_a_server_is_checked_from_a_clients_place(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    far = Here(tmp_path / "elsewhere")
    with served(SHOP, shell.environment["HOLDFAST_URL"]) as running:
        far.environment["HOLDFAST_SERVER"] = running.url
        report = far.json("doctor")
        assert report["server_works"] is True
        assert (statuses(report)["server"], statuses(report)["ready"]) == ("ok", "ok")
    ran = far.ran("doctor", "--json")
    assert ran.returncode == 5
    assert '"server_works": false' in ran.stdout
