"""The limits of queues, through a server."""

from __future__ import annotations

import builtins
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.client.limit_verbs import LimitVerbs
from holdfast.client.remote.transport import Wire
from holdfast.store import Limits, QueueState

__all__ = ["RemoteLimits"]


class _States(msgspec.Struct):
    items: list[QueueState]


class RemoteLimits(LimitVerbs):
    """These verbs, through a server."""

    _wire: Wire

    async def alimits(self) -> builtins.list[QueueState]:
        """List limits; see `LimitVerbs.alimits`."""
        return (await self._wire.ask("GET", "/limits", _States))[1].items

    async def aset_limits(self, limits: Limits, *, actor: str | None = None) -> QueueState:
        """Set limits; see `LimitVerbs.aset_limits`."""
        said = msgspec.to_builtins(limits)
        body = {name: value for name, value in said.items() if name not in {"queue", "paused"}}
        return await self._put("PUT", limits.queue, "", {**body, **_actor(actor)})

    async def apause_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Pause a queue; see `LimitVerbs.apause_queue`."""
        return await self._put("POST", queue, "/pause", _actor(actor))

    async def aresume_queue(self, queue: str, *, actor: str | None = None) -> QueueState:
        """Have a queue go on; see `LimitVerbs.aresume_queue`."""
        return await self._put("POST", queue, "/resume", _actor(actor))

    async def _put(self, method: str, queue: str, verb: str, body: dict[str, Any]) -> QueueState:
        path = f"/limits/{quote(queue, safe='')}{verb}"
        return (await self._wire.ask(method, path, QueueState, body=body, again=True, about=queue))[1]


def _actor(actor: str | None) -> dict[str, str]:
    return {"actor": actor} if actor is not None else {}
