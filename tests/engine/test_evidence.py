"""What a worker reports too late is kept for people, and never applied by itself (E5); who works can be seen (L9)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Backoff
from holdfast.client.explain import explain
from holdfast.store import Reclaim, ReleaseLeases
from support.stories import drain, play


async def comes_about(look: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        found = await look()
        while not found:
            await asyncio.sleep(0.005)
            found = await look()


async def steal(app: App, job: str) -> None:
    """Take a job from the worker that has it, as if it were dead."""
    row = await app.store().get(job)
    assert row is not None
    assert row.lease is not None
    await app.store().commit([ReleaseLeases(row.lease.worker), Reclaim()])


@pytest.mark.parametrize("colour", ["async", "plain"])
def test_the_late_result_of_a_stale_worker_is_kept_and_shown_and_not_applied(app: App, colour: str) -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls: list[str] = []

    def act(card: str) -> str:
        calls.append(card)
        begun.set()
        assert go_on.wait(60)
        return "receipt-7"

    async def act_too(card: str) -> str:
        calls.append(card)
        begun.set()
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue  # a tool in the middle of its act
        return "receipt-7"

    acting: Any = act if colour == "plain" else act_too
    charge = app.tool(name="charge")(acting)

    @app.job
    async def pay() -> Any:
        return await charge("4242")

    async def story() -> None:
        handle = await app.astart(pay)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        await asyncio.to_thread(begun.wait, 30)
        await steal(app, handle.id)
        async for record in handle.awatch():
            if record.stage == "in_doubt":
                break
        go_on.set()
        await comes_about(lambda: app.aevidence(handle.id))
        worker.stop()
        await working
        (late,) = await app.aevidence(handle.id)
        assert (late.node.split(":")[0], late.attempt, late.number, late.result) == ("charge", 1, 1, "receipt-7")
        assert (await handle.arecord()).stage == "in_doubt", "it is shown, and not applied"
        row = await app.store().get(handle.id)
        assert row is not None
        said = explain(row, await app.store().now(), evidence=await app.aevidence(handle.id))
        assert "its result was 'receipt-7'" in said
        await app.aresolve(handle.id, late.node, done=late.result)
        await drain(app)
        assert await handle.aresult() == "receipt-7"
        assert await app.averify() == {}

    play(story())
    assert calls == ["4242"]


def test_a_plain_tool_that_ends_after_its_time_leaves_evidence_and_no_result(app: App) -> None:
    go_on = threading.Event()

    @app.tool(timeout=0.05, on_doubt="ask", backoff=Backoff(retries=50, first_seconds=0.001))  # until a thread is free
    def charge() -> str:
        assert go_on.wait(60)
        raise OSError("the line broke")

    @app.job
    async def pay() -> str:
        return await charge()  # type: ignore[misc, no-any-return]

    async def story() -> None:
        handle = await app.astart(pay)
        worker = app.worker()
        working = asyncio.create_task(worker.arun())
        async for record in handle.awatch():
            if record.stage == "in_doubt":
                break
        go_on.set()
        await comes_about(lambda: app.aevidence(handle.id))
        worker.stop()
        await working
        (late,) = await app.aevidence(handle.id)
        assert (late.result, late.error) == (None, "OSError: the line broke")
        assert (await handle.arecord()).stage == "in_doubt"

    play(story())


def test_a_step_that_ends_after_its_time_changes_nothing(app: App) -> None:
    """The fence of an effect is (attempt, try): the first try's late result must not be taken for the second's (L3)."""
    tries: list[threading.Event] = [threading.Event(), threading.Event()]
    ended: list[int] = []

    @app.step(timeout=0.05, backoff=Backoff(retries=50, first_seconds=0.001))  # of which one will be in time
    def slow() -> int:
        number = len(ended_or_begun)
        ended_or_begun.append(number)
        if number == 0:
            assert tries[0].wait(60)
            ended.append(0)
            return 0
        tries[0].set()
        while not ended:
            time.sleep(0.001)
        return 1

    ended_or_begun: list[int] = []

    @app.job
    async def work() -> int:
        return await slow()  # type: ignore[misc, no-any-return]

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await handle.aresult() == 1
        results = [event.payload.get("result") for event in await handle.aevents() if event.type == "command_committed"]
        assert results == [1]
        assert await app.averify() == {}

    play(story())
    assert ended == [0]


def test_who_works_on_what_and_in_which_step_can_be_seen(app: App) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow(n: int) -> int:
        begun.set()
        await go_on.wait()
        return n

    @app.job
    async def work() -> int:
        return await slow(1) + await slow(2)

    async def story() -> None:
        assert await app.aworkers() == []
        handle = await app.astart(work)
        worker = app.worker(concurrency=3, queues=["default"])
        working = asyncio.create_task(worker.arun())
        await begun.wait()

        async def steps() -> Any:
            found = await app.aworkers()
            return found and found[0].running and found[0].running[0].steps

        await comes_about(steps)  # the declaration of a step does not wait for the disk
        (seen,) = await app.aworkers()
        assert (seen.alive, seen.card.pid, seen.card.slots, seen.card.queues) == (True, os.getpid(), 3, ("default",))
        assert seen.card.entries == ("shop.work",)
        (running,) = seen.running
        assert (running.job, running.entry, running.attempt) == (handle.id, "shop.work", 1)
        (step,) = running.steps
        assert step.node.startswith("slow:")
        assert running.since <= step.since <= await app.store().now()
        go_on.set()
        worker.stop()
        await working
        assert await app.aworkers() == [], "a worker that has stopped is not listed"

    play(story())


STOPPED = """
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from holdfast import App, Config

