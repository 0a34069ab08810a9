"""Queue limits and the turns of groups: pure functions of rows, counts and the time.

The limits of a queue are one row. Running jobs are counted from live leases and not stored, so nothing leaks when a
worker dies. A rate limit is a token bucket in the row. The transaction that claims spends its tokens.

Groups share a queue. The next job comes from the group with the fewest running jobs per weight; equal groups take
turns.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import InvalidSetting, LimitsChanged

NEARLY = 1e-6  # of a token: rounding tolerance
RETRY_SECONDS = (1.0, 60.0)  # least and most of `retry_after`
NUMBERS = (1e-9, 1e9)  # range of a rate, a period and a weight
AGES_MAX = 100  # running jobs of a full queue whose age is read
COUNTED_MAX = 10_000  # waiting jobs of a queue that are counted for readers
GROUPS_SHOWN = 20


def _is(value: Any, *kinds: type) -> bool:
    """Return whether a value has one of these types; bool does not count as a number."""
    return isinstance(value, kinds) and not isinstance(value, bool)


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a queue; None is no limit.

    Attributes:
        queue: its name.
        concurrency: jobs that run at once, over all processes.
        group_concurrency: jobs of each group that run at once.
        rate: jobs that start per `rate_seconds`, over all processes.
        rate_seconds: the period of the rate.
        burst: how many may start at once after a pause; by default one period's worth, at least 1.
        depth: jobs that may wait; further submissions are refused.
        paused: whether it starts no jobs.
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
        """Validate the fields."""
        for name in ("concurrency", "group_concurrency", "burst", "depth"):
            value: Any = getattr(self, name)
            if value is not None and not _is(value, int):  # every claim must be able to read the stored value
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
        """Return how many tokens come per second."""
        return (self.rate or 0.0) / self.rate_seconds

    @property
    def capacity(self) -> float:
        """Return how many tokens the bucket holds."""
        return float(self.burst) if self.burst is not None else max(1.0, self.rate or 0.0)

    @property
    def slack(self) -> float:
        """Return for how many seconds after the first token the bucket still fills."""
        return (self.capacity - 1.0) / self.per_second if self.rate is not None else 0.0


class Blocked(msgspec.Struct, frozen=True):
    """The limit that kept a claim from taking more jobs of a queue.

    Attributes:
        queue: the queue. why: ``concurrency``, ``group_concurrency``, ``rate``, ``paused``, or ``turn``: another claim
        has locked the queue. limit: the configured number; 0 for ``paused`` and ``turn``. remaining: what is left of
        it. until: when to claim again, for a rate; else None, because the end of a lease or a changed row decides.
        slack: for how many seconds after that a late claim loses nothing, because the bucket still fills.
    """

    queue: str
    why: str
    limit: float
    remaining: float
    until: float | None = None
    slack: float = 0.0


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's limits and current numbers.

    Attributes:
        limits: the limits.
        running: jobs with a live lease.
        queued: jobs that are due and wait; not counted beyond 10,000.
        tokens: how many jobs the rate allows now; None without a rate.
        held_until: when the next token comes, if there is none now; else None.
        groups: running jobs by group; the 20 largest groups.
        changed_at: when the limits were last changed; None if never.
        changed_by: who changed them, if known.
    """

    limits: Limits
    running: int
    queued: int
    tokens: float | None
    held_until: float | None
    groups: dict[str, int]
    changed_at: float | None = None
    changed_by: str | None = None


def no_limits(queue: str) -> QueueState:
    """Return the state of a queue without limits, for which the store counts nothing."""
    return QueueState(limits=Limits(queue=queue), running=0, queued=0, tokens=None, held_until=None, groups={})


