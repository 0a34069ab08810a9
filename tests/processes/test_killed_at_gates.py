"""A real worker process is killed while a tool runs under a gate, another is held by it, and both spend.

The tool that ran asks whether it acted, the one that was held has not begun; the gate's place is free for the next
worker; what was spent is neither lost nor counted twice, in the run and in the budget that processes share.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast import App, Config
from holdfast.store import Reclaim, ReleaseLeases
from support.postgres import fresh_url
from support.stories import play, until

TARGET = Path(__file__).with_name("gated_shop.py")


def start_worker(folder: Path, url: str, name: str) -> subprocess.Popen[bytes]:
    usual = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    settings = {"FOLDER": str(folder), "HOLDFAST_URL": url, "HOLDFAST_LEASE_SECONDS": "60"}
    command = [sys.executable, "-m", "holdfast", "worker", str(TARGET), "--name", name]
    return subprocess.Popen(command, env={**usual, **settings})


def lines(folder: Path) -> list[str]:
    file = folder / "witness"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_kill_at_a_gate_repeats_no_tool_frees_the_place_and_keeps_what_was_spent(store: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if store == "sqlite" else fresh_url()
    app = App("shop", config=Config(url=url))

    @app.job
    async def pay(order: int) -> None: ...

    async def spent(run: str) -> float:
        said = [event.payload for event in await app.aevents(run) if event.type == "value_recorded"]
        return float(sum(one["value"]["tokens"] for one in said if one["node"].startswith("spent:")) / 1e6)

    async def killed(worker: subprocess.Popen[bytes], name: str) -> None:
        worker.kill()
        worker.wait()
        if store == "sqlite":
            await app.store().commit([ReleaseLeases(name), Reclaim()])

    async def story() -> None:
        worker = start_worker(tmp_path, url, "w1")
        try:
            runs = {order: (await app.astart("pay", order)).id for order in (1, 2)}

            async def one_runs_one_is_held() -> bool:
                return [await spent(run) for run in runs.values()] in ([110.0, 100.0], [100.0, 110.0])

            await until(one_runs_one_is_held)
            await killed(worker, "w1")
            (ran,) = [order for order in runs if f"charge {order}" in lines(tmp_path)]
            held = 3 - ran
            assert not [event for event in await app.aevents(runs[held]) if event.type == "tool_invocation_started"]
            worker = start_worker(tmp_path, url, "w2")

            async def asks_and_acts() -> bool:
                row = await app.store().get(runs[ran])
                asks = row is not None and row.wait is not None and "doubt" in (row.wait.correlation_key or "")
                return asks and f"charge {held}" in lines(tmp_path)

            await until(asks_and_acts)
            (tmp_path / "go").touch()
            row = await app.store().get(runs[ran])
            assert row is not None
            assert row.wait is not None
            node = (row.wait.correlation_key or "").removeprefix("holdfast:doubt:")
            await app.aresolve(runs[ran], node, done=f"receipt {ran}")
            for order in (ran, held):

                async def ended(run: str = runs[order]) -> bool:
                    return (await app.aget(run)).status == "succeeded"

                await until(ended)
                assert await app.aoutcome(runs[order]) == f"receipt {order}"
        finally:
            await killed(worker, "w2")
        assert Counter(lines(tmp_path)) == {"charge 1": 1, "charge 2": 1}
        assert (await spent(runs[ran]), await spent(runs[held])) == (110.0, 111.0)
        assert (await app.aget(runs[held])).metrics["spent"] == {"tokens": 111.0}
        peek = await asyncio.to_thread(app.ledger().peek, "shared", 1e9)
        assert peek == 2_000_000, "each call took its share of what all processes share, once"
        assert await app.averify() == {}
        await app.aclose()

    play(story())
