"""How much a queue may do at once, and whose turn it is: pure functions of rows, counts and the time.

The limits of a queue are one row. What runs is counted from live leases and never kept, so that nothing can leak when a
worker dies. What a rate allows is a bucket of tokens in the row, spent in the transaction that claims.

Groups share a queue: a job goes to the group with the fewest running jobs per weight, and among equals in turn.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import InvalidSetting

__all__ = ["Blocked", "LimitRow", "Limits", "QueueState", "fill", "queue_state", "retry_after", "room_of", "tokens_of"]

NEARLY = 1e-6  # of a token: what rounding may have lost of it
RETRY_SECONDS = (1.0, 60.0)  # how soon, and how late at most, somebody who was refused is told to come back
NUMBERS = (1e-9, 1e9)  # between which a rate, a period and a weight are
AGES_MAX = 100  # running jobs of a full queue that are asked how long they have run
COUNTED_MAX = 10_000  # waiting jobs of a queue that are counted for whoever looks
GROUPS_SHOWN = 20


def _is(value: Any, *kinds: type) -> bool:
    """Whether it is one of some kinds; True and False are no numbers."""
    return isinstance(value, kinds) and not isinstance(value, bool)


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a queue may do; None is no limit.

    Attributes:
        queue: its name.
        concurrency: jobs of it that run at once, over all processes.
        group_concurrency: jobs of each group that run at once.
        rate: jobs that are started per `rate_seconds`, over all processes.
        rate_seconds: the period of the rate.
        burst: how many may be started at once after a while of rest; unless said, one period's worth, at least 1.
        depth: jobs that may wait; what is submitted beyond that is refused.
        paused: whether nothing of it is started.
        weights: of groups, where they are not 1.
    """

    queue: str
    concurrency: int | None = None
    group_concurrency: int | None = None
    rate: float | None = None
    rate_seconds: float = 1.0
    burst: int | None = None
    depth: int | None = None
    paused: bool = False
    weights: dict[str, float] = {}

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("concurrency", "group_concurrency", "burst", "depth"):
            value: Any = getattr(self, name)
            if value is not None and not _is(value, int):  # what is kept must be readable by every claim
                raise InvalidSetting(name, value, "must be a whole number")
            if value is not None and not 1 <= value < 2**53:
                raise InvalidSetting(name, value, "must be at least 1; to start nothing, pause the queue")
        if not _is(self.weights, dict) or not all(_is(name, str) for name in self.weights):
            raise InvalidSetting("weights", self.weights, 'must be a dict such as {"acme": 3}')
        numbers: list[tuple[str, Any]] = [(f"weight of {name}", weight) for name, weight in self.weights.items()]
        numbers += [("rate", self.rate)] if self.rate is not None else []
        for name, number in [*numbers, ("rate_seconds", self.rate_seconds)]:
            if not _is(number, int, float) or not NUMBERS[0] <= number <= NUMBERS[1]:  # NaN is not, either
                raise InvalidSetting(name, number, "must be a number above 0, and at most a billion")
        if not _is(self.queue, str) or not self.queue:
            raise InvalidSetting("queue", self.queue, "must have a name")

    @property
    def per_second(self) -> float:
        """How many tokens come in a second."""
        return (self.rate or 0.0) / self.rate_seconds

    @property
    def capacity(self) -> float:
        """How many tokens there can be."""
        return float(self.burst) if self.burst is not None else max(1.0, self.rate or 0.0)

    @property
    def slack(self) -> float:
        """For how many seconds after the first token more are saved up."""
        return (self.capacity - 1.0) / self.per_second if self.rate is not None else 0.0


