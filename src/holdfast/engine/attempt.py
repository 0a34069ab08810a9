"""One attempt at one job: its code is run, its past is handed to it, what it does is recorded (SPEC sections 2 and 3).

The attempt does not stop after each write. It runs on while its writes are under way (output commit); what it may not
do is let the outside see anything that is not durable yet: before a tool is called, before a child is started, before
its result counts, everything until then is.

An attempt ends in exactly one of these ways, and writes at most one event for it:

- the code returned or raised: job_completed, job_failed, or job_requeued for a retry;
- it waits, was paused, or retries much later: its code is unwound and job_waiting or job_requeued is written;
- it was cancelled or its deadline passed: the code sees a cancellation, may clean up, and is ended after a grace time;
- the worker stops: job_requeued, neither a failure nor a cancel;
- its lease is lost: nothing is written any more, whatever the code still does.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property
from typing import Any

from holdfast.authoring.context import Suspended, conductor, place
from holdfast.authoring.functions import Call, JobFunction
from holdfast.authoring.redaction import Revealed, revealed
from holdfast.authoring.reporting import reporter
from holdfast.config import Config
from holdfast.engine import verdict
from holdfast.engine.bridge import Bridge
from holdfast.engine.budget import Spending
from holdfast.engine.calls import Calls
from holdfast.engine.children import Children, Submission
from holdfast.engine.deliveries import Deliveries
from holdfast.engine.host import Host
from holdfast.engine.ledger import Ledger
from holdfast.engine.outcomes import Outcomes
from holdfast.engine.products import Producer
from holdfast.engine.replay import Replay
from holdfast.engine.threads import escaped
from holdfast.engine.values import Values
from holdfast.engine.verdict import Written
from holdfast.engine.waits import Waits
from holdfast.errors import WaitTimeout
from holdfast.journal import Journal
from holdfast.machines import JobEvent
from holdfast.store import Claimed
from holdfast.store.effects import EffectStore

__all__ = ["Attempt"]

UNWINDING_SECONDS = 0.01  # code that catches its end and asks again and again gets slow answers, and starves nobody
_PARTS = {"_calls", "_children", "waits", "outcomes", "deliveries", "products", "budget"}


class Attempt(Ledger, Bridge, Producer, Spending, Values):
    """Runs one claimed job; the `Conductor` that its code talks to."""

    def __init__(
        self,
        claimed: Claimed,
        function: JobFunction[..., Any],
        *,
        journal: Journal,
        executor: Executor,
        config: Config,
        now: Callable[[], float],
        children: Submission,
        effects: EffectStore | None = None,
    ) -> None:
        super().__init__(claimed.job.id, claimed.job.attempt, claimed.job.parent, journal)
        self.row = claimed.job
        self.replay = Replay(claimed.events)
        self.config = config
        self._limit = config.payload_bytes_max
        self.now = now
        self._failures = self.replay.failures + 1  # should this attempt fail
        created = claimed.events[0].payload
        self._args: dict[str, Any] = created.get("args") or {}
        self.budget_given = created.get("budget")
        self.held_by: dict[str, str] = {}  # calls that wait for their gate, and its name
        self._function = function
        self.executor = executor
        self._effects = effects
        self._submission = children
        self._tasks: set[asyncio.Task[Any]] = set()
        self._intent: Written | None = None
        self._over = False
        self._why: str | None = None  # "cancel", "deadline", "release" or "lost", once somebody ends the attempt
        self.pausing = claimed.job.pause  # whether it is to stop at the next call (J13)
        self._timer: asyncio.TimerHandle | None = None  # for its run's deadline
        self._grace: asyncio.TimerHandle | None = None
        self._concluded = False  # whether its end was judged
        self._finished = False  # and written, if it may be
        self._settled = False

    # Its parts, each made when it is first needed: many jobs need few of them

    @cached_property
    def _calls(self) -> Calls:
        return Calls(self)

    @cached_property
    def _children(self) -> Children:
        return Children(self, self._submission)

    @cached_property
    def waits(self) -> Waits:
        """Where its code waits."""
        return Waits(self)

    @cached_property
    def outcomes(self) -> Outcomes:
        """Where the outcomes of its calls go."""
        return Outcomes(self, self._effects)

    @cached_property
    def deliveries(self) -> Deliveries:
        """What ends its waits while it goes on."""
        return Deliveries(self)

    # The life of an attempt

    def start(self, host: Host) -> None:
        """Begin to run the code. What follows comes by callbacks: a job costs one task, its code's."""
        self._host = host
        self.cross()
        self._timer = self._deadline_timer()
        self._context = contextvars.copy_context()
        self._context.run(revealed.set, Revealed())  # what its code will have seen of secrets
        self._main = self.loop.create_task(self._code(), context=self._context)
        self._main.add_done_callback(self._conclude, context=self._context)
        if self.row.cancel is not None:
            self.loop.call_soon(self.cancel)

    def _conclude(self, *_: object) -> None:
        """The code has ended, or is not waited for any longer: judge how, record it, give the slot back."""
        if self._main.done() and not self._main.cancelled():
            self._main.exception()  # seen: that code was unwound with its attempt is no news for anybody
        if self._concluded:
            return
        self._concluded = True
        ending = self._ending()
        self._over = True
        for timer in (self._timer, self._grace):
            if timer is not None:
                timer.cancel()
        self._drop_tasks()
        if ending is not None and (self.row.exported or "products" in vars(self)) and self.products.under_way:
            self._producing = self.loop.create_task(self._produce(ending))
        else:
            self._finish(ending)

    async def _produce(self, ending: Written) -> None:
        """Have what the code has produced on disk before its end is."""
        try:
            self._finish(await self.products.conclude(ending))
        except Exception:  # noqa: BLE001 - whatever it is: the job is taken again from what the store has
            self._finish(None)

    def _finish(self, ending: Written | None) -> None:
        try:
            if ending is not None:
                self.record(ending)
        except Exception:  # noqa: BLE001 - it cannot be recorded: the job is taken again from what the store has
            ending = None
        self.shut = True  # what is left of the code may not write behind the end, which would be refused with it
        self._finished = True
        self._host.freed(self)
        if ending is None:
            self._settle()

    def _settle(self) -> None:
        if self._settled:
            return
        self._settled = True
        if not self.lost:  # nothing is under way: its parts, which refer to it, are let go, and all is freed at once
            for part in _PARTS & vars(self).keys():
                del vars(self)[part]
        self._host.settled(self)

    async def _code(self) -> Any:
        conducted, reported = conductor.set(self), reporter.set(self)
        place.set(None)  # whoever started this may have been at one
        try:
            if self._effects is not None:
                await self.outcomes.begin()
            kwargs = self._function.signature.decode(self._args)
            if not self._function.is_async:
                return await self.in_thread(self._function.function, kwargs)
            return await self._function.function(**kwargs)
        except SystemExit as error:
            raise escaped(error) from error
        finally:
            conductor.reset(conducted)  # the task keeps its context, and is kept here
            reporter.reset(reported)

    def put_off(self, reason: str, seconds: float) -> None:
        """Have the job tried again after so many seconds, for a reason that is not its own."""
        self._intent = (JobEvent.REQUEUED.value, {"reason": reason, "not_before": self.now() + seconds})

    def _ending(self) -> Written | None:
        """What to write for the way the code ended; None if nothing may be written."""
        if self._why == "lost":
            return None
        if self._main.done() and not self._main.cancelled() and self._intent is None:
            error = self._main.exception()
            if error is None:
                return verdict.completed(self._function, self._main.result(), self._failures, self.now(), self._limit)
            if not isinstance(error, (Suspended, asyncio.CancelledError)):
                return self.failure(error)
        return self._interrupted()

    def _interrupted(self) -> Written | None:
        """What to write for code that did not come to an end of its own."""
        if self._why == "deadline":
            return JobEvent.FAILED.value, {"reason": "deadline", "message": "the run's deadline passed"}
        if self._why == "cancel":
            return JobEvent.CANCELLED.value, {}  # the store knows why, and whether the deadline passed meanwhile
        if self._intent is not None:
            return self._intent
        if self._why == "release":
            return JobEvent.REQUEUED.value, {"reason": "worker_shutdown"}
        if self._host.abandoned():
            return None  # nobody knows how it would have ended
        return self.failure(RuntimeError("the job's code cancelled itself"))

    def failure(self, error: BaseException) -> Written:
        """What to write for an error: another try, or the end."""
        return verdict.failed(self._function, error, self._failures, self.now())

    def unwound(self) -> bool:
        """Whether nothing of its code can still run: of a plain function that was begun nobody knows."""
        return self._function.is_async and self._main.done()

    # Ending it from outside

    def cancel(self) -> None:
        """The run was asked to cancel: its code sees it, may clean up, and is ended after the grace time (R6)."""
        self._stop("cancel")

    def release(self) -> None:
        """The worker stops: hand the job back (L6)."""
        self._stop("release")

    def lose(self) -> None:
        """The lease is lost: nothing more is written (L4)."""
        self._why, self.lost, self.shut = "lost", True, True
        self._force()
        self._main.cancel()

    def ask_to_pause(self) -> None:
        """Pause at the next step boundary (J13)."""
        self.pausing = True

    def _stop(self, why: str) -> None:
        if self._why is not None or self._over:
            return
        self._why = why
        if self._function.is_async or why != "cancel":
            self._main.cancel()  # a plain function sees it at its next call
        self._grace = self.loop.call_later(self.config.grace_seconds, self._force)

    def _force(self) -> None:
        self._over = True
        self.loop.call_soon(self._conclude, context=self._context)

    def _deadline_timer(self) -> asyncio.TimerHandle | None:
        if self.row.ends_by is None:
            return None
        return self.loop.call_later(max(0.0, self.row.ends_by - self.now()), self._stop, "deadline")

    def _drop_tasks(self) -> None:
        if "waits" in vars(self):
            self.waits.unwind()
        for task in [*self._tasks, self._main]:
            if not task.done():
                task.cancel()

    # What the code asks for

    async def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step or tool, or hand out its recorded result."""
        if not self.goes_on():
            await self._refuse()
        self._enlist()
        self.waits.busy += 1
        try:
            return await self._calls.call(call, call.signature.encode(args, kwargs, self._limit))
        finally:
            self.waits.busy -= 1
            self.waits.look()

    async def wait(self, key: str, timeout: float | None, wait_type: str) -> Any:  # noqa: ASYNC109 - kept over restarts
        """Wait for a signal; the payload, or WaitTimeout."""
        await self._enter()
        node = self.replay.node("wait", {}, key)
        completed = await self.waits.blocked_on(node, key, wait_type, timeout)
        if completed.get("outcome") == "expired":
            raise WaitTimeout(key)
        return completed.get("payload")

    async def sleep(self, duration: float) -> None:
        """Wait for a time."""
        await self._enter()
        node = self.replay.node("sleep", {}, f"{duration:g}")
        await self.waits.blocked_on(node, f"holdfast:timer:{node}", "timer", duration)

    async def child(self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a child, once, and wait for its end."""
        await self._enter()
        return await self._children.call(job, job.signature.encode(args, kwargs, self._limit))

    def check_cancelled(self) -> None:
        """Raise if the attempt is over, or its job was asked to cancel."""
        if self._over or self._intent is not None:
            raise Suspended
        if self._why is not None:
            raise asyncio.CancelledError

    # What is written

    def written(self, count: int, error: Exception | None) -> None:
        """So many more of its events are on disk, or were refused; when its end is, that was all."""
        if "outcomes" in vars(self) and self.outcomes.unconfirmed:
            self.outcomes.written(self.durable_events + count, error)
        super().written(count, error)
        if self._finished and (self.lost or self.durable_events == self.recorded_events):
            self._settle()

    # Letting go, and branches

    def goes_on(self) -> bool:
        """Whether nothing has ended this attempt yet."""
        return not (self._over or self._why is not None or self._intent is not None or self._main.done())

    def suspend(self, intent: Written) -> None:
        """Let go of the job: unwind its code, then write this."""
        self._intent = intent
        self._grace = self.loop.call_later(self.config.grace_seconds, self._force)  # should it not unwind
        self.waits.unwind()
        self._main.cancel()

    async def _enter(self) -> None:
        """Before anything the code asks for: raise if the attempt is over, else know the branch that asks."""
        if not self.goes_on():
            await self._refuse()
        self._enlist()

    async def _refuse(self) -> None:
        """The attempt is over: say so, slowly, to code that does not want to hear it."""
        try:
            self.check_cancelled()
        finally:
            await asyncio.sleep(UNWINDING_SECONDS)
        raise Suspended

    def _enlist(self) -> None:
        task = asyncio.current_task()
        if task is not None and task is not self._main and task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self.goes_on() and not task.cancelled():
            task.exception()  # seen: that a branch was unwound with its attempt is no news for anybody

    def has_branches(self) -> bool:
        """Whether others than the caller may still ask for something."""
        return bool(self._tasks) or self.waits.busy > 1
