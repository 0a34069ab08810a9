"""Jobs that a job starts: each once, whatever crashes; waited for; cancelled with their parent.

A child's id is recorded in its parent before the child is submitted, so that a parent that runs again finds the child
it has. The child's end comes back as a signal to the parent, written in the transaction that ends the child; children
of a parent that fails or is cancelled are cancelled in the transaction that ends the parent. If that parent is retried
by an operator, it starts those that had not ended anew. A child is of its parent's group, unless it says another: so
whoever may see the parent alone may see it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.functions import JobFunction
from holdfast.errors import StepFailed
from holdfast.ids import new_id
from holdfast.store import Submit

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Children", "Submission", "outcome_of"]

Submission = Callable[[JobFunction[..., Any], str, dict[str, Any], float], Submit]


class Children:
    """The children of one attempt's job."""

    def __init__(self, attempt: Attempt, submission: Submission) -> None:
        self._attempt = attempt
        self._submission = submission

    async def call(self, job: JobFunction[..., Any], plain: dict[str, Any]) -> Any:
        """Start a child unless it was started before, wait for its end, give its result."""
        attempt = self._attempt
        node = attempt.replay.node(f"job.{job.name}", plain, job.chosen.key)
        run = f".{attempt.row.run}" if attempt.row.run > 1 else ""  # a new run has children of its own
        key = f"holdfast:child:{node}{run}"
        if node not in attempt.replay.completed_waits and attempt.deliveries.recorded(node) is None:
            name = attempt.recorded(f"{node}:id{run}", new_id)
            with attempt.waits.working():
                submit = self._submission(job, name, plain, attempt.now())
                group = submit.group if submit.group is not None else attempt.row.group
                submit = msgspec.structs.replace(submit, parent=attempt.job, parent_key=key, group=group)
                await attempt.durable()
                made = await attempt.write(submit)
            if made.job != name:  # its end would be told to somebody else, and never to us
                reason = f"the key {job.chosen.key!r} belongs to job {made.job}, which this call has not started"
                raise StepFailed(job.name, "IdempotencyConflict", reason)
        return outcome_of(job, node, await attempt.waits.blocked_on(node, key, "child"))


def outcome_of(job: JobFunction[..., Any], node: str, completed: dict[str, Any]) -> Any:
    """Give a child's result, by the wait that its end has completed, or raise how it failed."""
    told = completed.get("payload") or {}
    if told.get("state") == "completed":
        return job.signature.decode_result(told.get("result"))
    error = told.get("error") or {}
    reason = error.get("message") or told.get("reason") or str(told.get("state"))
    raise StepFailed(job.name, error.get("code") or f"child {told.get('state')}", reason, node)
