"""Jobs that a job starts and signals that it sends. Each happens once, whatever crashes (SPEC E15).

The parent waits for its child, and the child is cancelled with its parent. The parent records the child's id before it
submits the child, so a parent that runs again finds its child. The transaction that ends the child also writes a signal
to the parent. The transaction that fails or cancels a parent cancels its children. If an operator retries that parent,
it starts the children that had not ended again.

A child is in its parent's group, unless it names another. So a reader who may see only the parent may see the child.

A run that is started without being waited for has no parent. Its id and its start are recorded in the same way.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.conductor import Submitter, conductor
from holdfast.authoring.functions import JobFunction
from holdfast.engine.job_code import Pending, Written, cut_off
from holdfast.engine.replay import CutOff, Ended, Failure, Outcome, call_text
from holdfast.errors import HoldfastError, IdempotencyConflict, StepFailed
from holdfast.ids import new_id
from holdfast.machines import HistoryEvent
from holdfast.machines.keys import child_key, ended_name, id_name
from holdfast.machines.run_projection import run_name
from holdfast.store import Submit, Submitted

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

UNSHOWN = "(not shown)"  # for a job that may be in another group
Submission = Callable[[JobFunction[..., Any], str, dict[str, Any], float], Submit]


class Children:
    """The children of one attempt's job, and the runs and signals that it starts and sends."""

    def __init__(self, attempt: Attempt, submission: Submission) -> None:
        self._attempt = attempt
        self._submission = submission
        self._depth: int | None = None  # number of jobs above this one, once counted

    async def call(self, job: JobFunction[..., Any], arguments: dict[str, Any]) -> Any:
        """Start a child unless it was started before. Wait for its end and return its result."""
        attempt = self._attempt
        name = f"job.{job.name}"
        node = attempt.replay.node(name, arguments, job.chosen.key)
        key = child_key(node, self._run)
        begin = partial(self._begin, partial(self._start_child, job, arguments, key), key)
        outcome = await attempt.code.outcome(node, name, begin, arguments, partial(_cut, node))
        return child_result(job, arguments, node, outcome)

    async def start(self, job: JobFunction[..., Any], arguments: dict[str, Any], submit: Submitter) -> str:
        """Start a run once without waiting for its end. Return its id."""
        name = f"start.{job.name}"
        node = self._attempt.replay.node(name, arguments, job.chosen.key)
        begin = partial(self._begin, partial(self._act, submit), None)
        outcome = await self._attempt.code.outcome(node, name, begin, arguments, partial(_cut, node))
        return str(start_result(job.name, outcome))

    async def signal(self, payload: dict[str, Any], send: Submitter) -> str:
        """Send a signal once. Return what the store did with it."""
        node = self._attempt.replay.node("signal", payload, None)
        begin = partial(self._begin, partial(self._act, send), None)
        outcome = await self._attempt.code.outcome(node, "signal", begin, payload, partial(_cut, node))
        return str(start_result("signal", outcome))

    @property
    def _run(self) -> str:
        run = self._attempt.row.run
        return f".{run}" if run > 1 else ""  # a new run has its own children

    # On the worker's loop

    def _begin(self, act: Callable[[str], Coroutine[Any, Any, Any]], key: str | None, pending: Pending) -> None:
        """Act. Then, for a child, wait for its end."""
        attempt = self._attempt
        if key is not None and key in attempt.replay.waited_for:  # only a started child was waited for
            attempt.waits.begin(pending, key, "child")
            return
        attempt.waits.busy += 1
        context = contextvars.copy_context()  # the engine's context
        context.run(conductor.set, None)
        driver = pending.driver = attempt.loop.create_task(act(pending.node), context=context)
        attempt.under_way.add(driver)
        driver.add_done_callback(partial(self._acted, pending, key))

    def _acted(self, pending: Pending, key: str | None, driver: asyncio.Task[Any]) -> None:
        attempt = self._attempt
        attempt.waits.busy -= 1
        attempt.under_way.discard(driver)
        pending.driver = None
        if driver.cancelled() and not pending.cutting:
            pass  # the attempt is over, or the worker's loop is
        elif driver.cancelled():
            attempt.code.arrive(pending, CutOff(), [cut_off(pending.node)])
        elif (error := driver.exception()) is not None:
            self._refused(pending, error)
        elif key is None:
            self._end(pending, {"outcome": "done", "payload": driver.result()})
        elif pending.cutting:  # the code has cut it off meanwhile; the child continues
            attempt.code.arrive(pending, CutOff(), [cut_off(pending.node)])
        else:
            attempt.waits.begin(pending, key, "child")
            attempt.code.turn_soon()
        attempt.call_left()

    def _refused(self, pending: Pending, error: BaseException) -> None:
        if isinstance(error, HoldfastError):  # refused by the store: a failure of the call, recorded like others
            kind, reason = type(error).__name__, str(error)
            if isinstance(error, StepFailed):
                kind, reason = error.kind, error.reason
            self._end(pending, {"outcome": "refused", "kind": kind, "reason": reason}, Failure(kind, reason))
        elif isinstance(error, Exception):
            self._attempt.code_failed(error)

    def _end(self, pending: Pending, ended: dict[str, Any], outcome: Outcome | None = None) -> None:
        event = HistoryEvent.VALUE_RECORDED.value, {"node": ended_name(pending.node), "value": ended}
        self._attempt.code.arrive(pending, outcome or Ended(ended), [event])

    async def _start_child(self, job: JobFunction[..., Any], arguments: dict[str, Any], key: str, node: str) -> None:
        attempt = self._attempt
        await self._check_depth(job)
        submit = await self._prepared(job, arguments, node)
        submit = msgspec.structs.replace(submit, parent=attempt.job, parent_key=key, parent_attempt=attempt.attempt)
        submitted = await self._started(submit)
        if submitted.job != submit.job:  # its end would be sent to another job, never to this one
            other = submitted.job if attempt.row.group is None else UNSHOWN
            reason = f"the key {job.chosen.key!r} belongs to job {other}, which this call has not started"
            raise StepFailed(job.name, "IdempotencyConflict", reason)

    async def _check_depth(self, job: JobFunction[..., Any]) -> None:
        """Refuse a child too far below the first run: jobs that start each other without end would fill the store."""
        attempt, limit = self._attempt, self._attempt.config.child_depth_max
        if self._depth is None:
            self._depth, above = 0, attempt.parent
            while above is not None and self._depth < limit:
                self._depth, above = self._depth + 1, await attempt.journal.parent_of(above)
        if self._depth >= limit:
            cure = "end the recursion, or raise child_depth_max (HOLDFAST_CHILD_DEPTH_MAX)"
            raise StepFailed(job.name, "RecursionError", f"jobs have started children {limit} deep: {cure}")

    async def _prepared(self, job: JobFunction[..., Any], arguments: dict[str, Any], node: str) -> Submit:
        """Return the command that starts a child. Its id is recorded and on disk."""
        attempt = self._attempt
        name = attempt.recorded(id_name(node, self._run), new_id)
        submit = self._submission(job, name, arguments, attempt.now())
        group = submit.group if submit.group is not None else attempt.row.group
        await attempt.durable()
        return msgspec.structs.replace(submit, group=group, trace_id=attempt.row.trace_id)

    async def _act(self, act: Submitter, node: str) -> str:
        """Act under an id that is recorded and on disk, so that a repeated act is the same."""
        name = self._attempt.recorded(id_name(node, self._run), new_id)
        await self._attempt.durable()
        return await act(name)

    async def _started(self, submit: Submit) -> Submitted:
        """Submit a job. A refusal names no other job, because this job's group reads it in the history."""
        try:
            submitted: Submitted = await self._attempt.write(submit)
        except IdempotencyConflict as error:
            if self._attempt.row.group is None:
                raise
            raise IdempotencyConflict(error.key, UNSHOWN) from None
        return submitted


