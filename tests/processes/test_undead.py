"""A worker whose loop has died or hangs gives its jobs back and ends; so does an attempt without code (L11)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, LoopDied
from holdfast.authoring.conductor import conductor
from holdfast.client import portal as portals
from holdfast.client.portal import Portal
from holdfast.errors import StoreUnavailable
from holdfast.group_commit import Journal
from holdfast.machines import JobState
from holdfast.machines.event import Frozen, freeze_plain
from holdfast.store import Command, ReleaseLeases
from holdfast.store.memory import MemoryStore
from support.interrupts import interrupted_at
from support.postgres import fresh_url
from support.stories import beating, play, quick, until


def interrupt() -> None:
    raise KeyboardInterrupt


def leave() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("what", ["KeyboardInterrupt", "SystemExit", "stop"])
def test_the_loop_of_an_app_survives_what_its_callbacks_raise(app: App, what: str) -> None:
    @app.step
    async def raises() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon({"KeyboardInterrupt": interrupt, "SystemExit": leave, "stop": loop.stop}[what])
        await asyncio.sleep(0.01)

    @app.job
    async def work() -> str:
        await raises()
        return "done"

    run = work.start()
    app.worker().run(until_idle=True)
    assert run.result(timeout=60) == "done"


INTERRUPTED = """
import asyncio, signal, threading
from holdfast.client import portal as portals
from holdfast.client.portal import Portal

def interrupt(*_):
    raise KeyboardInterrupt

async def wait():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # it waits for this
    try:
        await asyncio.Event().wait()
    finally:
        ends.append("cancelled")

ends = []
signal.signal(signal.SIGALRM, interrupt)
portal = Portal("shop")
try:
    portal.run(wait())
except KeyboardInterrupt:
    ends.append("interrupted")
for _ in range(3):
    portal.run(asyncio.sleep(0))
print(*sorted(ends))
"""


def test_a_call_whose_caller_was_interrupted_is_cancelled() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("cancelled interrupted\n", "")


def test_a_call_that_is_interrupted_before_it_waits_leaves_nothing_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    class Waiting(portals._Call[None]):
        def result(self) -> None:
            waited.append(1)  # the tracer was asked for a later point
            raise KeyboardInterrupt

    async def wait() -> None:
        await asyncio.Event().wait()

    async def left() -> int:
        return len(asyncio.all_tasks()) - 1

    portal = Portal("shop")
    for point in count(1):
        coroutine = wait()
        with monkeypatch.context() as patched:
            patched.setattr(portals, "_Call", Waiting)
            with contextlib.suppress(KeyboardInterrupt):
                interrupted_at(point, partial(portal.run, coroutine))
        for _ in range(3):  # the loop begins the call, cancels it, and ends it
            portal.run(asyncio.sleep(0))
        assert portal.run(left()) == 0, point
        assert not portal._calls
        coroutine.close()  # the call was perhaps interrupted before it began
        if waited:
            break
    assert point > 10
    portal.stop()


def test_calls_on_a_loop_that_has_died_raise_and_those_that_are_under_way_too() -> None:
    portal = Portal("shop")
    under_way = threading.Event()
    raised: list[BaseException] = []

    async def waits() -> None:
        under_way.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            portal.run(waits())
        except LoopDied as error:
            raised.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    under_way.wait()
    portal.die(LoopDied("it hangs"))
    calling.join(60)
    assert [str(error) for error in raised] == ["it hangs"]
    with pytest.raises(LoopDied, match="it hangs"):
        portal.run(waits())
    portal.stop()


def blocking_app(url: str, release: threading.Event, **settings: Any) -> App:
    app = App("shop", config=quick(url, concurrency=1, **settings))

    @app.step
    async def slow() -> None:
        release.wait()  # blocks the loop, as `time.sleep` in an `async` function does

    @app.job
    async def work() -> str:
        if not release.is_set():
            await slow()
        return "done"

    return app


def test_a_loop_that_hangs_too_long_gives_its_jobs_back_and_its_program_is_told(url: str) -> None:
    release = threading.Event()
    app = blocking_app(url, release, loop_stall_seconds=2.0, lease_seconds=60.0)
    store = app.store()
    run = app.start("work")
    with pytest.raises(LoopDied, match=r"job .*\(shop\.work\), step slow, .*test_undead.py, line .*release\.wait"):
        app.worker().run()
    with pytest.raises(LoopDied):
        run.record()
    row = play(store.get(run.id))
    assert row is not None
    assert row.state is JobState.QUEUED, "others may have it, although its lease would have lasted for a minute"
    release.set()
    app.close()
    if url != "memory:":
        again = blocking_app(url, release)
        again.worker().run(until_idle=True)
        assert again.get(run.id).status == "succeeded"
        again.close()


def test_what_blocks_the_loop_is_logged_and_explained(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating(monkeypatch)
    release = threading.Event()
    app = blocking_app(url, release)
    store = app.store()
    first, second = app.start("work"), app.start("work")
    running = threading.Thread(target=app.worker().run, kwargs={"until_idle": True})

    async def reported() -> bool:
        return any(card.blocked for card in await store.workers())

    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        running.start()
        play(until(reported))
    look = App("look", config=quick(url))
    look._opened = store
    said = {play(look.aexplain(run.id)).explanation for run in (first, second)}
    release.set()
    running.join()
    assert any("step slow" in line and "test_undead.py" in line for line in caplog.messages), caplog.messages
    assert any("that has it does not answer: job" in one and "step slow" in one for one in said), said
    assert any("Its worker does not answer: job" in one for one in said), said
    app.close()
    look._opened = None
    look.close()


def test_a_loop_whose_thread_has_ended_gives_its_jobs_back(url: str) -> None:
    app = App("shop", config=quick(url, lease_seconds=30.0))
    store = app.store()

    @app.step
    async def dies() -> None:
        asyncio.get_running_loop().call_soon(interrupt)
        await asyncio.Event().wait()

    @app.job
    async def work() -> None:
        await dies()

    run = app.start("work")
    loop = asyncio.new_event_loop()

    def die() -> None:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(app.worker().arun())

    dying = threading.Thread(target=die)
    dying.start()
    dying.join()

    async def is_free() -> bool:
        row = await store.get(run.id)
        return row is not None and row.state is JobState.QUEUED

    play(until(is_free), seconds=25)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop)))
    loop.close()
    app.close()


BLOCKS = """
import time
from holdfast import App

