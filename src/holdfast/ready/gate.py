"""The protocol of a gate, its shares and counts, and the handlers for a gate that breaks its contract.

A gate answers whether a caller may go on (`poll_ready`). It admits callers (`acquire`, `try_acquire`, ``async with``,
``with``), or lets them wait for a good moment without taking anything (`ready`). `BaseGate` implements it for all gates
of this package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from holdfast.errors import HoldfastError
from holdfast.machines.ready_table import Reading, ReadyState
from holdfast.ready.monitor import Waker

OnViolation = Callable[[str, HoldfastError], None]
"""Called with a gate's name and the refusal of its monitor, outside every lock."""

_log = logging.getLogger("holdfast.ready")


def log_violation(gate: str, error: HoldfastError) -> None:
    """Log a violation as an error, for production. The gate has restarted at Ready and continues.

    The log record has the attributes `gate` and `violation`, the kind of the refusal, for structured logging.
    """
    fields = {"gate": gate, "violation": type(error).__name__}
    _log.error("gate %s broke the contract of readiness and was reset: %s", gate, error, extra=fields)


def raise_violation(gate: str, error: HoldfastError) -> None:
    """Raise the refusal to the caller that polled, for tests."""
    error.add_note(f"at the gate {gate}")
    raise error


class ShareOwner(Protocol):
    """The gate that takes a share back."""

    def _give_back(self, share: Share, error: BaseException | None) -> None: ...


class Share:
    """A share of a gate, from `try_acquire` or `acquire`. ``with share:`` releases it at the end of the block.

    Releasing a share twice is harmless. A share that is never released stays taken, as a lock would.
    """

    __slots__ = ("_gate", "receipts")

    def __init__(self, gate: ShareOwner, receipts: Sequence[object]) -> None:
        self._gate = gate
        self.receipts: Sequence[object] | None = receipts  # one for each leaf of the gate; None once released

    @property
    def released(self) -> bool:
        """Whether the share was released."""
        return self.receipts is None

    def release(self, error: BaseException | None = None) -> None:
        """Release the share. `error` is the error that ended the work; a `BackoffGate` counts it."""
        self._gate._give_back(self, error)  # noqa: SLF001 - the private half of a share, in its gate

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(error)


@dataclass(frozen=True, slots=True)
class GateCounts:
    """The totals of a gate so far (S5). States and sources are keyed by their wire names, and all are present."""

    gate: str
    state: ReadyState
    polls: Mapping[str, int]  # number of polls, by the state reported
    wakes: Mapping[str, int]  # number of accepted wakes, by source
    seconds: Mapping[str, float]  # how long each state was the latest one
    waiting: int  # callers in line
    violations: int  # refusals by the monitor; 0 unless there is a bug here or in a ledger
    violation: str | None = None  # the latest of them


@runtime_checkable
class Gate(Protocol):
    """A limit on how much runs at once. Every method may be called from any thread."""

    @property
    def name(self) -> str:
        """The name of the gate in counts and displays."""
        ...

    def poll_ready(self, waker: Waker | None = None) -> Reading:
        """Return whether a share can be taken now.

        If the reading is Pending, and only then, the gate keeps `waker` and calls it once when it is worth polling
        again. After a reading other than Ready and Pending, poll again at once if you mean to wait. A hold that a timer
        ends is ended by the caller that polls at that time; see `wake_in_seconds`.
        """
        ...

    def wake_in_seconds(self) -> float | None:
        """Return when to poll again without a wake, in seconds; None if time alone changes nothing."""
        ...

    def why(self) -> str | None:
        """Return what holds the gate closed at this moment, as text; None if it is open."""
        ...

    def try_acquire(self) -> Share | None:
        """Take a share if one is free and no caller waits for it; else return None. Never waits."""
        ...

    async def acquire(self) -> Share:
        """Take a share. Wait in line, first come first served, until one is free."""
        ...

    def acquire_blocking(self, timeout_seconds: float | None = None) -> Share | None:
        """Take a share in a thread that may block. Return None if the time ran out first."""
        ...

    async def ready(self) -> None:
        """Wait until a share is free and no caller is in line for it. Take nothing."""
        ...

    def counts(self) -> GateCounts:
        """Return the totals so far."""
        ...

    async def __aenter__(self) -> Share: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __enter__(self) -> Share: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
