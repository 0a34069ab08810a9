"""Claims and submissions under queue limits, in a batch: counted and taken in one transaction.

One statement claims from all queues without a row in `limits`. Of the other queues, a claim looks at those with waiting
jobs that it could take. If their limits leave room, it locks their rows, counts the running jobs under the lock, and
serves groups in turn. So two claims that count the same queue follow one another, on every backend. Claims of other
queues do not wait for them. A transaction that ends jobs and claims as many does not change the count, and needs no
lock; see the backends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import QueueFull
from holdfast.machines import JobState
from holdfast.store import commands as c
from holdfast.store.commands import LIMITS, ROOM, WORK
from holdfast.store.limits import AGES_MAX, Blocked, LimitRow, Limits, fill, may_take, retry_after, room_of
from holdfast.store.rows import OUTDATED, Job

if TYPE_CHECKING:
    from holdfast.store.sql.batch import Batch

AGAIN_SECONDS = 0.02  # until a queue is tried again that another claim had locked
ROUNDS = 4  # rounds in one claim in which other groups fill the share of groups with too few jobs
Running = dict[str, int]  # jobs with a live lease, by group


@lru_cache(maxsize=1024)  # its fields are checked when it is made
def _no_limits(queue: str) -> LimitRow:
    return LimitRow(Limits(queue=queue))


class Pick(msgspec.Struct):
    """The jobs that a claim may take from one queue, in order, and what it would leave.

    Attributes:
        row: the queue's row.
        names: job ids, in the order in which to take them.
        room: how many may be taken.
        held: the limit that allows no more; None if there is none.
        more: whether more jobs wait.
        full: whether jobs wait in a group that is at its limit.
    """

    row: LimitRow
    names: list[str]
    room: int
    held: Blocked | None
    more: bool
    full: bool


class Places:
    """Places that a transaction has freed, less those it has taken, by queue and group."""

    def __init__(self) -> None:
        self._free: Counter[tuple[str, str]] = Counter()

    def move(self, before: Job | None, after: Job) -> None:
        """Record a job's change: it may free its place, or take one."""
        held = before is not None and before.state is JobState.RUNNING
        if held != (after.state is JobState.RUNNING):
            self._free[after.queue, after.group or ""] += 1 if held else -1

    def free(self, queue: str) -> int:
        """Return how many places it has freed in a queue and not taken."""
        return sum(count for (name, _), count in self._free.items() if name == queue)

    def left(self, limits: Mapping[str, LimitRow] | None) -> int:
        """Return ROOM if places are left for others, else 0. If the limits were not read, there may be some."""
        for queue in {queue for queue, _ in self._free}:
            counts = [count for (name, _), count in self._free.items() if name == queue]
            row = limits.get(queue) if limits is not None else None
            by_group = limits is None or (row is not None and row.limits.group_concurrency is not None)
            at_once = row is not None and row.limits.concurrency is not None
            if (by_group and max(counts) > 0) or (at_once and sum(counts) > 0):
                return ROOM
        return 0


