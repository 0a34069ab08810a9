"""Batches in one round trip: events of running jobs whose rows are cached, or new jobs with nothing to look up.

An ordinary transaction locks and reads rows first, and decides then. Here the batch is decided first, from cached rows
and an estimate of the server's time. One statement locks the rows, checks that all of this holds, writes and commits.

What it guarantees:

- The fence is the server's (L2, L3). Under the locks it checks that each row is the cached one, under the same attempt,
  and that its lease is live by its own clock. It reads that clock after it has all locks.
- All or nothing. If one row does not pass, nothing is written, and the batch is executed as an ordinary transaction.
  That one gives each command its own answer.
- Events carry the estimated time. The statement refuses one that is ahead of the server's clock, or behind it by more
  than `CLOCK_SECONDS_OFF`. The time never precedes the last event of a stream.
- A queue with a maximum depth is left to ordinary transactions. The statement checks that there is none.

What can fail: the connection ends before the reply, and whether the batch was written is unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg
from psycopg.pq import ExecStatus

from holdfast.errors import HoldfastError
from holdfast.store import commands as c
from holdfast.store import decide
from holdfast.store.postgres.clock_estimate import ClockEstimate
from holdfast.store.postgres.direct_statements import BYTES, DOUBLE, TEXT, DirectStatements
from holdfast.store.postgres.row_cache import RowCache
from holdfast.store.postgres.row_text import event_columns, job_rows, portions
from holdfast.store.postgres.schema import Connection
from holdfast.store.postgres.statements import Statements
from holdfast.store.rows import Job
from holdfast.store.sql.event_rows import Sealed, event_rows
from holdfast.store.stream_writer import GROWING

COMMANDS_MAX = 256  # in one trip; a second trip costs a larger batch nothing that counts

_EVENT_COLUMNS = ("mark", "jobs", "seqs", "types", "payloads", "attempts", "at", "hashes", "prevs", "schema")
_EVENT_TYPES = [TEXT] * 6 + [DOUBLE, TEXT, BYTES, TEXT]
_GROW_TYPES = _EVENT_TYPES + [TEXT] * 7
_CREATE_TYPES = _EVENT_TYPES + [TEXT] * 2
_double = struct.Struct("!d").pack


class Decided(msgspec.Struct):
    """A batch that was decided, and the statement that writes it if it holds."""

    answers: list[Any]
    rows: dict[str, Job]  # as they are after it, of running jobs
    change: int
    sql: str
    values: list[bytes]
    types: list[int]


class KnownRows:
    """Decides batches and writes them in one trip; only the writing thread uses it.

    Args:
        statements: for the schema.
        rows: the cached rows.
        clock: the estimate of the server's time.
        sharing_bytes_max: of payloads of events that share a row.
    """

    def __init__(self, statements: Statements, rows: RowCache, clock: ClockEstimate, sharing_bytes_max: int) -> None:
        self._sql = statements
        self._rows = rows
        self._clock = clock
        self._sharing_bytes_max = sharing_bytes_max

    def decided(self, batch: Sequence[c.Command]) -> Decided | None:
        """Decide a batch; return None if only an ordinary transaction can do it, or has to refuse something."""
        now = self._clock.estimate()
        if now is None or not 0 < len(batch) <= COMMANDS_MAX:
            return None
        try:
            if all(_only_grows(command) for command in batch):
                return self._growth(batch, now)
            if all(_is_plain(command) for command in batch):
                return self._creation(batch, now)
        except (HoldfastError, psycopg.DataError, UnicodeEncodeError):
            pass  # to be refused by an ordinary transaction, which has read what is there
        return None

    def write(self, connection: Connection, direct: DirectStatements, decided: Decided) -> bool:
        """Write a batch if it holds; return whether it was written.

        Raises:
            OperationalError: the connection has ended, and whether it was written is unknown.
        """
        result = direct.execute(connection, decided.sql, decided.values, decided.types)
        if result.status != ExecStatus.TUPLES_OK or result.get_value(0, 0) != b"t":
            return False  # an ordinary transaction meets the same error, and explains it
        now, writer = result.get_value(0, 1), result.get_value(0, 2)
        assert now is not None, "the statement returns it"
        assert writer is not None, "the statement returns it"
        self._clock.read(float(now))
        self._rows.remember(decided.rows, set(decided.rows), writer.decode())
        return True

    def _growth(self, batch: Sequence[Any], now: float) -> Decided | None:
        names = sorted({command.job for command in batch})
        known = [self._rows.row(name) for name in names]
        cached = {row.id: (writer, row) for writer, row in (entry for entry in known if entry is not None)}
        if len(cached) < len(names):
            return None
        now = max(now, *(row.updated_at for _, row in cached.values()))
        rows = {name: row for name, (_, row) in cached.items()}
        answers: list[Any] = []
        sealed: list[Sealed] = []
        change = 0
        for command in batch:
            decide.fence(rows[command.job], command.attempt, now)
            decision = decide.grow(command.events, command.attempt, rows[command.job], now)
            rows[command.job] = decision.job
            sealed += zip(decision.events, decision.payloads, strict=True)
            answers.append(decision.answer)
            change |= decision.change
        values = self._event_values(sealed, ())
        if values is None:
            return None
        mark = values[0].decode()
        before, after = cached.values(), [rows[name] for name in names]
        columns = [
            names,
            [writer for writer, _ in before],
            [row.head for _, row in before],
            [str(row.attempt) for row in after],
            [str(row.version) for row in after],
            [row.head for row in after],
        ]
        values += [mark.join(column).encode() for column in columns]
        values.append(str(len(names)).encode())
        return Decided(answers, rows, change, self._sql.grow_known, values, _GROW_TYPES)

    def _creation(self, batch: Sequence[Any], now: float) -> Decided | None:
        if len({command.job for command in batch}) < len(batch):
            return None
        decisions = [decide.submit(command, now, None) for command in batch]
        sealed: list[Sealed] = []
        change = 0
        for decision in decisions:
            sealed += zip(decision.events, decision.payloads, strict=True)
            change |= decision.change
        queues = sorted({command.queue for command in batch})
        values = self._event_values(sealed, queues)
        if values is None:
            return None
        values.append(values[0].decode().join(queues).encode())
        values.append(job_rows([decision.job for decision in decisions], now))
        answers = [decision.answer for decision in decisions]
        return Decided(answers, {}, change, self._sql.create_plain, values, _CREATE_TYPES)

    def _event_values(self, sealed: list[Sealed], names: Sequence[str]) -> list[bytes] | None:
        """Return the parameters for events; None if they are too large for one statement."""
        rows = event_rows(sealed, self._sharing_bytes_max)
        if len(portions(rows, lambda row: len(row[3]))) > 1:
            return None
        columns = event_columns(rows, names)
        columns["at"], columns["schema"] = _double(columns["at"]), str(columns["schema"])
        values = [columns[name] for name in _EVENT_COLUMNS]
        return [value if isinstance(value, bytes) else value.encode() for value in values]


def _only_grows(command: c.Command) -> bool:
    """Return whether a command does no more than to add events to the stream of a running job."""
    return (
        type(command) is c.Append
        and bool(command.events)
        and not command.uses
        and command.successor is None
        and all(kind in GROWING for kind, _ in command.events)
    )


def _is_plain(command: c.Command) -> bool:
    """Return whether a command creates a job about which nothing needs to be looked up or noted elsewhere."""
    return (
        type(command) is c.Submit
        and command.idempotency_key is None
        and command.parent is None
        and command.group is None
        and not command.attributes
        and command.schedule is None
        and command.first is None
    )
