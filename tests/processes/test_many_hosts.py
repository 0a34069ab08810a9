"""Workers on many hosts: how they hear of work, how a death is noticed, and whose clock counts."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, RunFailed, RunTimedOut
from holdfast.engine.worker import Worker
from holdfast.machines import Event
from holdfast.store.postgres.listener import Listener
from holdfast.store.postgres.store import PostgresStore
from support.postgres import fresh_url, server
from support.scripts import load
from support.stories import TooLate, in_time, play, quick, until

TARGET = Path(__file__).with_name("far_shop.py")

# A worker process whose host's clock is wrong by so many seconds.
WRONG_CLOCK = """
import sys, time
off, right, right_ns = float(sys.argv[1]), time.time, time.time_ns
time.time, time.time_ns = lambda: right() + off, lambda: right_ns() + int(off * 1e9)
from holdfast.engine import lease_keeper
from holdfast.cli.main import main
Heartbeat = lease_keeper.Heartbeat
lease_keeper.Heartbeat = lambda beat, _: Heartbeat(beat, 0.1)  # it renews its leases often, however long they are
sys.argv[1:] = ["worker", *sys.argv[2:]]
main()
"""


class Hosts:
    """Worker processes, and the app that they run; what they have in common is the database."""

    def __init__(self, folder: Path) -> None:
        self.url = fresh_url()
        self.witness = folder / "witness"
        self.witness.touch()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, who: str, *options: str, clock: float = 0.0, **environment: str) -> subprocess.Popen[bytes]:
        usual = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        usual |= {"WITNESS": str(self.witness), "HOLDFAST_URL": self.url, "WHO": who}
        command = [sys.executable, "-c", WRONG_CLOCK, str(clock), str(TARGET), "--name", who, *options]
        self._processes.append(subprocess.Popen(command, env={**usual, **environment}))
        return self._processes[-1]

    def app(self) -> App:
        app = App("far", config=quick(self.url, lease_seconds=60))
        app.entries.update(load(TARGET).app.entries)
        return app

    async def said(self, line: str) -> bool:
        return line in self.witness.read_text().splitlines()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def asked(sql: str, *bindings: Any) -> list[Any]:
    with psycopg.connect(server().url, autocommit=True) as connection:
        return connection.execute(sql, bindings).fetchall()


async def holds_its_lock(app: App, worker: str) -> bool:
    """Whether others can see that a worker is alive."""
    store = app.store()
    assert isinstance(store, PostgresStore)
    return asked(f"SELECT 1 FROM {store._schema}.workers WHERE name = %s AND lock_key IS NOT NULL", worker) == [(1,)]


# Hearing of work


def test_with_every_notice_lost_jobs_still_run_within_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []

    def to_nobody(listener: Listener, change: int) -> tuple[str, str]:
        said.append(change)
        return "nobody_listens_here", f"{change}:{listener._me}"

    monkeypatch.setattr(Listener, "message", to_nobody)

    async def story() -> None:
        url = fresh_url()
        here, there = (App("shop", config=quick(url, lease_seconds=3600)) for _ in range(2))
        begun: asyncio.Queue[float] = asyncio.Queue()

        async def greet() -> None:
            await begun.put(time.monotonic())

        for app in (here, there):
            app.job(greet)
        worker = here.worker()
        working = asyncio.create_task(worker.arun())
        store = here.store()
        assert store.floor_seconds == 1.0

        async def found_by_a_look() -> None:
            await there.astart("greet")
            started = time.monotonic()
            late = await begun.get() - started
            if late >= 1.5:
                raise TooLate(late)

        for _ in range(4):
            await in_time(found_by_a_look)
        assert store.change_count() == 1, "it has heard of nothing since it began to listen"
        worker.stop()
        await working
        await here.aclose()
        await there.aclose()

    play(story())
    assert said, "something was said, to nobody"


def test_a_listener_that_comes_back_looks_for_what_was_said_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself here: only the look after the listener's return can find the job."""
    monkeypatch.setattr(PostgresStore, "floor_seconds", 3600.0)
    sleep, asleep = Worker._sleep, threading.Event()

    async def watched(worker: Worker, now: float) -> None:
        asleep.set()
        await sleep(worker, now)
        asleep.clear()

    monkeypatch.setattr(Worker, "_sleep", watched)

    async def story() -> None:
        url = fresh_url()
        here, there = (App("shop", config=quick(url, lease_seconds=20_000)) for _ in range(2))
        ran = asyncio.Event()

        async def greet() -> None:
            ran.set()

        for app in (here, there):
            app.job(greet)
        worker = here.worker(name="w")
        working = asyncio.create_task(worker.arun())
        store = here.store()
        assert isinstance(store, PostgresStore)

        async def has_nothing_to_do() -> bool:
            return store.change_count() == 1 and await holds_its_lock(here, "w") and asleep.is_set()

        await until(has_nothing_to_do)
        for _ in range(50):
            await asyncio.sleep(0)  # what it has just heard of takes effect
        await until(has_nothing_to_do)
        gate = threading.Event()
        connect = store._connect

        def later() -> Any:
            gate.wait(60)
            return connect()

        store._listener._connect = later
        asked("SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted")
        await there.astart("greet")
        await asyncio.wait_for(asyncio.to_thread(asleep.wait), 60)
        assert not ran.is_set()
        gate.set()
        async with asyncio.timeout(60):
            await ran.wait()
        assert store.change_count() == 2, "the look itself, and no notice of the job"
        worker.stop()
        await working
        await here.aclose()
        await there.aclose()

    play(story())


# Death


