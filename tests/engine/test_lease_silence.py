"""A store that is silent ends leases, by the worker's own clock (L11); and so does a machine that stood still."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import App, Config, RunHandle, StoreUnavailable
from holdfast.clock import elapsed
from holdfast.engine.lease import STOP_SHARE, Lease
from holdfast.engine.lease_keeper import LeaseKeeper
from holdfast.engine.worker import Worker
from holdfast.store import Claims, Command, Store
from holdfast.store.memory import MemoryStore
from support.postgres import fresh_url
from support.silence import SilentStore, SilentWire
from support.stories import play, quick, until

LEASE_SECONDS = 5.0


def test_a_lease_counts_from_when_its_renewal_was_sent_and_is_not_revived() -> None:
    now = elapsed()
    lease = Lease(now, 10.0)
    assert lease.lasts()
    assert lease.stops_at == now + 10.0 * STOP_SHARE
    lease.renewed(now - 5.0, 10.0)
    assert lease.stops_at == now + 10.0 * STOP_SHARE, "an older renewal that is answered late takes nothing away"
    lease.renewed(now + 1.0, 10.0)
    assert lease.stops_at == now + 1.0 + 10.0 * STOP_SHARE
    lease.give_up()
    lease.renewed(now + 2.0, 10.0)
    assert not lease.lasts()


def test_a_lease_that_was_sent_too_long_ago_is_over_whenever_it_is_answered() -> None:
    lease = Lease(elapsed() - 10.0, 10.0)
    assert not lease.lasts()


class LateAnswers:
    """A store whose first answer with a job comes after the lease of that job, by the worker's clock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.late_seconds = 0.0

    def steady(self) -> float:
        return elapsed() + self.late_seconds

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        answers = await self._store.commit(batch)
        if any(isinstance(answer, Claims) and answer.claimed for answer in answers):
            self.late_seconds = 10 * LEASE_SECONDS
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_job_whose_claim_is_answered_after_its_lease_does_not_begin(url: str) -> None:
    app = App("shop", config=quick(url, lease_seconds=1.0))
    begun: list[float] = []

    @app.job
    async def work() -> None:
        begun.append(elapsed())

    async def story() -> None:
        run = await app.astart(work)
        late = LateAnswers(app.store())
        store = cast(Store, late)
        keeper = partial(LeaseKeeper, steady=late.steady)
        worker = Worker(store, app.entries, app.config, children=app.submission, keeper=keeper)
        working = asyncio.create_task(worker.run())
        await until(lambda: _is_over(app, run.id))
        worker.stop()
        await working
        assert late.late_seconds
        assert [event.attempt for event in await run.aevents() if event.type == "job_running"] == [1, 2]

    play(story())
    assert len(begun) == 1, "the code of the first attempt would have begun when another worker could have the job"
    app.close()


async def stopped_in_time(app: App, silence: Callable[[], object], speak: Callable[[], object], look: Store) -> None:
    """A job's code is stopped before its lease ends in the store, although the store does not say a word."""
    begun, stopped = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> None:
        if begun.is_set():
            return
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    run = await app.astart(work)
    worker = app.worker()
    working = asyncio.create_task(worker.arun())
    await begun.wait()
    silence()
    try:
        await stopped.wait()
        row = await look.get(run.id)
        assert row is not None
        assert row.lease is not None
        assert await look.now() < row.lease.until, "its code still ran when another worker could have had the job"
    finally:
        speak()
    await until(lambda: _is_over(app, run.id))
    worker.stop()
    await working
    assert (await app.aget(run.id)).status == "succeeded", "and when the store speaks again it goes on"


async def _is_over(app: App, run_id: str) -> bool:
    return (await app.aget(run_id)).finished_at is not None


def test_a_silent_store_does_not_keep_a_worker_from_stopping_its_jobs(url: str) -> None:
    app = App("shop", config=quick(url, lease_seconds=LEASE_SECONDS))
    silent = SilentStore(real := app.store())
    app._opened = cast(Store, silent)
    play(stopped_in_time(app, silent.silence, silent.speak, real))
    app.close()


