"""A run that does not fit the code, on the command line: found by a check, explained, asked about and answered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.shell import Shell

CODE = """
from holdfast import App, wait_for
app = App("shop")

@app.step
async def price(cents: int) -> int:
    return cents

@app.job
async def pay() -> int:
    due = await price(CENTS)
    await wait_for("go")
    return due
"""


def test_a_run_that_does_not_fit_is_found_explained_and_answered_on_the_command_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)

    def deploy(build: str, cents: int) -> None:
        (shell.folder / "shop.py").write_text(CODE.replace("CENTS", str(cents)))
        shell.environment["HOLDFAST_BUILD"] = build

    deploy("1", 100)
    run = shell.run("start", "shop.py", "pay")
    shell.run("worker", "shop.py", "--until-idle")
    assert f"job {run} does not ask which code goes on" in shell.run("answer", run, "accept", code=4)
    deploy("2", 105)
    shell.run("signal", run, "go")
    shell.run("worker", "shop.py", "--until-idle")
    [asked] = shell.json("inbox", "--kind", "deploy")
    told = shell.run("inbox")
    assert "|" not in told, "each command can be pasted into a shell"
    for way in ("accept", "build", "fork", "fail"):
        assert f"\n    holdfast answer {run} {way} --node {asked['node']}" in told
    for text in (told, shell.run("explain", run)):
        assert "build 2 calls price(cents=105) at shop.py:11" in text
        assert "price(cents=100), which build 1 recorded" in text
    assert shell.run("answer", run, "accept", "--node", asked["node"]) == f"{run} running"
    assert f"the question '{asked['node']}' of job {run} is no longer open" in shell.run("answer", run, "fail", code=4)
    shell.run("worker", "shop.py", "--until-idle")
    assert shell.json("show", run)["status"] == "succeeded"


def test_after_a_roll_back_all_runs_that_ask_are_answered_at_once(tmp_path: Path) -> None:
    shell = Shell(tmp_path)

    def deploy(build: str, cents: int) -> None:
        (shell.folder / "shop.py").write_text(CODE.replace("CENTS", str(cents)))
        shell.environment["HOLDFAST_BUILD"] = build

    deploy("1", 100)
    runs = [shell.run("start", "shop.py", "pay") for _ in range(2)]
    shell.run("worker", "shop.py", "--until-idle")
    deploy("2", 103)
    alone = shell.run("start", "shop.py", "pay")
    shell.run("worker", "shop.py", "--until-idle")
    deploy("2", 105)
    for run in (alone, *runs):
        shell.run("signal", run, "go")
    shell.run("worker", "shop.py", "--until-idle")
    deploy("1", 100)
    assert "all in place of RUN" in shell.run("answer", runs[0], "build", "--began", "1", code=2)
    assert shell.run("answer", "all", "build", "--began", "3") == "0 runs were answered"
    assert shell.run("answer", "all", "build") == (
        "2 runs were answered\n1 still asks: no other build is known that has recorded its history"
    )
    shell.run("worker", "shop.py", "--until-idle")
    assert shell.run("answer", "all", "fail", "--began", "2") == "1 run was answered"
    assert [shell.json("show", run)["status"] for run in runs] == ["succeeded"] * 2


CUT_SHORT = """
import asyncio
from pathlib import Path
from holdfast import App
app = App("shop")

@app.tool
async def charge(cents: int) -> str:
    with Path("charged").open("a") as charged:
        charged.write(f"{cents}\\n")
    print("charging", flush=True)
    await asyncio.sleep(3600 if cents == 100 else 0)
    return "receipt"

@app.job
async def pay() -> str:
    return await charge(CENTS)
"""


def test_a_tool_that_was_begun_under_a_killed_worker_keeps_changed_code_from_another_call(tmp_path: Path) -> None:
    """It may have acted. So the run asks, and the check says so before."""
    shell = Shell(tmp_path)

    def deploy(build: str, cents: int) -> None:
        (shell.folder / "shop.py").write_text(CUT_SHORT.replace("CENTS", str(cents)))
        shell.environment["HOLDFAST_BUILD"] = build

    deploy("1", 100)
    run = shell.run("start", "shop.py", "pay")
    command = [sys.executable, "-m", "holdfast", "worker", "shop.py"]
    with subprocess.Popen(
        command, cwd=shell.folder, env={**os.environ, **shell.environment}, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "charging\n"
        worker.kill()
    deploy("2", 105)
    assert "it now calls charge(cents=105), but the history has charge(cents=100)" in shell.run(
        "check", "shop.py", code=1
    )
    shell.run("worker", "shop.py", "--until-idle")
    [asked] = shell.json("inbox")
    assert (asked["run_id"], asked["kind"]) == (run, "deploy")
    assert (shell.folder / "charged").read_text() == "100\n"
    shell.run("answer", run, "accept")
    shell.run("worker", "shop.py", "--until-idle")
    assert shell.json("show", run)["status"] == "succeeded"
    assert (shell.folder / "charged").read_text() == "100\n105\n"
