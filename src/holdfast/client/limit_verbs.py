"""The limits of queues, as a client sets and sees them."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.store import Limits, PauseQueue, QueueState, SetLimits, Store

__all__ = ["LimitVerbs", "StoreLimits"]

T = TypeVar("T")


class LimitVerbs(ABC):
    """What can be asked about the limits of queues."""

    @abstractmethod
    async def alimits(self) -> builtins.list[QueueState]:
        """List the queues that have limits, or jobs with groups, and how they stand."""

    @abstractmethod
    async def aset_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set the limits of a queue, all of them but whether it is paused; they hold with the next claim."""

    @abstractmethod
    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have nothing more of a queue started; what runs goes on."""

    @abstractmethod
    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a paused queue go on."""

    @abstractmethod
    def block(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, from plain code."""

    async def aclear_limits(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Take all limits from a queue; one that is paused stays so."""
        return await self.aset_limits(Limits(queue=queue), actor=actor)

    def limits(self) -> builtins.list[QueueState]:
        """List limits; see `alimits`."""
        return self.block(self.alimits())

    def set_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set limits; see `aset_limits`."""
        return self.block(self.aset_limits(limits, actor=actor))

    def clear_limits(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Take limits away; see `aclear_limits`."""
        return self.block(self.aclear_limits(queue, actor=actor))

    def pause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Pause a queue; see `apause_queue`."""
        return self.block(self.apause_queue(queue, actor=actor))

    def resume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a queue go on; see `aresume_queue`."""
        return self.block(self.aresume_queue(queue, actor=actor))


class StoreLimits(LimitVerbs):
    """These verbs, on a store."""

    @abstractmethod
    def store(self) -> Store:
        """Give the store, opened."""

    async def alimits(self) -> builtins.list[QueueState]:
        """List limits; see `LimitVerbs.alimits`."""
        return await self.store().limits()

    async def aset_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set limits; see `LimitVerbs.aset_limits`."""
        return await self._change(SetLimits(limits, actor), limits.queue)

    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Pause a queue; see `LimitVerbs.apause_queue`."""
        return await self._change(PauseQueue(queue, paused=True, actor=actor), queue)

    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a queue go on; see `LimitVerbs.aresume_queue`."""
        return await self._change(PauseQueue(queue, paused=False, actor=actor), queue)

    async def _change(self, command: SetLimits | PauseQueue, queue: str) -> QueueState:
        (answer,) = await self.store().commit([command])
        if isinstance(answer, Exception):
            raise answer
        found = [state for state in await self.store().limits() if state.limits.queue == queue]
        blank = QueueState(
            limits=Limits(queue=queue), running=0, queued=0, tokens=None, held_until=None, groups={}
        )  # without limits nobody counts
        return found[0] if found else blank
