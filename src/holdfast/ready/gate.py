"""The protocol of a gate, what can be counted at one, and what happens when one breaks its own contract.

A gate answers "may I?" (`poll_ready`), lets callers in (`acquire`, `try_acquire`, ``async with``, ``with``) or has them
wait for a good moment only (`ready`). `BaseGate` is how all gates of this package do it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from holdfast.errors import HoldfastError
from holdfast.machines.ready import Reading, ReadyState
from holdfast.ready.monitor import Waker

__all__ = ["Gate", "GateCounts", "OnViolation", "Share", "log_violation", "raise_violation"]

OnViolation = Callable[[str, HoldfastError], None]
"""Called with a gate's name and the refusal of its monitor, outside every lock."""

_log = logging.getLogger("holdfast.ready")


def log_violation(gate: str, error: HoldfastError) -> None:
    """Write an error to the log, for production: the gate has started anew at Ready and goes on.

    The record has the attributes `gate` and `violation`, the kind of the refusal, for whoever keeps logs as fields.
    """
    told = {"gate": gate, "violation": type(error).__name__}
    _log.error("gate %s broke the contract of readiness and starts anew: %s", gate, error, extra=told)


def raise_violation(gate: str, error: HoldfastError) -> None:
    """Raise it, for tests: whoever polled gets the refusal."""
    error.add_note(f"at the gate {gate}")
    raise error


class ShareOwner(Protocol):
    """What a share is given back to."""

    def _give_back(self, share: Share, error: BaseException | None) -> None: ...


class Share:
    """What one caller holds of a gate; ``with share:`` releases it at the end of the block."""

    __slots__ = ("_gate", "receipts")

    def __init__(self, gate: ShareOwner, receipts: Sequence[object]) -> None:
        self._gate = gate
        self.receipts: Sequence[object] | None = receipts  # one for each part of the gate; None once given back

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self.receipts is None

    def release(self, error: BaseException | None = None) -> None:
        """Give it back; `error` is how what it was taken for ended, which a `BackoffGate` wants to know."""
        self._gate._give_back(self, error)  # noqa: SLF001 - the two are one object seen from two sides

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(error)


@dataclass(frozen=True, slots=True)
class GateCounts:
    """What has happened at a gate so far (S5). States and sources are keyed by their wire names, all of them."""

    gate: str
    state: ReadyState
    polls: Mapping[str, int]  # one for each poll, by the state it reported
    wakes: Mapping[str, int]  # one for each wake that was taken, by its source
    seconds: Mapping[str, float]  # how long each state was the one reported last, until now
    waiting: int  # callers in line
    violations: int  # refusals of the monitor; 0 unless there is a bug here or in a ledger
    violation: str | None = None  # what the last of those was


@runtime_checkable
class Gate(Protocol):
    """How much at once. Every method may be called from any thread."""

    @property
    def name(self) -> str:
        """The name under which it is counted and shown."""
        ...

    def poll_ready(self, waker: Waker | None = None) -> Reading:
        """Say whether a share can be taken now.

        With Pending, and only then, `waker` is kept and called once when it is worth polling again. After any other
        reading than Ready and Pending poll again at once, if you mean to wait. What a timer will end is ended by
        whoever polls at that time: see `wake_in_seconds`.
        """
        ...

    def wake_in_seconds(self) -> float | None:
        """How long until a poll is worth it without a wake; None if time alone changes nothing."""
        ...

    def why(self) -> str | None:
        """What holds it closed at this moment, for people; None if nothing does."""
        ...

    def try_acquire(self) -> Share | None:
        """Take a share if one is free and nobody waits for it; never waits."""
        ...

    async def acquire(self) -> Share:
        """Take a share; wait in line, first come first served, until there is one."""
        ...

    def acquire_blocking(self, timeout_seconds: float | None = None) -> Share | None:
        """Do the same in a thread that may block; None if the time ran out first."""
        ...

    async def ready(self) -> None:
        """Wait until a share is free and nobody is in line for it; take nothing."""
        ...

    def counts(self) -> GateCounts:
        """Give the totals so far."""
        ...

    async def __aenter__(self) -> Share: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __enter__(self) -> Share: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
