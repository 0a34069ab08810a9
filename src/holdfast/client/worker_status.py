"""The workers of a store, their jobs, and how long each step has run (SPEC L9).

The jobs of a worker come from the store, not from the worker's own report. They are the jobs whose lease has its name,
with the calls that their streams show as started and not ended. So the list is correct even if the worker hangs.
"""

from __future__ import annotations

import msgspec

from holdfast.client.views import RunFilter, Stats
from holdfast.machines import Event, Fold, JobEvent, JobState, OpenStep
from holdfast.store import Job, Store, WorkerCard
from holdfast.store.rows import GateCard

EVENTS = 64  # of a running job that are read first, from its end
ASKS_MAX = 1000  # runs with calls in doubt that are counted


class RunningJob(msgspec.Struct, frozen=True):
    """A job that a worker runs.

    Attributes:
        job: The id of the job.
        entry: Its app and name, as ``plugin.entry``.
        attempt: The number of the attempt.
        since: When the attempt started.
        lease_until: When the lease expires unless the worker renews it.
        steps: The calls in progress with their start times, oldest first.
    """

    job: str
    entry: str
    attempt: int
    since: float
    lease_until: float
    steps: list[OpenStep]


class GateView(msgspec.Struct, frozen=True):
    """A gate in a worker's process, as the worker last reported it at the time `at`."""

    worker: str
    at: float
    gate: GateCard


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker: its own report, whether it is alive (it reported within its lease time), and the jobs that it runs."""

    card: WorkerCard
    alive: bool
    running: list[RunningJob]


async def workers(store: Store) -> list[WorkerStatus]:
    """List the workers of a store with their jobs."""
    now = await store.now()
    held: dict[str, list[RunningJob]] = {}
    before = None
    while page := await store.jobs(state=JobState.RUNNING, before=before):
        before = page[-1].id
        for row in page:
            if row.lease is not None:
                held.setdefault(row.lease.worker, []).append(await _running(store, row))
    return [
        WorkerStatus(card, now - card.seen_at <= card.lease_seconds, held.get(card.name, []))
        for card in await store.workers()
    ]


async def gates(store: Store) -> list[GateView]:
    """List the gates of all live workers."""
    now = await store.now()
    alive = [card for card in await store.workers() if now - card.seen_at <= card.lease_seconds]
    return [GateView(card.name, card.seen_at, gate) for card in alive for gate in card.gates]


async def stats(store: Store) -> Stats:
    """Count runs, queues and workers."""
    now = await store.now()
    alive = [card for card in await store.workers() if now - card.seen_at <= card.lease_seconds]
    counts = await store.counts()
    oldest = max(0.0, now - counts.oldest_due) if counts.oldest_due is not None else None
    lag = max(0.0, now - counts.oldest_tick) if counts.oldest_tick is not None else None
    asking = await store.records(RunFilter(asks=True), ASKS_MAX)
    return Stats(
        now=now,
        runs=counts.runs,
        queues=counts.queues,
        oldest_due_seconds=oldest,
        workers=len(alive),
        asks=len(asking),
        schedule_lag_seconds=lag,
    )


async def _running(store: Store, row: Job) -> RunningJob:
    stream = await _of_attempt(store, row)
    begun = stream[0].at if stream else row.updated_at
    reader = Fold()
    for event in stream:
        reader.push(event)
    steps = [step for step in reader.open_steps.values() if step.attempt == row.attempt]
    until = row.lease.until if row.lease is not None else row.updated_at
    entry = f"{row.plugin}.{row.entry}"
    return RunningJob(row.id, entry, row.attempt, begun, until, sorted(steps, key=lambda step: step.since))


async def _of_attempt(store: Store, row: Job) -> list[Event]:
    """Read the events of a job's running attempt, back from the last one. A long history before it costs nothing."""
    found: list[Event] = []
    end, count = row.version, EVENTS
    while end > 0:
        begin = max(0, end - count)
        page = await store.events(row.id, begin, end - begin)
        claims = [place for place, event in enumerate(page) if event.type == JobEvent.RUNNING]
        found[:0] = page[claims[-1] :] if claims else page
        if claims:
            break
        end, count = begin, 2 * count
    return found
