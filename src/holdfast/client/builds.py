"""Builds: which jobs are kept for which build, and the release of jobs whose build has no worker.

A job that was handed over to a build, and that none of its workers has claimed, is released when the last of them is
gone. Then any worker claims it, and if its code does not fit, the job asks. A pinned job is never released by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from holdfast.errors import StoreUnavailable
from holdfast.machines import JobState
from holdfast.machines.run_projection import HANDED_OVER
from holdfast.store import Job, Keep, Store, WorkerCard

PAGE = 500


def live_builds(cards: Iterable[WorkerCard], now: float) -> set[str]:
    """Return the builds that live workers have."""
    return {card.build for card in cards if card.build is not None and now - card.seen_at <= card.lease_seconds}


async def kept_jobs(store: Store, build: str) -> list[Job]:
    """Read all jobs that are kept for a build."""
    rows: list[Job] = []
    while True:
        page = await store.kept_jobs(build, rows[-1].id if rows else None, PAGE)
        rows += page
        if len(page) < PAGE:
            return rows


async def release_stranded(store: Store) -> int:
    """Release the jobs that were handed over to a build whose workers are gone. Return how many."""
    builds = await store.kept_builds()
    gone = set(builds) - live_builds(await store.workers(), await store.now()) if builds else ()
    released = 0
    for build in gone:
        waiting = [
            job
            for job in await kept_jobs(store, build)
            if job.state is JobState.QUEUED and job.course.stage == HANDED_OVER
        ]
        released += len(waiting)
        if waiting:
            await store.commit([Keep(job.id, build, None, unclaimed=True) for job in waiting])
    return released


async def release_periodically(store: Store, seconds: float) -> None:
    """Release stranded jobs again and again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await release_stranded(store)
        except StoreUnavailable:
            continue  # the next round tries again