class Blocked(msgspec.Struct, frozen=True):
    """What kept a claim from taking more of a queue: which limit, what is left of it, and until when, if time decides.

    Attributes:
        queue: the queue.
        why: ``concurrency``, ``group_concurrency``, ``rate``, ``paused``, or ``turn``: another claim takes from it.
        limit: the number that was set; 0 of a queue that is paused, or another's turn.
        remaining: what is left of it.
        until: when it is worth to claim again, of a rate; else None: a lease that ends, or a changed row, decides.
        slack: for how many seconds after that nothing is lost if nobody claims: what comes by then is saved up.
    """

    queue: str
    why: str
    limit: float
    remaining: float
    until: float | None = None
    slack: float = 0.0


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's limits, and how it stands.

    Attributes:
        limits: what was set.
        running: jobs of it with a live lease.
        queued: jobs of it that are due and wait; not counted beyond 10,000.
        tokens: what the rate allows now; None without a rate.
        held_until: when the next token comes, if there is none; else None.
        groups: how many jobs of which group run; the first 20 by number.
        changed_at: when the limits were last changed; None if nobody has.
        changed_by: by whom, if that was said.
    """

    limits: Limits
    running: int
    queued: int
    tokens: float | None
    held_until: float | None
    groups: dict[str, int]
    changed_at: float | None = None
    changed_by: str | None = None


class LimitRow(msgspec.Struct, frozen=True):
    """A queue's row: its limits, and what is kept for them.

    Attributes:
        limits: what was set.
        grouped: whether jobs with a group were ever submitted to it.
        tokens: what was in the bucket.
        tokens_at: at this time.
        turn: the group that was served last.
        changed_at: when the limits were last changed.
        changed_by: by whom.
    """

    limits: Limits
    grouped: bool = False
    tokens: float = 0.0
    tokens_at: float = 0.0
    turn: str = ""
    changed_at: float | None = None
    changed_by: str | None = None

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.limits.queue

    @property
    def opens_at(self) -> float | None:
        """When there is a token; None without a rate."""
        if self.limits.rate is None:
            return None
        return self.tokens_at + max(0.0, 1.0 - self.tokens) / self.limits.per_second

    def set(self, limits: Limits, now: float, actor: str | None) -> LimitRow:
        """Give it other limits; whether it is paused stays. A bucket that was not there is full, others keep theirs."""
        known = self.limits.rate is not None
        tokens = min(tokens_of(self, now), limits.capacity) if known else limits.capacity
        limits = msgspec.structs.replace(limits, paused=self.limits.paused)
        changed = {"limits": limits, "changed_at": now, "changed_by": actor}
        if limits.rate is None:
            return msgspec.structs.replace(self, tokens=0.0, tokens_at=0.0, **changed)
        return msgspec.structs.replace(self, tokens=tokens, tokens_at=max(now, self.tokens_at), **changed)

    def pause(self, now: float, actor: str | None, *, paused: bool) -> LimitRow:
        """Pause it, or let it go on."""
        limits = msgspec.structs.replace(self.limits, paused=paused)
        return msgspec.structs.replace(self, limits=limits, changed_at=now, changed_by=actor)

    def spend(self, taken: Sequence[str], now: float) -> LimitRow:
        """Take a token for each job that was claimed; their groups, in the order they were served."""
        turn = taken[-1] if self.grouped and taken else self.turn
        if self.limits.rate is None:
            return msgspec.structs.replace(self, turn=turn)
        left = tokens_of(self, now) - len(taken)
        return msgspec.structs.replace(self, turn=turn, tokens=left, tokens_at=max(now, self.tokens_at))

    def is_bare(self) -> bool:
        """Whether it says nothing."""
        return not self.grouped and self.limits == Limits(queue=self.queue)


def tokens_of(row: LimitRow, now: float) -> float:
    """How many tokens there are. A clock that goes back takes none away."""
    grown = max(0.0, now - row.tokens_at) * row.limits.per_second
    return min(row.limits.capacity, row.tokens + grown)


def room_of(row: LimitRow, running: int, now: float) -> tuple[int, Blocked | None]:
    """How many jobs of a queue may be started now, and what it is that allows no more; None if nothing does."""
    limits = row.limits
    if limits.paused:
        return 0, Blocked(row.queue, "paused", 0, 0)
    room, held = 2**53, None
    if limits.concurrency is not None:
        room = max(0, limits.concurrency - running)
        held = Blocked(row.queue, "concurrency", limits.concurrency, room)
    if limits.rate is not None:
        tokens = tokens_of(row, now)
        whole = max(0, math.floor(tokens + NEARLY))
        if whole < room:
            room, held = whole, Blocked(row.queue, "rate", limits.rate, tokens, row.opens_at, limits.slack)
    return room, held


def retry_after(limits: Limits, running: int, ages: Sequence[float]) -> float:
    """Say in how many seconds it is worth to submit again to a full queue: when a tenth of it has gone.

    A rate tells how fast it goes; so do the jobs that run, by how long they have: on average half of what they take.

    Args:
        limits: the queue's.
        running: how many jobs of it run.
        ages: for how long each of some of them has run, in seconds.
    """
    least, most = RETRY_SECONDS
    if limits.paused:
        return most
    tenth = (limits.depth or 0) / 10
    by_rate = tenth / limits.per_second if limits.rate is not None else least
    by_jobs = tenth * 2 * (sum(ages) / len(ages)) / running if ages else least
    return min(max(least, by_rate, by_jobs), most)


def fill(
    row: LimitRow, groups: Sequence[str], running: Mapping[str, int], most: int, has: Mapping[str, int]
) -> list[str]:
    """Say whose jobs to take, one after another: the group with the fewest running per weight, among equals in turn.

    Args:
        row: the queue's.
        groups: those with jobs that wait, in turn.
        running: how many jobs of which group run.
        most: how many to take.
        has: how many jobs wait in a group, where that is known; others have as many as are asked for.
    """
    limits = row.limits
    order: list[str] = []
    heap = [
        (running.get(name, 0) / limits.weights.get(name, 1.0), place, name, 0)
        for place, name in enumerate(groups)
        if may_take(limits, name, running.get(name, 0)) and has.get(name, 1)
    ]
    heapq.heapify(heap)
    while heap and len(order) < most:
        _, place, name, taken = heapq.heappop(heap)
        order.append(name)
        now_running = running.get(name, 0) + taken + 1
        if may_take(limits, name, now_running) and taken + 1 < has.get(name, most):
            heapq.heappush(heap, (now_running / limits.weights.get(name, 1.0), place, name, taken + 1))
    return order


def may_take(limits: Limits, group: str, running: int) -> bool:
    """Whether another job of a group may run; jobs without one are not limited by group."""
    return not group or limits.group_concurrency is None or running < limits.group_concurrency


def in_turn(names: Sequence[str], turn: str) -> list[str]:
    """Put groups in turn: those behind the one that was served last, then the others."""
    return sorted(names, key=lambda name: (name <= turn, name))


def queue_state(row: LimitRow, running: Mapping[str, int], waiting: int, now: float) -> QueueState:
    """Say how a queue stands, for whoever looks."""
    groups = sorted(((count, name) for name, count in running.items() if name), key=lambda one: (-one[0], one[1]))
    opens_at = row.opens_at
    return QueueState(
        limits=row.limits,
        running=sum(running.values()),
        queued=min(waiting, COUNTED_MAX),
        tokens=tokens_of(row, now) if row.limits.rate is not None else None,
        held_until=opens_at if opens_at is not None and opens_at > now else None,
        groups={name: count for count, name in groups[:GROUPS_SHOWN]},
        changed_at=row.changed_at,
        changed_by=row.changed_by,
    )
