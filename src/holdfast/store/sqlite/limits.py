"""Counts of jobs by queue on SQLite, for limits. One process writes at a time, so all counts are exact."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.store.limits import COUNTED_MAX, LimitRow, QueueState, queue_state
from holdfast.store.sql.limit_claims import Running

# The statements name their index, because SQLite does not know how many jobs there are.
_RUNNING = (
    "SELECT group_name, count(*) FROM jobs INDEXED BY jobs_running"
    " WHERE state = 'running' AND queue = ? AND lease_until > ? GROUP BY group_name"
)
_PAIR = (
    "SELECT plugin, entry FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND (plugin, entry) > (?, ?) ORDER BY plugin, entry LIMIT 1"
)
_COUNT_LATE = (
    "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_delayed"
    " WHERE claimable = 0 AND state = 'queued' AND due_at <= ? AND queue = ? LIMIT ?)"
)
_COUNT = (
    "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue = ? LIMIT ?)"
)


def count_waiting(connection: apsw.Connection, queue: str, most: int) -> int:
    """Count the jobs of a queue that are marked as due, of every entry that has any; not beyond `most`."""
    counted, pair = 0, ("", "")
    while counted < most and (row := connection.execute(_PAIR, pair).fetchone()):
        pair = row
        counted += _number(connection, _COUNT, (*pair, queue, most - counted))
    return counted


def state_of(connection: apsw.Connection, row: LimitRow, now: float) -> QueueState:
    """Return a queue's state, for readers."""
    late = _number(connection, _COUNT_LATE, (now, row.queue, COUNTED_MAX))
    waiting = count_waiting(connection, row.queue, COUNTED_MAX) + late
    return queue_state(row, running_by_group(connection, row.queue, now), waiting, now)


def running_by_group(connection: apsw.Connection, queue: str, now: float) -> Running:
    """Count live leases of a queue."""
    return dict(connection.execute(_RUNNING, (queue, now)))


def _number(connection: apsw.Connection, sql: str, bindings: tuple[Any, ...]) -> int:
    rows: list[Any] = connection.execute(sql, bindings).fetchall()
    return int(rows[0][0])
