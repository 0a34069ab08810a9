"""What only a file can do: be shared, be full, be read-only, be damaged, be old or too new."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.clock import Clock, ManualClock
from holdfast.errors import StoreUnavailable
from holdfast.machines import JobState, check
from holdfast.store import Append, Claim, Expire, Reclaim, ReleaseLeases, SendSignal, Submit
from holdfast.store.sql.migrate import migrations
from holdfast.store.sqlite.store import SqliteStore

ENTRIES = frozenset({("shop", "checkout")})


def with_store(path: Path, work: Callable[[SqliteStore], Awaitable[Any]], clock: Clock | None = None) -> Any:
    async def run() -> Any:
        store = SqliteStore(path, clock)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def submit(name: str, size: int = 0) -> Submit:
    return Submit(job=name, plugin="shop", entry="checkout", args={"filler": "x" * size})


def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with_store(path, lambda store: store.commit([submit("a"), submit("b")]))
    row = with_store(path, lambda store: store.get("b"))
    assert row.state is JobState.QUEUED


def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    async def look(store: SqliteStore) -> set[int]:
        await store.commit([submit("a")])
        return {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}

    assert with_store(tmp_path / "jobs.db", look) == {0o600}


def test_every_commit_waits_for_the_disk(tmp_path: Path) -> None:
    async def look(store: SqliteStore) -> tuple[Any, Any]:
        return store._write_connection.pragma("journal_mode"), store._write_connection.pragma("synchronous")

    assert with_store(tmp_path / "jobs.db", look) == ("wal", 2)


def test_the_states_of_the_table_and_of_the_check_constraint_are_the_same() -> None:
    sql = migrations("sqlite")[0][1]
    listed = sql.split("state IN (")[1].split(")")[0]
    assert {name.strip(" '") for name in listed.split(",")} == set(JobState) - {"parked", "retrying"}


def test_a_file_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with_store(path, lambda store: store.commit([submit("a")]))
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(
        StoreUnavailable, match=r"the database has schema 99, this release of Holdfast knows \d+: upgrade"
    ):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("this is not a database, it is a shopping list" * 100)
    with pytest.raises(StoreUnavailable, match="not a SQLite database"):
        SqliteStore(path)


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"missing/jobs\.db"):
        SqliteStore(tmp_path / "missing" / "jobs.db")


def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_space(tmp_path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        connection = store._write_connection
        connection.pragma("max_page_count", connection.pragma("page_count") + 20)
        accepted = []
        with pytest.raises(StoreUnavailable, match="the disk is full: free some space"):  # noqa: PT012
            for number in range(1000):
                await store.commit([submit(f"j{number:03}", 2000)])
                accepted.append(f"j{number:03}")
        assert [row.id for row in await store.jobs(limit=1000)] == accepted[::-1]
        connection.pragma("max_page_count", 1_000_000)
        await store.commit([submit("later", 2000)])
        assert (await store.get("later")) is not None

    with_store(tmp_path / "jobs.db", fill)


def test_a_damaged_file_is_reported_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with_store(path, lambda store: store.commit([submit(f"j{number}", 3000) for number in range(50)]))
    data = bytearray(path.read_bytes())
    for offset in range(8192, len(data) - 4096, 4096):
        data[offset : offset + 64] = os.urandom(64)
    path.write_bytes(data)

    async def read_everything(store: SqliteStore) -> None:
        for number in range(50):
            await store.events(f"j{number}")
            await store.get(f"j{number}")

    with pytest.raises(StoreUnavailable, match="restore a backup"):
        with_store(path, read_everything)


def test_a_file_locked_by_another_program_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def share(store: SqliteStore) -> None:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.commit([submit("a")]))
        done, _ = await asyncio.wait({writing}, timeout=0.05)
        assert not done
        other.execute("ROLLBACK")
        other.close()
        await writing

    with_store(path, share)


WORKER = """
import asyncio, sys
from holdfast.store import Append, Claim, Submit
from holdfast.store.sqlite.store import SqliteStore

