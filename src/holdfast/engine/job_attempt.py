"""One attempt at one job (SPEC sections 2 and 3).

The attempt runs the job's code, replays the recorded outcomes to it, and records what the code does.

Output commit: the code runs on while its events are being written. But nothing outside may see what is not durable yet.
So every recorded event is on disk before a tool is called, a child is started or the job's result counts.

The code runs on its own event loop (`job_code`, `job_loop`). Steps, tools and everything else run on the worker's loop.

An attempt ends in exactly one of these ways, and writes at most one event for it:

- The code returned or raised. The attempt writes job_completed, job_failed, or job_requeued for a retry.
- The job waits, was paused, or retries much later. Its code is closed. The attempt writes job_waiting or job_requeued.
- The run was cancelled or its deadline passed. The code sees a cancellation, may clean up, and is ended after the grace
  time.
- The worker stops. The code is closed, and the attempt writes job_requeued. This is neither a failure nor a cancel.
- The lease is lost. The attempt writes nothing more, whatever the code still does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import threading
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec

from holdfast.authoring import plain_values
from holdfast.authoring.answer_form import MISFIT_MAX, Form
from holdfast.authoring.conductor import (
    Continued,
    Submitter,
    Suspended,
    conductor,
    external,
    job_thread,
    place,
    running_code,
)
from holdfast.authoring.functions import Call, JobFunction
from holdfast.authoring.redaction import Revealed, revealed
from holdfast.authoring.reports import Product, reporter
from holdfast.authoring.signature import checked_payload, fingerprint
from holdfast.config import Config
from holdfast.engine import ending_events, misfit
from holdfast.engine.children import Children, Submission
from holdfast.engine.ending_events import Written
from holdfast.engine.job_code import JobCode
from holdfast.engine.lease import Lease
from holdfast.engine.own_thread import OwnThread
from holdfast.engine.replay import Ended, Replay, Success
from holdfast.engine.report_writer import ReportWriter, put_blob
from holdfast.engine.run_budget import Budget
from holdfast.engine.step_calls import Calls, Outcomes
from holdfast.engine.thread_pool import ThreadPool, as_runtime_error
from holdfast.engine.waits import Waits
from holdfast.errors import InvalidArguments, NonDeterminism, StaleAttempt, StoreUnavailable, WaitTimeout
from holdfast.group_commit import Journal
from holdfast.ids import new_id
from holdfast.job_log import job_ended
from holdfast.machines import HistoryEvent, JobEvent
from holdfast.machines.event import Frozen, freeze_plain
from holdfast.machines.keys import CHANGED, DEPLOY, HUMAN, timer_key
from holdfast.store import Claimed, Command, Submit, Successor
from holdfast.store.blobs import DirectoryBlobs
from holdfast.store.effects import EffectStore
from holdfast.store.result_blobs import pieces, read_result, reference

if TYPE_CHECKING:
    from holdfast.engine.worker import Worker

UNDER_WAY_MAX = 512  # events under way before the code has to wait for the disk
BYTES_UNDER_WAY_MAX = 4 * 1024 * 1024  # of large events of all jobs of the worker, before those with such events wait
RESULTS_PAUSE_SECONDS = 1.0  # until a job is retried whose large results cannot be read
UNWINDING_SECONDS = 0.01  # code that catches Suspended and calls again gets slow answers, so it cannot spin
_PARTS = {"calls", "_own_thread", "_children", "waits", "outcomes", "reports", "budget"}
_ENDS = frozenset({JobEvent.COMPLETED.value, JobEvent.FAILED.value, JobEvent.CANCELLED.value})
_LOGGED = frozenset({JobEvent.FAILED.value, JobEvent.REQUEUED.value})


class Attempt:
    """Runs one claimed job. It is the `Conductor` of the job's code, and a `Writer` of the journal."""

    def __init__(
        self,
        claimed: Claimed,
        function: JobFunction[..., Any],
        *,
        journal: Journal,
        threads: ThreadPool,
        config: Config,
        now: Callable[[], float],
        children: Submission,
        effects: EffectStore | None = None,
    ) -> None:
        self.row = claimed.job
        self.job = claimed.job.id
        self.attempt = claimed.job.attempt
        self.parent = claimed.job.parent
        self.journal = journal
        self.lease = Lease(float("inf"), 0.0)  # how long the attempt may act; the worker sets the real one
        self.lost = False  # whether the lease is lost
        self.write_closed = False  # whether the attempt may write no more: it is lost, or its end is written
        self.gathered: list[tuple[str, Frozen]] = []  # events for the next batch
        self.uses: list[str] = []  # ids of signals that these events consume
        self.successor: Successor | None = None  # the job that continues this one, if it ends so
        self.recorded_events = 0  # total, on disk or not
        self.durable_events = 0  # those on disk
        self.decided_events = 0  # up to the last one that records a decision and follows from no other
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()  # waits for so many events on disk
        self.replay = Replay(claimed.events)
        self.config = config
        self._limit = config.payload_bytes_max
        self._content: bytes | None = None  # the JSON of a result that is too large for an event
        self.now = now
        self._failures = self.replay.failures + 1  # the count if this attempt fails
        created = claimed.events[0].payload
        self._args: dict[str, Any] = created.get("args") or {}
        self.budget_limits = created.get("budget")
        self.budgeted = self.budget_limits is not None  # whether the run has a budget
        self.held_by: dict[str, str] = {}  # call → name of the gate it waits for
        self._function = function
        self.threads = threads
        self._effects = effects
        self._submission = children
        self.under_way: set[asyncio.Task[Any]] = set()  # calls that run on the worker's loop
        self._intent: Written | None = None
        self._continuing: dict[str, Any] | None = None  # arguments of the run that continues this one
        self._over = False
        self.own_step = False  # whether the job's own thread runs a step (see `own_thread`)
        self._stop_reason: str | None = None  # "cancel", "deadline", "release" or "lost", once ended from outside
        self.pausing = claimed.job.pause  # whether to pause at the next call (J13)
        self._timer: asyncio.TimerHandle | None = None  # for the run's deadline
        self._grace: asyncio.TimerHandle | None = None
        self.stay_seconds = 0.0  # how long the job stays in memory at a wait; the worker sets it
        self._stays_until = 0.0  # by the loop's time; then it is suspended if nothing has happened
        self._stays_since = -1  # how many events were recorded when it came to rest
        self._stay: asyncio.TimerHandle | None = None
        self._concluded = False  # whether the ending was decided
        self._finished = False  # whether the ending was written, if allowed
        self._settled = False
        self._failing: Written | None = None  # the end to log when it is durable

    # Parts. Each is made when first needed: many jobs need few of them.

    @cached_property
    def calls(self) -> Calls:
        """Return the part that makes calls."""
        return Calls(self)

    @cached_property
    def _own_thread(self) -> OwnThread:
        return OwnThread(self)

    @cached_property
    def _children(self) -> Children:
        return Children(self, self._submission)

    @cached_property
    def waits(self) -> Waits:
        """Return the places at which the attempt waits."""
        return Waits(self)

    @cached_property
    def outcomes(self) -> Outcomes:
        """Return the part that stores the outcomes of calls."""
        return Outcomes(self, self._effects)

    @cached_property
    def reports(self) -> ReportWriter:
        """Return the writer of the progress and exports that the code reports."""
        return ReportWriter(self)

    @cached_property
    def budget(self) -> Budget:
        """Return the budget of the run: what it may spend and has spent."""
        return Budget(self, self.budget_limits or {})

    # Life

    def start(self, host: Worker) -> None:
        """Start the code. Everything after this happens in callbacks."""
        self._host = host
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.code = JobCode(self, self.job, self.replay, self.loop, self.threads)
        if not self._function.is_async:
            _ = self._own_thread  # made here, because threads use it
        self.brief_steps = host.brief_steps
        self._timer = self._deadline_timer()
        context = self._context = contextvars.copy_context()
        context.run(self._set_up)
        self.code.begin(self._code(), context)
        running_code.add(self)
        if self._effects is not None or self.replay.large:
            self._beginning = self.loop.create_task(self._begin())
        else:
            self.code.turn_soon()
        if self.row.cancel is not None:
            self.loop.call_soon(self.cancel)

    def _set_up(self) -> None:
        revealed.set(Revealed())  # the secrets that the code will have seen
        conductor.set(self)
        reporter.set(self)
        for inherited in (place, external, job_thread):  # the context of the caller may have one
            if inherited.get() is not None:  # each variable that is set makes all other uses of the context slower
                inherited.set(None)

    async def _begin(self) -> None:
        """Read large results, and the effects that earlier attempts left in the effect store, then run the code."""
        try:
            await self._read_results()
            await self.outcomes.begin()
        except Suspended:
            self.loop.call_soon(self._close)
        except Exception as error:  # an effect store may be the user's own
            self.loop.call_soon(self.code_failed, error)
        else:
            self.code.turn_soon()

    async def _read_results(self) -> None:
        """Read the large results of the history.

        Raises:
            Suspended: they cannot be read now.
        """
        blobs = DirectoryBlobs(self.config.blobs) if self.config.blobs else None
        try:
            for recorded, large in self.replay.large:
                recorded.outcome = Success(await read_result(self.journal.blob, blobs, self.job, large))
        except StoreUnavailable as error:
            self.postpone("results_unavailable", RESULTS_PAUSE_SECONDS)
            raise Suspended from error
        self.replay.large.clear()

    async def keep_result(self, content: bytes) -> dict[str, Any]:
        """Store a result that is too large for an event. Return the reference for the event.

        Raises:
            Suspended: it may not be stored. The attempt is lost.
        """
        result = reference(content)
        try:
            await put_blob(self, result.blob, pieces(content))
        except (StaleAttempt, StoreUnavailable) as error:
            self.lose()
            raise Suspended from error
        return msgspec.structs.asdict(result)

    async def _code(self) -> Any:
        kwargs = self._function.signature.decode(self._args)
        if not self._function.is_async:
            return await self.code.loop.run_code(self._function.function, kwargs)
        return await self._function.function(**kwargs)

    # Callbacks of `JobCode`

    def code_rests(self) -> None:
        """Suspend the job if no part of it can move: the code rests, and there is nothing to deliver to it (E14)."""
        if not self.goes_on() or "waits" not in vars(self):
            if self.goes_on() and not self.under_way and self.code.idle:
                self._stuck()
            return
        if self.waits.busy or self.own_step or self.waits.has_several_new() or not self.code.idle:
            self.waits.check_new()
            return
        intent = self.waits.intent()
        if intent is None:
            self._stuck()
            return
        unawaited = self.code.unawaited_calls(at_the_end=False)
        if unawaited is not None:
            self.code_failed(unawaited)
        elif not self._stays():
            self._intent = intent
            self._close()

    # A job that was resumed soon after its last wait stays in memory for a moment at the next one. Its waits are served
    # as they are while another branch works, so a signal needs no replay. The job holds its lease and its slot.

    def _stays(self) -> bool:
        """Return whether the job stays in memory for now, although no part of it can move."""
        if not self.stay_seconds or self.pausing or not self.waits.are_served_here():
            return False
        if self._stays_since != self.recorded_events:  # it has moved since its last rest
            self._stays_since = self.recorded_events
            self._stays_until = self.loop.time() + self.stay_seconds if self._host.may_stay(self) else 0.0
        if self.loop.time() >= self._stays_until:
            return False
        if self._stay is not None:
            self._stay.cancel()
        self._stay = self.loop.call_at(self._stays_until, self.code.turn_soon)
        self.waits.check_new()
        return True

    def leave(self) -> None:
        """Suspend the job if it only waits: its slot is needed, or the worker stops."""
        self._stays_until = 0.0
        self.code.turn_soon()

    @property
    def is_suspended(self) -> bool:
        """Return whether the attempt has ended in a wait."""
        return self._intent is not None and self._intent[0] == JobEvent.WAITING

    def _stuck(self) -> None:
        self.code_failed(self.code.stuck())

    def code_returned(self) -> None:
        """Start the grace time of the tasks that the job's function left: they are being cancelled."""
        self._grace = self._grace or self.loop.call_later(self.config.grace_seconds, self._force)

    def code_ended(self) -> None:
        forgotten = misfit.forgotten_tools(self.replay) if self.replay.in_doubt else None
        main = self.code.main
        if forgotten is not None and main is not None and main.done() and not main.cancelled():
            self.code_failed(forgotten)
        if self._intent is None:
            self._conclude()

    def code_failed(self, error: BaseException) -> None:
        if self._over or self._stop_reason is not None or self._intent is not None:
            return
        if isinstance(error, NonDeterminism) and self._function.on_misfit == "ask":
            self._ask_about(error)
        else:
            self._intent = self._context.copy().run(self.failure, error)
            self._close()

    def serves(self, submit: Submit) -> bool:
        """Return whether the worker of this attempt can run a job."""
        return self._host.serves(submit.plugin, submit.entry, submit.queue)

    def knows(self, name: str) -> bool:
        return self._function.starter.knows(name)

    def _ask_about(self, error: NonDeterminism) -> None:
        """End the attempt with a question: which code goes on?"""
        build = self.replay.builds.get(self.attempt)
        self._intent = misfit.question(self.replay, error, build)
        began = self._intent[1][DEPLOY]["began"]
        if began is None or began == build or build in self.replay.handed_to:  # the other build does not fit, either
            self._close()
        else:
            self._unwind()  # or the code would go on while the workers are read
            self._handing_over = self.loop.create_task(self._hand_over(self._intent, began))

    async def _hand_over(self, asked: Written, began: str) -> None:
        """Give the job to a live worker of the build that recorded its history, if there is one."""
        try:
            cards = await self.journal.workers()
        except StoreUnavailable:
            cards = []
        if misfit.has_worker(cards, self.row, began, self.now()) and not self._over:
            self._intent = misfit.requeue(asked)
        self._close()

    def call_left(self) -> None:
        """Note that a call is no longer under way. If the attempt is over, conclude after the last one."""
        if self._over and not self._concluded and not self.under_way and self._running_thread() is None:
            self._conclude()
        elif self._settled and not self.under_way:
            self._host.unwound(self)

    def _close(self) -> None:
        """End the code where it is. Cancel running calls. Wait for them and for threads for the grace time."""
        if self._concluded:
            return
        self._over = True
        self._unwind()
        threads = self._running_thread()
        if threads is not None:
            threads.add_done_callback(self._thread_left)
        if self.under_way or threads is not None:
            self._grace = self._grace or self.loop.call_later(self.config.grace_seconds, self._force)
        else:
            self._conclude()

    def _unwind(self) -> None:
        """Close the code, its waits and its calls."""
        self.code.close()
        if "waits" in vars(self):
            self.waits.unwind()
        for call in list(self.under_way):
            call.cancel()

    def _thread_left(self, _: object) -> None:
        """Report to the worker's loop that the job's own thread has returned. Runs in that thread."""
        with contextlib.suppress(RuntimeError):  # the worker's loop is closed
            self.loop.call_soon_threadsafe(self.call_left)

    def _running_thread(self) -> Any:
        """Return the future of the thread that runs the job's own plain function, while it runs."""
        thread = self.code.loop.code_thread
        return thread if thread is not None and not thread.done() else None

    def _conclude(self) -> None:
        """Decide how the code ended, record that, and free the slot. The code has ended, or its grace time is over."""
        if self._concluded:
            return
        self._concluded = True
        running_code.discard(self)
        ending = self._judge_ending()
        self._over = True
        for timer in (self._timer, self._grace, self._stay):
            if timer is not None:
                timer.cancel()
        self._unwind()
        if (thread := self._running_thread()) is not None:
            thread.cancel()  # a thread cannot be stopped, so it no longer counts as one of the worker's threads
        reported = (self.row.exported or "reports" in vars(self)) and self.reports.under_way
        if ending is not None and (reported or self._content is not None):
            self._producing = self.loop.create_task(self._produce(ending))
        else:
            self._finish(ending)

    def _judge_ending(self) -> Written | None:
        """Return the event for the way the code ended. A broken result or error gives an event, too."""
        try:
            return self._context.copy().run(self._ending)  # in the context that knows which secrets the code has seen
        except BaseException as error:  # the user's result or error may raise when it is read
            failure = {"code": type(error).__name__, "message": "the result or error of the job could not be read"}
            return JobEvent.FAILED.value, {"reason": "error", **failure, "error": failure}

    async def _produce(self, ending: Written) -> None:
        """Write a large result and everything that the code has reported, then write the end of the attempt."""
        try:
            if self._content is not None:
                await self.keep_result(self._content)
            self._finish(await self.reports.conclude(ending))
        except (Exception, Suspended):  # any error: the next attempt continues from what the store has
            self._finish(None)

    def _finish(self, ending: Written | None) -> None:
        try:
            if ending is not None:
                self.record(ending)
                self._failing = ending if ending[0] in _LOGGED else None
        except Exception:  # the ending cannot be recorded: the next attempt continues from what the store has
            ending = None
        self.write_closed = True  # a call that writes after the end would have the end refused with it
        self._finished = True
        self._host.freed(self)
        if ending is None:
            self._settle()

    def _settle(self) -> None:
        if self._settled:
            return
        self._settled = True
        if self._failing is not None and not self.lost:
            job_ended(self.row, *self._failing, self.now())
        if not self.lost:  # drop the parts, which refer to the attempt, so that all is freed without the GC
            self._context.run(conductor.set, None)
            self._context.run(reporter.set, None)
            if not self.under_way:
                self.code.forget()
            for part in _PARTS & vars(self).keys():
                del vars(self)[part]
        self._host.settled(self)

    def postpone(self, reason: str, seconds: float) -> None:
        """End the attempt and retry the job after so many seconds, for a reason that is not the job's own."""
        self._intent = (JobEvent.REQUEUED.value, {"reason": reason, "not_before": self.now() + seconds})

    def _ending(self) -> Written | None:
        """Return the event for the way the code ended, or None if the attempt may not write."""
        if self._stop_reason == "lost":
            return None
        main = self.code.main
        if main is not None and main.done() and not main.cancelled() and self._intent is None:
            error = main.exception()
            continued = Continued.is_all_of(error)
            if error is None or continued:
                error = self.code.unawaited_calls(at_the_end=True)
            if error is None and continued:
                return self._continued()
            if error is None and self._continuing is not None:
                error = Continued.caught()
            if error is None:
                return self._completed(main.result())
            if not isinstance(error, (Suspended, asyncio.CancelledError)):
                return self.failure(error)
        return self._interrupted()

    def _completed(self, value: Any) -> Written:
        """Return the event for code that returned. The result of a child is part of its parent's history."""
        most = self._limit if self.parent is not None else self.config.result_bytes_max
        ending, self._content = ending_events.completed(
            self._function, value, self._failures, self.now(), self._limit, most
        )
        return ending

    def _continued(self) -> Written:
        """Return the event for code that continues as another run. The same transaction creates that run.

        Its id need not be recorded first: an attempt writes its end once, or never.
        """
        row, args = self.row, self._continuing
        self.successor = Successor(
            job=new_id(),
            args=args,
            fingerprint=fingerprint(args),
            first=row.first or row.id,
            budget=self.budget.left() if self.budgeted else None,
        )
        return JobEvent.COMPLETED.value, {"result": None, "continued_as": self.successor.job}

    def _interrupted(self) -> Written | None:
        """Return the event for code that was ended from outside."""
        if self._stop_reason == "deadline":
            return JobEvent.FAILED.value, {"reason": "deadline", "message": "the run's deadline passed"}
        if self._stop_reason == "cancel":
            return JobEvent.CANCELLED.value, {}  # the store knows the reason, and whether the deadline passed meanwhile
        if self._intent is not None:
            return self._intent
        if self._stop_reason == "release":
            return JobEvent.REQUEUED.value, {"reason": "worker_shutdown"}
        if self._host.abandoned():
            return None  # how the code would have ended is unknown
        return self.failure(RuntimeError("the job's code cancelled itself"))

    def failure(self, error: BaseException) -> Written:
        """Return the event for an error: another try, or the end of the job."""
        if not isinstance(error, Exception):
            error = as_runtime_error(error)
        kind, fields = ending_events.failed(self._function, error, self._failures, self.now())
        traces = [self.replay.traces[node] for node in fields.get("nodes") or () if node in self.replay.traces]
        if traces:  # tracebacks inside the steps, which the code does not see (E13)
            fields["details"] = {
                "traceback": "\n".join([*traces, fields["details"]["traceback"]])[-2 * ending_events.TRACEBACK_MAX :]
            }
        return kind, fields

    def unwound(self) -> bool:
        """Return whether no code of the attempt can still run. This is unknown for a plain function that has begun."""
        return self._function.is_async and self._over and not self.under_way

    @property
    def is_stranded(self) -> bool:
        """Return whether the code has ended and nothing will settle the attempt: an error of the engine (L11)."""
        producing: asyncio.Task[None] | None = vars(self).get("_producing")
        ended = self._concluded or (self.code.main_done and self._grace is None)
        if self._settled or not ended or (producing is not None and not producing.done()):
            return False
        return not self._finished or self.durable_events == self.recorded_events

    def conclude_stranded(self) -> None:
        """Fail an attempt whose end could not be decided, and free its slot."""
        self._concluded = self._over = True
        if self._finished:
            self._settle()
        else:
            self._finish(self.failure(RuntimeError("the attempt ended without a result: see the log of its worker")))

    # Ending the attempt from outside

    def cancel(self) -> None:
        """Cancel the code: its run was cancelled. The code may clean up, and is ended after the grace time (R6)."""
        self._stop("cancel")

    def release(self) -> None:
        """Requeue the job: the worker stops (L6). The code sees no cancellation, but running steps do."""
        if self._stop_reason is None and not self._over:
            self._stop_reason = "release"
            self._close()

    def lose(self) -> None:
        """Stop writing: the lease is lost (L4)."""
        self._stop_reason, self.lost, self.write_closed = "lost", True, True
        self._over = True
        self.loop.call_soon(self._conclude)

    def ask_to_pause(self) -> None:
        """Pause the job at the next step boundary (J13)."""
        self.pausing = True
        self.leave()

    def check_inbox(self) -> None:
        """Check the inbox: another process wrote something for this job, perhaps a signal."""
        if "waits" in vars(self):
            self.waits.check_inbox()

    def _stop(self, why: str) -> None:
        if self._stop_reason is not None or self._over:
            return
        self._stop_reason = why
        if self._function.is_async or why != "cancel":
            assert self.code.main is not None, "it has begun"
            self.code.main.cancel()
        self.code.cancel_threads()  # a plain function sees the cancel at its next call, or in the call it waits in
        self.code.turn_soon()
        self._grace = self.loop.call_later(self.config.grace_seconds, self._force)

    def _force(self) -> None:
        self._over = True
        self._conclude()

    def _deadline_timer(self) -> asyncio.TimerHandle | None:
        if self.row.ends_by is None:
            return None
        return self.loop.call_later(max(0.0, self.row.ends_by - self.now()), self._stop, "deadline")

    # Conductor: what the code calls

    def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        token = object()
        return self.code.tracked(token, call.name, self.calls.call(call, args, kwargs, token))

    def wait(
        self, key: str, timeout: float | None, wait_type: str, form: Form | None = None
    ) -> Coroutine[Any, Any, Any]:
        if form is None:
            return self.tracked("wait_for", lambda: self._wait(key, timeout, wait_type))
        return self.tracked("wait_for", lambda: self._answer(key, timeout, form))

    async def _wait(
        self,
        key: str,
        timeout: float | None,  # noqa: ASYNC109 - kept over restarts
        wait_type: str,
        form: dict[str, Any] | None = None,
    ) -> Any:
        node = self.replay.node("wait", {}, key)
        outcome = await self.code.outcome(node, "wait", lambda at: self.waits.begin(at, key, wait_type, timeout, form))
        assert isinstance(outcome, Ended), "a wait ends"
        if outcome.completed.get("outcome") == "expired":
            raise WaitTimeout(key)
        return plain_values.as_recorded(outcome.completed.get("payload"))

    async def _answer(self, key: str, timeout: float | None, form: Form) -> Any:  # noqa: ASYNC109 - kept over restarts
        """Wait for an answer. Ask again while it cannot be used, and say why."""
        asked: dict[str, Any] = {"schema": form.schema}
        while True:
            payload = await self._wait(key, timeout, HUMAN, asked)
            try:
                return form.decode(payload)
            except InvalidArguments as error:
                asked = {"schema": form.schema, "misfit": error.reason[:MISFIT_MAX]}

    def sleep(self, duration: float) -> Coroutine[Any, Any, None]:
        return self.tracked("sleep", lambda: self._sleep(duration))

    async def _sleep(self, duration: float) -> None:
        node = self.replay.node("sleep", {}, f"{duration:g}")
        key = timer_key(node)
        await self.code.outcome(node, "sleep", lambda at: self.waits.begin(at, key, "timer", duration))

    def child(
        self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        return self.tracked(job.name, lambda: self._children.call(job, job.signature.encode(args, kwargs, self._limit)))

    def tracked(self, name: str, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a durable call. It begins when the code awaits it."""
        token = object()
        return self.code.tracked(token, name, self._call(token, begin))

    async def _call(self, token: object, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.code.awaited(token)
        if not self.goes_on():
            await self.refuse()
        return await begin()

    async def start_run(self, job: JobFunction[..., Any], arguments: dict[str, Any], submit: Submitter) -> str:
        if not self.goes_on():
            await self.refuse()
        return await self._children.start(job, arguments, submit)

    async def send_signal(self, payload: dict[str, Any], send: Submitter) -> str:
        if not self.goes_on():
            await self.refuse()
        return await self._children.signal(payload, send)

    def continue_as(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        self.code.check_main("continue_as")
        self._continuing = self._function.signature.encode(args, kwargs, self._limit)
        raise Continued

    async def outside(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.code.loop.outside(work)

    def check_cancelled(self) -> None:
        if self._over or self._intent is not None:
            raise Suspended
        if self._stop_reason is not None:
            raise asyncio.CancelledError

    async def refuse(self) -> None:
        """Raise because the attempt is over. Sleep first, so that code that catches the error cannot spin."""
        try:
            self.check_cancelled()
        finally:
            await asyncio.sleep(UNWINDING_SECONDS)
        raise Suspended

    # Values, reports and spending

    def value(self, kind: str) -> Any:
        """Return the time, a random number or a UUID; on replay the same (E9)."""
        make: dict[str, Callable[[], Any]] = {
            "now": self.now,
            "random": random.random,
            "uuid4": lambda: str(uuid.uuid4()),
        }
        node = self.replay.value_node(kind)
        if self.in_loop():
            return self._value(node, make[kind])
        return self.code.on_host(self._value, node, make[kind])

    def _value(self, node: str, make: Callable[[], Any]) -> Any:
        """Record and return a value. Code that is being closed gets an unrecorded one: the attempt writes no more."""
        return self.recorded(node, make) if self.may_record() else make()

    def changed(self, mark: str) -> bool:
        """Return whether the run is on the new side of a change: it had not passed this place before the change."""
        if self.in_loop():
            return self._changed(mark)
        return bool(self.code.on_host(self._changed, mark))

    def _changed(self, mark: str) -> bool:
        """Record the side once. An unrecorded one is that of a history which goes further than this place.

        The old side is recorded, too, although each replay would find it again. So it can be counted without a replay.
        """
        return bool(self._value(f"{CHANGED}{mark}", lambda: self.code.is_new_ground))

    def recorded(self, node: str, make: Callable[[], Any], **more: Any) -> Any:
        """Return a recorded value. Record it first if it is new, with `more` in its event."""
        if node not in self.replay.values:
            self.replay.values[node] = make()
            self.record((HistoryEvent.VALUE_RECORDED.value, {"node": node, "value": self.replay.values[node], **more}))
            self.decided_events = self.recorded_events
        return plain_values.as_recorded(self.replay.values[node])

    def known(self, node: str) -> Any:
        return plain_values.as_recorded(self.replay.values.get(node))

    def known_names(self, beginning: str) -> list[str]:
        return [node for node in self.replay.values if node.startswith(beginning)]

    def plan(self, new_plan: dict[str, Any] | None = None) -> dict[str, Any] | None:
        if self.replay.plan is None and new_plan is not None:
            self.code.refuse(misfit.left_by_plan(self.replay, new_plan))
            plan = checked_payload("the plan", new_plan, self.config.payload_bytes_max)
            self.record((HistoryEvent.PLAN_GENERATED.value, {"plan": plan}))
            self.replay.plan = plan
        return cast("dict[str, Any] | None", plain_values.as_recorded(self.replay.plan))

    def progress(self, fields: dict[str, Any]) -> None:
        self.reports.progress(fields)

    def export(self, product: Product) -> Awaitable[None]:
        return self.reports.export(product)

    @property
    def reported(self) -> bool:
        """Return whether the code has reported progress or exports."""
        return "reports" in vars(self)

    @property
    def is_exporting(self) -> bool:
        """Return whether exports of the code are not written yet. Safe from any thread."""
        return self.reported and self.reports.is_exporting

    async def exports_written(self) -> None:
        """Wait until every export so far is written, or the attempt is lost by it."""
        if self.reported:
            await self.reports.exports_written()

    @property
    def spends(self) -> bool:
        """Return whether this attempt has spent anything or asked for its budget."""
        return "budget" in vars(self)

    def spent(self, call: str | None, amounts: dict[str, int]) -> None:
        """Count what the code has spent. Safe from any thread."""
        node = call.removeprefix(f"holdfast:{self.job}:") if call is not None else None
        if self.in_loop():
            self.budget.spend(node, amounts)
        else:
            self.code.on_host(self.budget.spend, node, amounts)

    # Threads

    def call_in_thread(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._function.is_async and self._own_thread.takes(call):
            return self._own_thread.call(call, args, kwargs)
        return self.from_thread(self.call(call, args, kwargs))

    def is_undisturbed(self) -> bool:
        """Return whether nothing but the code itself has a say in what follows, so that its thread may go on alone."""
        asked = self.pausing or self.budgeted or self._effects is not None
        return not asked and self.goes_on() and self.lease.lasts() and not self.is_far_ahead() and self.code.is_alone

    def in_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.code.from_thread(coroutine)

    async def in_thread(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Run the plain function of a call in a thread, in the current context."""
        context = contextvars.copy_context()
        return await self.threads.call(lambda: context.run(function, **kwargs))

    # Events. The journal gathers them while the code runs on, and counts those that are on disk. A refused write, or
    # one with an unknown result, ends the attempt. The attempt writes nothing after it.

    def record(self, *events: Written) -> None:
        """Write events with the next batch, with the native work handed over since the last event."""
        if self.write_closed:
            raise Suspended
        loop = self.code.loop
        if loop.handed and events[0][0] not in _ENDS:
            kind, fields = events[0]
            seen = {"natives": loop.handed, "native_labels": loop.handed_labels}
            loop.handed, loop.handed_labels = [], []
            events = ((kind, {**fields, **seen}), *events[1:])
        self.record_frozen([(kind, freeze_plain(payload)) for kind, payload in events])

    def record_frozen(self, events: list[tuple[str, Frozen]]) -> None:
        """Write events with the next batch."""
        if self.write_closed:
            raise Suspended
        self.journal.append(self, events)
        self.recorded_events += len(events)

    def written(self, count: int, error: Exception | None) -> None:
        """Count events that are on disk or were refused. After the ending event the attempt is settled."""
        if "outcomes" in vars(self) and self.outcomes.unconfirmed:
            self.outcomes.written(self.durable_events + count, error)
        self.durable_events += count
        if error is not None and not self.lost:
            self.lose()  # refused or unknown: the next attempt continues from what the store has
        while self._waiters and (self.lost or self._waiters[0][0] <= self.durable_events):
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        if self._finished and (self.lost or self.durable_events == self.recorded_events):
            self._settle()

    async def write(self, command: Command) -> Any:
        """Run a store command for the code.

        If the store is away, or another attempt holds the job, this attempt ends. That is not a failure of the code.
        """
        try:
            return await self.journal.write(command)
        except (StaleAttempt, StoreUnavailable) as error:
            self.lose()
            raise Suspended from error

    async def durable(self) -> None:
        """Wait until every recorded event is on disk. Check that the attempt still holds its job (L4)."""
        if self.durable_events < self.recorded_events and not self.lost:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((self.recorded_events, waiter))
            await waiter
        if not self.lost and not self.lease.lasts():
            self.lose()  # the process was stopped for a while, or the store is silent (L11)
        self.check_cancelled()

    def is_far_ahead(self) -> bool:
        """Return whether the code is so far ahead of the disk that it has to wait."""
        ahead = self.recorded_events - self.durable_events
        return ahead > UNDER_WAY_MAX or (ahead > 0 and self.journal.bytes_under_way > BYTES_UNDER_WAY_MAX)

    def may_record(self) -> bool:
        """Return whether values are still recorded, as they are during clean-up after a cancel."""
        return not (self._over or self.write_closed or self._intent is not None)

    def goes_on(self) -> bool:
        return not (self._over or self._stop_reason is not None or self._intent is not None or self.code.main_done)
