"""Completion, cancel, deadline, crash, retry, pause, resume and signals race in random orders, on every store.

The first end wins, a record that has ended never changes by a byte, and the record that is kept is at every point the
one that the stream makes. HOLDFAST_RACES=5000 tries more orders on each store; `make races` prints the tally.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.client.verify import violations_of
from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError
from holdfast.machines import TERMINAL_RUN_STATUSES, RunStatus, run_paths, runs
from holdfast.store import (
    Append,
    Cancel,
    Claim,
    Command,
    Expire,
    Pause,
    Progress,
    Reclaim,
    Resume,
    Retry,
    SendSignal,
    Store,
    Submit,
)  # fmt: skip
from holdfast.store.run_queries import as_projected
from support.clocked import opened

SEEDS = {"memory": 100, "sqlite": 50, "postgres": 15}
MOVES = 25
ENTRIES = frozenset({("shop", "checkout")})


def any_move(rng: random.Random, job: str, attempt: int) -> Command:
    """What anybody may try at any time: most of it is refused, or too late."""
    wait = {"correlation_key": "k", "wait_type": "signal", "node": "n"}
    ends: list[tuple[str, dict[str, Any]]] = [
        ("job_completed", {"result": 1, "result_refs": []}),
        ("job_failed", {"reason": "broken"}),
        ("job_failed", {"reason": "deadline"}),
        ("job_cancelled", {}),
        ("job_waiting", wait),
        ("job_requeued", {"reason": "retry"}),
    ]
    moves: list[Command] = [
        Append(job, attempt, (rng.choice(ends),)),
        Claim(worker="w", entries=ENTRIES, queues=None, limit=1, lease_seconds=5.0),
        Progress(job, attempt, {"progress": rng.random(), "message": "on the way"}),
        Cancel(job, rng.choice([None, "enough", "no more"])),
        Pause(job) if rng.random() < 0.5 else Resume(job),
        SendSignal(job, "k", 1, f"s{rng.randrange(4)}"),
        Expire() if rng.random() < 0.5 else Reclaim(),
        Retry(job, "ana", "again"),
    ]
    return rng.choices(moves, weights=[5, 6, 2, 1, 2, 2, 3, 3])[0]


async def race(store: Store, clock: ManualClock, seed: int) -> Counter[str]:
    """One order: after each move everything is looked at. How its runs have ended."""
    rng = random.Random(seed)
    job = f"j{seed}"
    deadline = rng.choice([None, clock.now() + rng.uniform(1, 20)])
    await store.commit([Submit(job=job, plugin="shop", entry="checkout", args={}, deadline=deadline, max_attempts=3)])
    ended: dict[str, bytes] = {}
    for _ in range(MOVES):
        if rng.random() < 0.3:
            clock.move(rng.uniform(0.1, 4))
        row = await store.get(job)
        assert row is not None
        batch = [any_move(rng, job, row.attempt) for _ in range(rng.randrange(1, 3))]
        for answer in await store.commit(batch):
            assert not isinstance(answer, Exception) or isinstance(answer, HoldfastError), answer
        await look(store, job, ended)
    await store.commit([Cancel(job, None)])
    return Counter(msgspec.json.decode(one)["status"] for one in ended.values())


async def look(store: Store, job: str, ended: dict[str, bytes]) -> None:
    """The record kept is the one that the stream makes; what has ended is as it was, byte for byte."""
    stream = await store.events(job)
    made = runs(stream)
    for number, projected in enumerate(made, 1):
        record = await store.record(job, number)
        assert record is not None
        assert as_projected(record) == as_projected(projected)
        assert (record.finished_at is not None) == (record.status in TERMINAL_RUN_STATUSES)
        if record.run_id in ended:
            assert msgspec.json.encode(record) == ended[record.run_id], "a run that has ended has changed"
        elif record.finished_at is not None:
            ended[record.run_id] = msgspec.json.encode(record)
    for path in run_paths(stream):
        assert sum(status in TERMINAL_RUN_STATUSES for status in path) <= 1
        assert all(status not in TERMINAL_RUN_STATUSES for status in path[:-1]), "the first end wins"
    row = await store.get(job)
    assert row is not None
    assert await violations_of(store, row) == []


def races(backend: str, folder: Path, count: int, first: int = 0) -> Counter[str]:
    """So many orders, one job each; how often a run has ended how."""

    async def run() -> Counter[str]:
        store, clock = opened(backend, folder)
        ends: Counter[str] = Counter()
        try:
            for seed in range(first, first + count):
                ends += await race(store, clock, seed)
        finally:
            await store.close()
        return ends

    return asyncio.run(run())


@pytest.mark.parametrize("backend", SEEDS)
def test_whatever_races_the_first_end_wins_and_the_record_never_changes_again(backend: str, tmp_path: Path) -> None:
    ends = races(backend, tmp_path, int(os.environ.get("HOLDFAST_RACES", SEEDS[backend])))
    assert {*ends} == {status.value for status in RunStatus if status in TERMINAL_RUN_STATUSES}, "each end was seen"
