"""Threads that write at once: each gets its own answer, and those that wait are committed together."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, InvalidArguments, StoreUnavailable
from holdfast.errors import IdempotencyConflict, UnknownJob
from holdfast.group_commit import ThreadJournal
from holdfast.store import Cancel, Command, Submit
from holdfast.store.memory import MemoryStore


class HeldStore(MemoryStore):
    """A store whose commits wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.batches: list[int] = []
        self.before: Callable[[], None] = lambda: None

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        self.batches.append(len(batch))
        self.entered.release()
        assert self.go.acquire(timeout=60)
        self.before()
        return super().commit_blocking(batch)


def submit(number: int, key: str | None = None) -> Submit:
    return Submit(
        job=f"job-{number:03}", plugin="shop", entry="buy", args={}, idempotency_key=key, fingerprint=f"f{number}"
    )


def waits(journal: ThreadJournal, count: int) -> None:
    """Wait until so many threads wait for the one that commits."""
    pause = threading.Event()
    while len(journal._waiting) < count:
        pause.wait(0.001)


def test_threads_that_come_during_a_commit_share_the_next_one() -> None:
    store = HeldStore()
    journal = ThreadJournal(store)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(journal.write, submit(0))
        assert store.entered.acquire(timeout=60)
        others = [threads.submit(journal.write, submit(number)) for number in range(1, 6)]
        waits(journal, 5)
        for _ in range(2):
            store.go.release()
        answers = [future.result(60) for future in (first, *others)]
    assert [answer.job for answer in answers] == [f"job-{number:03}" for number in range(6)]
    assert store.batches == [1, 5]


def test_a_refusal_is_of_its_own_thread() -> None:
    store = HeldStore()
    journal = ThreadJournal(store)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(journal.write, submit(0, "k"))
        assert store.entered.acquire(timeout=60)
        same, other = threads.submit(journal.write, submit(1, "k")), threads.submit(journal.write, submit(2))
        waits(journal, 2)
        for _ in range(2):
            store.go.release()
        assert first.result(60).job == "job-000"
        assert other.result(60).job == "job-002"
        with pytest.raises(IdempotencyConflict):
            same.result(60)


def test_a_failed_commit_is_told_to_all_of_its_threads_and_the_next_one_works() -> None:
    store = HeldStore()
    journal = ThreadJournal(store)

    def fail() -> None:
        raise StoreUnavailable("the disk is full")

    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(journal.write, submit(0))
        assert store.entered.acquire(timeout=60)
        store.before = fail
        second = threads.submit(journal.write, submit(1))
        waits(journal, 1)
        store.go.release()
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            first.result(60)
        assert store.entered.acquire(timeout=60)
        store.before = lambda: None
        store.go.release()
        assert second.result(60).job == "job-001"


def test_a_thread_that_is_interrupted_leaves_nothing_behind() -> None:
    store = HeldStore()
    journal = ThreadJournal(store)

    def interrupt() -> None:
        waits(journal, 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with ThreadPoolExecutor(8) as threads:
            first = threads.submit(journal.write, submit(0))
            assert store.entered.acquire(timeout=60)
            threads.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                journal.write(submit(1))
            last = threads.submit(journal.write, submit(2))
            waits(journal, 1)
            for _ in range(2):
                store.go.release()
            assert first.result(60).job == "job-000"
            assert last.result(60).job == "job-002"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert store.batches == [1, 1], "the interrupted command was not executed"


def test_an_interrupted_leader_is_replaced() -> None:
    store = HeldStore()
    journal = ThreadJournal(store)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(8) as threads:
        store.before = interrupt
        first = threads.submit(journal.write, submit(0))
        assert store.entered.acquire(timeout=60)
        second = threads.submit(journal.write, submit(1))
        waits(journal, 1)
        store.go.release()
        with pytest.raises(KeyboardInterrupt):
            first.result(60)
        assert store.entered.acquire(timeout=60)
        store.before = lambda: None
        store.go.release()
        assert second.result(60).job == "job-001"


class InterruptedStore(MemoryStore):
    """A store whose first commit is interrupted by a signal handler, which writes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.handler: Callable[[], object] | None = None

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return super().commit_blocking(batch)


def test_a_signal_handler_may_write_in_the_middle_of_a_write_of_its_thread() -> None:
    store = InterruptedStore()
    journal = ThreadJournal(store)
    inside: list[Any] = []
    store.handler = lambda: inside.append(journal.write(submit(1)).job)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(journal.write, submit(0)).result(60).job == "job-000"
        assert inside == ["job-001"]
        assert threads.submit(journal.write, submit(2)).result(60).job == "job-002"
    store.handler = lambda: journal.write(Cancel("nobody", None))
    with pytest.raises(UnknownJob):
        journal.write(submit(3))


def test_a_signal_handler_hears_at_once_that_the_store_is_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("shop", f"sqlite:///{tmp_path}/jobs.db")
    told: list[str] = []

    def interrupted(*_: object) -> MemoryStore:
        with pytest.raises(StoreUnavailable) as refused:
            app.store()
        told.append(str(refused.value))
        return MemoryStore()

    monkeypatch.setattr("holdfast.client.app.open_store", interrupted)
    assert isinstance(app.store(), MemoryStore)
    assert told
    assert told[0].startswith("a signal handler has interrupted the code that opens the store")
    app.close()


def test_starts_from_many_threads_are_all_there(url: str) -> None:
    app = App("shop", url)

    @app.job
    async def buy(number: int) -> int:
        return number

    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(buy.start, range(40)))
    assert {run.id for run in runs} == {record.run_id for record in app.list(limit=100)}
    with pytest.raises(InvalidArguments):
        buy.start("no number", 2)  # type: ignore[arg-type, call-arg]
    app.close()
    assert buy.start(41).record().status == "queued", "a closed app opens its store again"
    app.close()
