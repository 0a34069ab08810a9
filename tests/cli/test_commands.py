"""The commands that start, show and steer runs, as a user types them: real processes on a real file."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from support.scripts import ROOT
from support.shell import Shell
from support.stories import TooLate, in_time, play
from support.web import wait_until

SHOP = str(ROOT / "examples" / "shop.py")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def work(shell: Shell) -> None:
    shell.run("worker", SHOP, "--until-idle")


def test_a_run_from_start_to_end_on_the_command_line(shell: Shell) -> None:
    run = shell.run("start", SHOP, "checkout", "sku=A1", "card=4242")
    assert "no worker has taken it yet" in shell.run("explain", run)
    work(shell)
    record = shell.json("show", run)
    assert (record["status"], record["stage"], record["entry_id"]) == ("running", "parked", "checkout")
    assert "It waits for the signal 'shipped', until" in shell.run("explain", run)
    assert shell.run("signal", run, "shipped", '{"by": "dhl"}') == "delivered"
    work(shell)
    assert shell.json("show", run)["status"] == "succeeded"
    assert "It has ended: completed." in shell.run("explain", run)
    listed = shell.run("runs")
    assert "shop.checkout" in listed
    assert "succeeded" in listed
    assert {one["entry_id"] for one in shell.json("runs")} == {"checkout", "notify"}
    kinds = [event["type"] for event in shell.json("events", run)]
    assert kinds[0] == "job_created"
    assert kinds[-1] == "job_completed"
    assert "tool_invocation_finished" in shell.run("events", run)
    assert shell.run("verify") == "every history is valid"
    assert shell.json("verify", run) == {}


ASKING = """
import msgspec
from holdfast import App, wait_for
app = App("shop")

class Approval(msgspec.Struct):
    approved: bool

@app.job
async def ship() -> str:
    return "shipped" if (await wait_for("approval", form=Approval)).approved else "refused"
