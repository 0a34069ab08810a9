"""Is this process alive, may it take more work, and how is it doing: for load balancers and monitors.

Readiness is a ReadyState, kept by a monitor as everywhere: ready while the store answers and the server is not going,
else busy with a reason. The store is asked at most once a second, whoever asks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import msgspec

from holdfast.client.verbs import Client
from holdfast.errors import HoldfastError, UnknownJob
from holdfast.machines import Reading, Ready
from holdfast.machines.ready import Busy
from holdfast.ready import ReadyMonitor
from holdfast.surfaces.http.answers import Answer, json
from holdfast.surfaces.http.calls import Call

__all__ = ["Health", "Readiness", "ReadyAnswer"]

LOOK_SECONDS = 1.0  # how long an answer of the store counts
PATIENCE_SECONDS = 2.0  # how long it may take
NOBODY = "00000000-0000-0000-0000-000000000000"


class Health(msgspec.Struct):
    """The process answers."""

    status: Literal["ok"] = msgspec.field(default_factory=lambda: "ok")


class ReadyAnswer(msgspec.Struct, omit_defaults=True):
    """The state of the process, and why it is not ready."""

    state: str
    reason: str | None = None


class Readiness:
    """Whether this process may take more work."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._monitor = ReadyMonitor()
        self._seen_at = float("-inf")
        self._reading: Reading = Ready()
        self.stopping = False

    async def look(self) -> Reading:
        """Look, if that was not done a moment ago."""
        if self.stopping or time.monotonic() - self._seen_at > LOOK_SECONDS:
            reading = Busy("the server is stopping") if self.stopping else await self._ask()
            with self._monitor.begin() as poll:
                self._reading = poll.finish(reading)
            self._seen_at = time.monotonic()
        return self._reading

    async def _ask(self) -> Reading:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._client.aget(NOBODY)
        except UnknownJob:
            return Ready()
        except (HoldfastError, TimeoutError):
            pass
        return Busy("the store does not answer")


async def healthz(call: Call) -> Answer:
    """Say that the process answers."""
    del call
    return json(Health())


async def readyz(call: Call) -> Answer:
    """Say whether more work may be sent here."""
    reading = await call.service.readiness.look()
    if isinstance(reading, Ready):
        return json(ReadyAnswer(reading.state))
    reason = reading.reason if isinstance(reading, Busy) else None
    return json(ReadyAnswer(reading.state, reason), 503, [(b"retry-after", b"2")])


async def metrics(call: Call) -> Answer:
    """Give figures for a monitor."""
    service = call.service
    reading = await service.readiness.look()
    try:
        stats = await call.client.astats() if isinstance(reading, Ready) else None
        gates = await call.client.agates() if stats is not None else []
    except HoldfastError:
        stats, gates = None, []
    text = service.metrics.text(stats, reading.state, len(service.hub.seats), service.hub.dropped, gates)
    return Answer(200, text.encode(), b"text/plain; version=0.0.4; charset=utf-8")
