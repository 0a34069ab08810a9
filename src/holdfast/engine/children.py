"""Jobs that a job starts: each once, whatever crashes; waited for; cancelled with their parent.

A child's id is recorded in its parent before the child is submitted, so that a parent that runs again finds the child
it has. The child's end comes back as a signal to the parent, written in the transaction that ends the child.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.functions import JobFunction
from holdfast.errors import StepFailed
from holdfast.ids import new_id
from holdfast.store import Cancel, Submit

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Children", "Submission"]

Submission = Callable[[JobFunction[..., Any], str, dict[str, Any], float], Submit]


class Children:
    """The children of one attempt's job."""

    def __init__(self, attempt: Attempt, submission: Submission) -> None:
        self._attempt = attempt
        self._submission = submission
        self._open: dict[str, str] = {}

    async def call(self, job: JobFunction[..., Any], plain: dict[str, Any]) -> Any:
        """Start a child unless it was started before, wait for its end, give its result."""
        attempt = self._attempt
        node = attempt.replay.node(f"job.{job.name}", plain, job.chosen.key)
        name = attempt.recorded(f"{node}:id", new_id)
        key = f"holdfast:child:{node}"
        if node not in attempt.replay.completed_waits:
            with attempt.waits.working():
                self._open[node] = name
                submit = self._submission(job, name, plain, attempt.now())
                await attempt.durable()
                await attempt.write(msgspec.structs.replace(submit, parent=attempt.job, parent_key=key))
        told = (await attempt.waits.blocked_on(node, key, "child")).get("payload") or {}
        self._open.pop(node, None)
        if told.get("state") == "completed":
            return job.signature.decode_result(told.get("result"))
        error = told.get("error") or {}
        reason = error.get("message") or told.get("reason") or str(told.get("state"))
        raise StepFailed(job.name, error.get("code") or f"child {told.get('state')}", reason)

    def cancel_all(self) -> None:
        """The parent ends badly: ask the children that are still open to cancel."""
        for name in self._open.values():
            told = self._attempt.journal.enqueue(Cancel(name, f"its parent {self._attempt.job} has ended"))
            told.add_done_callback(_heard)


def _heard(told: asyncio.Future[Any]) -> None:
    if not told.cancelled():
        told.exception()  # a child that cannot be told has ended, or the store is away; its own deadline holds