def test_a_network_that_swallows_everything_stops_the_jobs_of_a_worker() -> None:
    url = fresh_url()
    wire = SilentWire(url)
    there, here = App("shop", url), App("shop", config=quick(wire.url, lease_seconds=LEASE_SECONDS))
    play(stopped_in_time(here, wire.speaks.clear, wire.speaks.set, there.store()))
    here.close()
    there.close()
    wire.shutdown()
    wire.server_close()


HOLDS_THE_FILE = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_file_that_another_program_holds_locked_stops_the_jobs_of_a_worker(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app, look = (App("shop", config=quick(f"sqlite:///{path}", lease_seconds=LEASE_SECONDS)) for _ in range(2))
    held: list[subprocess.Popen[bytes]] = []

    def hold() -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS_THE_FILE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        held.append(process)

    def let_go() -> None:
        for process in held:
            process.communicate()

    play(stopped_in_time(app, hold, let_go, look.store()))
    app.close()
    look.close()


STOPS = """
import signal, sys, threading
from holdfast import App, Config

name = sys.argv[2]
app = App("shop", config=Config(url=sys.argv[1], lease_seconds=2.0, shutdown_seconds=0.05, grace_seconds=0.2))

class Stops:
    def __init__(self, store):
        self._store = store
        self._beating = threading.Lock()  # a process that is stopped inside a transaction keeps its locks

    async def commit(self, batch):
        answers = await self._store.commit(batch)
        kinds = [kind for command in batch for kind, _ in getattr(command, "events", ())]
        if name == "first" and "tool_invocation_started" in kinds:
            with self._beating:
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # here: not when another thread runs again
        return answers

    def commit_blocking(self, batch):
        with self._beating:
            return self._store.commit_blocking(batch)

    def __getattr__(self, name):
        return getattr(self._store, name)

@app.tool(on_doubt="retry")
async def act() -> str:
    print("acted", flush=True)
    return name

@app.job
async def work() -> str:
    return await act()

app._opened = Stops(app.store())
if name == "first":
    work.start()
app.worker(name=name).run()
"""


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_process_that_was_stopped_longer_than_its_lease_does_not_act(backend: str, tmp_path: Path) -> None:
    """SIGSTOP between a tool's declaration and its call; another worker has the job; SIGCONT."""
    url = fresh_url() if backend == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}"

    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, "-c", STOPS, url, name], stdout=subprocess.PIPE, text=True))
        return started[-1]

    try:
        _second_acts_alone(url, start)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _second_acts_alone(url: str, start: Callable[[str], subprocess.Popen[str]]) -> None:
    first = start("first")
    _, status = os.waitpid(first.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    second = start("second")
    assert second.stdout is not None
    assert second.stdout.readline() == "acted\n"
    os.kill(first.pid, signal.SIGCONT)
    app = App("shop", url)
    (record,) = app.list()
    assert RunHandle(app, record.run_id).result(timeout=60) == "second"
    first.terminate()
    said, _ = first.communicate(timeout=60)
    assert said == "", "the first has not acted"
    app.close()


def test_an_outage_of_the_store_is_logged_when_it_begins_every_minute_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class AwayStore(MemoryStore):
        away = True

        def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
            if self.away:
                raise StoreUnavailable("the disk is full: free some space")
            return super().commit_blocking(batch)

    async def story() -> None:
        store, now = AwayStore(), [100.0]
        worker = Worker(store, {}, Config(), children=App("shop").submission, name="w1")
        keeper = LeaseKeeper(worker, store, Config(), steady=lambda: now[0])
        for now[0] in (100.0, 130.0, 161.0):
            keeper.renew()
        store.away, now[0] = False, 165.0
        for _ in range(2):
            keeper.renew()

    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        play(story())
    began = "worker w1 cannot use its store, and tries again: the disk is full: free some space"
    assert caplog.messages == [began, began, "worker w1 can use its store again, after 65 s"]