async def main(path, name):
    store = SqliteStore(path)
    number = 0
    while True:
        number += 1
        job = f"{name}-{number:05}"
        await store.commit([Submit(job=job, plugin="shop", entry="checkout", args={})])
        print("submitted", job, flush=True)
        claim = Claim(worker=name, entries=frozenset({("shop", "checkout")}), queues=None, limit=2, lease_seconds=60)
        (claimed,) = await store.commit([claim])
        for one in claimed:
            print("claimed", one.job.id, one.job.attempt, flush=True)
            events = (("node_started", {"node": "n"}), ("command_committed", {"node": "n"}), ("job_completed", {}))
            (answer,) = await store.commit([Append(one.job.id, one.job.attempt, events)])
            print("completed", one.job.id, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def test_processes_killed_at_any_moment_lose_nothing_acknowledged_and_take_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with_store(path, lambda store: store.commit([submit("seed")]))
    said: list[tuple[str, ...]] = []
    for round_number in range(6):
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(path), f"w{round_number}{number}"], stdout=subprocess.PIPE, text=True
            )
            for number in range(3)
        ]
        for number, worker in enumerate(workers):
            assert worker.stdout is not None
            # Let each say something, then kill it in the middle of the next thing.
            said += [tuple(worker.stdout.readline().split()) for _ in range(20 + 15 * number)]
            worker.send_signal(signal.SIGKILL)
        for worker in workers:
            assert worker.stdout is not None
            said += [tuple(line.split()) for line in worker.stdout.read().splitlines() if line.count(" ")]
            worker.stdout.close()
            assert worker.wait() == -signal.SIGKILL

    async def look(store: SqliteStore) -> None:
        rows = {row.id: row for row in await store.jobs(limit=100_000)}
        for word, job, *_ in said:
            assert job in rows, "an acknowledged job is gone"
            assert word != "completed" or rows[job].state is JobState.COMPLETED, "an acknowledged end is gone"
        for row in rows.values():
            stream = await store.events(row.id)
            assert check(stream, head=row.head) == []
            assert [event.type for event in stream].count("job_running") <= 1, (
                "a job was claimed twice under a live lease"
            )

    with_store(path, look)
    claims = [(job, attempt) for word, job, *attempt in said if word == "claimed"]
    assert len(claims) > 100
    assert len({job for job, _ in claims}) == len(claims)


OPENER = """
import asyncio, sys
from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite.store import SqliteStore

for line in sys.stdin:
    try:
        store = SqliteStore(line.strip(), busy_seconds=2)
    except StoreUnavailable as error:
        print(error, flush=True)
    else:
        print("opened", flush=True)
        asyncio.run(store.close())
"""