app = App("shop", config=Config(url=sys.argv[1] if len(sys.argv) > 1 else "", lease_seconds=0.6))

@app.tool
def charge(folder: str) -> str:
    import os, time
    with open(Path(folder) / "witness", "a") as out:
        out.write(f"{os.getpid()}\\n")
    while not (Path(folder) / "go").exists():
        time.sleep(0.005)
    return f"receipt of {os.getpid()}"

@app.job
async def pay(folder: str) -> str:
    return await charge(folder)

if __name__ == "__main__":
    app.worker(name=sys.argv[2]).run()
"""


def test_a_worker_stopped_for_longer_than_its_lease_writes_nothing_when_it_comes_back(tmp_path: Path) -> None:
    """SIGSTOP in the middle of a tool, another worker takes over, SIGCONT: evidence is all that the first leaves."""
    script, url = tmp_path / "stopped_shop.py", f"sqlite:///{tmp_path / 'jobs.db'}"
    script.write_text(STOPPED)
    (tmp_path / "folder").mkdir()
    witness = tmp_path / "folder" / "witness"
    app = App("shop", url)

    @app.job
    async def pay(folder: str) -> str:
        raise AssertionError(folder)

    handle = app.start(pay, str(tmp_path / "folder"))
    first = subprocess.Popen([sys.executable, str(script), url, "first"])
    second = None
    try:
        until(lambda: witness.exists() and witness.read_text())
        os.kill(first.pid, signal.SIGSTOP)
        second = subprocess.Popen([sys.executable, str(script), url, "second"])
        until(lambda: handle.record().stage == "in_doubt")
        events = handle.events()
        (tmp_path / "folder" / "go").touch()
        os.kill(first.pid, signal.SIGCONT)
        until(lambda: app.evidence(handle.id))
        assert handle.events() == events, "the stale worker has written nothing to the job"
        (late,) = app.evidence(handle.id)
        assert (late.attempt, late.result) == (1, f"receipt of {first.pid}")
        assert witness.read_text() == f"{first.pid}\n", "nobody has called the tool again"
        app.resolve(handle.id, late.node, done=late.result)
        assert handle.result(timeout=60) == late.result
        assert app.verify() == {}
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()
        app.close()


def until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it has not come about in time"
        time.sleep(0.01)
