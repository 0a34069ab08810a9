"""The passage of calls through their gates.

A call that waits for its gate has not been declared, so a crash while it waits leaves no doubt (E4). It waits in line
while that is short. In these cases the attempt requeues the job, and its slot is free for other jobs:

- The gate will not open for longer than `gate_park_seconds`. The job is requeued until the gate opens.
- The call has waited that long, and no call of this process has passed the gate meanwhile. The job is requeued for as
  long again, and longer each time. The first call in line stays, so that the gate is used as soon as it opens. While
  other calls pass, however slowly, the line is kept, because a call that leaves has to rejoin at the end.

While other branches of the job work, the job is not requeued. The call then stays in line until its gate lets it pass.

`close_gate` closes a gate when the other side asks for a pause.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.ready import BackoffGate, Gate, Share

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

PAUSE_SECONDS_MAX = 300.0  # longest time that a job is requeued for when it is unknown when its gate opens


class _Line:
    """The calls of this process that wait for a gate, and when one last passed it."""

    def __init__(self) -> None:
        self.waiting: list[object] = []
        self.passed_at = float("-inf")


_lines: MutableMapping[Gate, _Line] = WeakKeyDictionary()


async def acquire_share(attempt: Attempt, gate: Gate, node: str) -> Share:
    """Take a share of a gate for a call. Wait for it here, or requeue the job."""
    line = _lines.get(gate) or _lines.setdefault(gate, _Line())
    share = gate.try_acquire()
    if share is None:
        share = await _wait_in_line(attempt, gate, node, line)
    line.passed_at = attempt.loop.time()
    return share


async def _wait_in_line(attempt: Attempt, gate: Gate, node: str, line: _Line) -> Share:
    acquiring = asyncio.ensure_future(gate.acquire())
    attempt.held_by[node] = gate.name
    line.waiting.append(acquiring)
    patience, since = attempt.config.gate_park_seconds, attempt.loop.time()
    try:
        while not acquiring.done():
            pause = gate.wake_in_seconds() or 0.0
            stuck = attempt.loop.time() - max(since, line.passed_at) >= patience and line.waiting[0] is not acquiring
            if stuck and pause <= patience:
                longer = min(patience * 2 ** min(attempt.replay.held[node], 10), PAUSE_SECONDS_MAX)
                pause = patience + longer * random.uniform(0.5, 1.0)  # noqa: S311 - only spreads load
            if pause > patience:
                await _park(attempt, gate, node, pause, acquiring)
            else:
                await asyncio.wait([acquiring], timeout=patience)
        attempt.check_cancelled()
        return acquiring.result()
    except BaseException:
        if not acquiring.cancel() and not acquiring.cancelled() and acquiring.exception() is None:
            acquiring.result().release(asyncio.CancelledError())  # the share came too late: another call may take it
        raise
    finally:
        line.waiting.remove(acquiring)
        attempt.held_by.pop(node, None)


async def _park(attempt: Attempt, gate: Gate, node: str, seconds: float, acquiring: asyncio.Future[Share]) -> None:
    """Requeue the job for so long. If other branches work, the job is not requeued, so wait for the share."""
    parked = asyncio.ensure_future(attempt.waits.retry_later(node, attempt.now() + seconds, gate.name))
    try:
        both: list[asyncio.Future[Any]] = [acquiring, parked]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not parked.done():
            parked.cancel()
            await asyncio.wait([parked])
        elif not parked.cancelled():
            parked.exception()  # mark as retrieved: this call may have been unwound with its attempt
    if not parked.cancelled():
        parked.result()  # the attempt is over


def close_gate(gate: Gate | None, seconds: float) -> None:
    """Close a gate for all its users, if it can be closed. Otherwise only the refused call waits."""
    for leaf in getattr(gate, "leaves", (gate,)):
        close: Any = leaf.retry_after if isinstance(leaf, BackoffGate) else getattr(leaf, "retry_after", None)
        if close is not None:
            close(seconds)
