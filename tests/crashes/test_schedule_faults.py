"""The n-th commit goes wrong, for every policy of a schedule: as a crash, as an error, as an error though applied.

Whatever happens, every tick has one outcome, every fired tick one run, and the history is whole.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.machines.chain import breaks
from holdfast.schedules.calendar import calendar_of
from holdfast.schedules.definition import CATCH_UP, OVERLAP, define
from holdfast.schedules.schedule import JobTemplate, Schedule, stream_of
from holdfast.store import Append, Claim, Command, Store
from holdfast.store.schedule_commands import (
    Advance,
    BackfillSchedule,
    CreateSchedule,
    FireSchedule,
    PauseSchedule,
    ResumeSchedule,
)
from holdfast.store.schedule_writes import rebuilt_schedule
from support.clocked import opened
from support.faults import FaultyStore, closing
from support.stories import play

EVERYTHING = os.environ.get("HOLDFAST_WHOLE_YEARS") == "1"  # `make schedules`: all pairs of policies
NAME = "shop.hourly"
TEMPLATE = JobTemplate(plugin="shop", entry="report")
CLAIM = Claim(worker="w", entries=frozenset({("shop", "report")}), queues=None, limit=1, lease_seconds=1e9)


class Story:
    """A schedule over half a day, told by processes that look again whenever a write has failed."""

    def __init__(self, backend: str, folder: Path, seed: str, **options: Any) -> None:
        self.real, self.clock = opened(backend, folder)
        self.definition = define(every="1h", **options)
        self.chance = random.Random(seed)

    async def tell(self, fail_at: int, mode: str) -> bool:
        """Tell it with one fault; return whether the fault has come."""
        store = FaultyStore(self.real, fail_at, mode)
        create = CreateSchedule(plugin="shop", name="hourly", definition=self.definition, template=TEMPLATE)
        await self.sure(store, create)
        acts: list[Command | None] = [None, None, PauseSchedule(NAME), ResumeSchedule(NAME), FireSchedule(NAME), None]
        for number, act in enumerate(acts):
            self.clock.move([1800.0, 3600.0, 5 * 3600.0][number % 3])
            await self.sure(store, Advance(1))
            await self.end_a_run(store)
            await self.sure(store, Advance(1))
            if act is not None:
                await self.sure(store, act)
        await self.sure(store, BackfillSchedule(NAME, self.clock.now() - 4 * 3600, self.clock.now()))
        await self.until_nothing_is_due()
        await assert_accounted(self.real, await self.schedule())
        return store.failed

    async def sure(self, store: FaultyStore, command: Command) -> Any:
        """Execute a command; if it may have failed, execute it again, as another process would."""
        try:
            (answer,) = await store.commit([command])
        except StoreUnavailable:
            store.crashed = False
            (answer,) = await store.commit([command])
        return answer

    async def end_a_run(self, store: FaultyStore) -> None:
        claims = await self.sure(store, CLAIM)
        for claimed in claims:
            kind = self.chance.choice(["job_completed", "job_failed", "job_cancelled"])
            await self.sure(store, Append(claimed.job.id, claimed.job.attempt, ((kind, {"reason": "so"}),)))

    async def until_nothing_is_due(self) -> None:
        while (await self.real.next_due(self.clock.now()) or 1e12) <= self.clock.now():
            await self.real.commit([Advance(100)])

    async def schedule(self) -> Schedule:
        row = await self.real.schedule(NAME)
        assert row is not None
        return row


async def assert_accounted(store: Store, row: Schedule) -> None:
    """Check that each tick up to now has one outcome, each fired one its own run, and the stream is whole."""
    stream = await store.events(stream_of(NAME))
    assert list(breaks(stream, row.head)) == []
    assert rebuilt_schedule(row, stream) == row
    calendar = calendar_of(row.definition)
    outcomes: Counter[float] = Counter()
    for event in stream:
        payload = event.payload
        if event.type in {"fired", "skipped", "missed"} and not payload.get("manual"):
            single = "nominal" in payload
            ticks = [payload["nominal"]] if single else calendar.between(payload["from"], payload["to"])
            outcomes.update(tick if isinstance(tick, float) else tick.at for tick in ticks)
    first, end = stream[0].payload["next"], row.next if row.next is not None else (row.last or 0.0) + 1
    expected = {tick.at for tick in calendar.between(first, end - 1)} - {tick.at for tick in row.buffer}
    assert set(outcomes) == expected
    assert set(outcomes.values()) <= {1}
    fired = {event.payload["job"] for event in stream if event.type == "fired"}
    backfilled = {run["job"] for event in stream if event.type == "backfilled" for run in event.payload["fired"]}
    jobs = await store.jobs(limit=1000)
    assert {job.id for job in jobs} == fired | backfilled
    keys = [job.idempotency_key for job in jobs]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("mode", ["crash", "applied"])
@pytest.mark.parametrize("overlap", OVERLAP)
def test_every_policy_survives_a_fault_at_every_commit(overlap: str, mode: str, tmp_path: Path) -> None:
    turn = (OVERLAP.index(overlap) + (mode == "applied")) % len(CATCH_UP)
    for catch_up in CATCH_UP if EVERYTHING else CATCH_UP[turn : turn + 1]:
        for fail_at in itertools.count(1):
            story = Story("memory", tmp_path, f"{overlap} {catch_up}", overlap=overlap, catch_up=catch_up, jitter=60)
            if not play(closing(story.real, story.tell(fail_at, mode))):
                assert fail_at > 20
                break


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
@pytest.mark.parametrize("overlap", OVERLAP)
def test_a_write_that_counts_although_it_failed_fires_no_tick_twice(overlap: str, backend: str, tmp_path: Path) -> None:
    for number, fail_at in enumerate((2, 9, 17)):
        folder = tmp_path / str(number)
        folder.mkdir()
        story = Story(backend, folder, overlap, overlap=overlap, catch_up=CATCH_UP[number], jitter=60)
        assert play(closing(story.real, story.tell(fail_at, "applied")))
