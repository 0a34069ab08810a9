"""Schedules of the shop with a day and a half of ticks, in every state and with every outcome, made in virtual time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.clock import ManualClock
from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate
from holdfast.store import Append, Claim
from holdfast.store.commands import PutWorker
from holdfast.store.rows import Job, WorkerCard
from holdfast.store.schedule_commands import Advance, CreateSchedule, FireSchedule, PauseSchedule
from holdfast.store.sqlite.store import SqliteStore

HOURS = 36
OUTAGE = range(20, 24)  # hours without a worker
HOUR = 3600.0
YEAR = 366 * 86400.0
NOTE = "the disk is full, see ticket 812"
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "cleanup": ("quick", {"every": "1h", "catch_up": "none"}),
    "leap-day": ("quick", {"cron": "15 3 29 2 *", "tz": "Europe/Berlin"}),
    "nightly-report": ("quick", {"cron": "30 2 * * *", "tz": "Europe/Berlin"}),
    "old-import": ("closed", {"every": "6h"}),
    "poll-stock": ("quick", {"every": "1h", "overlap": "allow"}),
    "reconcile": ("audit", {"cron": "0 * * * *", "tz": "America/New_York"}),
    "slow-export": ("export", {"every": "1h"}),
    "sync-orders": ("export", {"cron": "0 */2 * * *", "overlap": "buffer_one"}),
    "trial": ("quick", {"every": "1h", "remaining": 5}),
}
ENTRIES = frozenset(("shop", entry) for entry in ("quick", "audit", "export"))


def schedule(path: Path) -> None:
    """Add the schedules, their ticks up to the last full hour and their runs, and a worker that stays alive."""
    with ThreadPoolExecutor(1) as threads:  # the browser's loop runs in this one
        threads.submit(asyncio.run, _schedule(path)).result()


async def _schedule(path: Path) -> None:
    clock = ManualClock()
    last = time.time() // HOUR * HOUR
    clock.move(last - HOURS * HOUR + 1 - clock.now())
    store = SqliteStore(path, clock)
    for name, (entry, options) in SCHEDULES.items():
        job = JobTemplate(plugin="shop", entry=entry, args={"number": 1})
        await store.commit([CreateSchedule(plugin="shop", name=name, definition=define(**options), template=job)])
    running: list[Job] = []
    for hour in range(1, HOURS + 1):
        clock.move(HOUR)
        if hour not in OUTAGE:
            await _tick(store, hour, running)
    await store.commit([PauseSchedule("shop.cleanup", NOTE, "ana"), FireSchedule("shop.poll-stock", "ana")])
    entries = tuple(f"{plugin}.{entry}" for plugin, entry in sorted(ENTRIES))
    card = WorkerCard("w1", "host", 1, 8, None, entries, YEAR)
    await store.commit([PutWorker(card)])
    await store.close()


async def _tick(store: SqliteStore, hour: int, running: list[Job]) -> None:
    """Advance the schedules, and end runs: most well, some not, and exports only every fifth hour."""
    claim = Claim(worker="w1", entries=ENTRIES, queues=None, limit=100, lease_seconds=YEAR)
    _, claims = await store.commit([Advance(100), claim])
    running += [claimed.job for claimed in claims]
    ended = [job for job in running if job.entry != "export" or hour % 5 == 0]
    running[:] = [job for job in running if job not in ended]
    await store.commit([Append(job.id, job.attempt, (_end(job, hour),)) for job in ended])


def _end(job: Job, hour: int) -> tuple[str, dict[str, Any]]:
    fails = job.entry == "audit" and hour % 3 == 0
    return ("job_failed", {"reason": "error"}) if fails else ("job_completed", {"result": 1})
