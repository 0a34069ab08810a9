"""What one attempt writes: gathered by the journal while the code runs on, counted when it is on disk.

Whoever must not go on before the disk knows waits here. A write that is refused, or of which nobody knows whether it
was applied, ends the attempt, and nothing is written behind it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from holdfast.authoring.conductor import Suspended
from holdfast.engine.ending_events import Written
from holdfast.engine.lease import Lease
from holdfast.errors import StaleAttempt, StoreUnavailable
from holdfast.journal import Journal
from holdfast.machines.event import Frozen, freeze_plain
from holdfast.store import Command, Successor

__all__ = ["AttemptWriter"]

UNDER_WAY_MAX = 512  # events that may be under way before the code has to wait for the disk


class AttemptWriter(ABC):
    """The events of one attempt at one job; a `Writer` of the journal."""

    def __init__(self, job: str, attempt: int, parent: str | None, journal: Journal) -> None:
        self.job = job
        self.attempt = attempt
        self.parent = parent
        self.journal = journal
        self.lease = Lease(float("inf"), 0.0)  # until when it may act; its worker gives it the real one
        self.lost = False  # whether its lease is
        self.write_closed = False  # whether it may write no more: it is lost, or its end is written
        self.gathered: list[tuple[str, Frozen]] = []  # events that the next batch takes along
        self.uses: list[str] = []  # signals that are used up with them
        self.successor: Successor | None = None  # the job that goes on in its place, if it ends so
        self.recorded_events = 0  # in all, on disk or not
        self.durable_events = 0  # of them, on disk
        self.decided_events = 0  # of them, up to the last that records what was decided, and follows from no other
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()  # for so many to be on disk

    @abstractmethod
    def lose(self) -> None:
        """The lease is lost: nothing more is written (L4)."""

    @abstractmethod
    def check_cancelled(self) -> None:
        """Raise if the attempt is over, or its job was asked to cancel."""

    def record(self, *events: Written) -> None:
        """Write events with the next batch; the code runs on."""
        if self.write_closed:
            raise Suspended
        self.journal.append(self, [(kind, freeze_plain(payload)) for kind, payload in events])
        self.recorded_events += len(events)

    def written(self, count: int, error: Exception | None) -> None:
        """So many more of its events are on disk, or were refused."""
        self.durable_events += count
        if error is not None and not self.lost:
            self.lose()  # refused, or nobody knows: another attempt goes on from what the store has
        while self._waiters and (self.lost or self._waiters[0][0] <= self.durable_events):
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    async def write(self, command: Command) -> Any:
        """Carry out a command for the code.

        If the store is away, or another attempt holds the job, this attempt ends. That is not a failure of the code.
        """
        try:
            return await self.journal.write(command)
        except (StaleAttempt, StoreUnavailable) as error:
            self.lose()
            raise Suspended from error

    async def durable(self) -> None:
        """Wait until everything recorded is on disk, and the attempt still holds its job (L4)."""
        if self.durable_events < self.recorded_events and not self.lost:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((self.recorded_events, waiter))
            await waiter
        if not self.lost and not self.lease.lasts():
            self.lose()  # the process was stopped for a while, or the store is silent (L11)
        self.check_cancelled()

    async def keep_up(self) -> None:
        """Wait for the disk if the code is far ahead of it."""
        if self.recorded_events - self.durable_events > UNDER_WAY_MAX:
            await self.durable()