"""


def test_a_question_is_listed_with_its_command_and_a_wrong_answer_is_refused(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "asking.py"
    file.write_text(ASKING)
    run = shell.run("start", str(file), "ship")
    shell.run("worker", str(file), "--until-idle")
    (asked,) = shell.json("inbox", "--kind", "answer")
    assert (asked["run_id"], asked["key"], "Approval" in asked["form"]["$defs"]) == (run, "approval", True)
    assert f"holdfast signal {run} approval JSON --node {asked['node']}" in shell.run("inbox", "--run", run)
    refused = shell.run("signal", run, "approval", '{"approved": 1}', code=2)
    assert "answer.approved: must be true or false, got 1" in refused
    answer = ("signal", run, "approval", '{"approved": true}', "--actor", "ana", "--node", asked["node"])
    assert shell.run(*answer) == "delivered"
    assert "was answered by ana, so this answer was not stored" in shell.run(*answer, code=4)
    assert shell.json("events", run)[-1]["payload"]["actor"] == "ana"
    assert shell.run("inbox", "--kind", "doubt") in {"", "nothing waits for a person"}


def test_runs_that_match_are_canceled_after_a_question(shell: Shell) -> None:
    runs = {shell.run("start", SHOP, "notify", f"text={number}") for number in range(3)}
    assert set(shell.run("cancel", "--entry", "notify", "--dry-run").split()) == runs
    for words in (["cancel", min(runs)], ["signal", min(runs), "go"]):
        assert "leave it out with RUN" in shell.run(*words, "--dry-run", code=2), "it would be executed"
    asked = shell.ran("cancel", "--entry", "notify")
    assert (asked.returncode, asked.stdout) == (1, ""), "no answer is a no"
    assert "cancel 3 runs? [y/N]" in asked.stderr
    assert {run["status"] for run in shell.json("runs")} == {"queued"}
    assert set(shell.json("cancel", "--entry", "notify", "--yes")["run_ids"]) == runs
    assert {run["status"] for run in shell.json("runs")} == {"canceled"}
    assert shell.run("retry", "--status", "failed") == "no runs match"
    assert shell.run("signal", "go", "--entry", "notify", "--yes") == "no runs match", "all have ended"
    assert set(shell.run("purge", "--entry", "notify", "--dry-run").split()) == runs
    assert "give --older-than" in shell.run("purge", code=2)
    limited = ("purge", "--older-than", "0s", "--limit", "1", "--dry-run")  # it would list others than are removed
    assert "leave --limit out" in shell.run(*limited, code=2)
    assert set(shell.run("purge", "--entry", "notify", "--status", "canceled", "--yes").split()) == runs
    assert shell.run("purge", "--entry", "notify", "--finished-before", "0s", "--yes") == "no runs match"
    assert "give RUN, or at least one option" in shell.run("cancel", code=2)
    assert "give RUN, or at least one option" in shell.run("cancel", runs.pop(), "--entry", "notify", code=2)


def test_ids_may_be_shortened_as_long_as_they_are_one_runs(shell: Shell) -> None:
    one = shell.run("start", SHOP, "notify", "text=hello")
    two = shell.run("start", SHOP, "notify", "text=there")
    assert shell.json("show", one[-8:])["run_id"] == one
    assert f"{one[:3]} matches 2 runs" in shell.run("show", one[:3], code=2)
    assert "no job has the id" in shell.run("show", "zzz", code=3)
    assert "no job has the id" in shell.run("show", f"{one}.0", code=3)
    assert shell.json("cancel", one)["status"] == "canceled"
    assert json.loads(shell.ran("signal", one, "k", "--json").stdout) == {"outcome": "too_late"}
    assert "has already ended" in shell.run("signal", one, "k", code=4)
    assert shell.json("explain", one)["state"] == "cancelled"
    assert shell.run("show", two)


def test_a_result_is_waited_for_and_a_key_gives_the_same_run(shell: Shell) -> None:
    first = shell.run("start", SHOP, "notify", "text=hello", "--key", "k")
    assert shell.run("start", SHOP, "notify", "text=hello", "--key", "k") == first
    assert "which was started with other arguments" in shell.run(
        "start", SHOP, "notify", "text=other", "--key", "k", code=4
    )
    work(shell)
    told = shell.json("start", SHOP, "notify", "text=hello", "--key", "k", "--wait", "50")
    assert told["result"] == "Dear customer: hello."
    late = shell.run("start", SHOP, "notify", "text=new", "--wait", "0.1", code=6)
    assert shell.json("runs", "--limit", "1")[0]["run_id"] in late, "which run it is that goes on"


def test_output_that_cannot_be_written_is_one_line(shell: Shell) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "holdfast", "machines", "job"]
        ran = subprocess.run(words, env=shell.environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (8, "holdfast: output: No space left on device\n")


def test_runs_are_cancelled_paused_resumed_and_retried(shell: Shell, tmp_path: Path) -> None:
    run = shell.run("start", SHOP, "notify", "text=hello")
    assert shell.run("pause", run) == f"{run} queued paused"
    assert shell.run("explain", run) == "It is paused until an operator resumes it."
    assert shell.run("resume", run) == f"{run} queued queued"
    assert shell.run("cancel", run, "--reason", "no") == f"{run} canceled"
    assert "only a failed job is retried" in shell.run("retry", run, code=4)
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from holdfast import App\napp = App('bad')\n@app.job\nasync def fail() -> None:\n    raise ValueError('no')\n"
    )
    failed = shell.run("start", str(bad), "fail")
    shell.run("worker", str(bad), "--until-idle")
    assert shell.json("show", failed)["error"]["message"] == "no"
    assert "An operator may retry it" in shell.run("explain", failed)
    assert shell.run("retry", failed, "--actor", "ana", "--reason", "mended") == f"{failed}.2 queued queued"
    shell.run("start", str(bad), "fail", "--key", "x")
    shell.run("worker", str(bad), "--until-idle")
    shell.run("start", str(bad), "fail", "--key", "x", "--wait", "50", code=1)


def test_a_worker_process_that_is_killed_leaves_a_question_that_is_answered(shell: Shell, tmp_path: Path) -> None:
    hang = tmp_path / "hang.py"
    hang.write_text(
        "import asyncio\nfrom holdfast import App\napp = App('hang')\n"
        "@app.tool\nasync def charge(card: str) -> str:\n"
        "    print('acting', flush=True)\n    await asyncio.sleep(3600)\n    return 'never'\n"
        "@app.job\nasync def pay(card: str) -> str:\n    return await charge(card)\n"
    )
    shell.environment["HOLDFAST_LEASE_SECONDS"] = "0.3"
    run = shell.run("start", str(hang), "pay", "card=4242")
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(hang)],
        env=shell.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdout.readline() == "acting\n"
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    shell.run("worker", str(hang), "--until-idle")
    asks = shell.run("explain", run)
    assert asks.startswith("The call charge:")
    node = asks.split("The call ")[1].split()[0]
    assert "does not ask about" in shell.run("resolve", run, "other", "--fail", code=4)
    assert "give one of" in shell.run("resolve", run, node, code=2)
    shell.run("resolve", run, node, "--done", "receipt-7", "--actor", "ana")
    shell.run("worker", str(hang), "--until-idle")
    assert shell.json("start", str(hang), "pay", "card=4242", "--key", "n")["run_id"] != run
    assert shell.json("events", run)[-1]["payload"]["result"] == "receipt-7"


def test_a_supervisor_replaces_a_dead_worker_and_its_job_runs_again_within_a_second(
    shell: Shell, tmp_path: Path
) -> None:
    """The lease is a minute: only the noticed death can bring the job back so soon (L10)."""
    target = tmp_path / "twice.py"
    target.write_text(
        "import os, signal\nfrom holdfast import App, attempt\napp = App('twice')\n"
        "@app.step\nasync def deadly() -> int:\n"
        "    if attempt() == 1:\n        os.kill(os.getpid(), signal.SIGKILL)\n    return attempt()\n"
        "@app.job\nasync def work() -> int:\n    return await deadly()\n"
    )
    shell.environment["HOLDFAST_LEASE_SECONDS"] = "60"
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(target), "--processes", "2"],
        env=shell.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    async def story() -> None:
        told = shell.json("start", str(target), "work", "--wait", "50")
        assert told["result"] == 2
        events = shell.json("events", told["run_id"])
        claims = [event["at"] for event in events if event["type"] == "job_running"]
        if claims[1] - claims[0] >= 1.0:
            raise TooLate(claims)

    try:
        play(in_time(story))
    finally:
        supervisor.terminate()
        assert supervisor.wait(timeout=60) == 0
    assert supervisor.stderr is not None
    assert "died (exit code -9); it is replaced and its jobs are released" in supervisor.stderr.read()
    supervisor.stderr.close()


def test_a_cancel_from_another_process_reaches_a_running_job_long_before_the_heartbeat(
    shell: Shell, tmp_path: Path
) -> None:
    target = tmp_path / "slow.py"
    target.write_text(
        "import asyncio\nfrom holdfast import App\napp = App('slow')\n"
        "@app.step\nasync def hang() -> None:\n    print('hanging', flush=True)\n    await asyncio.sleep(3600)\n"
        "@app.job\nasync def work() -> None:\n    await hang()\n"
    )
    shell.environment["HOLDFAST_LEASE_SECONDS"] = "600"
    run = shell.run("start", str(target), "work")
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(target), "--until-idle"],
        env=shell.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdout.readline() == "hanging\n"
    shell.run("cancel", run, "--reason", "enough")
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()
    assert shell.json("show", run)["status"] == "canceled"


def test_a_stopped_worker_hands_its_job_back_in_order(shell: Shell, tmp_path: Path) -> None:
    target = tmp_path / "slow.py"
    target.write_text(
        "import asyncio\nfrom holdfast import App\napp = App('slow')\n"
        "@app.step\nasync def hang() -> None:\n    print('hanging', flush=True)\n    await asyncio.sleep(3600)\n"
        "@app.job\nasync def work() -> None:\n    await hang()\n"
    )
    shell.environment["HOLDFAST_SHUTDOWN_SECONDS"] = "0.1"
    run = shell.run("start", str(target), "work")
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(target)],
        env=shell.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdout.readline() == "hanging\n"
    wait_until(lambda: "hang:" in shell.run("workers"))  # the declaration of a step does not wait for the disk
    (seen,) = shell.json("workers")
    assert (seen["card"]["pid"], seen["alive"], seen["running"][0]["job"]) == (worker.pid, True, run)
    assert f"pid {worker.pid}  1 of 100 slots" in shell.run("workers")
    assert f"{run}  slow.work  attempt 1  hang:" in shell.run("workers")
    worker.terminate()
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()
    assert shell.run("workers") == "no workers"
    last = shell.json("events", run)[-1]
    assert (last["type"], last["payload"]["reason"]) == ("job_requeued", "worker_shutdown")


def test_tampering_is_found_and_exits_with_1(shell: Shell, tmp_path: Path) -> None:
    run = shell.run("start", SHOP, "notify", "text=hello")
    work(shell)
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute(
        "UPDATE events SET payload = replace(payload, 'hello', 'hullo') WHERE job = ? AND seq = 1", (run,)
    )
    connection.close()
    assert "breaks P8: its contents do not match its hash" in shell.run("verify", run, code=1)
    assert list(shell.json("verify", code=1)) == [run]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["start", SHOP, "chekout"], 3, "no job is named 'chekout'; the known jobs are: checkout, notify"),
        (["start", SHOP, "notify", "hello"], 2, "arguments must be name=value, got hello"),
        (["start", SHOP, "notify"], 2, "missing a required argument: 'text'"),
        (["start", SHOP, "notify", "text=a", "size=5"], 2, "got an unexpected keyword argument 'size'"),
        (["start", "nothing.py", "work"], 2, "no file is named nothing.py"),
        (["start", "no_such_module", "work"], 2, "no file or module is named 'no_such_module'"),
        (["show", "nobody"], 5, "does not exist: name the store with --url or HOLDFAST_URL"),
        (["changes", SHOP], 5, "does not exist: name the store with --url or HOLDFAST_URL"),
        (["changes"], 5, "does not exist: name the store with --url or HOLDFAST_URL"),
        (["builds", "move", "1", "2", "--unchecked"], 5, "does not exist: name the store with --url or HOLDFAST_URL"),
        (["builds", "move", "1", "2", SHOP], 5, "does not exist: name the store with --url or HOLDFAST_URL"),
        (["answer", "all", "build"], 5, "does not exist: name the store with --url or HOLDFAST_URL"),
        (["start", SHOP, "notify", "text=a", "--url", "sqlite:////nowhere/jobs.db"], 5, "check the path and its"),
        (["runs", "--url", "redis://localhost"], 2, "it is not the URL of a store: use sqlite:///path/to/jobs.db"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(shell: Shell, words: list[str], code: int, said: str) -> None:
    told = shell.run(*words, code=code)
    assert said in told
    assert "Traceback" not in told


def test_a_listing_of_nothing_says_so(shell: Shell) -> None:
    assert shell.run("runs") == f"no runs: the store sqlite:///{shell.folder}/jobs.db does not exist"
    assert shell.json("runs") == []


def test_several_processes_stop_when_there_is_nothing_left_to_do(shell: Shell) -> None:
    run = shell.run("start", SHOP, "checkout", "sku=A1", "card=4242")
    shell.run("worker", SHOP, "--processes", "2", "--until-idle")
    assert shell.json("show", run)["stage"] == "parked"


def test_a_backup_is_made_and_told_of_in_a_line_and_a_file_that_is_there_is_kept(shell: Shell, tmp_path: Path) -> None:
    shell.run("start", SHOP, "checkout", "sku=A1", "card=4242")
    told = shell.run("backup", "copy.db")
    assert re.fullmatch(rf"{tmp_path / 'copy.db'}: [\d,]+ bytes, 1 jobs, 1 events, integrity ok", told)
    assert "copy.db exists: name another file, or use --force" in shell.run("backup", "copy.db", code=2)
    assert shell.json("backup", "copy.db", "--force")["jobs"] == 1
    assert len(shell.json("runs", "--url", f"sqlite:///{tmp_path / 'copy.db'}")) == 1
    assert "pg_dump" in shell.run("backup", "x.db", "--url", "postgresql:///shop", code=2)
