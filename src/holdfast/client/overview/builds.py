"""Builds: what needs each build, the move of runs to another, and the release of jobs whose build has no worker.

A job that was handed over to a build, and that none of its workers has claimed, is released when the last of them is
gone. Then any worker claims it, and if its code does not fit, the job asks. A pinned job is never released by itself.
An operator's retry releases it if no worker of its build is alive.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
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
CHECK_SECONDS = 1.0  # after which a part of a check ends
MISFITS_MAX = 1000  # after which a check of a move ends: nothing is moved then


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
        running: number of runs that its workers run now.
        waiting: number of runs that wait or are queued, and that its workers ran last. Any build may go on with those
            that are not kept.
        kept: number of runs that have not ended and that only its workers may run.
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


class MovePart(msgspec.Struct, frozen=True):
    """Jobs that are kept for a build, those of them that do not fit, and the last one; None after the last."""

    jobs: list[str]
    misfits: list[RunMisfit]
    next: str | None


class BuildMove(msgspec.Struct, frozen=True):
    """The result of a move: how many runs were moved, and the runs that do not fit. If there are any, none is moved.

    The check ends when it has found 1,000 of them.
    """

    moved: int
    misfits: list[RunMisfit]


async def read_builds(store: Store) -> list[BuildStatus]:
    """List the builds that live workers have, that runs are kept for, or that ran runs which have not ended."""
    cards = {card.name: card for card in await store.workers()}
    alive = live_cards(cards.values(), await store.now())
    counts = await store.build_counts()
    workers, current = Counter(card.build for card in alive if card.build is not None), _current(alive)
    running = Counter[str]()
    for worker, number in counts.running.items():
        build = cards[worker].build if worker in cards else None
        running += {build: number} if build is not None else {}
    statuses = []
    for build in sorted({*workers, *running, *counts.waiting, *counts.kept}):
        kept, oldest = counts.kept.get(build, (0, None))
        statuses.append(
            _status(
                build, workers[build], running[build], counts.waiting.get(build, 0), kept,
                await store.get(oldest) if oldest is not None else None, is_current=build == current,
            )
        )  # fmt: skip
    return statuses


def _current(alive: Iterable[WorkerCard]) -> str | None:
    """Return the build of the live worker that started last and takes new runs; None if there is none."""
    takers = [card for card in alive if card.build is not None and not card.draining]
    return max(takers, key=lambda card: (card.started_at, card.build)).build if takers else None


def _status(
    build: str, workers: int, running: int, waiting: int, kept: int, oldest: Job | None, *, is_current: bool
) -> BuildStatus:
    reasons = []
    if kept:
        many = "1 run is" if kept == 1 else f"{kept} runs are"
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
        kept=kept,
        oldest=run_name(oldest.id, oldest.run) if oldest is not None else None,
        oldest_at=oldest.created_at if oldest is not None else None,
        current=is_current,
        drained=not reasons,
        reason="; ".join(reasons) or None,
    )


async def check_move(app: App, store: Store, old: str, new: str, *, check: bool) -> None:
    """Refuse a move that cannot be meant.

    Raises:
        InvalidArguments: both builds are the same, `new` is not the name of a build, or the app has other code.
        UnknownBuild: nothing has or needs the old build.
    """
    if old == new:
        raise InvalidArguments("new", f"must be another build than the old one, got {new!r} for both")
    try:
        check_build(new)
    except InvalidSetting as error:
        raise InvalidArguments("new", error.reason) from error
    if check and app.build not in {None, new}:
        cure = f"use the code of {new}, or move the runs without a check"
        raise InvalidArguments("new", f"the code that would check the runs is build {app.build}, not {new}: {cure}")
    if not await store.kept_jobs(old, None, 1):
        known = [status.build for status in await read_builds(store)]
        if old not in known:
            raise UnknownBuild(old, known)


async def move_build(app: App, store: Store, old: str, new: str, actor: str | None, *, check: bool) -> BuildMove:
    """Move the runs that are kept for a build to another one, if all of them fit the code of the app.

    Raises:
        InvalidArguments, UnknownBuild: as for `check_move`.
    """
    await check_move(app, store, old, new, check=check)
    jobs: list[str] = []
    misfits: list[RunMisfit] = []
    part: MovePart | None = None
    while part is None or (part.next is not None and len(misfits) < MISFITS_MAX):
        part = await movable(app, store, old, part.next if part is not None else None, check=check)
        jobs += part.jobs
        misfits += part.misfits
    if misfits:
        return BuildMove(0, misfits)
    moved = 0
    for first in range(0, len(jobs), PAGE):
        moved += await move_jobs(store, jobs[first : first + PAGE], old, new, actor)
    return BuildMove(moved, [])


async def movable(app: App, store: Store, old: str, after: str | None, *, check: bool) -> MovePart:
    """Check the next runs that are kept for a build, for about a second."""
    end = time.monotonic() + CHECK_SECONDS
    part = MovePart([], [], None)
    for row in await store.kept_jobs(old, after, PAGE):
        misfit = await _misfit(app, store, row) if check else None
        if misfit is not None:
            part.misfits.append(misfit)
        part.jobs.append(row.id)
        if time.monotonic() >= end:
            break
    return msgspec.structs.replace(part, next=part.jobs[-1] if part.jobs else None)


async def move_jobs(store: Store, jobs: Sequence[str], old: str, new: str, actor: str | None) -> int:
    """Move jobs to another build. One that is no longer kept for the old build stays as it is."""
    moves = [Keep(job, old, new, actor) for job in jobs]
    answers = await store.commit([audited(move, "move", move.job, actor, {"from": old, "to": new}) for move in moves])
    return sum(isinstance(answer, Job) and answer.kept_for == new for answer in answers)


async def _misfit(app: App, store: Store, row: Job) -> RunMisfit | None:
    run = run_name(row.id, row.run)
    try:
        report = await check_replay(app, await app.awith_results(await store.events(row.id)))
    except UnknownEntry as error:
        return RunMisfit(run, [str(error)])
    return RunMisfit(run, report.reasons, report.line) if report.verdict.is_failure else None