class LimitRow(msgspec.Struct, frozen=True):
    """A queue's row: its limits and their state.

    Attributes:
        limits: the limits.
        grouped: whether jobs with a group were ever submitted to it.
        tokens: tokens in the bucket at `tokens_at`.
        tokens_at: the time of that count.
        turn: the group that was served last.
        changed_at: when the limits were last changed.
        changed_by: who changed them.
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
        """Return the queue's name."""
        return self.limits.queue

    @property
    def opens_at(self) -> float | None:
        """Return when there is a token; None without a rate."""
        if self.limits.rate is None:
            return None
        return self.tokens_at + max(0.0, 1.0 - self.tokens) / self.limits.per_second

    def set(self, limits: Limits, now: float, actor: str | None, expected: Limits | None = None) -> LimitRow:
        """Return the row with other limits. `paused` stays. A new bucket is full; an existing one keeps its tokens.

        Raises:
            LimitsChanged: the row has other limits than the expected ones.
        """
        if expected is not None and expected != self.limits:
            raise LimitsChanged(limits.queue)
        known = self.limits.rate is not None
        tokens = min(tokens_of(self, now), limits.capacity) if known else limits.capacity
        limits = msgspec.structs.replace(limits, paused=self.limits.paused)
        changed = {"limits": limits, "changed_at": now, "changed_by": actor}
        if limits.rate is None:
            return msgspec.structs.replace(self, tokens=0.0, tokens_at=0.0, **changed)
        return msgspec.structs.replace(self, tokens=tokens, tokens_at=max(now, self.tokens_at), **changed)

    def pause(self, now: float, actor: str | None, *, paused: bool) -> LimitRow:
        """Return the row paused or resumed."""
        limits = msgspec.structs.replace(self.limits, paused=paused)
        return msgspec.structs.replace(self, limits=limits, changed_at=now, changed_by=actor)

    def spend(self, taken: Sequence[str], now: float) -> LimitRow:
        """Return the row after a claim: one token less per job. `groups` are the jobs' groups in the order served."""
        turn = taken[-1] if self.grouped and taken else self.turn
        if self.limits.rate is None:
            return msgspec.structs.replace(self, turn=turn)
        left = tokens_of(self, now) - len(taken)
        return msgspec.structs.replace(self, turn=turn, tokens=left, tokens_at=max(now, self.tokens_at))

    def is_bare(self) -> bool:
        """Return whether the row holds no information and can be removed."""
        return not self.grouped and self.limits == Limits(queue=self.queue)


def tokens_of(row: LimitRow, now: float) -> float:
    """Return how many tokens there are. A clock that goes back takes none away."""
    grown = max(0.0, now - row.tokens_at) * row.limits.per_second
    return min(row.limits.capacity, row.tokens + grown)


def room_of(row: LimitRow, running: int, now: float) -> tuple[int, Blocked | None]:
    """Return how many jobs of a queue may start now, and the limit that allows no more, if any."""
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
    """Return in how many seconds to submit again to a full queue: when a tenth of it will have drained.

    It is the longer of two estimates: from the rate, and from the average age of running jobs. On average a running job
    has done half of its work.

    Args:
        limits: the queue's.
        running: how many jobs of it run.
        ages: for some of them, how long each has run, in seconds.
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
    """Return the groups to take jobs from, in order: fewest running jobs per weight first, equal groups in turn.

    Args:
        row: the queue's.
        groups: those with waiting jobs, in turn.
        running: running jobs by group.
        most: how many to take.
        has: waiting jobs by group, where known; the other groups have enough.
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
    """Return whether another job of a group may run; jobs without a group are not limited by it."""
    return not group or limits.group_concurrency is None or running < limits.group_concurrency


def in_turn(names: Sequence[str], turn: str) -> list[str]:
    """Return groups in turn: those after the one that was served last, then the others."""
    return sorted(names, key=lambda name: (name <= turn, name))


def queue_state(row: LimitRow, running: Mapping[str, int], waiting: int, now: float) -> QueueState:
    """Return a queue's state, for readers."""
    groups = sorted(((count, name) for name, count in running.items() if name), key=lambda group: (-group[0], group[1]))
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
