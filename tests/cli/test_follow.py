"""Runs followed live, and how output looks: on a real terminal, and anywhere else."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.scripts import ROOT
from support.shell import Shell
from support.terminal import Terminal

SHOP = str(ROOT / "examples" / "shop.py")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def on_terminal(shell: Shell, *words: str, columns: int = 100, **environment: str) -> Terminal:
    return Terminal(
        sys.executable, "-m", "holdfast", *words,
        cwd=shell.folder, environment={**shell.environment, **environment}, columns=columns,
    )  # fmt: skip


def begun(shell: Shell, *words: str) -> subprocess.Popen[str]:
    """Start a command and leave it running."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        cwd=shell.folder, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def written(shell: Shell, code: str) -> str:
    """Write an app to a file of its own."""
    file = shell.folder / "own.py"
    file.write_text("from holdfast import App, wait_for\napp = App('own')\n" + textwrap.dedent(code))
    return str(file)


def test_follow_tells_each_step_as_a_plain_line_when_piped_and_ends_with_the_result(shell: Shell) -> None:
    run = shell.run("start", SHOP, "checkout", "sku=A1", "card=4242")
    following = begun(shell, "follow", run)
    shell.run("worker", SHOP, "--until-idle")
    shell.run("signal", run, "shipped", '{"by": "dhl"}')
    shell.run("worker", SHOP, "--until-idle")
    shown, said = following.communicate(timeout=60)
    assert (following.returncode, said) == (0, "")
    lines = shown.splitlines()
    assert lines[0] == f"run {run}"
    assert re.fullmatch(r' +0\.000s  shop\.checkout\(sku="A1", card="4242"\)', lines[1])
    assert re.search(r'price\(sku="A1"\) in [\d.]+ m?s → 200', shown)
    assert re.search(r'charge\(.*cents=200\) in .* → "receipt for 200 cents"', shown)
    assert shown.index("waits for the signal 'shipped'") < shown.index("the signal 'shipped' arrived")
    assert lines[-2].startswith("succeeded in ")
    assert json.loads(lines[-1])["receipt"] == "receipt for 200 cents"
    assert "\x1b" not in shown


def test_start_follows_what_it_starts_and_its_exit_code_is_the_runs(shell: Shell) -> None:
    target = written(shell, "@app.job\nasync def fail() -> None:\n    raise ValueError('no luck')\n")
    worker = begun(shell, "worker", target)
    try:
        shown = shell.run("start", target, "fail", "--follow", code=1)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert "failed: no luck" in shown
    assert shown.splitlines()[-1].startswith("failed in ")


def test_follow_as_json_is_one_document_a_line_events_and_records(shell: Shell) -> None:
    run = shell.run("start", SHOP, "notify", "text=hello")
    shell.run("worker", SHOP, "--until-idle")
    told = [json.loads(line) for line in shell.run("follow", run, "--json").splitlines()]
    assert [one["event"]["seq"] for one in told if "event" in one] == list(range(1, 7))
    assert told[-1]["run"]["status"] == "succeeded"
    lines = shell.run("events", run, "--follow", "--json", "--after", "4").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [5, 6]
    assert shell.run("events", run, "--follow").splitlines()[-1].split()[2:4] == ["1", "job_completed"]


def test_an_old_run_is_followed_to_its_own_end_and_not_into_its_successor(shell: Shell) -> None:
    target = written(shell, "@app.job\nasync def fail() -> None:\n    raise ValueError('no')\n")
    run = shell.run("start", target, "fail")
    shell.run("worker", target, "--until-idle")
    shell.run("retry", run)
    told = shell.run("follow", run, code=1)
    assert told.splitlines()[-1].startswith("failed in ")
    assert "queued again" not in told
    assert "queued again" in shell.run("events", run).replace("job_requeued", "queued again")