class QueueLimits:
    """The queues with limits, as far as a batch has read them, and what it may claim and accept under these limits.

    Each method gets the batch, which reads and writes the rows. A reference to it would make a cycle, which keeps all
    rows of the batch until the garbage collector runs.
    """

    def __init__(self) -> None:
        self.places = Places()
        self.depths: dict[str, int] = {}  # waiting jobs by queue with a depth; valid while the batch only submits
        self._rows: dict[str, LimitRow] | None = None  # by queue; None until read
        self._again: dict[str, float] = {}  # when to try full queues again

    def have(self, rows: Iterable[LimitRow]) -> None:
        """Take the rows of all queues that have one, read ahead."""
        self._rows = {row.queue: row for row in rows}

    def freed(self) -> int:
        """Return ROOM if the batch leaves places to others, else 0."""
        return self.places.left(self._rows)

    def set_limits(self, batch: Batch, command: c.SetLimits) -> None:
        """Set the limits of a queue."""
        row = self._locked(batch, command.limits.queue)
        self._put(batch, row.set(command.limits, batch.now, command.actor, command.expected))

    def pause_queue(self, batch: Batch, command: c.PauseQueue) -> None:
        """Pause or resume a queue."""
        row = self._locked(batch, command.queue)
        self._put(batch, row.pause(batch.now, command.actor, paused=command.paused))

    def admit(self, batch: Batch, command: c.Submit) -> Job | None:
        """Check that a new job may enter; return None, or the job if it exists after all.

        Raises:
            QueueFull: the queue is at its maximum depth.
        """
        row = self.row_of(batch, command.queue)
        if row.limits.depth is not None and not self._has_room(batch, command, row.limits.depth):
            existing = batch.look_again(command.job)
            if existing is None:
                raise QueueFull(command.queue, row.limits.depth, self._again_after(batch, row))
            return existing
        if command.group is not None and not row.grouped:
            self.rows(batch)[command.queue] = row = msgspec.structs.replace(row, grouped=True)
            batch.put_grouped(row)
        return None

    def _again_after(self, batch: Batch, row: LimitRow) -> float:
        if row.queue not in self._again:
            running, since = batch.running_since(row.queue, AGES_MAX)
            self._again[row.queue] = retry_after(row.limits, running, [max(0.0, batch.now - at) for at in since])
        return self._again[row.queue]

    def _has_room(self, batch: Batch, command: c.Submit, depth: int) -> bool:
        if command.queue not in self.depths:
            batch.flush()
            batch.promote()
            self.depths[command.queue] = batch.count_waiting(command.queue, depth)
        if self.depths[command.queue] >= depth and command.parent is None:
            return False
        self.depths[command.queue] += (command.due_at or 0.0) <= batch.now
        return True

    def choose(self, batch: Batch, command: c.Claim) -> tuple[list[str], tuple[Blocked, ...]]:
        """Return the jobs that a claim takes, in order, and the limits that keep it from more."""
        limited = [queue for queue in self.rows(batch) if command.queues is None or queue in command.queues]
        if not limited:
            return batch.find_claimable(command, []), ()
        batch.promote()
        others = command.queues is None or len(command.queues) > len(limited)
        look = batch.look_at(command, limited)
        plain = batch.find_claimable(command, limited) if others else []
        batch.load(plain)
        seen = look()
        held: list[Blocked] = []
        with_room = []
        for queue, running in seen.items():
            room, why = room_of(self.rows(batch)[queue], sum(running.values()), batch.now)
            if room:
                with_room.append(queue)
            elif why is not None:
                held.append(why)
        locked = batch.lock_limits(sorted(with_room), seen)
        picks = [self._pick(batch, command, row, running) for row, running in locked]
        held += self._passed_over(batch, with_room, picks)
        names = interleaved([plain, *(pick.names for pick in picks)], batch.jobs, command.limit)
        held += self._spend(batch, command, picks, set(names))
        return names, tuple(sorted(held, key=lambda blocked: blocked.queue))

    def _passed_over(self, batch: Batch, queues: list[str], picks: list[Pick]) -> list[Blocked]:
        """Return the queues that another claim has locked, to be tried again soon."""
        passed_over = sorted({*queues} - {pick.row.queue for pick in picks})
        soon = batch.now + AGAIN_SECONDS
        return [Blocked(queue, "turn", 0, 0, soon, self.row_of(batch, queue).limits.slack) for queue in passed_over]

    def _pick(self, batch: Batch, command: c.Claim, row: LimitRow, running: Running) -> Pick:
        """Return the jobs to take from one queue, whose row is locked: groups in turn, each in the claim's order."""
        room, held = room_of(row, sum(running.values()), batch.now)
        most = min(room, command.limit)
        # At least `most` of these groups run nothing, so the claim can be filled from them alone: no more are needed.
        groups = batch.find_groups(command, row, most + len(running) + 1) if row.grouped else [""]
        found: dict[str, list[str]] = {}
        has: dict[str, int] = {}
        for _ in range(ROUNDS):
            shares = Counter(fill(row, groups, running, most, has))
            unsure = [name for name in shares if name not in has and shares[name] >= len(found.get(name, ()))]
            wanted = {name: shares[name] for name in unsure}
            if not wanted:
                break
            heads = batch.find_heads(command, row.queue, {name: count + 1 for name, count in wanted.items()})
            for name, count in wanted.items():
                found[name] = heads.get(name, [])
                if len(found[name]) <= count:
                    has[name] = len(found[name])
        order = fill(row, groups, running, most, {name: len(found.get(name, ())) for name in groups})
        taken = Counter(order)
        heads_of = {name: iter(found[name]) for name in taken}
        left = [name for name in groups if name not in found or len(found[name]) > taken[name]]
        full = any(not may_take(row.limits, name, running.get(name, 0) + taken[name]) for name in left)
        return Pick(row, [next(heads_of[name]) for name in order], room, held, bool(left), full)

    def _spend(self, batch: Batch, command: c.Claim, picks: list[Pick], taken: set[str]) -> list[Blocked]:
        """Write what was taken from each queue; return the limits that hold back the rest."""
        held = []
        for pick in picks:
            names = [name for name in pick.names if name in taken]
            row = pick.row.spend([batch.jobs[name].group or "" for name in names], batch.now)
            if row != pick.row:
                self.rows(batch)[row.queue] = row
                batch.put_limits(row)
            held += held_back(pick, row, len(names), command.limit)
        return held

    # Loaded rows

    def rows(self, batch: Batch) -> dict[str, LimitRow]:
        """Return the rows by queue; read once."""
        if self._rows is None:
            self._rows = {row.queue: row for row in batch.read_limits()}
        return self._rows

    def row_of(self, batch: Batch, queue: str) -> LimitRow:
        """Return a queue's row, empty if it has none."""
        return self.rows(batch).get(queue) or _no_limits(queue)

    def _locked(self, batch: Batch, queue: str) -> LimitRow:
        batch.flush()  # writes so far belong to the time before
        return batch.lock_row(queue) or _no_limits(queue)

    def _put(self, batch: Batch, row: LimitRow) -> None:
        if row.is_bare():
            self.rows(batch).pop(row.queue, None)
            batch.drop_limits(row.queue)
        else:
            self.rows(batch)[row.queue] = row
            batch.put_limits(row)
        batch.change |= WORK | LIMITS