app = App("shop")

@app.step
async def slow() -> None:
    print("blocked", flush=True)
    time.sleep(3600)

@app.job
async def work() -> None:
    await slow()
"""


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
@pytest.mark.parametrize("asked_to_stop", [False, True])
def test_a_worker_process_whose_loop_hangs_ends_and_says_why(backend: str, asked_to_stop: bool, tmp_path: Path) -> None:
    url = fresh_url() if backend == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "shop.py").write_text(BLOCKS)
    app = App("shop", url)

    @app.job
    async def work() -> None:
        pass

    run = work.start()
    stall = "600" if asked_to_stop else "2"
    settings = {"LOOP_STALL_SECONDS": stall, "LEASE_SECONDS": "60", "SHUTDOWN_SECONDS": "1", "GRACE_SECONDS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(tmp_path / "shop.py"), "--url", url],
        env={**os.environ, **{f"HOLDFAST_{name}": value for name, value in settings.items()}},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "blocked\n"
        if asked_to_stop:
            process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 9, said
    assert "step slow" in said
    assert "time.sleep(3600)" in said
    row = play(app.store().get(run.id))
    assert row is not None
    assert row.state is JobState.QUEUED
    app.close()


class Unbound:
    """As a proxy of a context that is gone: whatever is asked of it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("working outside of its context")


def test_a_result_that_raises_when_it_is_looked_at_keeps_no_slot(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    beating(monkeypatch)

    @app.job(max_attempts=1)
    async def odd() -> Any:
        return Unbound()

    @app.job
    async def even() -> str:
        return "done"

    runs = [odd.start(), even.start()]
    app.worker(concurrency=1).run(until_idle=True)
    assert [run.record().status for run in runs] == ["failed", "succeeded"]


def test_an_attempt_that_was_never_concluded_fails_and_frees_its_slot(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating(monkeypatch)

    @app.job(max_attempts=1)
    async def odd() -> None:
        attempt: Any = conductor.get()
        attempt.code_ended = lambda: None  # as if that had raised

    @app.job
    async def even() -> str:
        return "done"

    runs = [odd.start(), even.start()]
    app.worker(concurrency=1).run(until_idle=True)
    assert [run.record().status for run in runs] == ["failed", "succeeded"]
    assert app.verify() == {}


class Odd:
    """A writer that cannot hear that its events are on disk."""

    def __init__(self) -> None:
        self.job, self.attempt = "a", 1
        self.parent: str | None = None
        self.gathered: list[tuple[str, Frozen]] = []
        self.uses: list[str] = []
        self.successor: Any = None

    def written(self, count: int, error: Exception | None) -> None:
        raise ValueError(count, error)


def test_a_writer_that_fails_to_hear_its_answer_keeps_no_other_waiting() -> None:
    async def story() -> None:
        journal = Journal(MemoryStore())
        journal.append(Odd(), [("x", freeze_plain({}))])
        answers = await asyncio.gather(*(journal.write(ReleaseLeases(f"w{number}")) for number in range(3)))
        assert len(answers) == 3

    play(story())


class Interrupted(MemoryStore):
    async def commit(self, batch: Any) -> list[Any]:
        await asyncio.Event().wait()
        return await super().commit(batch)


def test_a_commit_that_is_interrupted_answers_whoever_waits_for_it() -> None:
    async def story() -> None:
        journal = Journal(Interrupted())
        commands: list[Command] = [ReleaseLeases("first"), ReleaseLeases("second")]
        first = journal.enqueue(commands[0])
        for _ in range(10):
            await asyncio.sleep(0)
        second = journal.enqueue(commands[1])
        draining = journal._draining
        assert draining is not None
        draining.cancel()
        for answer in await asyncio.gather(first, second, return_exceptions=True):
            assert isinstance(answer, StoreUnavailable)

    play(story())
