"""The network between workers and PostgreSQL delays, resets and swallows, for longer than leases last (L4, L11).

Whatever it does: no tool acts twice, no two calls of the same tool run at the same time, every run ends, and the
history is legal. `make silence FAULTS=200` runs it longer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from holdfast import App, RunHandle
from support.postgres import fresh_schema, server
from support.scripts import load
from support.stories import play, quick
from support.wire import TO_CLIENT, TO_SERVER, Wire

TARGET = Path(__file__).with_name("silent_shop.py")
LEASE_SECONDS = 3.0
WORKERS = 2
SLOTS = 8
FAULTS = ("hold both", "hold to server", "hold to client", "reset", "delay")


class Tally(NamedTuple):
    """What happened, and what is wrong: calls of one tool that ran at the same time, and those that acted twice."""

    faults: int
    runs: int
    calls: int
    stopped: int
    together: list[str]
    twice: list[str]
    not_succeeded: list[str]
    illegal: list[str]

    def wrong(self) -> list[str]:
        return [*self.together, *self.twice, *self.not_succeeded, *self.illegal]


class Cluster:
    """Worker processes, each with a wire of its own to the server; and a client beside them, whose way is good."""

    def __init__(self, folder: Path) -> None:
        self._schema = fresh_schema()
        os.environ["LEDGER"] = str(folder / "ledger.db")
        self.shop = load(TARGET)
        self.shop.open_ledger()
        self.app = App("silent", config=quick(f"{server().url}?schema={self._schema}", lease_seconds=LEASE_SECONDS))
        self.app.entries.update(self.shop.app.entries)
        self.wires = [Wire(server().url) for _ in range(WORKERS)]
        self._workers = [self._start(number, wire) for number, wire in enumerate(self.wires)]

    def _start(self, number: int, wire: Wire) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        environment |= {
            "HOLDFAST_URL": f"{wire.url}?schema={self._schema}",
            "HOLDFAST_LEASE_SECONDS": str(LEASE_SECONDS),
            "WHO": f"w{number}",
        }
        options = ["--name", f"w{number}", "--concurrency", str(SLOTS)]
        command = [sys.executable, "-m", "holdfast", "worker", str(TARGET), *options]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    async def close(self) -> None:
        for wire in self.wires:
            wire.close()
        for worker in self._workers:
            worker.kill()
            worker.wait()
        await self.app.aclose()


async def break_wire(wire: Wire, kind: str, chance: random.Random) -> None:
    """One fault, healed after a while; most last longer than a lease."""
    match kind:
        case "reset":
            wire.cut()
            return
        case "delay":
            wire.delay(chance.uniform(0.01, 0.2))
        case "hold both":
            wire.hold(TO_SERVER, TO_CLIENT)
        case "hold to server":
            wire.hold(TO_SERVER)
        case _:
            wire.hold(TO_CLIENT)
    await asyncio.sleep(LEASE_SECONDS * chance.uniform(0.4, 1.6))
    wire.heal()


async def endure(folder: Path, faults: int, seed: int) -> Tally:
    """Break the wires so often, under load; heal them, let every run end, and count."""
    chance = random.Random(seed)
    cluster = Cluster(folder)
    handles: list[RunHandle] = []
    try:
        for number in range(faults):
            for _ in range(2 * SLOTS):
                handles.append(await cluster.app.astart(cluster.app.entries["silent", "order"], len(handles)))
            await asyncio.sleep(chance.uniform(0, 0.3))
            await break_wire(chance.choice(cluster.wires), FAULTS[number % len(FAULTS)], chance)
        async with asyncio.timeout(120):
            for handle in handles:
                while (await handle.arecord()).finished_at is None:  # noqa: ASYNC110 - other processes end it
                    await asyncio.sleep(0.05)
        records = [await handle.arecord() for handle in handles]
        illegal = await cluster.app.averify()
        await _all_stopped(cluster)
        calls = cluster.shop.ledger("SELECT key, worker, began_at, ended_at FROM calls ORDER BY key, began_at")
        acts = cluster.shop.ledger("SELECT key, count(*) FROM acts GROUP BY key HAVING count(*) > 1")
    finally:
        await cluster.close()
    return Tally(
        faults=faults,
        runs=len(handles),
        calls=len(calls),
        stopped=len(calls) - len(handles),
        together=_together(calls),
        twice=[f"{key} acted {count} times" for key, count in acts],
        not_succeeded=[f"{one.run_id} is {one.status}" for one in records if one.status != "succeeded"],
        illegal=[f"{job}: {why}" for job, why in illegal.items()],
    )


async def _all_stopped(cluster: Cluster) -> None:
    """Wait until no call is under way: those whose lease was lost are stopped, not awaited."""
    until = time.monotonic() + 30
    sql = "SELECT 1 FROM calls WHERE ended_at IS NULL"
    while cluster.shop.ledger(sql) and time.monotonic() < until:  # noqa: ASYNC110 - other processes stop them
        await asyncio.sleep(0.05)


def _together(calls: list[tuple[str, str, float, float | None]]) -> list[str]:
    """Find calls of one tool that began before the one before them had ended or was stopped."""
    found = []
    for (key, before, _, ended_at), (same, after, began_at, _) in itertools.pairwise(calls):
        if key == same and (ended_at is None or began_at < ended_at):
            late = f"{ended_at - began_at:.3f} s too late" if ended_at is not None else "never"
            found.append(f"{key} ran in {after} while it ran in {before}, which stopped it {late}")
    return found


def test_no_tool_acts_twice_while_the_network_swallows_resets_and_delays(tmp_path: Path) -> None:
    tally = play(endure(tmp_path, 3, seed=7))
    assert tally.wrong() == []
    assert tally.calls >= tally.runs == 3 * 2 * SLOTS
