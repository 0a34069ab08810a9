"""Four workers on a SQLite file, and next to them other programs that read, vacuum, back up and copy it (P4).

Nothing acknowledged is lost, no tool acts twice, every history is legal, the file and every backup pass SQLite's check,
and the log is the same file all the while. `make neighbours` runs it for as long as asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from holdfast import App, Config
from holdfast.machines import TERMINAL_RUN_STATUSES
from support.scripts import load
from support.stories import until

TARGET = Path(__file__).with_name("neighbour_shop.py")
ORDERS = 20  # started at once
OPEN_MAX = 200  # runs that may be under way before more are started

# Programs that know nothing of Holdfast, but one: it does one thing again and again, and says how often at the end.
NEIGHBOUR = """
import shutil, signal, sqlite3, subprocess, sys, time
path, what = sys.argv[1:]
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))

def connected(work):
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        work(connection)
    finally:
        connection.close()

def checked(copy):
    connection = sqlite3.connect(copy)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], copy
    assert connection.execute("SELECT count(*) FROM jobs").fetchone()[0] > 0
    connection.close()

def read(connection):
    connection.execute("SELECT count(*), max(seq) FROM events").fetchone()

def back_up(connection):
    with sqlite3.connect(f"{path}.theirs") as copy:
        connection.backup(copy)
    copy.close()
    checked(f"{path}.theirs")

def holdfast_backup():
    command = [sys.executable, "-m", "holdfast", "backup", f"{path}.ours", "--url", f"sqlite:///{path}", "--force"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    checked(f"{path}.ours")

def copy():
    for end in ("", "-wal", "-shm"):
        shutil.copyfile(path + end, f"{path}.copied{end}")

does = {
    "read": lambda: connected(read),
    "vacuum": lambda: connected(lambda connection: connection.execute("VACUUM")),
    "checkpoint": lambda: connected(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")),
    "back up": lambda: connected(back_up),
    "holdfast backup": holdfast_backup,
    "copy": copy,
}[what]
times = busy = 0
while not ended or not times:
    try:
        does()
        times += 1
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        busy += 1
    time.sleep(0.01 if what == "read" else 0.1)
print(times)
"""
KINDS = ("read", "read", "vacuum", "checkpoint", "back up", "holdfast backup", "copy")


class Tally(NamedTuple):
    """What a round showed."""

    runs: int
    tools: int
    done: dict[str, int]  # by each kind of neighbour


async def neighbours(folder: Path, seconds: float, workers: int = 4) -> Tally:
    """Work for so many seconds next to other programs, and look at everything at the end."""
    path = folder / "jobs.db"
    app = App("shop", config=Config(url=f"sqlite:///{path}"))
    app.entries.update(load(TARGET).app.entries)
    acknowledged = await app.astart_many("checkout", [{"order": number} for number in range(ORDERS)])
    log = Path(f"{path}-wal").stat().st_ino
    working = [start_worker(folder, app.url, f"w{number}") for number in range(workers)]
    others = [start_neighbour(path, kind) for kind in KINDS]
    try:
        await work(app, acknowledged, seconds)
        assert Path(f"{path}-wal").stat().st_ino == log, "the log was replaced under those who write to it"
        done = await asyncio.to_thread(ended, others)
        assert await asyncio.to_thread(stopped, working) == [0] * workers
    finally:
        for process in [*working, *others]:
            process.kill()
            process.communicate()
    await look_at_all(app, acknowledged)
    await app.aclose()
    lines = Counter((folder / "witness").read_text().splitlines())
    assert lines == Counter(f"charge {number}" for number in range(len(acknowledged))), "each run charges once"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    return Tally(len(acknowledged), lines.total(), done)


def start_worker(folder: Path, url: str, name: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "WITNESS": str(folder / "witness"), "HOLDFAST_URL": url}
    command = [sys.executable, "-m", "holdfast", "worker", str(TARGET), "--name", name]
    return subprocess.Popen(command, env=environment, text=True)


def start_neighbour(path: Path, kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(path), kind], stdout=subprocess.PIPE, text=True)


async def work(app: App, acknowledged: list[str], seconds: float) -> None:
    """Start runs until the time is over, then wait until all have ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if await open_runs(app) < OPEN_MAX:
            orders = [{"order": len(acknowledged) + number} for number in range(ORDERS)]
            acknowledged += await app.astart_many("checkout", orders)
        await asyncio.sleep(0.01)  # others have to work, too
    await until(lambda: all_ended(app))


async def all_ended(app: App) -> bool:
    return not await open_runs(app)


async def open_runs(app: App) -> int:
    counts = (await app.store().counts()).runs
    return sum(count for status, count in counts.items() if status not in TERMINAL_RUN_STATUSES)


async def look_at_all(app: App, acknowledged: list[str]) -> None:
    assert await app.averify() == {}
    for run in acknowledged:
        assert (await app.aget(run)).status == "succeeded"


def ended(others: list[subprocess.Popen[str]]) -> dict[str, int]:
    """Ask the neighbours to end; how often each has done its thing."""
    done: Counter[str] = Counter()
    for process in others:
        process.send_signal(signal.SIGTERM)
    for kind, process in zip(KINDS, others, strict=True):
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 0, kind
        done[kind] += int(told)
    return dict(done)


def stopped(working: list[subprocess.Popen[str]]) -> list[int]:
    for process in working:
        process.terminate()
    return [process.wait(60) for process in working]


def test_other_programs_next_to_four_workers_lose_nothing(tmp_path: Path) -> None:
    tally = asyncio.run(neighbours(tmp_path, seconds=4))
    assert tally.tools == tally.runs >= ORDERS
    assert tally.done.keys() == set(KINDS)
    assert all(tally.done.values())
