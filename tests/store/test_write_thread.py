"""The thread that writes to a SQLite file: what is submitted while it closes is executed or refused, and never lost."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite.file_lock import FileLock, WriteThread


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
