"""Handlers for the limits of queues and for pausing queues."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from starlette.responses import Response

from holdfast.client.views import limits_tag
from holdfast.errors import InvalidSetting, LimitsChanged
from holdfast.http.handlers.operations import Pause
from holdfast.http.handlers.reads import page
from holdfast.http.problems import Problem
from holdfast.http.request import Call, matches_tag
from holdfast.http.response import Answer, json, not_modified
from holdfast.store import Limits, QueueState
from holdfast.store.limits import no_limits

NAMES = r"[A-Za-z0-9_~:@-][A-Za-z0-9_~:@.-]{0,199}"  # of queues: characters that a path can spell in one way only
_Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Number = Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class NewLimits(msgspec.Struct, forbid_unknown_fields=True):
    """All limits of a queue. A field that the client leaves out means no limit."""

    concurrency: _Count | None = None
    group_concurrency: _Count | None = None
    rate: _Number | None = None
    rate_seconds: _Number = 1.0
    burst: _Count | None = None
    depth: _Count | None = None
    weights: dict[str, _Number] = {}
    actor: _Name | None = None


async def list_limits(call: Call) -> Answer:
    """List the queues that have limits, with their state."""
    return page(await call.client.alimits())


async def get_limits(call: Call) -> Response:
    """Return the state of a queue. The entity tag is that of its limits."""
    state = await _state(call)
    if matches_tag(call.request.headers.get("if-none-match"), limits_tag(state.limits).encode()):
        return not_modified(limits_tag(state.limits).encode())
    return _tagged(state)


async def put_limits(call: Call) -> Answer:
    """Replace all limits of a queue. With If-Match, only limits that the client has read."""
    asked = await call.body(NewLimits)
    said = msgspec.structs.asdict(asked)
    actor = call.actor(said.pop("actor"))
    try:
        limits = Limits(queue=_queue(call), **said)
    except InvalidSetting as error:
        params = {"name": error.name, "reason": error.reason}
        raise Problem(422, "invalid_arguments", str(error), "see /openapi.json", params=params) from error
    return _tagged(await call.client.aset_limits(limits, actor=actor, expected=await _expected(call)))


async def delete_limits(call: Call) -> Answer:
    """Remove all limits of a queue. With If-Match, only limits that the client has read."""
    limits = Limits(queue=_queue(call))
    return _tagged(await call.client.aset_limits(limits, actor=call.actor(None), expected=await _expected(call)))


async def pause_queue(call: Call) -> Answer:
    """Pause a queue, so that no more of its jobs start."""
    asked = await call.body(Pause, Pause())
    return json(await call.client.apause_queue(_queue(call), actor=call.actor(asked.actor)))


async def resume_queue(call: Call) -> Answer:
    """Resume a paused queue."""
    asked = await call.body(Pause, Pause())
    return json(await call.client.aresume_queue(_queue(call), actor=call.actor(asked.actor)))


async def _state(call: Call) -> QueueState:
    name = _queue(call)
    states = [state for state in await call.client.alimits() if state.limits.queue == name]
    return states[0] if states else no_limits(name)


async def _expected(call: Call) -> Limits | None:
    """Return the limits that the If-Match header names, or None without one.

    Raises:
        LimitsChanged: the queue has other limits.
    """
    tag = call.request.headers.get("if-match")
    if tag is None:
        return None
    limits = (await _state(call)).limits
    if not matches_tag(tag, limits_tag(limits).encode()):
        raise LimitsChanged(limits.queue)
    return limits


def _tagged(state: QueueState) -> Answer:
    return json(state, 200, [(b"etag", limits_tag(state.limits).encode())])


def _queue(call: Call) -> str:
    name = str(call.request.path_params["queue"])
    if not re.fullmatch(NAMES, name, re.ASCII):
        raise Problem(
            404,
            "not_found",
            "a queue with this name cannot have limits over HTTP",
            "see /openapi.json for the allowed characters",
        )
    return name
