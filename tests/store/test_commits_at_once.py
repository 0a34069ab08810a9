"""Commits in their caller's thread: only while the disk is quick and nothing else holds the file.

A second `FileLock` on the same path stands for another process: the kernel treats it as one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.clock import SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.machines import JobState
from holdfast.store import Append, Cancel, Claim, Submit
from holdfast.store.sqlite.file_lock import FileLock, WriteThread
from holdfast.store.sqlite.store import SqliteStore

ENTRIES = frozenset({("shop", "checkout")})
WAIT_SECONDS = 60


class Witness(SystemClock):
    """A clock that notes which thread reads it, as each transaction does; then it does what the test wants."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.during: Callable[[], object] = lambda: None

    def now(self) -> float:
        self.threads.append(threading.current_thread().name)
        during, self.during = self.during, lambda: None
        during()
        return super().now()


def submit(name: str) -> Submit:
    return Submit(job=name, plugin="shop", entry="checkout", args={})


def claim() -> Claim:
    return Claim(worker="ada", entries=ENTRIES, queues=None, limit=1, lease_seconds=60.0)


@pytest.fixture
def clock() -> Witness:
    return Witness()


@pytest.fixture
def store(tmp_path: Path, clock: Witness) -> Any:
    """A store whose disk was quick for its last commit."""
    opened = SqliteStore(tmp_path / "jobs.db", clock)
    opened.commit_blocking([submit("first")])
    opened._commit_seconds = 0.0
    clock.threads.clear()
    yield opened
    asyncio.run(opened.close())


def own() -> str:
    return threading.current_thread().name


def test_a_small_commit_on_a_quick_disk_needs_no_other_thread(store: SqliteStore, clock: Witness) -> None:
    store.commit_blocking([submit("a")])
    store._commit_seconds = 0.0
    asyncio.run(store.commit([submit("b")]))
    assert clock.threads == [own(), own()]


def test_a_search_never_holds_a_loop(store: SqliteStore, clock: Witness) -> None:
    asyncio.run(store.commit([claim()]))
    assert clock.threads == ["holdfast-writer"]


def test_a_disk_that_stalls_holds_its_caller_for_one_commit(store: SqliteStore, clock: Witness) -> None:
    def stall() -> bool:
        time.sleep(0.02)  # the disk, while COMMIT waits for it
        return False

    store._write_connection.set_commit_hook(stall)
    for name in ("a", "b", "c"):
        asyncio.run(store.commit([submit(name)]))
    assert clock.threads == [own(), "holdfast-writer", "holdfast-writer"]
    store._write_connection.set_commit_hook(None)
    store.commit_blocking([submit("d")])  # it measures the disk again
    store._commit_seconds = 0.0
    store.commit_blocking([submit("e")])
    assert clock.threads[3:] == ["holdfast-writer", own()]


