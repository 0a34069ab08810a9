"""Is this process alive, may it take more work, and how is it doing: for load balancers and monitors.

How readiness is decided is in `readiness`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.http.readiness import AGAIN_SECONDS, Part
from holdfast.http.request import Call, Query
from holdfast.http.response import Answer, json

__all__ = ["GATE", "Health", "ReadyAnswer"]

GATE = Query(
    "gate", "string", "`server` leaves the workers of this process out; `process`, all of it, unless said.",
    words=("process", "server"),
)  # fmt: skip


class Health(msgspec.Struct):
    """The process answers."""

    status: Literal["ok"] = msgspec.field(default_factory=lambda: "ok")


class ReadyAnswer(msgspec.Struct, omit_defaults=True):
    """What the process says, why it may not take more work, and how its parts stand."""

    state: str
    reason: str | None = None
    gates: list[Part] = []


async def healthz(call: Call) -> Answer:
    """Say that the process answers."""
    del call
    return json(Health())


async def readyz(call: Call) -> Answer:
    """Say whether more work may be sent here."""
    readiness = call.service.readiness
    gate = readiness.server if call.query((GATE,)).get("gate") == "server" else readiness.process
    reading = await readiness.look(gate)
    reason = gate.why()
    answer = ReadyAnswer(reading.state, reason, readiness.parts)
    if reason is None:
        return json(answer)
    wait = gate.wake_in_seconds()
    seconds = max(1, math.ceil(wait if wait is not None else AGAIN_SECONDS))
    return json(answer, 503, [(b"retry-after", str(seconds).encode())])


async def metrics(call: Call) -> Answer:
    """Give figures for a monitor."""
    service = call.service
    await service.readiness.look()
    try:
        stats = await call.client.astats() if service.readiness.store_answers else None
        gates = await call.client.agates() if stats is not None else []
    except HoldfastError:
        stats, gates = None, []
    own = [service.readiness.server.counts(), service.readiness.process.counts()]
    text = service.metrics.text(stats, own, len(service.hub.seats), service.hub.dropped, gates)
    return Answer(200, text.encode(), b"text/plain; version=0.0.4; charset=utf-8")