def test_on_a_terminal_steps_scroll_above_a_live_bar_in_colour(shell: Shell) -> None:
    target = written(
        shell,
        """
        @app.step
        async def load(n: int) -> int:
            return n * 2
        @app.job
        async def work() -> int:
            one = await load(1)
            await wait_for("go")
            return one
        """,
    )
    run = shell.run("start", target, "work")
    shell.run("worker", target, "--until-idle")
    screen = on_terminal(shell, "follow", run)
    screen.until("waits for the signal 'go'", "━━━")
    shell.run("signal", run, "go")
    shell.run("worker", target, "--until-idle")
    assert screen.end() == 0
    assert re.search(r"✓ load\(n=1\) in .* → 2", screen.shown)
    assert "succeeded in " in screen.shown
    assert screen.shown.rstrip().endswith("2")
    assert "\x1b[32m" in screen.output
    assert "\x1b[?25h" in screen.output, "the cursor is shown again"


def test_ctrl_c_leaves_the_run_alone_and_exits_with_130(shell: Shell) -> None:
    run = shell.run("start", SHOP, "notify", "text=hello")
    screen = on_terminal(shell, "follow", run)
    screen.until("shop.notify")
    screen.type("\x03")
    assert screen.end() == 130
    assert f"the run continues: holdfast follow {run}" in screen.shown
    assert "Traceback" not in screen.shown
    assert "Aborted" not in screen.shown
    assert shell.json("show", run)["status"] == "queued"


def test_a_reader_that_leaves_is_no_error(shell: Shell) -> None:
    run = shell.run("start", SHOP, "checkout", "sku=A1", "card=4242")
    following = begun(shell, "follow", run)
    assert following.stdout is not None
    assert following.stdout.readline() == f"run {run}\n"
    following.stdout.close()
    shell.run("worker", SHOP, "--until-idle")  # so that there is more to write, to nobody
    following.wait(timeout=60)
    assert following.stderr is not None
    assert following.stderr.read() == ""
    following.stderr.close()


def test_a_listing_is_a_table_on_a_terminal_and_ids_are_whole_however_narrow_it_is(shell: Shell) -> None:
    run = shell.run("start", SHOP, "notify", "text=hello")
    wide = on_terminal(shell, "runs", columns=160)
    assert wide.end() == 0
    assert "\x1b[1mRUN" in wide.output
    assert re.search(rf"{run}  shop\.notify  queued +\d+ ms ago|{run}  shop\.notify  queued +[\d.]+ s ago", wide.shown)
    assert "STAGE" in wide.shown
    narrow = on_terminal(shell, "runs", columns=72)
    assert narrow.end() == 0
    assert run in narrow.shown
    assert "STAGE" not in narrow.shown
    assert len(narrow.shown.strip().splitlines()) == 2
    piped = shell.run("runs")
    assert piped.splitlines()[0].split() == ["RUN", "JOB", "STATUS", "CREATED", "STAGE", "TOOK"]
    assert "\x1b" not in piped


def test_no_color_is_honoured(shell: Shell) -> None:
    shell.run("start", SHOP, "notify", "text=hello")
    for words in (["runs"], ["workers"], ["stats"]):
        screen = on_terminal(shell, *words, NO_COLOR="1")
        assert screen.end() == 0
        assert not re.search(r"\x1b\[\d*(;\d+)*3\dm", screen.output)


def test_follow_and_show_go_on_with_the_runs_that_continue_one(shell: Shell) -> None:
    own = written(
        shell,
        """
        from holdfast import continue_as

        @app.job
        def count(n: int) -> str:
            return continue_as(n + 1) if n < 2 else f"counted to {n}"
        """,
    )
    run = shell.run("start", own, "count", "n=0")
    following = begun(shell, "follow", run)
    shell.run("worker", own, "--until-idle")
    shown, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    record = json.loads(shell.run("show", run, "--json"))
    assert (record["continues"], record["status"], record["result"]) == (None, "succeeded", "counted to 2")
    assert shown.startswith(f"run {run}\n")
    assert f"continued as {record['continued_as']}" in shown
    assert shown.splitlines()[-1] == '"counted to 2"'
    last = json.loads(shell.run("show", record["current"]["run_id"], "--json"))
    assert (last["continued_as"], last["result"]) == (None, "counted to 2")
    assert "current" not in last
    told = shell.run("show", run)
    assert record["current"]["run_id"] in told
    assert "continued_as" in told
    assert record["continued_as"] in shell.run("explain", run)
