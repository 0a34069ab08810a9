"""Limits hold over real processes, whichever of them die; groups share a queue; a full queue says so."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from holdfast import Limits, RunHandle
from holdfast.machines import JobEvent
from support.limited import BURST, app_of, torture
from support.overload import overload
from support.postgres import fresh_url
from support.stories import TooLate, in_time


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_limits_hold_over_processes_that_are_killed(backend: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if backend == "sqlite" else fresh_url()
    tally = asyncio.run(torture(url, seconds=6, seed=7))

    assert tally.holds(), tally  # how much of them is used is measured by `make exact`
    assert (tally.kills > 2, tally.started > BURST) == (True, True), tally


async def _small_groups_done(url: str, big: int) -> tuple[float, int]:
    """How long ten groups of ten jobs take, beside one with so many; and how many of that were begun meanwhile."""
    app = app_of(url)
    await app.aset_limits(Limits(queue="shared", concurrency=4))
    shared = app.entries["shop", "shared"]
    many = await app.astart_many(shared.options(group="big"), [{"seconds": 0.01} for _ in range(big)])
    small = [
        name
        for group in range(10)
        for name in await app.astart_many(shared.options(group=f"small-{group}"), [{"seconds": 0.01}] * 10)
    ]
    begun = await app.store().now()
    working = app.worker(concurrency=20)
    running = asyncio.create_task(working.arun())
    try:
        for name in small:
            await RunHandle(app, name).aresult(timeout=60)
    finally:
        working.stop()
        await running
    ends = [event.at for name in small for event in await app.store().events(name) if event.type == JobEvent.COMPLETED]
    assert len(ends) == 100
    streams = [await app.store().events(name) for name in many[:200]]  # they begin in this order
    between = sum(event.at < max(ends) for stream in streams for event in stream if event.type == JobEvent.RUNNING)
    await app.aclose()
    return max(ends) - begun, between


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_group_with_ten_thousand_jobs_does_not_delay_small_ones(backend: str, tmp_path: Path) -> None:
    names = map(str, itertools.count())

    async def story() -> None:
        url, other = (
            f"sqlite:///{tmp_path / next(names)}.db" if backend == "sqlite" else fresh_url() for _ in range(2)
        )
        alone, _ = await _small_groups_done(url, 0)
        shared, between = await _small_groups_done(other, 10_000)
        assert 0 < between <= 100, "of as many jobs as theirs at most"
        if shared > 2 * alone:
            raise TooLate(f"{shared:.2f} s beside many, {alone:.2f} s alone")

    asyncio.run(in_time(story))


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_an_overloaded_queue_refuses_what_it_cannot_take_and_does_the_rest(backend: str, tmp_path: Path) -> None:
    told = asyncio.run(overload(f"sqlite:///{tmp_path / 'jobs.db'}" if backend == "sqlite" else fresh_url(), 3))

    assert told.as_declared(), told  # how long anybody waits is measured by `make exact`
