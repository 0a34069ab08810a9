"""Processes that advance schedules and are killed at random, over virtual time that the test moves.

A child process opens the store and does what a worker does: it advances, claims, and ends runs. The clock of the store
is in the database, or for SQLite in a file. Each process has its own error of the host's clock, of up to five minutes,
which must not matter.
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
from collections.abc import Callable
from pathlib import Path

from holdfast.clock import ManualClock
from holdfast.machines.chain import breaks
from holdfast.schedules.calendar import calendar_of
from holdfast.schedules.definition import CATCH_UP, OVERLAP, define
from holdfast.schedules.schedule import JobTemplate, stream_of
from holdfast.store import Append, Claim, Store
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.schedule_commands import Advance, CreateSchedule
from holdfast.store.schedule_writes import rebuilt_schedule
from holdfast.store.sqlite.store import SqliteStore
from support.postgres import ServerClock, fresh_schema, server

__all__ = ["Tally", "killed_year"]

DAY_SECONDS = 86400.0
ENTRIES = frozenset({("shop", "report")})


class FileClock:
    """The time in a file, which is replaced and never half written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def now(self) -> float:
        return float(self._path.read_text())

    def set(self, now: float) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(repr(now))
        new.replace(self._path)


class Tally:
    """What was counted."""

    def __init__(self) -> None:
        self.kills = self.ticks = self.fired = self.schedules = 0
        self.outcomes: Counter[str] = Counter()

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count:,} {name}" for name, count in sorted(self.outcomes.items()))
        return (
            f"{self.schedules} schedules, {self.kills:,} processes killed, {self.ticks:,} ticks: {outcomes};"
            f" {self.fired:,} runs, one for each fired tick"
        )


async def act(store: Store, seed: int) -> None:
    """Do what a worker does, until killed."""
    chance = random.Random(seed)
    kinds = ["job_completed", "job_completed", "job_failed", "job_cancelled"]
    while True:
        await store.commit([Advance(chance.randrange(1, 20))])
        claim = Claim(worker=f"w{os.getpid()}", entries=ENTRIES, queues=None, limit=20, lease_seconds=1e10)
        (claims,) = await store.commit([claim])
        ends = [Append(c.job.id, c.job.attempt, ((chance.choice(kinds), {"reason": "so"}),)) for c in claims]
        if ends:
            await store.commit(ends)


def child(backend: str, place: str, seed: int) -> None:
    """Run in a process of its own. Its host's clock is wrong, and nothing may read it."""
    error = random.Random(seed).uniform(-300, 300)
    real = time.time
    time.time = lambda: real() + error
    if backend == "sqlite":
        store: Store = SqliteStore(Path(place) / "jobs.db", FileClock(Path(place) / "clock"))
    else:
        url, _, schema = place.rpartition("#")
        store = PostgresStore(url, schema)
    asyncio.run(act(store, seed))


async def killed_year(backend: str, folder: Path, *, days: float, steps: int, processes: int, seed: int) -> Tally:
    """Kill processes at random while the time moves over so many days; check every schedule, and return the tally."""
    chance, tally = random.Random(seed), Tally()
    store, place, move = _opened(backend, folder)
    await _create(store, chance)
    alive: list[subprocess.Popen[bytes]] = []
    try:
        for step in range(steps):
            while len(alive) < processes:
                alive.append(_started(backend, place, chance.randrange(2**32)))
            move(chance.choice([0.5, 1.0, 1.5]) * days / steps * DAY_SECONDS)
            await _progress(store)
            if step % 2:
                victim = alive.pop(chance.randrange(len(alive)))
                victim.send_signal(signal.SIGKILL)
                victim.wait(60)
                tally.kills += 1
    finally:
        for process in alive:
            process.kill()
            process.wait(60)
            tally.kills += 1
    while (await store.next_due(0.0) or 1e12) <= await store.now():
        await store.commit([Advance(1000)])
    await _check(store, tally)
    await store.close()
    return tally


def _opened(backend: str, folder: Path) -> tuple[Store, str, Callable[[float], object]]:
    if backend == "postgres":
        schema = fresh_schema()
        server_clock = ServerClock(schema)
        store = PostgresStore(server().url, schema, monotonic=server_clock.now)
        server_clock.take_over()
        return store, f"{server().url}#{schema}", server_clock.move
    clock, now = FileClock(folder / "clock"), ManualClock()
    clock.set(now.now())
    return SqliteStore(folder / "jobs.db", clock), str(folder), lambda seconds: clock.set(now.move(seconds))


async def _create(store: Store, chance: random.Random) -> None:
    times = [{"cron": "30 2 * * *"}, {"every": "7h", "jitter": "1h"}, {"cron": "15 */6 * * *", "exclude": "* * * * 0"}]
    template = JobTemplate(plugin="shop", entry="report")
    for number, (overlap, catch_up) in enumerate((o, c) for o in OVERLAP for c in CATCH_UP):
        options = {**times[number % 3], "overlap": overlap, "catch_up": catch_up}
        zone = chance.choice(["Europe/Berlin", "America/New_York", "Asia/Tehran", "UTC"])
        definition = define(tz=zone, **options)
        name = f"{overlap}-{catch_up}"
        await store.commit([CreateSchedule(plugin="shop", name=name, definition=definition, template=template)])


def _started(backend: str, place: str, seed: int) -> subprocess.Popen[bytes]:
    code = "import sys; from support.killed_schedules import child; child(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, backend, place, str(seed)], env={**os.environ, "PYTHONPATH": path}
    )


async def _progress(store: Store) -> None:
    """Wait until the processes have handled something of what is due, or all of it."""
    async with asyncio.timeout(60):
        before = [row.version for row in await store.schedules()]
        while (await store.next_due(0.0) or 1e12) <= await store.now():
            if [row.version for row in await store.schedules()] != before:
                return
            await asyncio.sleep(0.005)


async def _check(store: Store, tally: Tally) -> None:
    jobs: set[str] = set()
    before: str | None = None
    while page := await store.jobs(before=before, limit=1000):
        jobs |= {job.id for job in page}
        before = page[-1].id
    fired_everywhere: list[str] = []
    for row in await store.schedules():
        stream = await store.events(stream_of(row.id))
        assert list(breaks(stream, row.head)) == []
        assert rebuilt_schedule(row, stream) == row
        calendar, outcomes = calendar_of(row.definition), Counter[float]()
        for event in stream:
            if event.type not in {"fired", "skipped", "missed"}:
                continue
            payload = event.payload
            single = "nominal" in payload
            ticks = [payload["nominal"]] if single else [t.at for t in calendar.between(payload["from"], payload["to"])]
            outcomes.update(ticks)
            tally.outcomes[f"{event.type} {payload.get('reason', '')}".strip()] += len(ticks)
        assert row.next is not None
        expected = {tick.at for tick in calendar.between(stream[0].payload["next"], row.next - 1)}
        assert set(outcomes) == expected - {tick.at for tick in row.buffer}, row.id
        assert set(outcomes.values()) <= {1}, row.id
        fired = [event.payload["job"] for event in stream if event.type == "fired"]
        fired_everywhere += fired
        tally.ticks += len(outcomes)
        tally.schedules += 1
    tally.fired = len(fired_everywhere)
    assert len(set(fired_everywhere)) == len(fired_everywhere)
    assert set(fired_everywhere) == jobs