def test_processes_that_open_a_new_file_at_the_same_time_all_open_it(tmp_path: Path) -> None:
    openers = [
        subprocess.Popen([sys.executable, "-c", OPENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers: list[str] = []
    for number in range(25):
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write(f"{tmp_path / str(number)}.db\n")
            opener.stdin.flush()
        for opener in openers:
            assert opener.stdout is not None
            answers.append(opener.stdout.readline().strip())
    for opener in openers:
        opener.communicate()
    assert answers == ["opened"] * 100


def test_a_stopped_worker_that_comes_back_after_its_lease_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    script = """
import asyncio, sys
from holdfast.store import Append, Claim
from holdfast.store.sqlite.store import SqliteStore

async def main(path):
    store = SqliteStore(path)
    claim = Claim(worker="slow", entries=frozenset({("shop", "checkout")}), queues=None, limit=1, lease_seconds=0.2)
    (claimed,) = await store.commit([claim])
    print("claimed", flush=True)
    sys.stdin.readline()
    (job,) = [one.job for one in claimed]
    (answer,) = await store.commit([Append(job.id, job.attempt, (("job_completed", {}),))])
    print(type(answer).__name__, flush=True)

asyncio.run(main(sys.argv[1]))
"""
    with_store(path, lambda store: store.commit([submit("a")]))
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stdout.readline() == "claimed\n"
    worker.send_signal(signal.SIGSTOP)

    clock = ManualClock()  # stands where the lease has just ended: nobody has to wait for it

    async def take_over(store: SqliteStore) -> None:
        row = await store.get("a")
        assert row is not None
        assert row.lease is not None
        clock.move(row.lease.until - clock.now())
        claim = Claim(worker="quick", entries=ENTRIES, queues=None, limit=1, lease_seconds=60)
        _, (claimed,) = await store.commit([Reclaim(), claim])
        await store.commit([Append("a", claimed.job.attempt, (("job_completed", {"by": "quick"}),))])

    with_store(path, take_over, clock)
    worker.send_signal(signal.SIGCONT)
    worker.stdin.write("go on\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "StaleAttempt\n"
    assert worker.wait(timeout=60) == 0
    worker.stdin.close()
    worker.stdout.close()
    stream = with_store(path, lambda store: store.events("a"))
    assert [event.attempt for event in stream if event.type == "job_completed"] == [2]


def test_a_workers_turn_costs_the_same_however_many_jobs_are_queued(tmp_path: Path) -> None:
    async def instructions(store: SqliteStore, jobs: int) -> int:
        await store.commit([submit(f"j{number:05}") for number in range(jobs)])
        count = 0

        def one_more() -> bool:
            nonlocal count
            count += 1
            return False

        store._write_connection.set_progress_handler(one_more, 1)
        store._read_connection.set_progress_handler(one_more, 1)
        claim = Claim(worker="w", entries=ENTRIES, queues=None, limit=5, lease_seconds=60)
        await store.commit([Expire(), Reclaim(), claim, ReleaseLeases("another")])
        await store.next_due()
        await store.requests_for("w")
        return count

    few = with_store(tmp_path / "few.db", lambda store: instructions(store, 50))
    many = with_store(tmp_path / "many.db", lambda store: instructions(store, 5_000))
    assert 0 < many < few * 1.1


def test_a_look_into_an_inbox_costs_the_same_however_many_signals_were_used(tmp_path: Path) -> None:
    async def instructions(store: SqliteStore, signals: int) -> int:
        await store.commit([submit("a"), Claim(worker="w", entries=ENTRIES, queues=None, limit=1, lease_seconds=60)])
        names = [f"s{number:05}" for number in range(signals)]
        await store.commit([SendSignal("a", "k", None, name) for name in names])
        used = Append("a", 1, (("value_recorded", {"node": "n", "value": 1}),), tuple(names[:-1]))
        await store.commit([used])
        count = 0

        def one_more() -> bool:
            nonlocal count
            count += 1
            return False

        store._read_connection.set_progress_handler(one_more, 1)
        assert [signal.id for signal in await store.inbox("a")] == names[-1:]
        return count

    few = with_store(tmp_path / "few.db", lambda store: instructions(store, 5))
    many = with_store(tmp_path / "many.db", lambda store: instructions(store, 500))
    assert 0 < many < few * 1.1


def test_a_batch_asks_for_the_interpreters_lock_a_few_times_however_many_rows_it_writes(tmp_path: Path) -> None:
    """After each statement SQLite asks for it, and waits up to 5 ms if somebody's code is busy in another thread."""

    async def statements(store: SqliteStore, jobs: int) -> list[int]:
        names, counts = [f"j{number:05}" for number in range(jobs)], [0]

        def one_more(_text: str, _nanoseconds: int) -> None:
            counts[-1] += 1

        claim = Claim(worker="w", entries=ENTRIES, queues=None, limit=jobs, lease_seconds=60)
        store._write_connection.set_profile(one_more)
        await store.commit([submit(name) for name in names])
        (claims,) = await store.commit([claim])
        assert len(claims) == jobs
        for event in (("step_started", {"step": "s", "number": 0}), ("job_completed", {})):
            counts.append(0)
            written = await store.commit([Append(name, 1, (event,)) for name in names])
            assert not [answer for answer in written if isinstance(answer, Exception)]
        rows = [await store.get(name) for name in names]
        assert {row.state for row in rows if row is not None} == {JobState.COMPLETED}
        for name in names:
            assert check(await store.events(name)) == []
        return counts

    few = with_store(tmp_path / "few.db", lambda store: statements(store, 4))
    many = with_store(tmp_path / "many.db", lambda store: statements(store, 509))  # of no even size
    assert all(larger <= smaller + 4 * 9 for smaller, larger in zip(few, many, strict=True))


def test_a_long_read_holds_neither_the_loop_nor_a_short_read(tmp_path: Path) -> None:
    async def look(store: SqliteStore) -> None:
        await store.commit([submit("a")])
        with store._reading_aside:  # a long read is under way
            long = asyncio.create_task(store.events("a"))
            row = await store.get("a")
            await asyncio.sleep(0)
            assert row is not None
            assert not long.done()
        assert [event.type for event in await long] == ["job_created"]

    with_store(tmp_path / "jobs.db", look)
