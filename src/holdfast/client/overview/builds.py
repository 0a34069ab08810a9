"""Builds: what needs each build, the move of runs to another, and the release of jobs whose build has no worker.

A job that was handed over to a build, and that none of its workers has claimed, is released when the last of them is
gone. Then any worker claims it, and if its code does not fit, the job asks. A pinned job is never released by itself.
An operator's retry releases it if no worker of its build is alive.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from holdfast.client.verify import check_replay
from holdfast.config import check_build
from holdfast.engine.misfit import has_worker
from holdfast.errors import InvalidArguments, InvalidSetting, StoreUnavailable, UnknownBuild, UnknownEntry
from holdfast.machines import JobState
from holdfast.machines.run_projection import HANDED_OVER, run_name
from holdfast.store import Job, Keep, Store, WorkerCard
from holdfast.store.audit import audited

if TYPE_CHECKING:
    from holdfast.client.app import App

PAGE = 500
KEPT_MAX = 1000  # runs of a build that a listing counts; a server lists them, too, and must not be held up
LIVE_MAX = 1000  # runs in each state that a listing looks at


def live_cards(cards: Iterable[WorkerCard], now: float) -> list[WorkerCard]:
    """Return the workers that are alive."""
    return [card for card in cards if now - card.seen_at <= card.lease_seconds]


async def kept_jobs(store: Store, build: str, limit: int | None = None) -> list[Job]:
    """Read the jobs that are kept for a build, oldest first."""
    rows: list[Job] = []
    while True:
        page = await store.kept_jobs(build, rows[-1].id if rows else None, PAGE)
        rows += page
        if len(page) < PAGE or (limit is not None and len(rows) >= limit):
            return rows[:limit]


async def release_stranded(store: Store) -> int:
    """Release the jobs that were handed over to a build whose workers are gone. Return how many."""
    builds = await store.kept_builds()
    alive = live_cards(await store.workers(), await store.now()) if builds else []
    gone = set(builds) - {card.build for card in alive}
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


async def stranded_build(store: Store, job: str) -> str | None:
    """Return the build that a job is kept for, if none of its live workers can run the job."""
    row = await store.get(job)
    if row is not None and row.course.continued_as is not None:
        first = await store.get(row.first) if row.first is not None else row
        row = await store.get(first.newest) if first is not None and first.newest is not None else None
    if row is None or row.kept_for is None:
        return None
    alive = has_worker(await store.workers(), row, row.kept_for, await store.now())
    return None if alive else row.kept_for


async def release_periodically(store: Store, seconds: float) -> None:
    """Release stranded jobs again and again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await release_stranded(store)
        except StoreUnavailable:
            continue  # the next round tries again


class BuildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A build of the code, and what still needs it.

    Attributes:
        build: its name.
        workers: number of its live workers.
        running: number of runs that its workers run now, among the newest 1,000 that run.
        waiting: number of runs that wait or are queued, and that its workers ran last, among the newest 1,000 that
            wait and 1,000 that are queued. Any build may go on with those that are not kept.
        kept: number of runs that have not ended and that only its workers may run; 1,000 at most.
        oldest: the oldest of these.
        oldest_at: when that run was created.
        current: whether it takes new runs: the live worker that started last, and is not draining, has this build.
        drained: whether nothing needs it, and it is not the current one. Its workers can be stopped.
        reason: what keeps it, in words; None if it is drained.
    """

    build: str
    workers: int
    running: int
    waiting: int
    kept: int
    oldest: str | None
    oldest_at: float | None
    current: bool = False
    drained: bool
    reason: str | None


class RunMisfit(msgspec.Struct, frozen=True):
    """A run that does not fit the code of the build that it is to be moved to."""

    run_id: str
    reasons: list[str]
    line: str | None = None


class BuildMove(msgspec.Struct, frozen=True):
    """The result of a move: how many runs were moved, and the runs that do not fit. If there are any, none is moved."""

    moved: int
    misfits: list[RunMisfit]


async def read_builds(store: Store) -> list[BuildStatus]:
    """List the builds that live workers have, that runs are kept for, or that ran runs which have not ended."""
    cards = {card.name: card for card in await store.workers()}
    alive = live_cards(cards.values(), await store.now())
    leases = [row.lease for row in await _live_jobs(store, JobState.RUNNING) if row.lease is not None]
    running = _count(cards[lease.worker].build for lease in leases if lease.worker in cards)
    waiting = Counter[str]()
    for state in (JobState.WAITING, JobState.QUEUED):
        waiting += _count(row.course.build for row in await _live_jobs(store, state))
    workers, current = _count(card.build for card in alive), _current(alive)
    return [
        _status(
            build, workers[build], running[build], waiting[build], await kept_jobs(store, build, KEPT_MAX),
            is_current=build == current,
        )
        for build in sorted({*workers, *running, *waiting, *await store.kept_builds()})
    ]  # fmt: skip


def _current(alive: Iterable[WorkerCard]) -> str | None:
    """Return the build of the live worker that started last and takes new runs; None if there is none."""
    takers = [card for card in alive if card.build is not None and not card.draining]
    return max(takers, key=lambda card: (card.started_at, card.build)).build if takers else None


async def _live_jobs(store: Store, state: JobState) -> list[Job]:
    """Read the newest jobs in a state."""
    rows: list[Job] = []
    while len(rows) < LIVE_MAX:
        page = await store.jobs(state=state, before=rows[-1].id if rows else None, limit=PAGE)
        if not page:
            break
        rows += page
    return rows


def _count(builds: Iterable[str | None]) -> Counter[str]:
    return Counter(build for build in builds if build is not None)


def _status(build: str, workers: int, running: int, waiting: int, kept: list[Job], *, is_current: bool) -> BuildStatus:
    reasons = []
    if kept:
        many = "1 run is" if len(kept) == 1 else f"{len(kept)}{'+' if len(kept) >= KEPT_MAX else ''} runs are"
        reasons.append(f"{many} kept for it{'' if workers else ', and no worker of it is alive'}")
    if running:
        reasons.append("1 run is under way" if running == 1 else f"{running} runs are under way")
    if is_current:
        reasons.insert(0, "current" if reasons else "current, idle")
    return BuildStatus(
        build=build,
        workers=workers,
        running=running,
        waiting=waiting,
        kept=len(kept),
        oldest=run_name(kept[0].id, kept[0].run) if kept else None,
        oldest_at=kept[0].created_at if kept else None,
        current=is_current,
        drained=not reasons,
        reason="; ".join(reasons) or None,
    )


async def move_build(app: App, store: Store, old: str, new: str, actor: str | None, *, check: bool) -> BuildMove:
    """Move the runs that are kept for a build to another one, if they fit the code of the app.

    Raises:
        InvalidArguments: both builds are the same, or `new` is not the name of a build.
        UnknownBuild: nothing has or needs the old build.
    """
    if old == new:
        raise InvalidArguments("new", f"must be another build than the old one, got {new!r} for both")
    try:
        check_build(new)
    except InvalidSetting as error:
        raise InvalidArguments("new", error.reason) from error
    rows = await kept_jobs(store, old)
    if not rows and old not in (known := [status.build for status in await read_builds(store)]):
        raise UnknownBuild(old, known)
    misfits: list[RunMisfit] = []
    for row in rows if check else []:
        misfit = await _misfit(app, store, row)
        misfits += [misfit] if misfit is not None else []
    if misfits:
        return BuildMove(0, misfits)
    moved = 0
    for first in range(0, len(rows), PAGE):
        moves = [Keep(row.id, old, new, actor) for row in rows[first : first + PAGE]]
        answers = await store.commit(
            [audited(move, "move", move.job, actor, {"from": old, "to": new}) for move in moves]
        )
        moved += sum(isinstance(answer, Job) and answer.kept_for == new for answer in answers)
    return BuildMove(moved, [])


async def _misfit(app: App, store: Store, row: Job) -> RunMisfit | None:
    run = run_name(row.id, row.run)
    try:
        report = await check_replay(app, await app.awith_results(await store.events(row.id)))
    except UnknownEntry as error:
        return RunMisfit(run, [str(error)])
    return RunMisfit(run, report.reasons, report.line) if report.verdict.is_failure else None
