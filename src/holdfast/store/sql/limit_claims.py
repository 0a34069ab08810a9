"""Claims and submissions where queues have limits, within a batch: counted and taken in one transaction.

A queue without a row in `limits` is claimed from as if there were no limits at all, with one statement for all such
queues. Of the others, those are looked at in which jobs wait that the claim could take; where their limits leave room,
their rows are locked, what runs is counted under the lock, and groups are served in turn. So two claims that count the
same queue follow one another, on every backend, and those of other queues do not wait for them. A transaction that ends
jobs and takes as many adds nothing to what is counted, and may do so beside others; see the backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.errors import QueueFull
from holdfast.machines import JobState
from holdfast.store import commands as c
from holdfast.store.commands import LIMITS, ROOM, WORK
from holdfast.store.limits import AGES_MAX, Blocked, LimitRow, Limits, fill, may_take, retry_after, room_of
from holdfast.store.rows import OUTDATED, Job
from holdfast.store.shared_budgets import BudgetRow, SpendBudget, Spent, spent_of

__all__ = ["Limited", "Pick", "Places", "held_back", "interleaved"]

AGAIN_SECONDS = 0.02  # until a queue is looked at again that another claim was taking from
ROUNDS = 4  # how often groups that had fewer jobs than their share are made up for by others, in one claim
Running = dict[str, int]  # jobs with a live lease, by group


class Pick(msgspec.Struct):
    """What a claim may take of one queue, in order, and what it would leave.

    Attributes:
        row: the queue's.
        names: of jobs, in the order in which they are to be taken.
        room: how many may be taken.
        held: what it is that allows no more; None if nothing does.
        more: whether jobs wait beyond these.
        full: whether jobs wait in a group that may not run more.
    """

    row: LimitRow
    names: list[str]
    room: int
    held: Blocked | None
    more: bool
    full: bool


class Places:
    """How many more jobs a transaction has let go of than it has taken, by queue and group."""

    def __init__(self) -> None:
        self._free: Counter[tuple[str, str]] = Counter()

    def move(self, before: Job | None, after: Job) -> None:
        """A job is about to become another: it may have left its place, or taken one."""
        held = before is not None and before.state is JobState.RUNNING
        if held != (after.state is JobState.RUNNING):
            self._free[after.queue, after.group or ""] += 1 if held else -1

    def free(self, queue: str) -> int:
        """How many it has let go of in a queue, and not taken."""
        return sum(count for (name, _), count in self._free.items() if name == queue)

    def left(self, limits: Mapping[str, LimitRow] | None) -> int:
        """Say whether others may have something of it: ROOM, or 0. Where limits were not read there may be some."""
        for queue in {queue for queue, _ in self._free}:
            counts = [count for (name, _), count in self._free.items() if name == queue]
            row = limits.get(queue) if limits is not None else None
            by_group = limits is None or (row is not None and row.limits.group_concurrency is not None)
            at_once = row is not None and row.limits.concurrency is not None
            if (by_group and max(counts) > 0) or (at_once and sum(counts) > 0):
                return ROOM
        return 0


class Limited(ABC):
    """The part of a batch that is about queues with limits."""

    now: float
    change: int
    _jobs: dict[str, Job]

    def __init__(self) -> None:
        self._limits: dict[str, LimitRow] | None = None  # by queue, as far as anybody has asked
        self.places = Places()
        self._again: dict[str, float] = {}  # when to come again to queues that are full
        self._depths: dict[str, int] = {}  # jobs that wait in queues with a depth, while nothing but submits is done

    @abstractmethod
    def flush(self) -> None:
        """Write what was gathered."""

    @abstractmethod
    def load(self, names: Iterable[str]) -> None:
        """Have rows at hand."""

    @abstractmethod
    def look_again(self, name: str) -> Job | None:
        """Look for a job that was taken to be new, where that was not looked for."""

    @abstractmethod
    def read_limits(self) -> Iterable[LimitRow]:
        """Read the rows of all queues that have one."""

    @abstractmethod
    def put_limits(self, row: LimitRow) -> None:
        """Write a queue's row, which may be new."""

    @abstractmethod
    def put_grouped(self, row: LimitRow) -> None:
        """Write that a queue has groups; others may write it at the same time."""

    @abstractmethod
    def drop_limits(self, queue: str) -> None:
        """Remove a queue's row."""

    @abstractmethod
    def promote(self) -> None:
        """See that jobs which have become due are found as such."""

    @abstractmethod
    def count_waiting(self, queue: str, most: int) -> int:
        """Count the jobs of a queue that are due and wait, after `promote`; not beyond `most`."""

    @abstractmethod
    def running_since(self, queue: str, most: int) -> tuple[int, list[float]]:
        """Count the jobs of a queue with a live lease, and say of some since when their code has run."""

    @abstractmethod
    def find_claimable(self, command: c.Claim, besides: list[str]) -> list[str]:
        """Find the jobs that a claim takes of all queues but some, in its order."""

    @abstractmethod
    def look_at(self, command: c.Claim, queues: list[str]) -> Callable[[], dict[str, Running]]:
        """Ask for those of some queues in which jobs wait that a claim could take, and what runs there.

        What is answered is read later, so that it can come with the answer to another question.
        """

    @abstractmethod
    def lock_limits(self, queues: list[str], seen: Mapping[str, Running]) -> list[tuple[LimitRow, Running]]:
        """Keep other claims out of queues, by name; read their rows, then the time, and count what runs there.

        Those that another claim is taking from may be left out: it takes what there is, and will be over soon.
        """

    @abstractmethod
    def lock_row(self, queue: str) -> LimitRow | None:
        """Keep others from a queue's row, and read it, then the time; None if it has none."""

    @abstractmethod
    def lock_budget(self, name: str) -> BudgetRow | None:
        """Keep others from a budget, and read its row."""

    @abstractmethod
    def put_budget(self, name: str, row: BudgetRow) -> None:
        """Write a budget's row."""

    def spend_budget(self, command: SpendBudget) -> Spent:
        """Take of a budget that processes share."""
        answer, row = spent_of(command, self.lock_budget(command.budget))
        if row is not None:
            self.put_budget(command.budget, row)
        return answer

    @abstractmethod
    def find_groups(self, command: c.Claim, row: LimitRow, most: int) -> list[str]:
        """Find groups of a queue with jobs that a claim could take, in turn; "" stands for jobs without one."""

    @abstractmethod
    def find_heads(self, command: c.Claim, queue: str, wanted: Mapping[str, int]) -> dict[str, list[str]]:
        """Find the first so many jobs of each of some groups, in the claim's order, and have them at hand."""

    # What is asked of it

    def set_limits(self, command: c.SetLimits) -> None:
        """Set the limits of a queue."""
        row = self._locked(command.limits.queue)
        self._put(row.set(command.limits, self.now, command.actor))

    def pause_queue(self, command: c.PauseQueue) -> None:
        """Pause a queue, or let it go on."""
        row = self._locked(command.queue)
        self._put(row.pause(self.now, command.actor, paused=command.paused))

    def admit(self, command: c.Submit) -> Job | None:
        """See that a new job may come in; None, or the job that is there already, after all.

        Raises:
            QueueFull: as many jobs wait as may.
        """
        row = self._of(command.queue)
        if row.limits.depth is not None and not self._has_room(command, row.limits.depth):
            existing = self.look_again(command.job)
            if existing is None:
                raise QueueFull(command.queue, row.limits.depth, self._again_after(row))
            return existing
        if command.group is not None and not row.grouped:
            self._all_limits()[command.queue] = row = msgspec.structs.replace(row, grouped=True)
            self.put_grouped(row)
        return None

    def _again_after(self, row: LimitRow) -> float:
        if row.queue not in self._again:
            running, since = self.running_since(row.queue, AGES_MAX)
            self._again[row.queue] = retry_after(row.limits, running, [max(0.0, self.now - at) for at in since])
        return self._again[row.queue]

    def _has_room(self, command: c.Submit, depth: int) -> bool:
        if command.queue not in self._depths:
            self.flush()
            self.promote()
            self._depths[command.queue] = self.count_waiting(command.queue, depth)
        if self._depths[command.queue] >= depth and command.parent is None:
            return False
        self._depths[command.queue] += (command.due_at or 0.0) <= self.now
        return True

    def choose(self, command: c.Claim) -> tuple[list[str], tuple[Blocked, ...]]:
        """Say which jobs a claim takes, in order, and what keeps it from more."""
        limited = [queue for queue in self._all_limits() if command.queues is None or queue in command.queues]
        if not limited:
            return self.find_claimable(command, []), ()
        self.promote()
        others = command.queues is None or len(command.queues) > len(limited)
        look = self.look_at(command, limited)
        plain = self.find_claimable(command, limited) if others else []
        self.load(plain)
        seen = look()
        held: list[Blocked] = []
        with_room = []
        for queue, running in seen.items():
            room, why = room_of(self._all_limits()[queue], sum(running.values()), self.now)
            if room:
                with_room.append(queue)
            elif why is not None:
                held.append(why)
        picks = [self._pick(command, row, running) for row, running in self.lock_limits(sorted(with_room), seen)]
        held += self._passed_over(with_room, picks)
        names = interleaved([plain, *(pick.names for pick in picks)], self._jobs, command.limit)
        held += self._spend(command, picks, set(names))
        return names, tuple(sorted(held, key=lambda one: one.queue))

    def _passed_over(self, queues: list[str], picks: list[Pick]) -> list[Blocked]:
        """Those that were not waited for, because somebody else takes from them: to be looked at again soon."""
        passed_over = sorted({*queues} - {pick.row.queue for pick in picks})
        soon = self.now + AGAIN_SECONDS
        return [Blocked(queue, "turn", 0, 0, soon, self._of(queue).limits.slack) for queue in passed_over]

    def _pick(self, command: c.Claim, row: LimitRow, running: Running) -> Pick:
        """Say what may be taken of one queue, whose row is locked: groups in turn, each in the claim's order."""
        room, held = room_of(row, sum(running.values()), self.now)
        most = min(room, command.limit)
        # So many groups at least have nothing running that `most` could be taken from them alone: no more are needed.
        groups = self.find_groups(command, row, most + len(running) + 1) if row.grouped else [""]
        found: dict[str, list[str]] = {}
        has: dict[str, int] = {}
        for _ in range(ROUNDS):
            shares = Counter(fill(row, groups, running, most, has))
            unsure = [name for name in shares if name not in has and shares[name] >= len(found.get(name, ()))]
            asked = {name: shares[name] for name in unsure}
            if not asked:
                break
            heads = self.find_heads(command, row.queue, {name: count + 1 for name, count in asked.items()})
            for name, count in asked.items():
                found[name] = heads.get(name, [])
                if len(found[name]) <= count:
                    has[name] = len(found[name])
        order = fill(row, groups, running, most, {name: len(found.get(name, ())) for name in groups})
        taken = Counter(order)
        heads_of = {name: iter(found[name]) for name in taken}
        left = [name for name in groups if name not in found or len(found[name]) > taken[name]]
        full = any(not may_take(row.limits, name, running.get(name, 0) + taken[name]) for name in left)
        return Pick(row, [next(heads_of[name]) for name in order], room, held, bool(left), full)

    def _spend(self, command: c.Claim, picks: list[Pick], taken: set[str]) -> list[Blocked]:
        """Write what was taken of each queue; what holds the rest back."""
        held = []
        for pick in picks:
            names = [name for name in pick.names if name in taken]
            row = pick.row.spend([self._jobs[name].group or "" for name in names], self.now)
            if row != pick.row:
                self._all_limits()[row.queue] = row
                self.put_limits(row)
            held += held_back(pick, row, len(names), command.limit)
        return held

    # Rows at hand

    def _all_limits(self) -> dict[str, LimitRow]:
        if self._limits is None:
            self._limits = {row.queue: row for row in self.read_limits()}
        return self._limits

    def _of(self, queue: str) -> LimitRow:
        return self._all_limits().get(queue) or LimitRow(Limits(queue=queue))

    def _locked(self, queue: str) -> LimitRow:
        self.flush()  # what was written so far has the time of before
        return self.lock_row(queue) or LimitRow(Limits(queue=queue))

    def _put(self, row: LimitRow) -> None:
        if row.is_bare():
            self._all_limits().pop(row.queue, None)
            self.drop_limits(row.queue)
        else:
            self._all_limits()[row.queue] = row
            self.put_limits(row)
        self.change |= WORK | LIMITS

    handlers: ClassVar[Mapping[type, Callable[..., Any]]] = {
        c.SetLimits: set_limits,
        c.PauseQueue: pause_queue,
        SpendBudget: spend_budget,
    }


def held_back(pick: Pick, row: LimitRow, taken: int, wanted: int) -> list[Blocked]:
    """Say what kept a claim from taking more of a queue, if something did; `row` is the queue's after it."""
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
    """Put lists of jobs together by priority, due time and age, each staying in its own order."""
    waiting = [list(reversed(names)) for names in lists if names]
    order: list[str] = []
    while waiting and len(order) < most:
        first = min(waiting, key=lambda names: place_of(jobs[names[-1]]))
        order.append(first.pop())
        waiting = [names for names in waiting if names]
    return order


def place_of(job: Job) -> tuple[int, float, str]:
    """Where a job stands in the order of claims (L7)."""
    return -job.priority, job.due_at, job.id


def started_at(jobs: Iterable[Job]) -> list[float]:
    """Since when the code of some jobs has run, where their rows say so."""
    known = (job.course.started_at for job in jobs if job.course is not OUTDATED)
    return [at for at in known if at is not None]


def is_waiting(job: Job, now: float) -> bool:
    """Whether a job is due and waits for a worker."""
    return job.state is JobState.QUEUED and job.due_at <= now
