"""Lets a call through its gate, and closes the gate when the other side asks to be left alone.

A call that is held has not been declared: a crash while it waits leaves no doubt (E4). It waits in line as long as that
is short, or as nobody can say how long it will be. If the gate will not open for longer than `gate_park_seconds`, the
job is given back until then, and its slot is free for others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.ready import BackoffGate, Gate, Share

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["admitted", "leave_alone"]


async def admitted(attempt: Attempt, gate: Gate, node: str) -> Share:
    """Take a share of a gate for a call; wait for it here, or give the job back."""
    share = gate.try_acquire()
    if share is not None:
        return share
    acquiring = asyncio.ensure_future(gate.acquire())
    attempt.held_by[node] = gate.name
    try:
        while not acquiring.done():
            wait = gate.wake_in_seconds()
            if wait is not None and wait > attempt.config.gate_park_seconds:
                await attempt.waits.retry_later(node, attempt.now() + wait, gate.name)
            await asyncio.wait([acquiring], timeout=attempt.config.gate_park_seconds)
        attempt.check_cancelled()
        return acquiring.result()
    except BaseException:
        if not acquiring.cancel() and not acquiring.cancelled() and acquiring.exception() is None:
            acquiring.result().release(asyncio.CancelledError())  # it came too late: somebody else may have it
        raise
    finally:
        attempt.held_by.pop(node, None)


def leave_alone(gate: Gate | None, seconds: float) -> None:
    """Close a gate for all who share it, if it can be closed; else only the call that was refused waits."""
    for leaf in getattr(gate, "leaves", (gate,)):
        close: Any = leaf.retry_after if isinstance(leaf, BackoffGate) else getattr(leaf, "retry_after", None)
        if close is not None:
            close(seconds)
