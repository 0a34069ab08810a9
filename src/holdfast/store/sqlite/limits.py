"""Queue limits in a batch on SQLite. One process writes at a time, so all counts are exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import apsw

from holdfast.store import commands as c
from holdfast.store.limits import COUNTED_MAX, LimitRow, QueueState, queue_state
from holdfast.store.rows import Job
from holdfast.store.shared_budgets import BudgetRow
from holdfast.store.sql.batch import Batch
from holdfast.store.sql.columns import JOB_COLUMNS, LIMIT_COLUMNS, LIMIT_WRITTEN, job_of, limits_of, limits_row
from holdfast.store.sql.limit_claims import Running, started_at

PROMOTED_MAX = 1000  # delayed jobs that one transaction finds due; more than that are found by the next

_PUT = f"INSERT OR REPLACE INTO limits ({LIMIT_WRITTEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
# The statements name their index, because SQLite does not know how many jobs there are.
_PROMOTE = (
    "UPDATE jobs SET claimable = 1 WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_delayed"
    f" WHERE claimable = 0 AND state = 'queued' AND due_at <= ? ORDER BY due_at LIMIT {PROMOTED_MAX})"
)
_RUNNING = (
    "SELECT group_name, count(*) FROM jobs INDEXED BY jobs_running"
    " WHERE state = 'running' AND queue = ? AND lease_until > ? GROUP BY group_name"
)
_SINCE = (
    f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_running"
    " WHERE state = 'running' AND queue = ? AND lease_until > ? LIMIT ?"
)
_HEADS = (
    "SELECT -priority, due_at, id FROM jobs INDEXED BY jobs_claimable WHERE claimable = 1 AND plugin = ? AND entry = ?"
    " AND queue = ? AND group_name = ? ORDER BY priority DESC, due_at, id LIMIT ?"
)
_ANY = (
    "SELECT 1 FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ? AND entry = ? AND queue = ? LIMIT 1"
)
_STEP = (
    "(SELECT min(group_name) FROM jobs INDEXED BY jobs_claimable"
    " WHERE claimable = 1 AND plugin = ?1 AND entry = ?2 AND queue = ?3 AND group_name"
)
# First after the group that was served last, then from the beginning up to it. By steps: the cost does not grow.
_GROUPS = (
    f"WITH RECURSIVE steps(name, lap, n) AS (SELECT {_STEP} > ?4), 0, 1 UNION ALL SELECT {_STEP} >= ''), 1, 1 UNION ALL"
    f" SELECT {_STEP} > s.name), s.lap, s.n + 1 FROM steps s"
    " WHERE s.name IS NOT NULL AND s.n < ?5 AND (s.lap = 0 OR s.name <= ?4))"
    " SELECT DISTINCT name, lap FROM steps WHERE name IS NOT NULL AND (lap = 0 OR name <= ?4)"
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


class SqliteLimits(Batch):
    """The part of a SQLite batch that handles limits."""

    def __init__(self, connection: apsw.Connection, now: float, known: Mapping[str, Job]) -> None:
        super().__init__(now, known)
        self._connection = connection
        self._promoted = False
        self.gone: list[str] = []  # workers that were removed from the list

    def look_again(self, name: str) -> Job | None:
        """Return None: the job was looked for."""
        return self.job(name)

    def read_limits(self) -> Iterable[LimitRow]:
        return map(limits_of, self._connection.execute(f"SELECT {LIMIT_COLUMNS} FROM limits"))

    def put_limits(self, row: LimitRow) -> None:
        self._connection.execute(_PUT, limits_row(row))

    def put_grouped(self, row: LimitRow) -> None:
        """Write a row; no other process writes meanwhile."""
        self.put_limits(row)

    def drop_limits(self, queue: str) -> None:
        self._connection.execute("DELETE FROM limits WHERE queue = ?", (queue,))

    def promote(self) -> None:
        """Mark jobs that have become due, once per transaction, which has one time."""
        if not self._promoted:
            self._connection.execute(_PROMOTE, (self.now,))
            self._promoted = True

    def count_waiting(self, queue: str, most: int) -> int:
        return count_waiting(self._connection, queue, most)

    def running_since(self, queue: str, most: int) -> tuple[int, list[float]]:
        running = sum(running_by_group(self._connection, queue, self.now).values())
        return running, started_at(map(job_of, self._connection.execute(_SINCE, (queue, self.now, most))))

    def look_at(self, command: c.Claim, queues: list[str]) -> Callable[[], dict[str, Running]]:
        return lambda: {
            queue: running_by_group(self._connection, queue, self.now) for queue in queues if self._any(command, queue)
        }

    def _any(self, command: c.Claim, queue: str) -> bool:
        asked = ((*pair, queue) for pair in command.entries)
        return any(self._connection.execute(_ANY, place).fetchone() for place in asked)

    def lock_limits(self, queues: list[str], seen: Mapping[str, Running]) -> list[tuple[LimitRow, Running]]:
        """Read the rows; the transaction already excludes other writers."""
        return [(self.limits.row_of(self, queue), dict(seen.get(queue, {}))) for queue in queues]

    def lock_row(self, queue: str) -> LimitRow | None:
        """Read the rows; the transaction already excludes other writers."""
        return self.limits.rows(self).get(queue)

    def find_groups(self, command: c.Claim, row: LimitRow, most: int) -> list[str]:
        """Find groups by steps through the index."""
        found: set[tuple[int, str]] = set()
        for pair in command.entries:
            steps = self._connection.execute(_GROUPS, (*pair, row.queue, row.turn, most))
            found.update((lap, name) for name, lap in steps)
        return [name for _, name in sorted(found)[:most]]

    def find_heads(self, command: c.Claim, queue: str, wanted: Mapping[str, int]) -> dict[str, list[str]]:
        """Find the first jobs of each entry, and the first of these."""
        heads: dict[str, list[str]] = {}
        for group, count in wanted.items():
            rows: list[Any] = []
            for pair in command.entries:
                rows += self._connection.execute(_HEADS, (*pair, queue, group, count)).fetchall()
            heads[group] = [name for _, _, name in sorted(rows)[:count]]
        self.load(name for names in heads.values() for name in names)
        return heads

    def lock_budget(self, name: str) -> BudgetRow | None:
        """Read a budget's row; no other process writes meanwhile."""
        row: Any = self._connection.execute(
            "SELECT window_start, spent FROM budgets WHERE name = ?", (name,)
        ).fetchone()
        return BudgetRow(*row) if row is not None else None

    def put_budget(self, name: str, row: BudgetRow) -> None:
        sql = "INSERT OR REPLACE INTO budgets (name, window_start, spent) VALUES (?, ?, ?)"
        self._connection.execute(sql, (name, *row))


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
