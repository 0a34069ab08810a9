"""Worker processes under a supervisor: they end with it, and a stop of all of them is no death (L10)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast import App
from holdfast.machines import JobState
from support.postgres import fresh_url

SHOP = """
import asyncio, os, sys
from holdfast import App

app = App("shop")

@app.step
async def hang() -> None:
    print("runs in", os.getpid(), repr(sys.stdin.read()), flush=True)
    await asyncio.Event().wait()

@app.job
async def work() -> None:
    await hang()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SHOP)
    return fresh_url() if request.param == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}"


@contextmanager
def supervisor(folder: Path, url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A supervisor with its workers, in a process group of its own."""
    usual = {"HOLDFAST_LEASE_SECONDS": "60", "HOLDFAST_SHUTDOWN_SECONDS": "0.1", "HOLDFAST_GRACE_SECONDS": "0.2"}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words, "--url", url],
        cwd=folder, env={**os.environ, **usual}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def started(app: App, process: subprocess.Popen[str], count: int) -> set[int]:
    """Start jobs, and wait until each runs; the processes that run them."""
    app.start_many("work", [{}] * count)
    assert process.stdout is not None
    pids = set()
    for _ in range(count):
        said = process.stdout.readline().split()
        assert said[:2] == ["runs", "in"], said
        assert said[3] == "''", "standard input of a job is empty"
        pids.add(int(said[2]))
    return pids


def shop(url: str) -> App:
    app = App("shop", url)

    @app.job
    async def work() -> None:
        pass

    return app


def wait_for_end(pids: set[int]) -> None:
    """Wait until processes that are no children of ours have ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(60_000), f"{pid} still runs"
        os.close(descriptor)


@pytest.mark.parametrize("words", [("worker", "shop.py", "--processes", "2"), ("dev", "shop.py", "--port", "0")])
def test_workers_end_with_a_supervisor_that_is_killed_and_hand_their_jobs_back(
    url: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    app = shop(url)
    with supervisor(tmp_path, url, *words) as process:
        pids = started(app, process, 3)
        process.kill()
        wait_for_end(pids)
        assert process.wait(60) == -signal.SIGKILL
        _, said = process.communicate(timeout=60)  # whose end all that wrote to it have closed: the server as well
        assert "the supervisor has ended: stopping" in said
    rows = app.block(app.store().jobs())
    assert [row.state for row in rows] == [JobState.QUEUED] * 3
    last = [app.block(app.store().events(row.id))[-1] for row in rows]
    assert [event.payload["reason"] for event in last] == ["worker_shutdown"] * 3
    app.close()


@pytest.mark.parametrize("words", [("worker", "shop.py", "--processes", "2"), ("dev", "shop.py", "--port", "0")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_is_no_death_of_a_worker(
    words: tuple[str, ...], number: int, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = shop(url)
    with supervisor(tmp_path, url, *words) as process:
        started(app, process, 1)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "died" not in said
    assert "has ended" not in said
    assert "supervisor has ended" not in said
    app.close()


def test_a_worker_that_is_killed_alone_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = shop(url)
    with supervisor(tmp_path, url, "worker", "shop.py", "--processes", "2") as process:
        (pid,) = started(app, process, 1)
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        assert process.stdout is not None
        assert int(process.stdout.readline().split()[2]) != pid, "another worker has the job"
        assert time.monotonic() - begun < 30, "long before its lease would have ended"
        assert process.stderr is not None
        said = next(line for line in process.stderr if "it is replaced" in line)  # the other may be quicker
        assert "died (exit code -9); it is replaced" in said
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
    app.close()
