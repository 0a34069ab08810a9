"""Readiness of a process: a gate over its parts, which are the server, the store, the door and the workers.

======== ================================================================= ===================================
part     not ready                                                         reported as
======== ================================================================= ===================================
server   while it shuts down                                               Busy
store    while it does not answer                                          RetryAfter
door     while every queue of its jobs has reached its depth limit         Busy
worker   while no worker may take more jobs, because of slots or limits    the state that the worker reports
======== ================================================================= ===================================

Only a declared depth limit closes the door. An idle worker is ready. There are two gates. The gate ``process`` covers
all parts. The gate ``server`` leaves the workers out, for clients that only send requests here.

The parts are checked once a second at most, for all clients together. The response is public, so it names no queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from holdfast.client.interface import Client
from holdfast.client.worker_status import GateView
from holdfast.errors import HoldfastError
from holdfast.machines.ready_table import BudgetExhausted, Busy, Reading, ReadyState, RetryAfter, WakeSource
from holdfast.ready import log_violation
from holdfast.ready.leaf_gate import LeafGate
from holdfast.ready.next_reading import Hold, HoldKey
from holdfast.store import QueueState
from holdfast.store.limits import COUNTED_MAX, retry_after

LOOK_SECONDS = 1.0  # how long the result of a check is reused, by default
PATIENCE_SECONDS = 2.0  # timeout of the check of the store
AGAIN_SECONDS = 2.0  # Retry-After where the time is not known
_READY = ReadyState.READY.value
_SOURCES = frozenset({WakeSource.IO_READY, WakeSource.TIMER})
_SAID = {  # public texts, so without queue names; GET /api/v1/gates needs a token and has them
    ReadyState.BUSY: "all slots of the worker or its queues are in use: see GET /api/v1/gates",
    ReadyState.BUDGET_EXHAUSTED: "the rate limit of a queue is reached: see GET /api/v1/gates",
    ReadyState.RETRY_AFTER: "the worker waits before it asks the store again",
}


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """The readiness of one part of the process.

    Attributes:
        gate: name of the part: server, store, door or worker.
        state: its last reported state.
        reason: why it takes no more work; None if it is ready.
        retry_after_seconds: seconds until the next attempt is useful, if known.
        held: the state that stands for the reason; None if it is ready.
    """

    gate: str
    state: str
    reason: str | None = None
    retry_after_seconds: float | None = None
    held: str | None = None


class ProcessGate(LeafGate):
    """A gate over the parts of a process. As a gate it keeps to the ReadyState table and has the usual counts."""

    def __init__(self, name: str) -> None:
        self._part: Part | None = None
        self._until_ns: int | None = None
        self._episode = 0
        super().__init__(name, time.monotonic, log_violation)

    def learn(self, parts: Sequence[Part]) -> None:
        """Store the result of a check."""
        held = next((part for part in parts if part.held is not None), None)

        def take() -> bool:
            before, self._part = self._part, held
            if held is None or before is None or (held.gate, held.held) != (before.gate, before.held):
                self._episode += 1
            wait = held.retry_after_seconds if held is not None else None
            self._until_ns = self.clock_ns() + round(wait * 1e9) if wait is not None else None
            return held != before

        self.change(WakeSource.IO_READY, take)

    def look(self) -> Hold | None:
        """Return the hold of the first part that is not ready, or None."""
        part = self._part
        if part is None or part.held is None:
            return None
        reason = part.reason or part.gate
        return Hold(
            HoldKey(self.number, self._episode), reason, _SOURCES, self.clock_ns, _news(part, reason), self._until_ns
        )


def _news(part: Part, reason: str) -> Reading:
    match part.held:
        case ReadyState.BUDGET_EXHAUSTED:
            return BudgetExhausted(limit=0)  # the worker's own gate has the queue and the limit
        case ReadyState.RETRY_AFTER:
            return RetryAfter(max(part.retry_after_seconds or AGAIN_SECONDS, 0.001))
        case _:
            return Busy(reason)


class Readiness:
    """Checks the parts of a process on request. `workers` names workers in other processes that count as its parts."""

    def __init__(self, client: Client, workers: Sequence[str] = ()) -> None:
        self.process, self.server = ProcessGate("process"), ProcessGate("server")
        self.parts: list[Part] = []
        self.look_seconds, self.patience_seconds = LOOK_SECONDS, PATIENCE_SECONDS
        self.stopping = False
        self._client = client
        self._workers = workers
        self._looked_at = float("-inf")
        self._readings: dict[ProcessGate, Reading] = {}

    async def look(self, gate: ProcessGate | None = None) -> Reading:
        """Check the parts, unless the last check is recent. Return the reading of a gate, `process` by default."""
        if self.stopping or time.monotonic() - self._looked_at > self.look_seconds:
            own = [_server(going=self.stopping), *await self._store_and_door()]
            workers = await self._working(store_answers=own[1].held is None)
            self.parts = own + workers
            self.server.learn(own)
            held = sorted(workers, key=lambda one: one.retry_after_seconds or AGAIN_SECONDS)
            self.process.learn(own + (held if all(one.held for one in held) else []))
            self._looked_at = time.monotonic()
            self._readings = {one: one.poll_ready() for one in (self.process, self.server)}
        return self._readings[gate or self.process]

    @property
    def store_answers(self) -> bool:
        """Whether the store answered at the last check."""
        return all(part.held is None for part in self.parts if part.gate == "store")

    async def _store_and_door(self) -> list[Part]:
        try:
            async with asyncio.timeout(self.patience_seconds):
                limits = {one.limits.queue: one for one in await self._client.alimits() if one.limits.depth is not None}
                if not limits:
                    return [Part("store", _READY)]
                queues = {one.queue for one in await self._client.aentries()}
                deep = await self._deep(limits) if queues and queues <= limits.keys() else {}
        except (HoldfastError, TimeoutError):
            away = ReadyState.RETRY_AFTER.value
            return [Part("store", away, "the store does not answer", AGAIN_SECONDS, away)]
        if not queues or not all(deep.get(queue) for queue in queues):
            return [Part("store", _READY), Part("door", _READY)]
        wait = min(retry_after(limits[queue].limits, limits[queue].running, ()) for queue in queues)
        busy = ReadyState.BUSY.value
        return [
            Part("store", _READY),
            Part("door", busy, "every queue has reached its depth limit: see GET /api/v1/limits", wait, busy),
        ]

    async def _deep(self, limits: dict[str, QueueState]) -> dict[str, bool]:
        """Return for each queue whether it has reached its depth limit."""
        waiting = {queue: one.queued for queue, one in limits.items()}
        if any((one.limits.depth or 0) > COUNTED_MAX for one in limits.values()):  # `queued` stops at COUNTED_MAX
            stats = await self._client.astats()
            waiting = {queue: stats.queues.get(queue, {}).get("queued", 0) for queue in limits}
        return {queue: waiting[queue] >= (one.limits.depth or 0) for queue, one in limits.items()}

    async def _working(self, *, store_answers: bool) -> list[Part]:
        """Return the workers of this process as they are now, and the named others as last reported."""
        parts = [_worker(view) for view in self._client.own_gates()]
        if not self._workers or not store_answers:
            return parts
        try:
            found = {one.worker: one for one in await self._client.agates() if one.gate.name == "worker"}
        except HoldfastError:
            found = {}
        busy = ReadyState.BUSY.value
        unheard = Part("worker", busy, "the worker has not reported", None, busy)
        return parts + [_worker(found[name]) if name in found else unheard for name in self._workers]


def _server(*, going: bool) -> Part:
    busy = ReadyState.BUSY.value
    return Part("server", busy, "the server is stopping", None, busy) if going else Part("server", _READY)


def _worker(view: GateView) -> Part:
    card = view.gate
    if card.held is None:
        return Part("worker", card.state)
    wait = max(0.0, card.opens_at - view.at) if card.opens_at is not None else None
    return Part("worker", card.state, _SAID[ReadyState(card.held)], wait, card.held)
