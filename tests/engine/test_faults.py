"""The n-th commit goes wrong, for n = 1, 2, 3 … until none does: as a crash, as an error, as an error though applied.

Whatever happens, every tool acts at most once, the job ends or asks, what was acknowledged is there, and the history is
legal (P4).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, StoreUnavailable, gather, now, wait_for
from holdfast.store import Bury, Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from support.faults import FaultyStore
from support.stories import drain, play, quick


def shop(store: Store, witness: list[str]) -> App:
    """An app whose job writes everything: steps, tools, a value, a wait, a child. A new process, as it were."""
    app = App("shop", config=quick("memory:", lease_seconds=0.2))
    app._opened = store

    @app.step
    async def price(sku: str) -> int:
        return len(sku)

    @app.tool
    async def charge(cents: int) -> str:
        witness.append(f"charge {cents}")
        return f"receipt {cents}"

    @app.tool
    async def mail(text: str) -> str:
        witness.append(f"mail {text}")
        return "sent"

    @app.job
    async def notify(text: str) -> str:
        return await mail(text)

    @app.job
    async def checkout(sku: str) -> list[Any]:
        one, two = await gather(price(sku), price(sku * 2))
        receipt = await charge(one + two)
        said = await wait_for("shipped")
        return [receipt, said, await notify(f"shipped {sku}"), now() > 0]

    return app


RESULT = ["receipt 6", "dhl", "sent", True]


async def settle(app: App) -> None:
    """Answer every question that is open, as an operator who knows what happened would."""
    results = {"charge": "receipt 6", "mail": "sent"}
    for record in await app.alist():
        job = record.run_id.split(".")[0]
        last = (await app.store().events(job))[-1]
        node = str(last.payload.get("node"))
        if last.type == "job_waiting" and last.payload["wait_type"] == "human":
            await app.aresolve(job, node, done=results[node.split(":", maxsplit=1)[0]])


async def survive(inner: Store, n: int, mode: str) -> bool:
    """Run the story with one fault; whether there was still a commit to fail."""
    witness: list[str] = []
    faulty = FaultyStore(inner, n, mode)
    app = shop(faulty, witness)
    started = None
    while started is None and not faulty.crashed:
        try:
            started = await app.entries["shop", "checkout"].options(key="k").astart("AB")
            await app.asignal(started.id, "shipped", "dhl", id="s1")
        except StoreUnavailable:
            continue
    worker = app.worker()
    working = asyncio.create_task(worker.arun(until_idle=True))
    while not faulty.crashed and not working.done():
        await asyncio.wait([working], timeout=0.01)
    working.cancel()
    await asyncio.wait([working])
    if worker._worker is not None:
        await inner.commit([Bury(worker._worker.name)])

    again = shop(inner, witness)
    handle = await again.entries["shop", "checkout"].options(key="k").astart("AB")
    assert started is None or started.id == handle.id, "what was acknowledged is there, once"
    await again.asignal(handle.id, "shipped", "dhl", id="s1")
    for _ in range(4):
        await drain(again)
        await settle(again)
    assert await handle.aresult(timeout=10) == RESULT
    assert len(set(witness)) == len(witness), f"a tool acted twice: {witness}"
    assert await again.averify() == {}
    return faulty.failed


@pytest.mark.parametrize("mode", ["crash", "not applied", "applied"])
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_fault_at_any_commit_loses_nothing_and_repeats_no_tool(backend: str, mode: str, tmp_path: Path) -> None:
    n = 0
    failed = True
    while failed:
        n += 1
        inner: Store = MemoryStore() if backend == "memory" else SqliteStore(tmp_path / f"{n}.db")
        failed = play(survive(inner, n, mode))
    assert n > 8, "the story has at least eight commits to fail"
