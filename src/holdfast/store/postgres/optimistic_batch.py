"""Optimistic batches: decided before anything is locked, and written with one statement in one round trip.

Most batches only append events to jobs that this process runs, whose rows are in the row cache, or create jobs. They
need nothing from the server but its time, of which there is an estimate. So they are decided at once. One statement
locks the rows, checks what was assumed, writes and commits. If something does not hold, it writes nothing, and the
batch is executed as an ordinary transaction, which decides again.

What the statement checks, under the locks:

- Each row is the cached one (L3): the same transaction has written it, and its stream has the same end.
- All leases are live by the server's clock (L2), read after the locks.
- The estimated time, which the events have, is not ahead of that clock, and not far behind it. Jobs are claimed in the
  order of their times, so that of a new job may be behind by very little.
- The queue of a new job has no maximum depth, for which jobs would have to be counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, NoReturn, cast

from holdfast.errors import HoldfastError
from holdfast.store import commands as c
from holdfast.store.postgres.row_cache import RowCache
from holdfast.store.postgres.schema import Connection
from holdfast.store.postgres.statements import Statements
from holdfast.store.postgres.transaction import Transaction, event_columns
from holdfast.store.rows import Job
from holdfast.store.sql.event_rows import EventRow
from holdfast.store.stream_writer import GROWING

COMMANDS_MAX = 256  # to decide larger ones takes so long that a second round trip does not count
REFUSALS_MAX = 9  # in a row that count; then 64 batches are not tried


def is_simple(batch: Sequence[c.Command]) -> bool:
    """Return whether commands only append to streams and create jobs, and need no other row."""
    return 0 < len(batch) <= COMMANDS_MAX and all(_is_growth(command) or _is_new_job(command) for command in batch)


def has_new_job(batch: Sequence[c.Command]) -> bool:
    """Return whether a batch starts a job. Its time may be off by less, so it is refused more often."""
    return any(type(command) is c.Submit for command in batch)


def _is_growth(command: c.Command) -> bool:
    return (
        type(command) is c.Append
        and command.successor is None
        and not command.uses
        and bool(command.events)
        and all(kind in GROWING for kind, _ in command.events)
    )


def _is_new_job(command: c.Command) -> bool:
    return (
        type(command) is c.Submit
        and command.idempotency_key is None
        and command.group is None
        and not command.attributes
    )


class Refusals:
    """Refusals of optimistic batches in a row; used under the lock of the connection.

    They may go on: the network takes longer than the estimated time may be behind, or a queue has a depth. Each costs a
    trip for nothing. So from the third in a row on, more and more batches are not tried.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._to_skip = 0

    def skip(self) -> bool:
        """Return whether the next batch is not to be tried."""
        skipped = self._to_skip > 0
        self._to_skip -= skipped
        return skipped

    def count(self, *, written: bool) -> None:
        """Count a batch that was tried."""
        self._in_a_row = 0 if written else min(self._in_a_row + 1, REFUSALS_MAX)
        self._to_skip = 2**self._in_a_row // 8


class OptimisticBatch(Transaction):
    """One batch that `is_simple`; created and used by one thread.

    Args:
        statements: for the schema.
        rows: the cached rows.
        now: the estimated time.
    """

    def __init__(self, statements: Statements, rows: RowCache, now: float) -> None:
        super().__init__(cast(Connection, _Unconnected()), statements, looking_first=False, seen=rows)
        self.now = now
        self._assumed: list[tuple[str, Job]] = []  # rows with their transactions, in the order of names
        self._queues: set[str] = set()  # of new jobs
        self._jobs: dict[str, str] = {}  # what is to be written
        self._events: list[dict[str, Any]] = []  # for one statement, or the begin of what several would take

    def decide(self, batch: Sequence[c.Command]) -> list[Any] | None:
        """Decide all commands; return the results, or None if a row is not cached, or a command may be refused."""
        names = sorted({name for command in batch for name in self._named(command)})
        self._assumed = [known for name in names if (known := self._row_cache.known(name)) is not None]
        if len(self._assumed) < len(names):
            return None
        answers = self.carry_out(batch)
        one_statement = len(self._events) == 1
        return answers if one_statement and not any(isinstance(answer, HoldfastError) for answer in answers) else None

    def prepare(self, batch: Sequence[c.Command]) -> None:
        """Load the rows from the cache."""
        new = [command for command in batch if isinstance(command, c.Submit)]
        self._queues = {command.queue for command in new}
        self._stored.update(dict.fromkeys(command.job for command in new))
        for _, row in self._assumed:
            self._stored[row.id] = self.jobs[row.id] = row
            self.now = max(self.now, row.updated_at)  # the time of a stream never goes backwards
        self.limits.have(())

    def write(self, events: list[EventRow], new: list[Job], grown: list[Job], changed: list[Job]) -> None:
        """Keep what is to be written."""
        self._jobs, self._events = self.job_columns(new, grown, changed), list(islice(event_columns(events), 2))

    def write_if_current(self, connection: Connection) -> bool:
        """Write the batch if what it assumes holds; return whether it was written, and then committed.

        Args:
            connection: in autocommit mode. The driver waits for the end of the transaction.
        """
        values = {
            "names": [row.id for _, row in self._assumed],
            "row_versions": ",".join([writer + row.head for writer, row in self._assumed]),
            "until": min((row.lease.until for _, row in self._assumed if row.lease is not None), default=math.inf),
            "queues": list(self._queues),
            **self._jobs,
            **self._events[0],
        }
        cursor = connection.execute(self._sql.write_if_current(tuple(self._jobs)), values)
        written, self.now, self.writer = cursor.fetchone() or (False, self.now, None)
        return bool(written)


class _Unconnected:
    """Stands for a connection while a batch is decided."""

    def execute(self, *_: Any) -> NoReturn:
        raise AssertionError("a simple batch needs nothing from the server while it is decided")
