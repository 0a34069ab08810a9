"""One random stream of commands goes to every backend: answers, rows, streams and inboxes stay equal (P3)."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.machines import TERMINAL_JOB_STATES, JobState, check, runs
from holdfast.machines.chain import breaks
from holdfast.schedules.definition import CATCH_UP, OVERLAP, define
from holdfast.schedules.schedule import JobTemplate, stream_of
from holdfast.store import (
    Answer,
    Append,
    Cancel,
    Claim,
    Command,
    Evidence,
    Expire,
    Job,
    Keep,
    KeepEvidence,
    KeepExport,
    Limits,
    Pause,
    PauseQueue,
    Progress,
    Purge,
    PutBlob,
    PutWorker,
    Reclaim,
    ReleaseLeases,
    RemoveWorker,
    Renew,
    Resolve,
    Resume,
    Retry,
    SendSignal,
    SetLimits,
    Store,
    Submit,
    WorkerCard,
    rebuilt,
)
from holdfast.store.audit import Audited
from holdfast.store.commands import PurgeAudit
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.request_keys import KeepAnswer, Once
from holdfast.store.run_queries import RunFilter, Window
from holdfast.store.schedule_commands import (
    Advance,
    BackfillSchedule,
    ChangeSchedule,
    CreateSchedule,
    Declaration,
    DeclareSchedules,
    DeleteSchedule,
    FireSchedule,
    PauseSchedule,
    ResumeSchedule,
)
from holdfast.store.schedule_writes import rebuilt_schedule
from holdfast.store.shared_budgets import SpendBudget
from holdfast.store.sqlite.store import SqliteStore
from support.postgres import ServerClock, fresh_schema, server
from support.timeless import given, settings

FILTERS = [
    RunFilter(),
    RunFilter(status=("failed", "timeout", "running")),
    RunFilter(attributes={"tenant": "a"}, plugin_id="shop"),
    RunFilter(queue="mail", entry_id="checkout"),
]
AUDITED = 0.1  # of the commands
COMPARISONS = int(os.environ.get("HOLDFAST_COMPARISONS", "30"))  # random sequences on SQLite; `make stores` runs more
KEYED = 0.1
ENTRIES = [("shop", "checkout"), ("shop", "refund"), ("bank", "checkout")]


def any_event(rng: random.Random, now: float) -> tuple[str, dict[str, Any]]:
    events: list[tuple[str, dict[str, Any]]] = [
        ("node_started", {"node": "n"}),
        ("command_committed", {"node": "n", "result": [1, None, "é"]}),
        ("job_completed", {"result": 1}),
        ("job_failed", {"reason": "gave up"}),
        ("job_requeued", {"reason": "retry"}),
        ("job_requeued", {"reason": "retry", "not_before": now + 3}),
        ("job_requeued", {"reason": "worker_shutdown"}),
        ("job_waiting", {"correlation_key": "k1", "wait_type": "signal", "park": True}),
        ("job_waiting", {"correlation_key": "k2", "wait_type": "timer", "deadline": now + 5}),
        ("job_waiting", {"correlation_key": "k1", "wait_type": "human", "node": "w", "park": True}),
        ("job_waiting", {"correlation_key": "holdfast:doubt:n", "wait_type": "human", "node": "n"}),
        ("job_waiting", {"correlation_key": "holdfast:deploy:n", "wait_type": "deploy", "node": "n"}),
        ("job_requeued", {"reason": "deploy", "build": rng.choice("12")}),
        (
            "job_waiting",
            {
                "correlation_key": "k3",
                "wait_type": "signal",
                "also": [{"node": "x", "correlation_key": "k2"}, {"node": "n", "correlation_key": "holdfast:doubt:n"}],
            },
        ),
        ("job_waiting", {"wait_type": "signal"}),
        ("job_cancelled", {"reason": "seen"}),
        ("job_running", {}),
    ]
    return rng.choice(events)


def any_command(rng: random.Random, number: int, now: float, rows: list[Job]) -> Command:
    job = f"j{number // 60 * 6 + rng.randrange(6)}"  # a few at a time: old ones have ended, new ones take their place
    fitting = {state: [row for row in rows if row.state is state] for state in JobState}
    held, attempt = job, rng.randrange(1, 5)
    if fitting[JobState.RUNNING] and rng.random() < 0.9:
        running = rng.choice(fitting[JobState.RUNNING])
        held, attempt = running.id, running.attempt
    blocked = rng.choice([row.id for row in fitting[JobState.WAITING]] or [job])
    failed = rng.choice([row.id for row in fitting[JobState.FAILED]] or [job])
    waits = [row for row in fitting[JobState.WAITING] if row.wait is not None and row.wait.wait_type == "deploy"]
    asking = next(((row.id, row.version) for row in waits), (blocked, 3))
    kept = [row.id for row in rows if row.kept_for is not None]
    choices: list[Command] = [
        Submit(
            job=job,
            plugin=(entry := rng.choice(ENTRIES))[0],
            entry=entry[1],
            args={"n": number},
            queue=rng.choice(["default", "mail"]),
            priority=rng.randrange(3),
            due_at=rng.choice([None, None, now + 2]),
            deadline=rng.choice([None, None, None, now + 30]),
            max_attempts=rng.randrange(1, 5),
            idempotency_key=rng.choice([None, None, f"key{number // 60}"]),
            fingerprint=rng.choice(["f", "f", "g"]),
            parent=rng.choice([None, f"j{number // 60 * 6}"]),
            parent_key="k1",
            attributes=rng.choice([None, {"tenant": rng.choice(["a", "b"])}]),
            group=rng.choice([None, None, "g1", "g2", "g3"]) if number % 120 > 60 else None,
        ),
        Claim(
            worker=rng.choice(["w1", "w2"]),
            entries=frozenset(rng.sample(ENTRIES, rng.randrange(1, 4))),
            queues=rng.choice([None, frozenset({"mail"}), frozenset({"mail", "default"})]),
            limit=rng.randrange(1, 4),
            lease_seconds=rng.choice([5.0, 15.0]),
            build=rng.choice([None, "1", "1", "2"]),
            pins=rng.choice([frozenset(), frozenset(ENTRIES[:1])]),
            kept_only=rng.random() < 1 / 8,
        ),
        Append(held, attempt, tuple(any_event(rng, now) for _ in range(rng.randrange(1, 3)))),
        Append(held, attempt, (any_event(rng, now),)),
        Renew(rng.choice(["w1", "w2"]), ((held, attempt), ("j1", 1)), 15.0),
        SendSignal(
            rng.choice([job, blocked]),
            rng.choice(["k1", "k2"]),
            {"n": number},
            f"s{rng.randrange(20)}",
            checked=rng.random() < 0.7,
            actor=rng.choice([None, "ana"]),
            node=rng.choice([None, None, "w", "x"]),
        ),
        Cancel(job, rng.choice([None, "why"])),
        Pause(job),
        Resume(rng.choice([job, blocked])),
        Retry(failed, "ana", "again"),
        Resolve(blocked, "n", "done", 5),
        Reclaim(rng.randrange(1, 4)),
        Expire(rng.randrange(1, 4)),
        ReleaseLeases(rng.choice(["w1", "w2"])),
        KeepEvidence(Evidence(job, "n", rng.randrange(1, 3), 1, {"n": number}, rng.choice([None, "it broke"]))),
        PutWorker(WorkerCard(rng.choice(["w1", "w2"]), "host", number, 4, None, ("shop.checkout",), 15.0)),
        RemoveWorker(rng.choice(["w1", "w2"])),
        Purge(
            now - rng.choice([0, 1, 5]),
            rng.randrange(1, 4),
            rng.choice([TERMINAL_JOB_STATES, frozenset({JobState.FAILED})]),
        ),
        Progress(held, attempt, {"progress": rng.random(), "stage": rng.choice(["reading", "writing"])}),
        KeepExport(
            job=held,
            attempt=attempt,
            key=f"k{rng.randrange(3)}",
            name="x",
            kind="json",
            media_type="application/json",
            size=1,
            value=rng.choice([None, {"n": 1}, "ü"]),
            blob=rng.choice([None, "b1"]),
        ),
        PutBlob(held, attempt, "b1", rng.randrange(1, 3), rng.choice([b"", b"\0\xff"])),
        SetLimits(
            Limits(
                queue=rng.choice(["default", "mail"]),
                concurrency=rng.choice([None, None, 1, 2]),
                group_concurrency=rng.choice([None, None, 1]),
                rate=rng.choice([None, None, 0.5, 3.0]),
                burst=rng.choice([None, 2]),
                depth=rng.choice([None, None, 2]),
                weights=rng.choice([{}, {"g1": 2.0}]),
            ),
            rng.choice([None, "ana"]),
        ),
        PauseQueue(rng.choice(["default", "mail"]), rng.random() < 0.3),
        SpendBudget(rng.choice(["tokens", "usd"]), now // 5 * 5, rng.choice([-3, 0, 2, 5]), rng.choice([None, 10])),
        Answer(
            asking[0],
            "n",
            answer := rng.choice(["accept", "build", "fork", "fail"]),
            asking[1],
            nodes=("m",),
            build="1",
            fork=Submit(job=f"f{number}", plugin="shop", entry="checkout", args={}) if answer == "fork" else None,
        ),
        Keep(rng.choice(kept or [job]), rng.choice("12"), rng.choice([None, "2"]), unclaimed=rng.random() < 1 / 2),
        Advance(rng.randrange(1, 4)),
        any_schedule_command(rng, now),
    ]
    weights = [6, 8, 8, 16, 3, 4, 2, 1, 2, 3, 4, 3, 3, 1, 1, 1, 1, 1, 2, 2, 1, 2, 2, 2, 3, 2, 6, 8]
    return rng.choices(choices, weights)[0]


def any_schedule_command(rng: random.Random, now: float) -> Command:
    definition = define(
        every=rng.choice([1, 3]),
        jitter=rng.choice([0, 0.5]),
        overlap=rng.choice(OVERLAP),
        catch_up=rng.choice(CATCH_UP),
        remaining=rng.choice([None, None, 3]),
        pause_after_failures=rng.choice([None, 1, 2]),
    )
    entry, name = rng.choice(ENTRIES), f"shop.{rng.choice('abc')}"
    template = JobTemplate(plugin=entry[0], entry=entry[1], queue=rng.choice(["default", "mail"]), args={})
    declared = [Declaration(name=letter, definition=definition, template=template) for letter in rng.choice(["c", "d"])]
    choices: list[Command] = [
        CreateSchedule(plugin="shop", name=name[-1], definition=definition, template=template, actor="ana"),
        ChangeSchedule(name, definition, template, "ana"),
        PauseSchedule(name, rng.choice([None, "why"])),
        ResumeSchedule(name, "ana"),
        FireSchedule(name, "ana", rng.random() < 1 / 2),
        BackfillSchedule(name, now - 4, now, "ana"),
        DeleteSchedule(name),
        DeclareSchedules("shop", rng.choice("12"), tuple(declared)),
    ]
    return rng.choices(choices, [8, 2, 1, 4, 2, 1, 1, 2])[0]


def plain(answer: Any) -> Any:
    """An answer in a form in which errors compare, too."""
    return (type(answer), str(answer)) if isinstance(answer, Exception) else answer


async def everything(store: Store) -> Any:
    rows = await store.jobs()
    streams = {row.id: await store.events(row.id) for row in rows}
    for row in rows:
        faults = [
            violation for violation in check(streams[row.id], head=row.head) if not violation.rule.startswith("E")
        ]
        assert faults == []
        assert rebuilt(row, streams[row.id]) == row
    inboxes = {row.id: await store.inbox(row.id) for row in rows}
    evidence = {row.id: sorted(await store.evidence(row.id), key=repr) for row in rows}
    exports = {row.id: await store.exports(row.id, row.run, 0, 10) for row in rows}
    blobs = {row.id: [await store.blob(row.id, "b1", number) for number in (1, 2)] for row in rows}
    told = [await store.records(where, 50) for where in FILTERS], await store.counts(), await store.limits()
    for row in rows:
        if check(streams[row.id]) == []:
            assert row.record() == runs(streams[row.id])[-1]
    log = [(row.at, row.actor, row.said, row.verb, row.subject, row.detail) for row in await store.audit(None, 1000)]
    asking = [job.id for job in await store.questions(limit=3)], [job.id for job in await store.questions(group="g1")]
    now = await store.now()
    window = Window(
        start=now - 30, end=now, seconds=5.0, oldest="j2", limit=20, queue=None if len(rows) % 2 else "mail"
    )
    counted = await store.window_counts(window)
    counts = counted.seen, counted.since, sorted(counted.waits, key=repr), counted.ends
    kept = await store.kept_builds(), [await store.kept_jobs(build) for build in "12"]
    schedules = await store.schedules()
    for schedule in schedules:
        streams[schedule.id] = await store.events(stream_of(schedule.id))
        assert list(breaks(streams[schedule.id], schedule.head)) == []
        assert rebuilt_schedule(schedule, streams[schedule.id]) == schedule
    needed = await store.build_counts(), await store.open_jobs("j3", 4)
    return (
        rows,
        streams,
        inboxes,
        evidence,
        await store.workers(),
        exports,
        blobs,
        told,
        log,
        asking,
        counts,
        kept,
        needed,
        schedules,
    )


def wrapped(command: Command, rng: random.Random, number: int) -> Command:
    """Some commands have a row in the audit log, and some a key, which is often that of another one."""
    chance = rng.random()
    if chance < AUDITED:
        return Audited(command, "do", "it", f"ana {number}")
    if chance < AUDITED + KEYED:
        return Once(command, f"ana\nk{number // 30}", rng.choice("ffg"))
    return command


async def compare(
    seed: int, batches: int, other: Callable[[], tuple[Store, ManualClock]], every: int = 1
) -> Counter[str]:
    """Have both answer the same batches; look at all that they keep after `every` so many of them."""
    rng, wrapping = random.Random(seed), random.Random(seed + 1)
    store, clock = other()
    stores: list[Store] = [MemoryStore(clock), store]
    succeeded: Counter[str] = Counter()
    number = 0
    for done in range(1, batches + 1):
        rows = await stores[0].jobs()
        batch = []
        for _ in range(rng.randrange(1, 6)):
            number += 1
            command = any_command(rng, number, clock.now(), rows)
            batch.append(wrapped(command, wrapping, number))
        if wrapping.random() < AUDITED:
            batch += [PurgeAudit(clock.now() - 3, 2), KeepAnswer({"n": number})]
        one, two = [[plain(answer) for answer in await store.commit(batch)] for store in stores]
        assert one == two
        if done % every == 0:
            assert await everything(stores[0]) == await everything(stores[1])
        assert await stores[0].next_due() == await stores[1].next_due()
        succeeded.update(
            type(command).__name__ for command, answer in zip(batch, one, strict=True) if not isinstance(answer, tuple)
        )
        clock.move(rng.choice([0.0, 0.0, 0.2, 1.0, 6.0]))
    for store in stores:
        await store.close()
    return succeeded


def sqlite(folder: Path) -> tuple[Store, ManualClock]:
    clock = ManualClock()
    return SqliteStore(folder / "jobs.db", clock), clock


def postgres() -> tuple[Store, ManualClock]:
    schema = fresh_schema()
    clock = ServerClock(schema)
    store = PostgresStore(server().url, schema, monotonic=clock.now)
    clock.take_over()
    return store, clock


@settings(max_examples=COMPARISONS, deadline=None)
@given(st.integers(0, 2**64))
@example(1369)  # a job that ended and was purged in one batch lived on among the rows at hand
def test_every_backend_answers_and_keeps_the_same(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        succeeded = asyncio.run(compare(seed, 25, lambda: sqlite(Path(folder))))
    assert succeeded.total() > 0, "commands that are all refused would show nothing"


@settings(max_examples=max(1, COMPARISONS * 2 // 5), deadline=None)
@given(st.integers(0, 2**64))
@example(16384)  # a job that was started again was not known to a command before the claim that found it
def test_postgres_answers_and_keeps_the_same(seed: int) -> None:
    succeeded = asyncio.run(compare(seed, 20, postgres))
    assert succeeded.total() > 0


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_every_command_succeeds_somewhere_in_the_comparison(backend: str, tmp_path: Path) -> None:
    """A comparison in which a verb is only ever refused would show nothing of it."""
    other = postgres if backend == "postgres" else lambda: sqlite(tmp_path)
    succeeded = asyncio.run(compare(1, 400, other, every=10))
    assert set(succeeded) == {command.__name__ for command in Command.__args__}
