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
from holdfast.errors import IdempotencyConflict, StepFailed
from holdfast.ids import new_id
from holdfast.store import Submit, Submitted

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Children", "Submission", "outcome_of"]

UNSHOWN = "(not shown)"  # for a job that may be of another group
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
                made = await self._started(submit)
            if made.job != name:  # its end would be told to somebody else, and never to us
                other = made.job if attempt.row.group is None else UNSHOWN
                reason = f"the key {job.chosen.key!r} belongs to job {other}, which this call has not started"
                raise StepFailed(job.name, "IdempotencyConflict", reason)
        return outcome_of(job, node, await attempt.waits.blocked_on(node, key, "child"))

    async def _started(self, submit: Submit) -> Submitted:
        """Submit a child. A refusal is told in the parent's history, which its group reads: it names nobody else."""
        try:
            made: Submitted = await self._attempt.write(submit)
        except IdempotencyConflict as error:
            if self._attempt.row.group is None:
                raise
            raise IdempotencyConflict(error.key, UNSHOWN) from None
        return made


def outcome_of(job: JobFunction[..., Any], node: str, completed: dict[str, Any]) -> Any:
    """Give a child's result, by the wait that its end has completed, or raise how it failed."""
    told = completed.get("payload") or {}
    if told.get("state") == "completed":
        return job.signature.decode_result(told.get("result"))
    error = told.get("error") or {}
    reason = error.get("message") or told.get("reason") or str(told.get("state"))
    raise StepFailed(job.name, error.get("code") or f"child {told.get('state')}", reason, node)
