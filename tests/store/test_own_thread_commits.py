"""Blocking commits in the caller's thread: only if nothing else is to be waited for, and safe under interrupts."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.group_commit import _NONE, ThreadJournal, _ThreadRequest
from holdfast.machines import check
from holdfast.store import Append, Claim, Submit
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.signal_handlers import may_run_handlers
from holdfast.store.sqlite.store import SqliteStore
from support.interrupts import interrupted_at
from support.postgres import fresh_schema, server

STEP = (("node_started", {"node": "s:0", "name": "s", "try": 1, "args": {}}),)
CLAIM = Claim(worker="w", entries=frozenset({("shop", "greet")}), queues=None, limit=1, lease_seconds=3600)


class WhereStore(SqliteStore):
    """A store that notes which threads execute its transactions."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.threads: list[str] = []
        self.before: Callable[[], object] = lambda: None  # is called before each transaction
        super().__init__(path, **more)

    def _transact_alone(self, *args: Any, **kwargs: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        self.before()
        return super()._transact_alone(*args, **kwargs)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WhereStore]:
    store = WhereStore(tmp_path / "jobs.db")
    yield store
    asyncio.run(store.close())


def submit(name: str) -> Submit:
    return Submit(job=name, plugin="shop", entry="greet", args={}, fingerprint="f")


def jobs_of(store: SqliteStore) -> set[str]:
    return {name for (name,) in store._write_connection.execute("SELECT id FROM jobs")}


def test_a_commit_of_a_thread_needs_no_other_thread(store: WhereStore) -> None:
    store.commit_blocking([submit("a")])
    assert store.threads == [threading.current_thread().name]
    assert jobs_of(store) == {"a"}


def test_a_commit_of_a_loop_does_not_block_it(store: WhereStore) -> None:
    asyncio.run(store.commit([submit("a")]))
    assert store.threads == ["holdfast-writer"]


def test_where_a_signal_handler_may_run_another_thread_commits(store: WhereStore) -> None:
    """The handler may write or close the store, which would wait for the commit that it has interrupted."""
    assert not may_run_handlers()
    before = signal.signal(signal.SIGUSR1, lambda *_: store.commit_blocking([submit("handler")]))
    try:
        assert may_run_handlers()
        store.commit_blocking([submit("a")])
        signal.raise_signal(signal.SIGUSR1)
        own = threading.Thread(target=lambda: store.commit_blocking([submit("b")]), name="own")  # handlers run in main
        own.start()
        own.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert store.threads == ["holdfast-writer", "holdfast-writer", "own"]
    assert jobs_of(store) == {"a", "b", "handler"}


def test_a_commit_waits_for_the_lock_of_another_process_in_the_thread_that_writes(store: WhereStore) -> None:
    other, waits, acquire = os.open(store._lock_path, os.O_RDWR), threading.Event(), store._lock.acquire
    fcntl.flock(other, fcntl.LOCK_EX)

    def acquire_later() -> None:
        waits.set()
        acquire()

    store._lock.acquire = acquire_later  # type: ignore[method-assign]
    commit = threading.Thread(target=lambda: store.commit_blocking([submit("a")]))
    commit.start()
    assert waits.wait(60)
    assert not store.threads
    fcntl.flock(other, fcntl.LOCK_UN)
    os.close(other)
    commit.join()
    assert store.threads == ["holdfast-writer"]
    assert jobs_of(store) == {"a"}


