"""The events that one attempt writes.

The journal gathers them while the code runs on, and counts those that are on disk. `durable()` waits until every
recorded event is committed.

A refused write, or one with an unknown result, ends the attempt. The attempt writes nothing after it.
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
from holdfast.group_commit import Journal
from holdfast.machines.event import Frozen, freeze_plain
from holdfast.store import Command, Successor

UNDER_WAY_MAX = 512  # events under way before the code has to wait for the disk


class AttemptWriter(ABC):
    """Writes the events of one attempt at one job. A `Writer` of the journal."""

    def __init__(self, job: str, attempt: int, parent: str | None, journal: Journal) -> None:
        self.job = job
        self.attempt = attempt
        self.parent = parent
        self.journal = journal
        self.lease = Lease(float("inf"), 0.0)  # how long the attempt may act; the worker sets the real one
        self.lost = False  # whether the lease is lost
        self.write_closed = False  # whether the attempt may write no more: it is lost, or its end is written
        self.gathered: list[tuple[str, Frozen]] = []  # events for the next batch
        self.uses: list[str] = []  # ids of signals that these events consume
        self.successor: Successor | None = None  # the job that continues this one, if it ends so
        self.recorded_events = 0  # total, on disk or not
        self.durable_events = 0  # those on disk
        self.decided_events = 0  # up to the last one that records a decision and follows from no other
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()  # waits for so many events on disk

    @abstractmethod
    def lose(self) -> None:
        """Stop writing: the lease is lost (L4)."""

    @abstractmethod
    def check_cancelled(self) -> None:
        """Raise if the attempt is over or its job is being cancelled."""

    def record(self, *events: Written) -> None:
        """Write events with the next batch. The code runs on."""
        if self.write_closed:
            raise Suspended
        self.journal.append(self, [(kind, freeze_plain(payload)) for kind, payload in events])
        self.recorded_events += len(events)

    def written(self, count: int, error: Exception | None) -> None:
        """Count events that are on disk or were refused, and wake the calls that wait for them."""
        self.durable_events += count
        if error is not None and not self.lost:
            self.lose()  # refused or unknown: the next attempt continues from what the store has
        while self._waiters and (self.lost or self._waiters[0][0] <= self.durable_events):
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    async def write(self, command: Command) -> Any:
        """Run a store command for the code.

        If the store is away, or another attempt holds the job, this attempt ends. That is not a failure of the code.
        """
        try:
            return await self.journal.write(command)
        except (StaleAttempt, StoreUnavailable) as error:
            self.lose()
            raise Suspended from error

    async def durable(self) -> None:
        """Wait until every recorded event is on disk. Check that the attempt still holds its job (L4)."""
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
