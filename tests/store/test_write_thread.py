"""The thread that writes to a SQLite file: what is submitted while it closes is executed or refused, and never lost."""

from __future__ import annotations

import queue
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite.file_lock import FileLock, WriteThread
from support.interrupts import interrupted_at


class SlowQueue:
    """A queue in which a task arrives only after the thread had the time to be closed and to end."""

    def __init__(self, writer: WriteThread) -> None:
        self._queue: queue.SimpleQueue[Any] = writer._waiting
        self._writer = writer
        self.closing = threading.Thread(target=writer.stop)

    def put(self, task: Any) -> None:
        if task is not None:
            self.closing.start()
            self._writer._thread.join(0.3)
        self._queue.put(task)

    def get(self) -> Any:
        return self._queue.get()


def test_a_task_submitted_while_the_thread_closes_is_executed(tmp_path: Path) -> None:
    writer = WriteThread(FileLock(tmp_path / "lock"), lambda work: work())
    slow = SlowQueue(writer)
    writer._waiting = slow  # type: ignore[assignment]  # - it has what the thread uses
    assert writer.submit(lambda: "done").result(30) == "done"
    slow.closing.join(30)
    assert not slow.closing.is_alive()
    with pytest.raises(StoreUnavailable, match="closed"):
        writer.submit(lambda: "too late")


def test_a_caller_that_is_interrupted_at_any_point_does_not_hold_up_the_thread(tmp_path: Path) -> None:
    writer = WriteThread(FileLock(tmp_path / "lock"), lambda work: work())
    for point in count(1):
        is_reached = interrupted_at(point, partial(writer.run, list, len))
        assert writer.submit(lambda: "done").result(60) == "done", point
        if not is_reached:
            break
    assert point > 10
    writer.stop()


def time_out() -> None:
    raise TimeoutError("of the task itself")


def test_a_task_that_was_given_up_never_begins(tmp_path: Path) -> None:
    held, writer = FileLock(tmp_path / "lock"), WriteThread(FileLock(tmp_path / "lock", 0.01), lambda work: work())
    begun: list[int] = []
    held.acquire()
    with pytest.raises(StoreUnavailable, match="has held the lock"):
        writer.run(lambda: begun.append(1), lambda _: None)
    held.release()
    with pytest.raises(TimeoutError, match="of the task itself"):
        writer.run(time_out, lambda _: None)
    assert writer.submit(lambda: "done").result(60) == "done"
    assert begun == []
    writer.stop()
    held.close()