def test_a_killed_worker_is_noticed_within_two_seconds_however_long_its_lease(hosts: Hosts) -> None:
    async def story() -> None:
        number = next(numbers)
        far, near = f"far{number}", f"near{number}"
        dying = hosts.start(far, "--queue", far, STAY="1", HOLDFAST_LEASE_SECONDS="3600")
        await until(lambda: holds_its_lock(app, far))
        handle = await app.astart(app.entries["far", "stay"].options(queue=far))
        await until(lambda: hosts.said(f"begun by {far}"))
        living = hosts.start(near, "--queue", far, HOLDFAST_LEASE_SECONDS="3600")
        await until(lambda: holds_its_lock(app, near))
        dying.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        await until(lambda: hosts.said(f"begun by {near}"))
        took = time.monotonic() - killed
        assert await handle.aresult(timeout=60) == near
        assert [card.card.name for card in await app.aworkers()] == [near]
        living.terminate()
        assert await asyncio.to_thread(living.wait, 60) == 0
        if took >= 2.0:
            raise TooLate(took)

    app, numbers = hosts.app(), itertools.count()
    play(in_time(story))
    app.close()


def test_a_worker_that_is_taken_for_dead_writes_nothing_and_goes_on_with_other_jobs(hosts: Hosts) -> None:
    """It lives, but neither the connection it writes with nor the one it listens on comes back in time."""

    async def story() -> None:
        here, there = (App("shop", config=quick(hosts.url, lease_seconds=60)) for _ in range(2))
        begun: asyncio.Queue[str] = asyncio.Queue()
        go_on = asyncio.Event()
        acted: list[str] = []

        def declare(app: App, who: str) -> None:
            @app.step
            async def pack() -> str:
                await begun.put(who)
                if who == "here":
                    await go_on.wait()
                return who

            @app.tool
            async def send(packed_by: str) -> str:
                acted.append(f"{who} {packed_by}")
                return packed_by

            @app.job
            async def order() -> str:
                return await send(await pack())

        declare(here, "here")
        declare(there, "there")
        worker = here.worker(name="here", queues=["first", "here"])
        working = asyncio.create_task(worker.arun())
        await until(lambda: holds_its_lock(here, "here"))
        handle = await there.astart(there.entries["shop", "order"].options(queue="first"))
        assert await begun.get() == "here"
        gate, store = threading.Event(), here.store()
        assert isinstance(store, PostgresStore)
        connect = store._connect
        store._connect = store._listener._connect = lambda: (gate.wait(60), connect())[1]  # type: ignore[method-assign]
        other = there.worker(name="there", queues=["first"])
        asked("SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted")
        others = asyncio.create_task(other.arun())
        assert await begun.get() == "there"
        go_on.set()
        assert await handle.aresult(timeout=60) == "there"
        gate.set()
        again = await there.astart(there.entries["shop", "order"].options(queue="here"))
        assert await again.aresult(timeout=60) == "here"
        assert acted == ["there there", "here here"]
        packed = [
            (event.attempt, event.payload["result"])
            for event in await handle.aevents()
            if event.type == "command_committed"
        ]
        assert packed == [(2, "there")]
        assert await there.averify() == {}
        for one in (worker, other):
            one.stop()
        await asyncio.gather(working, others)
        await here.aclose()
        await there.aclose()

    play(story())


# Clocks


def at(events: list[Event], kind: str, place: int = 0) -> float:
    return [event.at for event in events if event.type == kind][place]


def lasted(seconds: float, due: float) -> None:
    """Something took its time by one clock: another that is 150 seconds off would show."""
    assert seconds < due + 60
    if seconds < due - 0.1:  # when it began was written down late; or, every time, by another clock
        raise TooLate(seconds, due)


def test_hosts_whose_clocks_are_five_minutes_apart_keep_leases_delays_waits_and_deadlines(hosts: Hosts) -> None:
    offsets = {"ahead": 150.0, "behind": -150.0}
    for who, offset in offsets.items():
        hosts.start(who, "--queue", who, clock=offset, HOLDFAST_LEASE_SECONDS="60")

    async def stories(app: App, who: str) -> None:
        def chosen(entry: str, **options: Any) -> Any:
            return app.entries["far", entry].options(queue=who, **options)

        moments, fall, work, delayed = [
            await app.astart(chosen(*one)) for one in (("moments",), ("fall",), ("work",))
        ] + [await app.astart(chosen("stay", delay=1.5))]
        hang = await app.astart(chosen("hang", deadline=2))

        host, before, after = await moments.aresult(timeout=60)
        events = await moments.aevents()
        assert host - at(events, "job_running") == pytest.approx(offsets[who], abs=60), "its clock is wrong indeed"
        assert before == pytest.approx(at(events, "job_running"), abs=60)
        lasted(after - before, 2)
        for place in (0, 1):
            lasted(at(events, "wait_completed", place) - at(events, "job_waiting", place), 1)

        with pytest.raises(RunFailed):
            await fall.aresult(timeout=60)
        events = await fall.aevents()
        lasted(at(events, "node_started", 1) - at(events, "node_started"), 1)

        with pytest.raises(RunTimedOut):
            await hang.aresult(timeout=60)
        events = await hang.aevents()
        lasted(at(events, "job_failed") - at(events, "job_created"), 2)

        events = await delayed.aevents()
        lasted(at(events, "job_running") - at(events, "job_created"), 1.5)

        await work.aresult(timeout=60)
        events = await work.aevents()
        assert [event.type for event in events].count("job_running") == 1, (
            "its lease was kept, however often it was renewed"
        )

    async def story() -> None:
        app = hosts.app()
        await asyncio.gather(*(in_time(partial(stories, app, who)) for who in offsets))
        assert await app.averify() == {}
        await app.aclose()

    play(story())