def test_a_file_that_another_process_holds_does_not_hold_the_loop(
    store: SqliteStore, clock: Witness, tmp_path: Path
) -> None:
    async def commit() -> None:
        other = FileLock(tmp_path / "jobs.db-lock")
        other.acquire()
        writing = asyncio.ensure_future(store.commit([submit("a")]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not writing.done()
        other.close()
        await asyncio.wait_for(writing, WAIT_SECONDS)

    asyncio.run(commit())
    assert clock.threads == ["holdfast-writer"]


def test_a_transaction_of_another_program_does_not_hold_the_loop(
    store: SqliteStore, clock: Witness, tmp_path: Path
) -> None:
    async def commit() -> None:
        other = apsw.Connection(str(tmp_path / "jobs.db"))
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.commit([submit("a")]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not writing.done()
        other.execute("ROLLBACK")
        await asyncio.wait_for(writing, WAIT_SECONDS)
        other.close()

    asyncio.run(commit())
    assert clock.threads == ["holdfast-writer"]
    assert store._write_connection.execute("PRAGMA busy_timeout").fetchone() == (30_000,)


def test_tasks_that_wait_for_the_thread_come_first(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    writer = WriteThread(lock, lambda work: work())
    go = threading.Event()
    waiting = writer.submit(go.wait, WAIT_SECONDS)
    assert writer.at_once(lambda: "done", lambda: None) is None
    go.set()
    assert waiting.result(WAIT_SECONDS)
    assert writer.at_once(lambda: "done", lambda: None) == "done"
    writer.stop()
    assert writer.at_once(lambda: "too late", lambda: None) is None


def test_the_thread_waits_for_work_in_its_callers_thread(tmp_path: Path) -> None:
    writer = WriteThread(FileLock(tmp_path / "lock"), lambda work: work())
    order: list[str] = []
    later: list[Any] = []

    def work() -> str:
        later.append(writer.submit(order.append, "thread"))
        with pytest.raises(TimeoutError):
            later[0].result(0.05)
        order.append("caller")
        return "done"

    assert writer.at_once(work, lambda: None) == "done"
    later[0].result(WAIT_SECONDS)
    assert order == ["caller", "thread"]
    writer.stop()


@pytest.mark.parametrize("place", ["begun", "committed"])
def test_an_interrupted_commit_leaves_a_store_that_works(
    store: SqliteStore, clock: Witness, tmp_path: Path, place: str
) -> None:
    """A handler of a signal may raise anywhere in the main thread."""
    (claims,) = store.commit_blocking([claim()])
    name, attempt = claims.claimed[0].job.id, claims.claimed[0].job.attempt

    def interrupt() -> None:
        raise KeyboardInterrupt

    store._commit_seconds = 0.0
    if place == "begun":
        clock.during = interrupt
    else:  # after COMMIT: the cached row is older than the file's
        remember, store._remember = store._remember, lambda touched: interrupt()  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(KeyboardInterrupt):
        store.commit_blocking([Append(name, attempt, (("job_completed", {"result": 1}),))])
    if place == "committed":
        store._remember = remember  # type: ignore[method-assign]
    other = FileLock(tmp_path / "jobs.db-lock")
    other.run(lambda: None)  # the lock is not held
    other.close()
    store._commit_seconds = 0.0
    (answer,) = store.commit_blocking([Append(name, attempt, (("job_completed", {"result": 2}),))])
    row = asyncio.run(store.get(name))
    assert row is not None
    assert row.state is JobState.COMPLETED
    assert isinstance(answer, Exception) is (place == "committed")


def test_a_commit_that_is_under_way_when_the_store_is_closed_is_done(store: SqliteStore, tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    def hold() -> bool:
        inside.set()
        assert go.wait(WAIT_SECONDS)
        return False

    store._write_connection.set_commit_hook(hold)
    answers: list[Any] = []
    committing = threading.Thread(target=lambda: answers.extend(store.commit_blocking([submit("a")])))
    committing.start()
    assert inside.wait(WAIT_SECONDS)
    closing = threading.Thread(target=lambda: asyncio.run(store.close()))
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go.set()
    committing.join(WAIT_SECONDS)
    closing.join(WAIT_SECONDS)
    assert answers[0].job == "a"
    again = SqliteStore(tmp_path / "jobs.db")
    assert asyncio.run(again.get("a")) is not None
    asyncio.run(again.close())
    with pytest.raises(StoreUnavailable, match="closed"):
        store.commit_blocking([submit("b")])


def test_a_cached_row_that_another_process_has_changed_is_read_again(store: SqliteStore, tmp_path: Path) -> None:
    (claims,) = store.commit_blocking([claim()])
    name, attempt = claims.claimed[0].job.id, claims.claimed[0].job.attempt
    other = SqliteStore(tmp_path / "jobs.db")
    other.commit_blocking([Cancel(name, "too late")])
    store._commit_seconds = 0.0
    store.commit_blocking([Append(name, attempt, (("job_completed", {"result": 1}),))])
    row = asyncio.run(other.get(name))
    assert row is not None
    assert row.cancel is not None
    assert row.cancel.reason == "too late"
    asyncio.run(other.close())
