"""The commands through a server: the same words, tables and exit codes as on the store itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.scripts import ROOT
from support.shell import Shell
from support.web import Served, served

COMMAND = Path(sys.executable).with_name("holdfast")
SHOP = str(ROOT / "examples" / "shop.py")


@pytest.fixture
def near(tmp_path: Path) -> Shell:
    """A shell on the store."""
    return Shell(tmp_path)


@pytest.fixture
def server(near: Shell) -> Iterator[Served]:
    with served(SHOP, near.environment["HOLDFAST_URL"], SHOP_LEDGER=near.environment["SHOP_LEDGER"]) as running:
        yield running


@pytest.fixture
def far(server: Served, tmp_path: Path) -> Shell:
    """A shell elsewhere: it knows the server and no store."""
    (tmp_path / "elsewhere").mkdir()
    shell = Shell(tmp_path / "elsewhere")
    del shell.environment["HOLDFAST_URL"]
    shell.environment["HOLDFAST_SERVER"] = server.url
    return shell


def work(near: Shell) -> None:
    near.run("worker", SHOP, "--until-idle")


def test_a_run_from_start_to_end_through_a_server(near: Shell, far: Shell) -> None:
    more = ("--deadline", "1h", "--key", "k", "--budget", "usd=2.5", "--budget", "tokens=100")
    run = far.run("start", "shop", "checkout", "sku=A1", "card=4242", *more)
    assert far.json("events", run)[0]["payload"]["budget"] == {"tokens": 100_000_000, "usd": 2_500_000}
    told = far.run("explain", run)
    assert "no worker has taken it yet. No worker is alive: start one with `holdfast worker`." in told
    assert "Its deadline is" in told
    work(near)
    assert "It waits for the signal 'shipped', until" in far.run("explain", run[:23])
    assert far.run("signal", run[-9:], "shipped", '{"by": "dhl"}') == "delivered"
    work(near)
    assert far.json("show", run) == near.json("show", run)
    assert far.json("show", run)["result"]["receipt"] == "receipt for 200 cents"
    assert far.json("runs") == near.json("runs")
    assert far.json("runs", "--entry", "notify", "--status", "succeeded") == near.json("runs", "--entry", "notify")
    assert far.json("events", run) == near.json("events", run)
    assert far.json("exports", run) == near.json("exports", run)
    assert far.json("entries") == near.json("entries", SHOP)
    assert "shop.checkout" in far.run("entries")
    assert far.run("workers") == "no workers"
    assert far.json("stats")["workers"] == 0
    assert far.run("verify") == "every history is valid"
    assert far.json("purge", "--older-than", "30d") == {"removed": 0}
    assert far.json("doctor")["server_works"] is True
    assert not (far.folder / "holdfast.db").exists(), "nothing was opened here"


def test_a_run_is_followed_through_a_server(near: Shell, far: Shell) -> None:
    run = far.run("start", "shop", "notify", "text=42")
    work(near)
    shown = far.run("follow", run)
    assert 'shop.notify(text="42")' in shown, "text is what the job wants, however it looks"
    assert shown.splitlines()[-1] == '"Dear customer: 42."'
    told = far.run("start", "shop", "notify", "text=hello", "--key", "k", "--wait", "0.1", code=6)
    assert f"run {far.json('runs', '--limit', '1')[0]['run_id']} has not ended in time" in told
    work(near)
    assert far.json("start", "shop", "notify", "text=hello", "--key", "k", "--wait", "50")["result"].endswith("hello.")


def test_runs_are_steered_through_a_server_and_by_whom_is_kept(near: Shell, far: Shell) -> None:
    run = far.run("start", "shop", "notify", "text=hello", "--delay", "1h")
    assert far.run("pause", run) == f"{run} queued paused"
    assert far.run("resume", run).startswith(f"{run} queued")
    assert far.run("cancel", run, "--reason", "no", "--actor", "ana") == f"{run} canceled"
    assert "only a failed job is retried" in far.run("retry", run, code=4)
    assert "does not ask about" in far.run("resolve", run, "charge:1", "--fail", code=4)
    assert near.json("show", run)["cancel_reason"] == "no"


def test_mistakes_are_one_line_with_the_same_codes(far: Shell) -> None:
    assert "no job has the id 'nobody'" in far.run("show", "nobody", code=3)
    assert "no job is named 'shop.chekout'" in far.run("start", "shop", "chekout", code=3)
    assert "missing a required argument" in far.run("start", "shop", "notify", code=2)
    assert "does not answer" in far.run("runs", "--server", "http://127.0.0.1:1", code=5)
    assert "use http://host:port" in far.run("runs", "--server", "localhost", code=2)
    both = far.run("runs", "--server", "http://x", "--url", "memory:", code=2)
    assert "give --url or --server, not both" in both
    assert far.run("runs", "--url", f"sqlite:///{far.folder}/own.db").startswith("no runs"), (
        "a flag comes before the environment"
    )


def test_a_token_comes_from_the_environment_and_one_that_may_not_exits_with_7(near: Shell) -> None:
    file = near.folder / "tokens.json"
    near.environment["HOLDFAST_TOKENS"] = str(file)
    reading = near.json("tokens", "create", "--name", "viewer", "--scope", "read")["token"]
    with served(SHOP, near.environment["HOLDFAST_URL"], HOLDFAST_TOKENS=str(file)) as running:
        near.environment["HOLDFAST_SERVER"] = running.url
        refused = near.run("runs", code=7)
        assert "holdfast tokens create" in refused
        assert len(refused.splitlines()) == 1
        near.environment["HOLDFAST_TOKEN"] = reading
        assert near.run("runs").startswith("no runs")
        assert "the scope submit is needed" in near.run("start", "shop", "notify", "text=a", code=7)
        assert reading not in " ".join(Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0"))


def test_completion_offers_runs_and_jobs_from_the_store_and_from_a_server(near: Shell, far: Shell) -> None:
    run = near.run("start", SHOP, "notify", "text=hello")

    def offered(shell: Shell, *words: str) -> str:
        line = " ".join(["holdfast", *words])
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_HOLDFAST_COMPLETE": "bash_complete"}
        ran = subprocess.run(
            [COMMAND], env={**shell.environment, **asked}, cwd=shell.folder,
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert ran.stderr == ""
        return ran.stdout.strip()

    for shell in (near, far):
        assert f"plain,{run}" in offered(shell, "show", run[:4])
        assert offered(shell, "follow", "zzz") == ""
    assert "plain,notify" in offered(near, "start", SHOP, "no")
    assert offered(far, "show", "--url", f"sqlite:///{far.folder}/own.db", run[:4]) == "", "a flag comes first"
    assert "plain,checkout" in offered(far, "start", "shop", "ch")
    far.environment["HOLDFAST_SERVER"] = "http://127.0.0.1:1"
    assert offered(far, "show", "0") == "", "whatever is wrong, a line that is being typed is not disturbed"
    for shell_name, sign in (
        ("bash", "complete -o nosort"),
        ("zsh", "#compdef holdfast"),
        ("fish", "complete --no-files"),
    ):
        assert sign in near.run("completion", shell_name)


def test_follow_as_json_through_a_server_is_the_same_as_on_the_store(near: Shell, far: Shell) -> None:
    run = far.run("start", "shop", "notify", "text=hello", "--key", "k")
    work(near)
    there = [json.loads(line) for line in far.run("follow", run, "--json").splitlines()]
    here = [json.loads(line) for line in near.run("follow", run, "--json").splitlines()]
    assert there == here
