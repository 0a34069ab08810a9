"""The ReadyState machine: whether a part of the system may take more work (SPEC S1, S2).

Rule 1: a poll returns a *reading*: `Ready`, `Busy`, `BudgetExhausted`, `RetryAfter` or `Pending`.
Rule 2: `READY.advance(current, next)` decides whether one state may follow another. Three self-edges are missing: an
exhausted budget and a back-off are reported once, and Pending ends by a wake, never by another Pending.
Rule 3: `Pending` without a source that could wake it cannot be made.

`holdfast.ready.ReadyMonitor` keeps the contract of Pending over time: wakes, waiters, threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from holdfast.errors import EmptyWakeSet, InvalidWake
from holdfast.machines.table import Table


class ReadyState(StrEnum):
    """The five states. Members equal their wire names."""

    READY = "ready"
    BUSY = "busy"
    BUDGET_EXHAUSTED = "budget_exhausted"
    RETRY_AFTER = "retry_after"
    PENDING = "pending"


class WakeSource(StrEnum):
    """The sources that may end a Pending interval."""

    IO_READY = "io_ready"  # new work, a freed slot, a readable socket
    TIMER = "timer"  # a due time, the end of a back-off or of a budget's window
    CONFIG_RELOAD = "config_reload"  # limits or settings were changed


_S = ReadyState

_WAYS: dict[ReadyState | None, tuple[ReadyState, ...]] = {
    None: (_S.READY,),
    _S.READY: (_S.READY, _S.BUSY, _S.BUDGET_EXHAUSTED, _S.RETRY_AFTER, _S.PENDING),
    _S.BUSY: (_S.READY, _S.BUSY, _S.BUDGET_EXHAUSTED, _S.RETRY_AFTER, _S.PENDING),
    _S.BUDGET_EXHAUSTED: (_S.READY, _S.BUSY, _S.RETRY_AFTER, _S.PENDING),
    _S.RETRY_AFTER: (_S.READY, _S.BUSY, _S.BUDGET_EXHAUSTED, _S.PENDING),
    _S.PENDING: (_S.READY, _S.BUSY, _S.BUDGET_EXHAUSTED, _S.RETRY_AFTER),
}

READY: Table[ReadyState, ReadyState] = Table(
    "ReadyState",
    states=ReadyState,
    events=ReadyState,
    lines=[(current, target, target) for current, targets in _WAYS.items() for target in targets],
)


def wake_sources(names: Iterable[WakeSource | str]) -> frozenset[WakeSource]:
    """Turn members and wire names into a set of sources.

    Raises:
        InvalidWake: a name is not a wake source.
        EmptyWakeSet: there is no name.
    """
    sources = frozenset(_wake_source(name) for name in ([names] if isinstance(names, str) else names))
    if not sources:
        raise EmptyWakeSet
    return sources


def _wake_source(name: WakeSource | str) -> WakeSource:
    try:
        return WakeSource(name)
    except ValueError:
        raise InvalidWake(str(name)) from None


@dataclass(frozen=True, slots=True)
class Ready:
    """Work can be taken now."""

    state: ClassVar[ReadyState] = ReadyState.READY


@dataclass(frozen=True, slots=True)
class Busy:
    """Healthy but full; `reason` says of what."""

    reason: str

    state: ClassVar[ReadyState] = ReadyState.BUSY


@dataclass(frozen=True, slots=True)
class BudgetExhausted:
    """A rate, count or cost limit is used up. Reported once; then Busy, RetryAfter or Pending on a timer."""

    limit: float
    remaining: float = 0

    state: ClassVar[ReadyState] = ReadyState.BUDGET_EXHAUSTED


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """An upstream asked to be called later. Reported once; then Pending on a timer until the wait is over."""

    wait_seconds: float

    state: ClassVar[ReadyState] = ReadyState.RETRY_AFTER

    def __post_init__(self) -> None:
        """Refuse a wait that is not a finite time over 0 seconds."""
        if not (self.wait_seconds > 0 and math.isfinite(self.wait_seconds)):
            raise ValueError(f"RetryAfter needs a finite wait over 0 seconds, got {self.wait_seconds!r}")


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing to report until one of `sources` wakes it (S3)."""

    sources: frozenset[WakeSource]

    state: ClassVar[ReadyState] = ReadyState.PENDING

    def __post_init__(self) -> None:
        """Take any iterable of members or wire names; refuse the empty set."""
        object.__setattr__(self, "sources", wake_sources(self.sources))

    def __repr__(self) -> str:
        return f"Pending({', '.join(sorted(self.sources))})"


Reading = Ready | Busy | BudgetExhausted | RetryAfter | Pending
