"""The n-th commit goes wrong while a job reports and exports: nothing is lost, nothing is there twice (R9, R10, P4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, StoreUnavailable, export, progress
from holdfast.store import ReleaseLeases, Store
from support.faults import FaultyStore, closing, store_of
from support.stories import drain, play, quick

PAGES = 2
LARGE = bytes(range(256)) * 1200  # two pieces of a blob


def press(store: Store, witness: list[str], blobs: str, *, lease_seconds: float = 15.0) -> App:
    """An app whose job exports small and large things: in steps, in a tool, beside them. A new process, as it were."""
    app = App("press", config=quick("memory:", lease_seconds=lease_seconds, progress_seconds=0.001, blobs=blobs))
    app._opened = store

    @app.step
    async def render(page: int) -> int:
        progress(page / 10, stage="rendering", message=f"page {page}")
        export(f"page {page}", f"text {page}")
        export(LARGE + bytes([page]), f"print {page}")
        return page

    @app.step
    async def failing() -> None:
        export("what went wrong", "log")
        raise ValueError("no ink")

    @app.tool
    async def deliver(pages: int) -> str:
        witness.append(f"deliver {pages}")
        export(f"{pages} delivered", "receipt")
        return "delivered"

    @app.job
    async def edition(title: str) -> str:
        export({"title": title}, "title")
        for page in range(1, PAGES + 1):
            await render(page)
        try:
            await failing()
        except Exception:  # noqa: BLE001 - it goes on without
            progress(message="without ink")
        delivered = await deliver(PAGES)
        progress(0.9, step=PAGES, step_total=PAGES)
        export(LARGE, "cover")
        return delivered

    return app


NAMES = ["title", "text 1", "print 1", "text 2", "print 2", "log", "receipt", "cover"]


async def settle(app: App, run: str) -> bool:
    """Answer for the tool, if it is in doubt, as an operator who knows that it has acted would."""
    last = (await app.store().events(run))[-1]
    if last.type != "job_waiting":
        return False
    await app.aresolve(run, str(last.payload["node"]), done="delivered")
    return True


async def survive(inner: Store, faulty: FaultyStore, blobs: str) -> None:
    """Run the story with one fault; then again without, as a new process would; look at everything."""
    witness: list[str] = []
    app = press(faulty, witness, blobs, lease_seconds=0.2)  # a claim whose answer is lost ends while it waits
    started = None
    while started is None and not faulty.crashed:
        try:
            started = await app.entries["press", "edition"].options(key="k").astart("News")
        except StoreUnavailable:
            continue
    worker = app.worker()
    working = asyncio.create_task(worker.arun(until_idle=True))
    while not faulty.crashed and not working.done():
        await asyncio.wait([working], timeout=0.01)
    working.cancel()
    await asyncio.wait([working])
    if worker._worker is not None:
        await inner.commit([ReleaseLeases(worker._worker.name)])

    again = press(inner, witness, blobs)
    handle = await again.entries["press", "edition"].options(key="k").astart("News")
    asked = False
    for _ in range(3):
        await drain(again)
        asked = await settle(again, handle.id) or asked
    record = await handle.arecord()
    assert (record.status, record.progress, record.step, record.error) == ("succeeded", 1.0, PAGES, None)
    assert witness in (["deliver 2"], []) if asked else witness == ["deliver 2"], witness
    found = await again.aexports(handle.id)
    names = [one.name for one in found]
    # A tool that was never heard of again is not called again to export: an operator has answered for it.
    assert names == NAMES or (asked and names == [name for name in NAMES if name != "receipt"])
    assert [one.number for one in found] == list(range(1, len(names) + 1))
    assert record.result_refs == [f"{handle.id}/exports/{one.number}" for one in found]
    assert await contents(again, handle.id, found) == {
        **{f"print {page}": LARGE + bytes([page]) for page in range(1, PAGES + 1)},
        "cover": LARGE,
    }
    assert await again.averify() == {}


async def contents(app: App, run: str, found: list[Any]) -> dict[str, bytes]:
    large = [one for one in found if one.kind == "binary"]
    return {one.name: b"".join([piece async for piece in app.acontent(run, one.number)]) for one in large}


@pytest.mark.parametrize("mode", ["crash", "not applied", "applied"])
@pytest.mark.parametrize(
    ("backend", "blobs"),
    [("memory", "directory"), ("sqlite", "database"), ("sqlite", "directory"), ("postgres", "database")],
)
def test_a_fault_at_any_commit_loses_no_export_and_doubles_none(
    backend: str, blobs: str, mode: str, tmp_path: Path
) -> None:
    n = 0
    failed = True
    while failed:
        n += 1
        inner = store_of(backend, tmp_path / f"{n}.db")
        faulty = FaultyStore(inner, n, mode)
        play(closing(inner, survive(inner, faulty, str(tmp_path / f"blobs-{n}") if blobs == "directory" else "")))
        failed = faulty.failed
    assert n > 8, "the story has at least eight commits to fail"
