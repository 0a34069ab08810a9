"""The n-th commit goes wrong, for n = 1, 2, 3 … until none does: as a crash, as an error, as an error though applied.

Whatever happens, every tool acts at most once, the job ends or asks, what was acknowledged is there, and the history is
legal (P4).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, StoreUnavailable, gather, now, wait_for
from holdfast.authoring.signature import fingerprint
from holdfast.store import Append, Claim, Pause, ReleaseLeases, Resume, Store
from holdfast.store.effects import DirectoryEffects, Effect, EffectStore
from holdfast.store.memory import MemoryStore
from holdfast.store.run_queries import RunFilter
from support.faults import FaultyEffects, FaultyStore, closing, store_of
from support.stories import drain, play, quick


def shop(store: Store, witness: list[str], effects: EffectStore | None = None, *, lease_seconds: float = 15.0) -> App:
    """An app whose job writes everything: steps, tools, a value, a wait, a child. A new process, as it were."""
    app = App("shop", config=quick("memory:", lease_seconds=lease_seconds))
    app._opened = store
    app._effects = effects

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


def claim_of(app: App) -> Claim:
    return Claim(worker="w", entries=frozenset(app.entries), queues=None, limit=1, lease_seconds=15.0)


SHORT = 0.2
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


async def survive(inner: Store, faulty: FaultyStore, effects: EffectStore | None, failing: EffectStore | None) -> bool:
    """Run the story with one fault, in the store or in the effect store; then again without, as a new process would.

    Returns whether the first process came to the end of the story. Without a fault it may not: its leases are short,
    and on a busy machine one of them may end. Then a tool is in doubt, and the story stops there.
    """
    witness: list[str] = []
    app = shop(faulty, witness, failing, lease_seconds=SHORT)  # a claim whose answer is lost ends while it waits
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
    came_to_its_end = ("checkout", "succeeded") in await ended_runs(inner)
    if worker._worker is not None:
        await inner.commit([ReleaseLeases(worker._worker.name)])

    again = shop(inner, witness, effects)
    handle = await again.entries["shop", "checkout"].options(key="k").astart("AB")
    assert started is None or started.id == handle.id, "what was acknowledged is there, once"
    await again.asignal(handle.id, "shipped", "dhl", id="s1")
    for _ in range(4):
        await drain(again)
        await settle(again)
    assert await handle.aresult(timeout=60) == RESULT
    assert len(set(witness)) == len(witness), f"a tool acted twice: {witness}"
    assert await again.averify() == {}
    return came_to_its_end


async def ended_runs(store: Store) -> list[tuple[str, str]]:
    return [(record.entry_id, record.status) for record in await store.records(RunFilter(), 10)]


def every_fault(survived: Callable[[int], tuple[bool, bool]]) -> int:
    """Fail at the n-th place, for n from 1, until a whole story has no n-th place; that n.

    `survived` tells the story with the n-th fault, and says whether that was reached and whether the first process came
    to the end. A story that had neither, because the machine stood still, is told again.
    """
    n, too_late = 1, 0
    while True:
        reached, came_to_its_end = survived(n)
        if reached:
            n += 1
        elif came_to_its_end:
            return n
        else:
            too_late += 1
            assert too_late < 20, "no story comes to its end, though nothing fails"


@pytest.mark.parametrize("mode", ["crash", "not applied", "applied"])
@pytest.mark.parametrize("kept", ["own database", "directory"])
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_fault_at_any_commit_loses_nothing_and_repeats_no_tool(
    backend: str, kept: str, mode: str, tmp_path: Path
) -> None:
    told = itertools.count()

    def survived(n: int) -> tuple[bool, bool]:
        folder = tmp_path / str(next(told))
        inner = store_of(backend, folder.with_suffix(".db"))
        effects = DirectoryEffects(folder) if kept == "directory" else None
        faulty = FaultyStore(inner, n, mode)
        came_to_its_end = play(closing(inner, survive(inner, faulty, effects, effects)))
        return faulty.failed, came_to_its_end

    assert every_fault(survived) > 8, "the story has at least eight commits to fail"


@pytest.mark.parametrize("mode", ["crash", "not applied", "applied"])
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_fault_at_any_write_of_an_effect_loses_nothing_and_repeats_no_tool(
    backend: str, mode: str, tmp_path: Path
) -> None:
    told = itertools.count()

    def survived(n: int) -> tuple[bool, bool]:
        folder = tmp_path / str(next(told))
        inner = store_of(backend, folder.with_suffix(".db"))
        faulty = FaultyStore(inner, 1_000_000, mode)
        effects = DirectoryEffects(folder)
        failing = FaultyEffects(effects, n, mode, faulty)
        came_to_its_end = play(closing(inner, survive(inner, faulty, effects, failing)))
        return failing.left <= 0, came_to_its_end

    # Four results, and the beginning of each of the two jobs; more if a job is suspended and begins again.
    assert every_fault(survived) > 6, "the story has at least six effects and beginnings to fail"


def test_an_effect_without_its_events_is_caught_up_with_and_not_called_again(tmp_path: Path) -> None:
    """The crash between the two phases: the effect is kept, its events are not (E3)."""
    witness: list[str] = []

    async def story() -> None:
        inner = MemoryStore()
        effects = DirectoryEffects(tmp_path)
        app = shop(inner, witness, effects)
        handle = await app.entries["shop", "notify"].astart("hello")
        (claimed,) = (await inner.commit([claim_of(app)]))[0]
        node = "mail:" + fingerprint({"text": "hello"})[:12]
        declared = ("tool_invocation_started", {"node": node, "name": "mail", "try": 1, "args": {"text": "hello"}})
        await inner.commit([Append(handle.id, claimed.job.attempt, (declared,))])
        await effects.begin(handle.id, 1)
        await effects.put(Effect(handle.id, node, 1, 1, "sent by the one that died"))
        await inner.commit([ReleaseLeases("w")])
        await drain(app)
        assert await handle.aresult(timeout=60) == "sent by the one that died"
        ended = [event for event in await handle.aevents() if event.type == "tool_invocation_finished"]
        assert [(event.attempt, event.payload["caught_up"]) for event in ended] == [(2, True)]
        assert await app.averify() == {}

    play(story())
    assert witness == []


def test_jobs_wait_while_the_effect_store_is_away_and_nothing_counts_against_them(tmp_path: Path) -> None:
    witness: list[str] = []
    blocked = tmp_path / "effects"
    blocked.write_text("no directory")

    async def story() -> None:
        app = shop(MemoryStore(), witness, DirectoryEffects(blocked))
        handle = await app.entries["shop", "notify"].astart("hello")
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        async for record in handle.awatch():
            if record.stage == "retrying":
                break
        worker.stop()
        await working
        row = await app.store().get(handle.id)
        assert row is not None
        assert (row.attempts, witness) == (0, [])
        blocked.unlink()
        row = None
        await app.store().commit([Pause(handle.id), Resume(handle.id)])
        await drain(app)
        assert await handle.aresult(timeout=60) == "sent"

    play(story())
    assert witness == ["mail hello"]
