"""Jobs that a job starts and signals that it sends. Each happens once, whatever crashes (SPEC E15).

The parent waits for its child, and the child is cancelled with its parent. The parent records the child's id before it
submits the child, so a parent that runs again finds its child. The transaction that ends the child also writes a signal
to the parent. The transaction that fails or cancels a parent cancels its children. If an operator retries that parent,
it starts the children that had not ended again.

A child of a job that is kept for a build is kept for it, too, if the worker that starts it could run it. Otherwise the
parent might wait for a worker that takes only what is kept.

A child is in its parent's group, unless it names another. So a reader who may see only the parent may see the child.

A run that is started without being waited for has no parent. Its id and its start are recorded in the same way.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.authoring.conductor import Submitter, conductor
from holdfast.authoring.functions import JobFunction
from holdfast.engine.job_code import Pending, Written, cut_off
from holdfast.engine.replay import CutOff, Ended, Failure, Outcome, call_text
from holdfast.errors import HoldfastError, IdempotencyConflict, StaleAttempt, StepFailed, StoreUnavailable
from holdfast.ids import new_id
from holdfast.machines import HistoryEvent
from holdfast.machines.keys import child_key, ended_name, id_name
from holdfast.machines.run_projection import run_name
from holdfast.store import Submit, Submitted

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

UNSHOWN = "(not shown)"  # for a job that may be in another group
Submission = Callable[[JobFunction[..., Any], str, dict[str, Any], float], Submit]


class _Start(NamedTuple):
    """A child to be started: the call that waits for its end, and what the command is made from."""

    pending: Pending
    job: JobFunction[..., Any]
    arguments: dict[str, Any]
    key: str


class Children:
    """The children of one attempt's job, and the runs and signals that it starts and sends."""

    def __init__(self, attempt: Attempt, submission: Submission) -> None:
        self._attempt = attempt
        self._submission = submission
        self._depth: int | None = None  # number of jobs above this one, once counted
        self._unstarted: list[_Start] = []
        self._starter: asyncio.Task[None] | None = None  # starts them, together

    async def call(self, job: JobFunction[..., Any], arguments: dict[str, Any]) -> Any:
        """Start a child unless it was started before. Wait for its end and return its result."""
        attempt = self._attempt
        name = f"job.{job.name}"
        node = attempt.replay.node(name, arguments, job.chosen.key, earlier_names("job", job))
        begin = partial(self._begin_child, job, arguments, child_key(node, self._run))
        outcome = await attempt.code.outcome(node, name, begin, arguments, partial(_cut, node), acts=True)
        return child_result(job, arguments, node, outcome)

    async def start(self, job: JobFunction[..., Any], arguments: dict[str, Any], submit: Submitter) -> str:
        """Start a run once without waiting for its end. Return its id."""
        name = f"start.{job.name}"
        node = self._attempt.replay.node(name, arguments, job.chosen.key, earlier_names("start", job))
        begin = partial(self._begin_act, submit)
        outcome = await self._attempt.code.outcome(node, name, begin, arguments, partial(_cut, node), acts=True)
        return str(start_result(job.name, outcome))

    async def signal(self, payload: dict[str, Any], send: Submitter) -> str:
        """Send a signal once. Return what the store did with it."""
        node = self._attempt.replay.node("signal", payload, None)
        begin = partial(self._begin_act, send)
        outcome = await self._attempt.code.outcome(node, "signal", begin, payload, partial(_cut, node))
        return str(start_result("signal", outcome))

    @property
    def _run(self) -> str:
        run = self._attempt.row.run
        return f".{run}" if run > 1 else ""  # a new run has its own children

    # On the worker's loop

    def _begin_act(self, act: Submitter, pending: Pending) -> None:
        """Start a run, or send a signal."""
        attempt = self._attempt
        attempt.waits.busy += 1
        driver = pending.driver = self._task(self._act(act, pending))
        driver.add_done_callback(partial(self._acted, pending))

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in the engine's context, as work of the attempt."""
        attempt = self._attempt
        context = contextvars.copy_context()
        context.run(conductor.set, None)
        task = attempt.loop.create_task(work, context=context)
        attempt.under_way.add(task)
        return task

    def _acted(self, pending: Pending, driver: asyncio.Task[Any]) -> None:
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
        else:
            self._end(pending, {"outcome": "done", "payload": driver.result()})
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

    # Children that the code calls at once are started together: their ids reach the disk with one write, and none of
    # them needs a task. A child that the code has cut off before it was submitted is not started.

    def _begin_child(self, job: JobFunction[..., Any], arguments: dict[str, Any], key: str, pending: Pending) -> None:
        """Start a child, then wait for its end."""
        attempt = self._attempt
        if key in attempt.replay.waited_for:  # only a started child was waited for
            attempt.waits.begin(pending, key, "child")
            return
        attempt.waits.busy += 1
        self._unstarted.append(_Start(pending, job, arguments, key))
        if self._starter is None or self._starter.done():  # its callback has not run yet
            self._starter = self._task(self._start_children())
            self._starter.add_done_callback(self._starter_ended)

    async def _start_children(self) -> None:
        attempt = self._attempt
        while self._unstarted:
            starts, self._unstarted = self._unstarted, []
            depth = await self._depth_here()
            commands = [(start, self._command(start, depth)) for start in starts if not self._was_cut_off(start)]
            await attempt.durable()
            for start, command in commands:
                if isinstance(command, Submit) and not self._was_cut_off(start):
                    submitting = attempt.journal.enqueue(command)
                    submitting.add_done_callback(partial(self._submitted, start, command.job))

    def _was_cut_off(self, start: _Start) -> bool:
        if start.pending.cutting:
            self._attempt.waits.busy -= 1
        return start.pending.cutting

    def _starter_ended(self, starter: asyncio.Task[None]) -> None:
        attempt = self._attempt
        if self._starter is starter:
            self._starter = None
        attempt.under_way.discard(starter)
        if not starter.cancelled() and isinstance(error := starter.exception(), Exception):
            attempt.code_failed(error)
        attempt.code.turn_soon()  # a child that was cut off and not started may be all that kept the job
        attempt.call_left()

    def _command(self, start: _Start, depth: int) -> Submit | None:
        """Record a child's id, and return the command that creates it, or None if it is refused."""
        attempt = self._attempt
        try:
            self._check_depth(start.job, depth)
            name = self._id_of(start.pending)
            submit = self._submission(start.job, name, start.arguments, attempt.now())
        except Exception as error:
            attempt.waits.busy -= 1
            self._refused(start.pending, error)
            return None
        return msgspec.structs.replace(
            submit,
            group=submit.group if submit.group is not None else attempt.row.group,
            trace_id=attempt.row.trace_id,
            parent=attempt.job,
            parent_key=start.key,
            parent_attempt=attempt.attempt,
            kept_for=attempt.row.kept_for if attempt.serves(submit) else None,
        )

    def _submitted(self, start: _Start, name: str, submitting: asyncio.Future[Submitted]) -> None:
        """Wait for the end of a child that was submitted, or report why the store refused it."""
        attempt, pending = self._attempt, start.pending
        attempt.waits.busy -= 1
        error = None if submitting.cancelled() else submitting.exception()
        if isinstance(error, (StaleAttempt, StoreUnavailable)):
            attempt.lose()
        elif not attempt.may_record() or pending.cutting or submitting.cancelled():
            pass  # the attempt is over, or the code has cut the call off; the child continues
        elif error is not None:
            self._refused(pending, self._unshown(error))
        elif submitting.result().job != name:  # its end would be sent to another job, never to this one
            self._refused(pending, self._conflict(start.job, submitting.result().job))
        else:
            attempt.waits.begin(pending, start.key, "child")
        attempt.code.turn_soon()  # also after a call that was cut off: its start may be all that kept the job

    def _conflict(self, job: JobFunction[..., Any], other: str) -> StepFailed:
        other = other if self._attempt.row.group is None else UNSHOWN
        reason = f"the key {job.chosen.key!r} belongs to job {other}, which this call has not started"
        return StepFailed(job.name, "IdempotencyConflict", reason)

    def _unshown(self, error: BaseException) -> BaseException:
        """Return a refusal that names no other job, because this job's group reads it in the history."""
        if isinstance(error, IdempotencyConflict) and self._attempt.row.group is not None:
            return IdempotencyConflict(error.key, UNSHOWN)
        return error

    def _check_depth(self, job: JobFunction[..., Any], depth: int) -> None:
        """Refuse a child too far below the first run: jobs that start each other without end would fill the store."""
        if depth >= self._attempt.config.child_depth_max:
            cure = "end the recursion, or raise child_depth_max (HOLDFAST_CHILD_DEPTH_MAX)"
            raise StepFailed(job.name, "RecursionError", f"jobs have started children {depth} deep: {cure}")

    async def _depth_here(self) -> int:
        """Return the number of jobs above this one, up to the limit."""
        attempt, limit = self._attempt, self._attempt.config.child_depth_max
        if self._depth is None:
            depth, above = 0, attempt.parent
            while above is not None and depth < limit:
                depth, above = depth + 1, await attempt.journal.parent_of(above)
            self._depth = depth
        return self._depth

    def _id_of(self, pending: Pending) -> str:
        """Return the id under which a call acts. Of a renamed job, its event has the new name, too."""
        renamed = {} if pending.node.startswith(f"{pending.name}:") else {"name": pending.name}
        return str(self._attempt.recorded(id_name(pending.node, self._run), new_id, **renamed))

    async def _act(self, act: Submitter, pending: Pending) -> str:
        """Act under an id that is recorded and on disk, so that a repeated act is the same."""
        name = self._id_of(pending)
        await self._attempt.durable()
        return await act(name)


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


def earlier_names(kind: str, job: JobFunction[..., Any]) -> list[str]:
    """Return the names under which a child or a start of a job was recorded before the job was renamed."""
    return [f"{kind}.{alias}" for alias in job.aliases]


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
