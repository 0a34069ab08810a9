"""May this process take more work? A gate over its parts: the server itself, the store, the door, its workers.

======== =============================================================== ======================================
part     holds the process                                               told as
======== =============================================================== ======================================
server   while it is going                                               Busy
store    while it does not answer                                        RetryAfter
door     while every queue that its jobs go to is as deep as it may be   Busy
worker   while none of its workers may take more: slots, limits, rates   as the worker says; not that nothing is due
======== =============================================================== ======================================

The door is closed by a declared depth alone. A worker with nothing to do is healthy. There are two such gates: the one
called process is over all parts, the one called server leaves the workers out, for those who only send requests here.
The parts are looked at once a second at most, whoever asks, and the answer is for everybody: it names no queue.
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

__all__ = ["Part", "ProcessGate", "Readiness"]

LOOK_SECONDS = 1.0  # how long a look counts, unless said
PATIENCE_SECONDS = 2.0  # how long the store may take to answer
AGAIN_SECONDS = 2.0  # when to come back, where nobody can say
_READY = ReadyState.READY.value
_SOURCES = frozenset({WakeSource.IO_READY, WakeSource.TIMER})
_SAID = {  # of a worker, without names: whoever may know them asks for the gates
    ReadyState.BUSY: "the worker is full, or its queues are: GET /api/v1/gates",
    ReadyState.BUDGET_EXHAUSTED: "the rate of a queue is used up: GET /api/v1/gates",
    ReadyState.RETRY_AFTER: "the worker leaves the store alone for a while",
}


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the process.

    Attributes:
        gate: which one: server, store, door or worker.
        state: what it said last.
        reason: why it may not take more; nothing if it may.
        retry_after_seconds: when it is worth asking again, if that is known.
        held: the state by which the reason is told.
    """

    gate: str
    state: str
    reason: str | None = None
    retry_after_seconds: float | None = None
    held: str | None = None


class ProcessGate(LeafGate):
    """What holds a process, as a gate: so it says nothing that the table forbids, and is counted as all are."""

    def __init__(self, name: str) -> None:
        self._part: Part | None = None
        self._until_ns: int | None = None
        self._episode = 0
        super().__init__(name, time.monotonic, log_violation)

    def learn(self, parts: Sequence[Part]) -> None:
        """Take what a look has found."""
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
        """Say which part holds it."""
        part = self._part
        if part is None or part.held is None:
            return None
        reason = part.reason or part.gate
        return Hold(
            HoldKey(self.number, self._episode), reason, _SOURCES, self.clock_ns, _news(part, reason), self._until_ns
        )

    # Nobody takes shares of a process

    def take(self) -> object:
        """Take nothing."""
        return True

    def undo(self, receipt: object) -> bool:
        """Give nothing back."""
        del receipt
        return False

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """Give nothing back."""
        del receipt, error
        return False


def _news(part: Part, reason: str) -> Reading:
    match part.held:
        case ReadyState.BUDGET_EXHAUSTED:
            return BudgetExhausted(limit=0)  # of which queue, and how much, its gate says
        case ReadyState.RETRY_AFTER:
            return RetryAfter(max(part.retry_after_seconds or AGAIN_SECONDS, 0.001))
        case _:
            return Busy(reason)


class Readiness:
    """The parts of a process, looked at when somebody asks; `workers` are names of workers that run beside it."""

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
        """Look, if that was not done a moment ago, and say how a gate stands: that of the process unless said."""
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
        """Whether the store did, at the last look."""
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
        return [Part("store", _READY), Part("door", busy, "as many jobs wait as may: GET /api/v1/limits", wait, busy)]

    async def _deep(self, limits: dict[str, QueueState]) -> dict[str, bool]:
        """Say which queues are as deep as they may be."""
        waiting = {queue: one.queued for queue, one in limits.items()}
        if any((one.limits.depth or 0) > COUNTED_MAX for one in limits.values()):  # so many are not counted there
            stats = await self._client.astats()
            waiting = {queue: stats.queues.get(queue, {}).get("queued", 0) for queue in limits}
        return {queue: waiting[queue] >= (one.limits.depth or 0) for queue, one in limits.items()}

    async def _working(self, *, store_answers: bool) -> list[Part]:
        """Describe the workers of this process, as they are, and those beside it, as they have last reported."""
        parts = [_worker(view) for view in self._client.own_gates()]
        if not self._workers or not store_answers:
            return parts
        try:
            found = {one.worker: one for one in await self._client.agates() if one.gate.name == "worker"}
        except HoldfastError:
            found = {}
        busy = ReadyState.BUSY.value
        unheard = Part("worker", busy, "the worker is not heard of", None, busy)
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
