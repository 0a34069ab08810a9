"""What a worker prints: a banner, one line per failure, the lines of user code, and what it does when it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import App
from support.shell import Shell

SHOP = """
import asyncio, logging, os, sys
from holdfast import App

app = App("shop")
log = logging.getLogger("shop")

@app.job
async def broken(sku: str) -> None:
    log.info("looking up %s", sku)
    raise KeyError(sku)

@app.step
async def hang() -> None:
    print("runs", flush=True)
    await asyncio.Event().wait()

@app.job
async def slow() -> None:
    await hang()

@app.step
async def finish() -> None:
    print("runs", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

@app.job
async def finishing() -> str:
    await finish()
    return "done"
"""
SCRIPT = """
if __name__ == "__main__":
    app.worker().run()
    print("the script goes on")
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "shop.py").write_text(SHOP + SCRIPT)
    shell = Shell(tmp_path)
    shell.environment["HOLDFAST_SHUTDOWN_SECONDS"] = "60"
    return shell


def test_a_worker_prints_what_it_serves_and_one_line_per_failure(shell: Shell) -> None:
    run = shell.run("start", "shop.py", "broken", "sku=A1")
    shell.environment["HOLDFAST_BUILD"] = "1.4.2"
    worker = shell.ran("worker", "shop.py", "--until-idle", "--concurrency", "3", "--queue", "default")
    banner, *lines = worker.stderr.partition("  queues  default\n")[::2]
    assert worker.returncode == 0
    assert worker.stdout == ""
    assert banner.startswith("holdfast worker ")
    for line in (
        "app     shop",
        "build   1.4.2",
        "jobs    broken, finishing, slow",
        f"store   sqlite:///{shell.folder}/jobs.db",
        "slots   3",
    ):
        assert f"  {line}\n" in banner
    info, error = lines[0].splitlines()
    assert info.endswith(" INFO shop: looking up A1"), "lines of user code are written, too"
    assert error.endswith(f" ERROR holdfast.worker: run {run} (shop.broken) failed: KeyError: 'A1'")


def test_log_lines_as_json_have_run_job_and_reason_as_fields(shell: Shell) -> None:
    run = shell.run("start", "shop.py", "broken", "sku=A1")
    worker = shell.ran("worker", "shop.py", "--until-idle", "--log-format", "json")
    start, info, error = map(json.loads, worker.stderr.splitlines())
    assert "app shop, build not known, jobs broken, finishing, slow" in start["message"]
    assert (info["logger"], info["level"], info["message"]) == ("shop", "info", "looking up A1")
    assert error["level"] == "error"
    assert {name: error[name] for name in ("event", "run_id", "job", "reason", "attempt")} == {
        "event": "failed", "run_id": run, "job": "shop.broken", "reason": "KeyError: 'A1'", "attempt": 1,
    }  # fmt: skip


def test_lines_below_the_log_level_are_left_out(shell: Shell) -> None:
    shell.run("start", "shop.py", "broken", "sku=A1")
    worker = shell.ran("worker", "shop.py", "--until-idle", "--log-level", "error")
    assert "looking up" not in worker.stderr
    assert "failed: KeyError: 'A1'" in worker.stderr


def test_the_banner_does_not_show_the_password_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    worker = Shell(tmp_path).ran("worker", "shop.py", "--url", "postgresql://ada:geheim@127.0.0.1:1/x?password=geheim")
    assert "postgresql://ada:…@127.0.0.1:1/x?password=…" in worker.stderr
    assert "geheim" not in worker.stderr


@contextmanager
def working(shell: Shell, command: list[str], job: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """A worker in which so many runs of a job have begun."""
    app = App("shop", shell.environment["HOLDFAST_URL"])
    app.job(name=job)(_nothing)
    app.start_many(job, [{}] * count)
    with subprocess.Popen(
        [sys.executable, *command], cwd=shell.folder, env=shell.environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(count)] == ["runs\n"] * count
        try:
            yield process
        finally:
            process.kill()
    app.close()


async def _nothing() -> None: ...


WORKERS = {"command": ["-m", "holdfast", "worker", "shop.py"], "script": ["shop.py"]}


@pytest.mark.parametrize("kind", WORKERS)
def test_ctrl_c_says_what_it_waits_for_and_a_second_one_ends_at_once(shell: Shell, kind: str) -> None:
    with working(shell, WORKERS[kind], "slow", 2) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        lines = iter(process.stderr.readline, "")
        told = next(line for line in lines if "stopping" in line)
        assert "stopping: 2 jobs have 60 s to finish; press Ctrl-C again to end at once" in told
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0, "long before the time of its jobs is over"
    rows = App("shop", shell.environment["HOLDFAST_URL"]).list()
    assert [record.stage for record in rows] == ["requeued", "requeued"]


@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_worker_gives_its_jobs_time_and_ends_without_a_traceback(
    shell: Shell, kind: str, number: signal.Signals
) -> None:
    with working(shell, WORKERS[kind], "finishing", 1) as process:
        assert process.stderr is not None
        process.send_signal(number)
        told = next(line for line in iter(process.stderr.readline, "") if "stopping" in line)
        assert "stopping: 1 job has 60 s to finish" in told
        rest, said = process.communicate("go on\n", timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert ("the script goes on" in rest) == (kind == "script")
    (record,) = App("shop", shell.environment["HOLDFAST_URL"]).list()
    assert record.status == "succeeded"


def test_a_worker_in_a_program_logs_and_configures_no_logging(tmp_path: Path) -> None:
    program = f"""{SHOP}
app.start("broken", "A1")
before = (logging.root.handlers[:], logging.root.level, logging.getLogger("holdfast").handlers[:])
app.worker().run(until_idle=True)
assert before == (logging.root.handlers, logging.root.level, logging.getLogger("holdfast").handlers)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "HOLDFAST_URL": "memory:"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "(shop.broken) failed: KeyError: 'A1'" in ran.stderr, "Python's handler of last resort writes it"
    assert "looking up" not in ran.stderr
