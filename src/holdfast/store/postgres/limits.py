"""Queue limits in a batch on PostgreSQL.

At READ COMMITTED a count holds only while no other transaction can add to it. So a claim locks the rows of the queues
that it takes from, and counts with the next statement, which sees everything committed before. It does not wait for a
rate that another claim has locked: that claim takes the tokens, and this one tries again soon.

A transaction that ends a job and claims another of the same queue does not change the count. It hands the place on, and
does not wait for other such transactions. It keeps counting transactions out, by a lock that it shares with its like
and takes before it reads the time. Otherwise a lease that expires meanwhile would count as a free place there, and be
handed on here. While it has that lock it waits for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psycopg

from holdfast.store import commands as c
from holdfast.store.limits import LimitRow
from holdfast.store.postgres.schema import Connection
from holdfast.store.postgres.statements import Statements
from holdfast.store.rows import Job
from holdfast.store.shared_budgets import BudgetRow
from holdfast.store.sql.batch import Batch
from holdfast.store.sql.columns import job_of, limits_of, limits_row
from holdfast.store.sql.limit_claims import Running, place_of, started_at


class PostgresLimits(Batch):
    """The part of a PostgreSQL batch that handles limits."""

    def __init__(self, connection: Connection, statements: Statements) -> None:
        super().__init__(0.0, {})
        self._connection = connection
        self._sql = statements
        self._promoted = False
        self._taken_as_new: set[str] = set()  # ids assumed to be new without a check
        self._kept: frozenset[str] = frozenset()  # queues whose places no other transaction can count meanwhile

    def look_again(self, name: str) -> Job | None:
        """Look for a job by its id; most batches leave that to the table's key."""
        if self.jobs.get(name) is None:
            self._stored.pop(name, None)
            for job in self.read_rows([name]):
                self._at_hand(job)
        return self.job(name)

    def _at_hand(self, job: Job) -> None:
        """Load a row that was found.

        Raises:
            UniqueViolation: the job was assumed to be new, and exists, as the table's key would show. The batch has
                already decided without it.
        """
        if self._stored.get(job.id) is None:
            if job.id in self._taken_as_new:
                raise psycopg.errors.UniqueViolation(f"the job {job.id} is there already")
            self._stored[job.id] = self.jobs[job.id] = job

    def read_limits(self) -> Iterable[LimitRow]:
        return map(limits_of, self._connection.execute(self._sql.limits).fetchall())

    def put_limits(self, row: LimitRow) -> None:
        self._connection.execute(self._sql.put_limits, limits_row(row))

    def put_grouped(self, row: LimitRow) -> None:
        """Write that a queue has groups, and nothing else of its row."""
        self._connection.execute(self._sql.put_grouped, limits_row(row))

    def drop_limits(self, queue: str) -> None:
        self._connection.execute(self._sql.drop_limits, (queue,))

    def lock_budget(self, name: str) -> BudgetRow | None:
        """Lock and return a budget's row; an empty one if there was none."""
        row: Any = self._connection.execute(self._sql.lock_budget, (name,)).fetchone()
        if row is None:
            self._connection.execute(self._sql.open_budget, (name,))
            row = self._connection.execute(self._sql.lock_budget, (name,)).fetchone()
        return BudgetRow(*row)

    def put_budget(self, name: str, row: BudgetRow) -> None:
        self._connection.execute(self._sql.put_budget, (*row, name))

    def promote(self) -> None:
        """Mark jobs that have become due, once per transaction."""
        if not self._promoted:
            self._connection.execute(self._sql.promote, (self.now,))
            self._promoted = True

    def count_waiting(self, queue: str, most: int) -> int:
        """Count the jobs that are due and wait, then read the time, so that a new job comes after them."""
        counted = self._connection.execute(self._sql.waiting, (queue, most))
        clock = self._connection.execute(self._sql.clock)
        waiting = int(counted.fetchone()[0])
        self.now = clock.fetchone()[0]
        return waiting

    def running_since(self, queue: str, most: int) -> tuple[int, list[float]]:
        counted = self._connection.execute(self._sql.running, ([queue],))
        rows = self._connection.execute(self._sql.running_rows, (queue, self.now, most))
        running = sum(count for _, _, count in counted.fetchall())
        return running, started_at(map(job_of, rows.fetchall()))

    def look_at(self, command: c.Claim, queues: list[str]) -> Callable[[], dict[str, Running]]:
        """Ask which queues have jobs to take, without a lock: where there is no room, no claim waits."""
        values = {**entries_of(command), "wanted": queues}
        cursor = self._connection.execute(self._sql.look_at, values)
        return lambda: by_queue(cursor.fetchall())

    def lock_limits(self, queues: list[str], seen: Mapping[str, Running]) -> list[tuple[LimitRow, Running]]:
        """Lock rows in the order of their names, then read the time, then count. Places handed on need none of it."""
        if not self._kept:
            return self._count(queues)
        left = {queue: room for queue in queues if (room := self._left_in(queue)) > 0}
        seen_room = {queue: self._limit_of(queue) - sum(seen.get(queue, {}).values()) for queue in left}
        locked = self._count([queue for queue in queues if queue not in left or seen_room[queue] > left[queue]])
        counted = {row.queue for row, _ in locked}
        handed = {queue: min(left[queue], seen_room[queue]) for queue in left if queue not in counted}
        return locked + [
            (self.limits.row_of(self, queue), {"": self._limit_of(queue) - room}) for queue, room in handed.items()
        ]

    def _limit_of(self, queue: str) -> int:
        return self.limits.row_of(self, queue).limits.concurrency or 0

    def _left_in(self, queue: str) -> int:
        """Return how many places of a queue this transaction has freed and may take again."""
        row = self.limits.row_of(self, queue)
        plain = row.limits.rate is None and row.limits.group_concurrency is None and not row.grouped
        return self.limits.places.free(queue) if queue in self._kept and plain and row.limits.concurrency else 0

    def _count(self, queues: list[str]) -> list[tuple[LimitRow, Running]]:
        """Count the running jobs of queues while other counts are locked out, in one round trip.

        The time is read again where a lease may have ended since. Otherwise a place handed on begins when the other
        job ends.
        """
        if not queues:
            return []
        waited_for = [
            queue for queue in queues if not self._kept and self.limits.row_of(self, queue).limits.rate is None
        ]
        tried = [queue for queue in queues if queue not in waited_for]
        rows = [self._connection.execute(self._sql.take_limits, (waited_for,))] if waited_for else []
        rows += [self._connection.execute(self._sql.try_limits, (tried,))] if tried else []
        later = not self._kept or any(_counts(self.limits.row_of(self, queue)) for queue in queues)
        clock = self._connection.execute(self._sql.clock) if later else None
        counted = self._connection.execute(self._sql.running, (queues,))
        found = [limits_of(row[:-1]) for cursor in rows for row in cursor.fetchall() if row[-1]]  # locked, and alone
        self.now = clock.fetchone()[0] if clock is not None else self.now
        running = by_queue(counted.fetchall())
        # The row may be from a later time than this transaction's: its token may not have existed yet.
        return [(row, running.get(row.queue, {})) for row in found if later or row.tokens_at <= self.now]

    def lock_row(self, queue: str) -> LimitRow | None:
        """Wait until no claim takes from a queue, then read the time."""
        rows = self._connection.execute(self._sql.lock_limits, ([queue],))
        clock = self._connection.execute(self._sql.clock)
        locked = [limits_of(row) for row in rows.fetchall()]
        self.now = clock.fetchone()[0]
        return locked[0] if locked else None

    def find_groups(self, command: c.Claim, row: LimitRow, most: int) -> list[str]:
        """Find groups by steps through the index."""
        values = {**entries_of(command), "queue": row.queue, "turn": row.turn, "most": most}
        return [name for _, name in self._connection.execute(self._sql.groups, values).fetchall()]

    def find_heads(self, command: c.Claim, queue: str, wanted: Mapping[str, int]) -> dict[str, list[str]]:
        """Find and lock the first jobs of each group and entry, and the first of these."""
        values = {**entries_of(command), "queue": queue, "groups": list(wanted), "counts": list(wanted.values())}
        jobs = [job_of(row) for row in self._connection.execute(self._sql.heads, values).fetchall()]
        heads: dict[str, list[str]] = {group: [] for group in wanted}
        for job in sorted(jobs, key=place_of):
            names = heads[job.group or ""]
            if len(names) < wanted[job.group or ""]:
                names.append(job.id)
            self._at_hand(job)
        self.bring_up([job.id for job in jobs])
        return heads


def _counts(row: LimitRow) -> bool:
    return row.limits.concurrency is not None or row.limits.group_concurrency is not None


def entries_of(command: c.Claim) -> dict[str, list[str]]:
    """Return a claim's entries as parameters."""
    pairs = sorted(command.entries)
    return {"plugins": [plugin for plugin, _ in pairs], "entries": [entry for _, entry in pairs]}


def by_queue(rows: Iterable[tuple[str, str | None, int]]) -> dict[str, Running]:
    """Return running jobs by queue and group, from rows of counts."""
    running: dict[str, Running] = {}
    for queue, group, count in rows:
        by_group = running.setdefault(queue, {})
        if group is not None:
            by_group[group] = count
    return running