def held_back(pick: Pick, row: LimitRow, taken: int, wanted: int) -> list[Blocked]:
    """Return the limit that kept a claim from taking more of a queue, if any; `row` is the row after the claim."""
    if not pick.more or taken >= wanted:
        return []
    if pick.held is not None and taken == pick.room:
        until = row.opens_at if pick.held.why == "rate" else None
        left = pick.held.remaining - taken
        return [msgspec.structs.replace(pick.held, remaining=left, until=until)]
    limit = row.limits.group_concurrency
    if pick.full and limit is not None and taken == len(pick.names):
        return [Blocked(row.queue, "group_concurrency", limit, 0)]
    return []


def interleaved(lists: Iterable[list[str]], jobs: Mapping[str, Job], most: int) -> list[str]:
    """Merge lists of jobs by priority, due time and age; each list keeps its order."""
    waiting = [list(reversed(names)) for names in lists if names]
    order: list[str] = []
    while waiting and len(order) < most:
        first = min(waiting, key=lambda names: place_of(jobs[names[-1]]))
        order.append(first.pop())
        waiting = [names for names in waiting if names]
    return order


def place_of(job: Job) -> tuple[int, float, str]:
    """Return a job's sort key in the order of claims (L7)."""
    return -job.priority, job.due_at, job.id


def started_at(jobs: Iterable[Job]) -> list[float]:
    """Return since when the code of each job has run, where its row has it."""
    known = (job.course.started_at for job in jobs if job.course is not OUTDATED)
    return [at for at in known if at is not None]


def is_waiting(job: Job, now: float) -> bool:
    """Return whether a job is due and waits for a worker."""
    return job.state is JobState.QUEUED and job.due_at <= now
