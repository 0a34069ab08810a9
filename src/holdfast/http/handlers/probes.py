"""Handlers for load balancers and monitors: liveness, readiness and metrics.

The module `readiness` decides whether the process is ready.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from holdfast.client.views import Stats
from holdfast.errors import HoldfastError
from holdfast.http.readiness import AGAIN_SECONDS, Part
from holdfast.http.request import Call, Query
from holdfast.http.response import Answer, json

GATE = Query(
    "gate", "string", "`process` covers all parts and is the default. `server` leaves the workers out.",
    words=("process", "server"),
)  # fmt: skip


class Health(msgspec.Struct):
    """The response of a live process."""

    status: Literal["ok"] = msgspec.field(default_factory=lambda: "ok")


class ReadyAnswer(msgspec.Struct, omit_defaults=True):
    """The readiness of the process: its state, the reason if it is not ready, and its parts."""

    state: str
    reason: str | None = None
    gates: list[Part] = []


async def healthz(call: Call) -> Answer:
    """Return 200, because the process answers."""
    del call
    return json(Health())


async def readyz(call: Call) -> Answer:
    """Return 200 if the process can take more work, else 503 with Retry-After."""
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


async def _stats(call: Call) -> Stats:
    """Return the statistics of the store. Queues without an entry or a limit are counted together, as ``other``.

    A client may name any queue, and each one would be a time series.
    """
    stats = await call.client.astats()
    known = {entry.queue for entry in await call.client.aentries()}
    known |= {state.limits.queue for state in await call.client.alimits()}
    queues: dict[str, dict[str, int]] = {}
    for queue, kinds in stats.queues.items():
        counts = queues.setdefault(queue if queue in known else "other", {})
        for kind, number in kinds.items():
            counts[kind] = counts.get(kind, 0) + number
    return msgspec.structs.replace(stats, queues=queues)


async def metrics(call: Call) -> Answer:
    """Return the metrics in the Prometheus text format."""
    service = call.service
    await service.readiness.look()
    try:
        stats = await _stats(call) if service.readiness.store_answers else None
        gates = await call.client.agates() if stats is not None else []
    except HoldfastError:
        stats, gates = None, []
    own = [service.readiness.server.counts(), service.readiness.process.counts()]
    streams, dropped = len(service.hub.seats), service.hub.dropped
    text = service.metrics.text(stats, own, streams, dropped, gates, service.connections)
    return Answer(200, text.encode(), b"text/plain; version=0.0.4; charset=utf-8")
