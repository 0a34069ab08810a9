"""Real worker processes on one store, killed with SIGKILL at random moments (P4).

The store is not told which worker has died: the others notice it (L10).
No tool acts twice, every run ends or asks, what was acknowledged is there, every history is valid, and no
export and nothing that was spent is lost or there twice.
`make torture` runs the same for as long as asked.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import App, Config
from holdfast.machines import TERMINAL_RUN_STATUSES, JobState, RunRecord
from support.postgres import fresh_url
from support.scripts import load

TARGET = Path(__file__).with_name("killed_shop.py")
HANGS_SECONDS = 60  # without the end of any run, after the last kill


class Tally(NamedTuple):
    """What a round of killing showed."""

    kills: int
    runs: int
    asked: int
    tools: int


def start_worker(folder: Path, url: str, name: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment |= {"WITNESS": str(folder / "witness"), "HOLDFAST_URL": url}
    return subprocess.Popen([sys.executable, "-m", "holdfast", "worker", str(TARGET), "--name", name], env=environment)


async def torture(folder: Path, url: str, kills: int, orders: int, seed: int) -> Tally:
    """Start runs, kill workers among them, answer what is asked, and look at everything at the end."""
    rng = random.Random(seed)
    app = App("shop", config=Config(url=url))
    app.entries.update(load(TARGET).app.entries)
    workers = {f"w{number}": start_worker(folder, url, f"w{number}") for number in range(2)}
    try:
        tally = await kill_and_answer(app, folder, workers, kills, orders, rng)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
        await app.aclose()
    return tally


async def kill_and_answer(
    app: App, folder: Path, workers: dict[str, subprocess.Popen[bytes]], kills: int, orders: int, rng: random.Random
) -> Tally:
    acknowledged: list[str] = []
    answered = 0
    for done in range(1, kills + 1):
        if len(acknowledged) < orders * done / kills:
            acknowledged += await app.astart_many("checkout", [{"order": len(acknowledged) + n} for n in range(3)])
        for run in rng.sample(acknowledged, min(len(acknowledged), 3)):
            await app.asignal(run, "shipped", "dhl", id="s")
        await asyncio.sleep(rng.expovariate(1 / 0.12))  # the moment of the next death
        name = rng.choice(sorted(workers))
        workers[name].send_signal(signal.SIGKILL)
        workers.pop(name).wait()
        workers[f"w{done + 1}"] = start_worker(folder, app.url, f"w{done + 1}")
        answered += await answer(app, folder)
    for run in acknowledged:
        await app.asignal(run, "shipped", "dhl", id="s")
    active, end = acknowledged, time.monotonic() + HANGS_SECONDS
    while (left := await not_ended(app, active)) and time.monotonic() < end:
        if len(left) < len(active):
            active, end = left, time.monotonic() + HANGS_SECONDS
        answered += await answer(app, folder)
        await asyncio.sleep(0.05)
    assert await app.averify() == {}
    for run in acknowledged:
        record = await app.aget(run)
        assert record.status == "succeeded", (run, record.status, record.stage, record.error)
        await exports_are_whole(app, run, record)
        await spending_is_whole(app, run)
    lines = (folder / "witness").read_text().splitlines()
    twice = [line for line, count in Counter(lines).items() if count > 1]
    assert twice == [], f"acted twice: {twice}"
    return Tally(kills, len(acknowledged), answered, len(lines))


async def exports_are_whole(app: App, run: str, record: RunRecord) -> None:
    """Whatever was killed, a run has each of its exports once, and its result refers to them."""
    order = (await app.aevents(run, limit=1))[0].payload["args"]["order"]
    found = await app.aexports(run)
    assert sorted(one.name for one in found) == sorted(["receipt", *(f"price of {order + n}" for n in range(2))])
    assert [one.number for one in found] == [1, 2, 3]
    assert record.result_refs == [f"{run}/exports/{number}" for number in (1, 2, 3)]
    receipt = next(one for one in found if one.name == "receipt")
    assert len(b"".join([piece async for piece in app.acontent(run, receipt.number)])) == receipt.size > 0


async def spending_is_whole(app: App, run: str) -> None:
    """What was spent is counted once for each time that a call began at most, and for each that ended at least."""
    events = await app.aevents(run)
    values = [event.payload["node"] for event in events if event.type == "value_recorded"]
    spent = Counter(node.split(":", 1)[1].rsplit(":", 2)[0] for node in values if node.startswith("spent:"))
    begun = Counter(event.payload["node"] for event in events if event.type.endswith("_started"))
    ended = {event.payload["node"] for event in events if event.type == "node_finished"}
    assert all(count <= begun[node] for node, count in spent.items()), (run, spent, begun)
    assert all(spent[node] for node in ended if node.startswith("price")), (run, spent, ended)


async def not_ended(app: App, runs: list[str]) -> list[str]:
    return [run for run in runs if (await app.aget(run)).status not in TERMINAL_RUN_STATUSES]


async def answer(app: App, folder: Path) -> int:
    """Answer every question as somebody who looked would: has the witness a line?"""
    asked = 0
    for row in await app.store().jobs(state=JobState.WAITING, limit=10_000):
        key = row.wait.correlation_key or "" if row.wait is not None else ""
        if key.startswith("holdfast:doubt:"):
            node = key.removeprefix("holdfast:doubt:")
            started = [event for event in await app.store().events(row.id) if event.payload.get("node") == node]
            order = started[0].payload["args"]["order"]
            witness = (folder / "witness").read_text() if (folder / "witness").exists() else ""
            acted = f"{node.split(':')[0]} {order}\n" in witness
            result = {"charge": f"receipt {order}", "mail": "sent"}[node.split(":")[0]]
            if acted:
                await app.aresolve(row.id, node, done=result)
            else:
                await app.aresolve(row.id, node, not_done=True)
            asked += 1
    return asked


@pytest.mark.parametrize("seed", [7, 8])
def test_processes_killed_at_any_moment_repeat_no_tool_and_lose_no_run(seed: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    tally = asyncio.run(torture(tmp_path, url, kills=150, orders=200, seed=seed))
    assert tally.kills == 150
    assert tally.tools == 2 * tally.runs, "each run charged once and mailed once"


def test_processes_killed_at_any_moment_on_postgres_repeat_no_tool_and_lose_no_run(tmp_path: Path) -> None:
    tally = asyncio.run(torture(tmp_path, fresh_url(), kills=60, orders=100, seed=9))
    assert tally.kills == 60
    assert tally.tools == 2 * tally.runs, "each run charged once and mailed once"