def test_a_commit_waits_for_another_program_in_the_thread_that_writes(store: WhereStore) -> None:
    other = sqlite3.connect(store._path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    store.before = lambda: other.execute("ROLLBACK") if threading.current_thread().name == "holdfast-writer" else None
    store.commit_blocking([submit("a")])
    other.close()
    assert store.threads == [threading.current_thread().name, "holdfast-writer"]
    assert jobs_of(store) == {"a"}


def test_a_closed_store_is_not_opened_again_by_a_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    asyncio.run(store.close())
    with pytest.raises(Exception, match="this store is closed"):
        store.commit_blocking([submit("a")])
    assert not store._connections


def free_of_locks(store: SqliteStore) -> bool:
    """Return whether another process could write now."""
    descriptor = os.open(store._lock_path, os.O_RDWR)
    other = sqlite3.connect(store._path, isolation_level=None, timeout=0)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    finally:
        other.close()
        os.close(descriptor)
    return not store._writing.locked()


def test_an_interrupt_at_any_point_leaves_no_lock_and_no_wrong_row(store: WhereStore) -> None:
    """Each event gets the next number, although a cached row may be that of a commit that was interrupted."""
    store.commit_blocking([submit("a")])
    store.commit_blocking([CLAIM])

    def append() -> Any:
        return store.commit_blocking([Append("a", 1, STEP)])

    for point in count(1):
        if not interrupted_at(point, append):
            break
        assert free_of_locks(store), point
        (job,) = append()
        assert job.version == len(asyncio.run(store.events("a"))), point
    assert point > 300
    assert set(store.threads) == {threading.current_thread().name}
    assert check(asyncio.run(store.events("a"))) == []


def test_an_interrupted_write_is_there_or_not_and_the_next_one_works(store: WhereStore) -> None:
    """If it is there, this process has heard of it."""
    journal = ThreadJournal(store)
    names = iter(range(100_000))
    told: list[int] = []
    store._notices.append(told.append)

    def write() -> None:
        journal.write(submit(f"job-{next(names):06}"))

    for point in count(1):
        told.clear()
        stored = jobs_of(store)
        if not interrupted_at(point, write):
            break
        assert told or jobs_of(store) == stored, point
        write()
        assert not journal._waiting, point
        assert journal._leader is None, point
    assert point > 300
    assert check(asyncio.run(store.events("job-000000"))) == []


def test_no_thread_waits_for_long_for_one_that_was_interrupted(store: WhereStore) -> None:
    journal = ThreadJournal(store)
    journal._leader = -1  # of a thread that was interrupted when it was to commit
    journal.write(submit("a"))
    assert jobs_of(store) == {"a"}


class WherePostgres(PostgresStore):
    """A store that notes which threads execute its transactions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.threads: list[str] = []
        super().__init__(*args, **kwargs)

    def _commit_alone(self, batch: Any) -> Any:
        self.threads.append(threading.current_thread().name.rpartition("_")[0] or threading.current_thread().name)
        return super()._commit_alone(batch)


@pytest.fixture
def postgres() -> Iterator[WherePostgres]:
    store = WherePostgres(server().url, fresh_schema())
    yield store
    asyncio.run(store.close())


def test_postgres_commits_of_a_thread_need_no_other_thread(postgres: WherePostgres) -> None:
    """Except in the main thread: Ctrl-C there must not wait for a silent server."""
    own = threading.Thread(target=lambda: postgres.commit_blocking([submit("a")]), name="own")
    own.start()
    own.join()
    postgres.commit_blocking([submit("b")])
    asyncio.run(postgres.commit([submit("c")]))
    assert postgres.threads == ["own", *["holdfast-writer"] * 2]
    assert {row.id for row in asyncio.run(postgres.jobs())} == {"a", "b", "c"}


def test_a_thread_commits_elsewhere_while_another_one_commits(postgres: WherePostgres) -> None:
    with postgres._writing:
        commit = threading.Thread(target=lambda: postgres.commit_blocking([submit("a")]))
        commit.start()
        while not postgres._writer._work_queue.qsize() and not postgres._writer._threads:  # until it has begun to wait
            threading.Event().wait(0.001)
        assert not postgres.threads
    commit.join()
    assert postgres.threads == ["holdfast-writer"]


def test_a_thread_gets_an_answer_although_the_one_that_commits_is_interrupted(store: WhereStore) -> None:
    """At any point: its command is executed, or it hears that this is not known. The next one is executed."""
    journal = ThreadJournal(store)
    for point in count(1):
        other = _ThreadRequest(submit(f"other-{point:06}"), -1)
        journal._waiting.append(other)
        is_reached = interrupted_at(point, partial(journal.write, submit(f"own-{point:06}")))
        journal._lead(other)
        assert other.taken
        journal.write(submit(f"next-{point:06}"))
        assert not journal._waiting
        stored = jobs_of(store)
        assert f"next-{point:06}" in stored
        assert other.answer is _NONE or f"other-{point:06}" in stored
        if not is_reached:
            break
    assert point > 300


INTERRUPTED = """
import os, random, signal, sys, threading, time
from holdfast import App
app = App("shop", f"sqlite:///{sys.argv[1]}")
@app.job
async def greet() -> None: ...
greet.start()
acknowledged, stop = [], threading.Event()
def interrupt() -> None:
    while not stop.wait(random.uniform(0.0002, 0.003)):
        os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=interrupt)
interrupts = 0
try:
    thread.start()
except KeyboardInterrupt:
    pass
while interrupts < 300:
    try:
        acknowledged.append(greet.start().id)
    except KeyboardInterrupt:
        interrupts += 1
while thread.is_alive():
    try:
        stop.set()
        thread.join()
    except KeyboardInterrupt:
        pass
app.close()
print(*acknowledged)
"""


def test_ctrl_c_loses_no_job_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    app = App("shop", f"sqlite:///{path}")
    stored = {record.run_id for record in app.list(limit=10_000)}
    acknowledged = set(done.stdout.split())
    assert acknowledged
    assert acknowledged <= stored
    assert not app.verify()
    app.close()