def _cut(node: str) -> list[Written]:
    return [cut_off(node)]


def start_result(name: str, outcome: Outcome) -> Any:
    """Return the recorded result of a start or a signal, or raise its refusal."""
    if isinstance(outcome, Failure):
        raise StepFailed(name, outcome.kind, outcome.reason)
    assert isinstance(outcome, Ended), "a wait ends, and a start is told"
    completed = outcome.completed
    if completed.get("outcome") == "refused":
        raise StepFailed(name, completed.get("kind") or "", completed.get("reason") or "")
    return completed.get("payload")


def child_result(job: JobFunction[..., Any], arguments: dict[str, Any], node: str, outcome: Outcome) -> Any:
    """Return a child's result from the wait that its end completed, or raise its failure, which names the run."""
    end = start_result(job.name, outcome) or {}
    if end.get("state") == "completed":
        return job.signature.decode_result(end.get("result"))
    error = end.get("error") or {}
    reason = error.get("message") or end.get("reason") or str(end.get("state"))
    assert isinstance(outcome, Ended), "a refused start has no end"
    child, _, number = str(outcome.completed.get("signal") or "").rpartition(".")
    run = f", run {run_name(child, int(number))}" if number.isdecimal() else ""
    reason = f"{reason} ({call_text(job.name, arguments, node)}{run})"
    raise StepFailed(job.name, error.get("code") or f"child {end.get('state')}", reason, node)
