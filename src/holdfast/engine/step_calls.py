"""Calls of steps and tools: recorded, retried, and made at most once where that is required (SPEC E1 to E7, E10).

Each call without a recorded outcome is driven by its own task on the worker's loop. The order is (E3):

1. If the effect was kept and its events were not, the events are appended.
2. A tool that was started and has no end is in doubt. Its policy settles it. It is never called blindly.
3. Otherwise the call is declared, then made. A tool's declaration is on disk before the tool acts.

The outcome is recorded when it is delivered to the code. With an external effect store, the effect is stored there
first (E2). A crash between the two leaves an effect that the next attempt finds.

A result may come when its attempt may no longer write: the lease was lost, or the call timed out. Such a result is kept
as evidence for the operator who has to answer for the call (E5). It is never applied automatically.

Whatever a step raises is its own failure. KeyboardInterrupt, SystemExit and the like end neither the worker nor its
loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.conductor import Suspended, conductor, external, job_thread, place
from holdfast.authoring.functions import Call, Done, NotDone
from holdfast.authoring.job_api import RetryAfter
from holdfast.engine.ending_events import Written, error_text, kind_of, trace_of
from holdfast.engine.gate_admission import acquire_share, close_gate
from holdfast.engine.job_code import Pending, cut_off
from holdfast.engine.replay import CUT_OFF, CutOff, Failure, Outcome, Success
from holdfast.engine.thread_pool import as_runtime_error
from holdfast.errors import (
    EffectConflict,
    InDoubt,
    InvalidResult,
    PayloadTooLarge,
    Permanent,
    StaleAttempt,
    StepFailed,
    StoreUnavailable,
)
from holdfast.job_log import call_failed, call_in_doubt
from holdfast.machines import HistoryEvent
from holdfast.machines.keys import doubt_key
from holdfast.store import Evidence, KeepEvidence
from holdfast.store.effects import Effect, EffectStore
from holdfast.store.result_blobs import FIELD

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

NODE_STARTED, NODE_FINISHED = HistoryEvent.NODE_STARTED.value, HistoryEvent.NODE_FINISHED.value
TOOL_STARTED, TOOL_FINISHED = HistoryEvent.TOOL_STARTED.value, HistoryEvent.TOOL_FINISHED.value
COMMAND_COMMITTED = HistoryEvent.COMMAND_COMMITTED.value
EFFECTS_PAUSE_SECONDS = 1.0  # until a job is retried whose effect store was away
REASON_MAX = 2000
POSTPONED_MAX = 100  # postponements of a call; from then on RetryAfter is a failure


class _TimedOut(Exception):
    """Raised when a call did not end in time. What a tool did until then is unknown."""


class _End(msgspec.Struct):
    """The end of a call: its outcome, the events for it, and callbacks for when they are recorded or dropped."""

    outcome: Outcome
    events: list[Written]
    delivered: Callable[[], None] | None = None
    dropped: Callable[[], None] | None = None


class Calls:
    """The calls of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._declared: set[str] = set()  # calls with a try under way
        self._not_begun: set[str] = set()  # tools that timed out before a thread was free for them
        self._out_of_time: set[str] = set()  # tools in doubt because they timed out
        self._errors: dict[str, Exception] = {}  # the error of the last try of a call that has a gate
        self._closed_gates: dict[str, str] = {}  # call → name of the gate that was closed for it

    async def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], token: object) -> Any:
        """Wait for the outcome of a call. It runs in the job's code, and reports first that it is awaited.

        One coroutine instead of one for each part: every outcome passes through all that wait for it.
        """
        attempt = self._attempt
        attempt.code.awaited(token)
        if not attempt.goes_on():
            await attempt.refuse()
        arguments = call.signature.encode(args, kwargs, attempt.config.payload_bytes_max)
        node = attempt.replay.node(call.name, arguments, call.key, call.aliases)
        return recorded_outcome(call, node, await self._ask(call, node, arguments))

    async def outcome(
        self,
        call: Call[..., Any],
        node: str,
        arguments: dict[str, Any],
        ran: Callable[[], Awaitable[Any]] | None = None,
    ) -> Any:
        """Wait for the outcome of a call that a thread has begun (see `own_thread`).

        Args:
            call: the step or tool.
            node: its identity.
            arguments: its arguments.
            ran: gives the function's result or error, if its declared try has ended.
        """
        return recorded_outcome(call, node, await self._ask(call, node, arguments, ran))

    def _ask(
        self,
        call: Call[..., Any],
        node: str,
        arguments: dict[str, Any],
        ran: Callable[[], Awaitable[Any]] | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        begin = partial(self._begin, call, arguments, contextvars.copy_context(), ran)
        cut = partial(self._cut_off, call, node)
        return self._attempt.code.outcome(node, call.name, begin, arguments, cut, acts=call.tool)

    def _begin(
        self,
        call: Call[..., Any],
        arguments: dict[str, Any],
        context: contextvars.Context,
        ran: Callable[[], Awaitable[Any]] | None,
        pending: Pending,
    ) -> None:
        """Start a call on the worker's loop, in a copy of the caller's context without the conductor."""
        attempt = self._attempt
        attempt.waits.busy += 1
        if ran is not None:
            attempt.own_step = False
        context.run(leave_job)
        driving = self._drive(call, pending.node, arguments, ran)
        driver = pending.driver = attempt.loop.create_task(driving, context=context)
        attempt.under_way.add(driver)
        driver.add_done_callback(partial(self._ended, call, pending), context=context)

    def _ended(self, call: Call[..., Any], pending: Pending, driver: asyncio.Task[_End]) -> None:
        attempt = self._attempt
        attempt.under_way.discard(driver)
        attempt.waits.busy -= 1
        if driver.cancelled():
            if not pending.cutting:
                attempt.call_left()
                return  # the attempt is over, or the worker's loop is
            end = _End(CutOff(), self._cut_off(call, pending.node))
        elif (error := driver.exception()) is None:
            end = driver.result()
        elif isinstance(error, Suspended):
            attempt.call_left()
            return  # the attempt is over, or the call waits for another attempt
        else:
            attempt.code_failed(error)
            return
        attempt.code.arrive(pending, end.outcome, end.events, delivered=end.delivered, dropped=end.dropped, now=True)
        attempt.call_left()

    def _cut_off(self, call: Call[..., Any], node: str) -> list[Written]:
        """Return the events for a call that the code cut off (E15).

        The call is settled, whatever it has done. No operator is asked about it.
        """
        replay = self._attempt.replay
        has_open_try = node in self._declared or (node in replay.in_doubt and node not in replay.undeclared)
        self._declared.discard(node)
        replay.in_doubt.pop(node, None)
        replay.undeclared.discard(node)
        if not has_open_try:  # a tool whose last try was cut off, too, stays in doubt
            return [cut_off(node)]
        reason = "the job's code stopped waiting for it"
        return self._failure(call, node, CUT_OFF, reason, retry_at=None, hopeless=True)

    async def _drive(
        self, call: Call[..., Any], node: str, arguments: dict[str, Any], ran: Callable[[], Awaitable[Any]] | None
    ) -> _End:
        """Run a call until it has an outcome."""
        attempt, end = self._attempt, None
        if ran is not None:
            end = await self._try(call, node, arguments, ran)
        else:
            if attempt.is_far_ahead():
                await attempt.durable()
            if attempt.pausing:
                await attempt.waits.pause()
            effect = attempt.outcomes.take_effect(node) if attempt.outcomes.stored_apart else None
            if effect is not None:
                end = await self._catch_up(call, node, arguments, effect)
        while end is None:
            if node in attempt.replay.in_doubt:
                end = await self._settle(call, node, arguments)
            if end is None:
                if node in attempt.replay.retry_at:
                    await self._due(node)
                if attempt.budgeted:
                    await attempt.budget.wait_for_grant()
                end = await (self._try if call.gate is None else self._through_gate)(call, node, arguments)
        return end

    async def _catch_up(self, call: Call[..., Any], node: str, arguments: dict[str, Any], effect: Effect) -> _End:
        """Return the end of a call whose effect was kept and whose events were not. It is not called again (E3)."""
        attempt = self._attempt
        if not attempt.replay.tries[node]:  # a step's declaration does not wait for the disk, and was lost
            attempt.record(self.declaration(call, node, arguments))
        attempt.replay.in_doubt.pop(node, None)
        content = msgspec.json.encode(effect.result)
        large = content if len(content) > attempt.config.payload_bytes_max else None
        if large is not None:
            return await self._large_success(call, node, effect.result, large, caught_up=True)
        return self.success(call, node, effect.result, caught_up=True)

    async def _large_success(self, call: Call[..., Any], node: str, value: Any, content: bytes, **more: Any) -> _End:
        """Return the end of a call that returned this value, whose JSON is too large for an event."""
        more[FIELD] = await self._attempt.keep_result(content)
        return self.success(call, node, value, content, **more)

    def success(self, call: Call[..., Any], node: str, value: Any, content: bytes | None = None, **more: Any) -> _End:
        """Return the end of a call that returned this value. `content` is its JSON if that is stored apart."""
        outcomes = self._attempt.outcomes
        events = outcomes.events(call, node, value if content is None else None, **more)
        self._declared.discard(node)
        if not call.tool:
            return _End(Success(value), events)
        number = self._attempt.replay.tries[node]
        evidence = (value, None) if content is None else (None, _too_large(len(content)))
        confirm = partial(outcomes.confirm, node, number, *evidence)
        return _End(Success(value), events, confirm, partial(outcomes.late, node, number, *evidence))

    def declaration(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> Written:
        """Return the event for the next try of a call."""
        attempt = self._attempt
        number = attempt.replay.tries[node] = attempt.replay.tries[node] + 1
        kind = TOOL_STARTED if call.tool else NODE_STARTED
        at = place.get()  # in a plan, results of other nodes are referenced, not copied
        recorded = arguments if at is None else at.arguments
        payload = {"node": node, "name": call.name, "try": number, "args": recorded}
        self._declared.add(node)
        return kind, payload

    async def _due(self, node: str) -> None:
        """Wait until a failed call may be tried again: here, or in the store if the delay is long."""
        attempt = self._attempt
        delay = attempt.replay.retry_at[node] - attempt.now()
        if delay > attempt.config.inline_retry_seconds:
            await attempt.waits.retry_later(node, attempt.now() + delay, self._closed_gates.get(node))
        if delay > 0:
            await asyncio.sleep(delay)
            attempt.check_cancelled()

    async def _through_gate(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> _End | None:
        """Make one try when the call's gate allows it. Report to the gate how the try ended."""
        assert call.gate is not None, "it has one"
        try:
            share = await acquire_share(self._attempt, call.gate, node)
        except StoreUnavailable as error:  # raised by a ledger: as in `write`, not a failure of the code
            self._attempt.lose()
            raise Suspended from error
        try:
            end = await self._try(call, node, arguments)
        except BaseException as error:
            share.release(self._errors.pop(node, error))
            raise
        share.release(self._errors.pop(node, None))
        return end

    async def _try(
        self,
        call: Call[..., Any],
        node: str,
        arguments: dict[str, Any],
        ran: Callable[[], Awaitable[Any]] | None = None,
    ) -> _End | None:
        """Make one try. Return the end of the call, or None for another try.

        Exports of the function are on disk before its end is, because a recorded call never runs again.
        """
        attempt = self._attempt
        if ran is None:
            attempt.record(self.declaration(call, node, arguments))
            if call.tool:
                await attempt.durable()  # declaration before action (E4)
        try:
            result = await (self._invoke(call, node, arguments) if ran is None else ran())
            if attempt.reported:
                await attempt.reports.exports_written()
            value, content = self.encoded(call, result)
        except _TimedOut:
            await attempt.exports_written()
            self._note_failure(call, node, TimeoutError("step timeout"))
            if call.tool and node not in self._not_begun:
                attempt.replay.in_doubt[node] = attempt.attempt
                self._out_of_time.add(node)
                return None  # it may have acted: its policy settles it, and it is not called again
            self._not_begun.discard(node)
            return self._failed(call, node, TimeoutError("step timeout"), "step timeout")
        except Exception as error:  # whatever a user's function raises is its failure
            await attempt.exports_written()
            attempt.check_cancelled()
            self._note_failure(call, node, error)
            return self._failed(call, node, error, error_text(error))
        if attempt.spends:
            attempt.budget.ended(node)
        if attempt.outcomes.stored_apart:
            await attempt.outcomes.keep(call, node, value, content)
        if content is not None:
            return await self._large_success(call, node, value, content)
        return self.success(call, node, value)

    def encoded(self, call: Call[..., Any], result: Any) -> tuple[Any, bytes | None]:
        """Return a result as a JSON value, and its JSON if it is too large for an event."""
        config = self._attempt.config
        return call.signature.encode_large(result, config.payload_bytes_max, config.result_bytes_max, may_extend=False)

    async def _invoke(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> Any:
        """Run the function itself. It raises only Exceptions, unless the task was cancelled."""
        attempt = self._attempt
        kwargs = call.signature.typed(arguments)
        named = external.set((f"holdfast:{attempt.job}:{node}", attempt.attempt))
        try:
            if call.timeout_seconds is not None:
                return await self._in_time(call, node, kwargs)
            return await (call.function(**kwargs) if call.is_async else self._in_thread(call, node, kwargs))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise as_runtime_error(error) from error  # the function has cancelled itself
        except Exception:
            raise
        except BaseException as error:
            raise as_runtime_error(error) from error
        finally:
            external.reset(named)

    async def _in_time(self, call: Call[..., Any], node: str, kwargs: dict[str, Any]) -> Any:
        limit = asyncio.timeout(call.timeout_seconds)
        try:
            async with limit:
                value = await (call.function(**kwargs) if call.is_async else self._in_thread(call, node, kwargs))
        except TimeoutError:
            if limit.expired():
                raise _TimedOut from None
            raise
        if limit.expired():  # it was cancelled, continued, and returned too late (L8)
            if call.tool:
                self._late_callback(call, node, self._attempt.replay.tries[node])(value, None)
            raise _TimedOut
        return value

    async def _in_thread(self, call: Call[..., Any], node: str, kwargs: dict[str, Any]) -> Any:
        """Run a plain function in a thread. A thread cannot be stopped, so a tool's late result is kept as evidence."""
        attempt = self._attempt
        if not call.tool:
            return await attempt.in_thread(partial(attempt.brief_steps.run, call), {"kwargs": kwargs})
        reporting = AbandonableTool(call.function, self._late_callback(call, node, attempt.replay.tries[node]))
        try:
            return await attempt.in_thread(reporting, kwargs)
        except asyncio.CancelledError:
            if not reporting.abandon():
                self._not_begun.add(node)
            raise

    def _late_callback(self, call: Call[..., Any], node: str, number: int) -> Callable[[Any, str | None], None]:
        """Return a callback that stores this try's late result as evidence."""
        attempt = self._attempt

        def late(value: Any, error: str | None) -> None:
            try:
                most = attempt.config.payload_bytes_max
                encoded = call.signature.encode_outcome(value, most) if error is None else None
            except (InvalidResult, PayloadTooLarge) as unkept:
                encoded, error = None, str(unkept)
            attempt.outcomes.late(node, number, encoded, error)

        return late

    def _note_failure(self, call: Call[..., Any], node: str, error: Exception) -> None:
        """Write what a failed try has spent. Keep its error for its gate."""
        if self._attempt.spends:
            self._attempt.budget.ended(node)
        if call.gate is not None:
            self._errors[node] = error

    def _postpone(self, call: Call[..., Any], node: str, error: RetryAfter, reason: str) -> bool:
        """Close the call's gate for all callers, as the other side asked, and retry the call after that.

        Return False if the call was postponed too often. From then on this is a failure.
        """
        attempt = self._attempt
        close_gate(call.gate, error.seconds)
        if attempt.replay.postponed[node] >= POSTPONED_MAX:
            return False
        attempt.replay.postponed[node] += 1
        if call.gate is not None:
            self._closed_gates[node] = call.gate.name
        retry_at = attempt.replay.retry_at[node] = attempt.now() + error.seconds
        attempt.record(*self._failure(call, node, "RetryAfter", reason, retry_at=retry_at, hopeless=False))
        return True

    def _failed(self, call: Call[..., Any], node: str, error: Exception, reason: str) -> _End | None:
        """Record a failed try and when the next one is due. If there is none, return the end of the call."""
        attempt = self._attempt
        self._declared.discard(node)
        if isinstance(error, RetryAfter) and self._postpone(call, node, error, reason):
            return None
        self._closed_gates.pop(node, None)
        attempt.replay.failed_tries[node] += 1
        failures = attempt.replay.failed_tries[node]
        backoff = call.backoff
        hopeless = isinstance(error, (Permanent, InvalidResult, PayloadTooLarge)) or not isinstance(error, backoff.only)
        kind = kind_of(error)
        if hopeless or failures > backoff.retries:
            trace = attempt.replay.traces[node] = trace_of(error)
            call_failed(attempt.row, node, f"{kind}: {reason}", None, attempt.now())
            events = self._failure(call, node, kind, reason, retry_at=None, hopeless=hopeless, trace=trace)
            return _End(Failure(kind, reason[:REASON_MAX]), events)
        delay = backoff.delay_seconds(failures, random.random())  # noqa: S311 - only spreads load
        retry_at = attempt.replay.retry_at[node] = attempt.now() + delay
        call_failed(attempt.row, node, f"{kind}: {reason}", retry_at, attempt.now())
        attempt.record(*self._failure(call, node, kind, reason, retry_at=retry_at, hopeless=hopeless))
        return None

    def _failure(
        self,
        call: Call[..., Any],
        node: str,
        kind: str,
        reason: str,
        *,
        retry_at: float | None,
        hopeless: bool,
        trace: str | None = None,
    ) -> list[Written]:
        """Return the events for a failed try."""
        result_type = "permanent_failure" if hopeless else "retryable_failure"
        payload: dict[str, Any] = {"node": node, "name": call.name, "result_type": result_type, "kind": kind}
        payload["reason"] = reason[:REASON_MAX]
        when: dict[str, Any] = {"final": retry_at is None, **({"retry_at": retry_at} if retry_at is not None else {})}
        if kind == "RetryAfter" and retry_at is not None:
            when["postponed"] = True
        if trace is not None:
            when["traceback"] = trace
        events = [(NODE_FINISHED, {**payload, **when})]
        if call.tool:
            events.insert(0, (TOOL_FINISHED, payload))
        return events

    async def _settle(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> _End | None:
        """Settle a tool in doubt (E5). Return its end if it has acted or gives up, None if it may be called."""
        attempt = self._attempt
        answer = attempt.replay.answers.pop(node, None)
        misfit = self._misfit(call, answer) if answer is not None else None
        if answer is None or misfit is not None:
            answer = await self._ask_policy(call, node, arguments, misfit)
        del attempt.replay.in_doubt[node]
        if node in attempt.replay.undeclared:
            attempt.replay.undeclared.discard(node)
            if answer.get("answer") != "not_done":
                attempt.record(
                    self.declaration(call, node, arguments)
                )  # its end needs a declaration: the last try was cut off
        match answer.get("answer"):
            case "done":
                value, content = self.encoded(call, answer.get("result"))
                await attempt.outcomes.keep(call, node, value, content)
                if content is not None:
                    return await self._large_success(call, node, value, content)
                return self.success(call, node, value)
            case "not_done":
                if node in self._out_of_time:  # this counts as a failed try, so calls are limited
                    self._out_of_time.discard(node)
                    return self._failed(call, node, TimeoutError("step timeout"), "step timeout")
                return None
            case _:
                reason = "it was started, and it is unknown whether it acted"
                events = self._failure(call, node, "InDoubt", reason, retry_at=None, hopeless=True)
                return _End(Failure("InDoubt", reason), events)

    def _misfit(self, call: Call[..., Any], answer: dict[str, Any]) -> str | None:
        """Return why an operator's answer cannot be the tool's result, or None. The operator is then asked again."""
        if answer.get("answer") == "done":
            try:
                self.encoded(call, answer.get("result"))
            except (InvalidResult, PayloadTooLarge) as error:
                return error_text(error)
        return None

    async def _reconcile(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> Any:
        """Call the tool's reconcile function. A plain function runs in a thread, as plain tools do."""
        assert call.reconcile is not None, "it has one"
        kwargs = {"external_key": f"holdfast:{self._attempt.job}:{node}", **call.signature.decode(arguments)}
        try:
            if inspect.iscoroutinefunction(call.reconcile):
                return await call.reconcile(**kwargs)
            answer = await self._attempt.in_thread(call.reconcile, kwargs)
            return await answer if inspect.isawaitable(answer) else answer
        except (asyncio.CancelledError, Exception):
            raise
        except BaseException as error:
            raise as_runtime_error(error) from error

    async def _ask_policy(
        self, call: Call[..., Any], node: str, arguments: dict[str, Any], misfit: str | None
    ) -> dict[str, Any]:
        attempt = self._attempt
        call_in_doubt(attempt.row, node, "reconcile" if call.reconcile is not None else call.on_doubt)
        if call.reconcile is not None:
            outcome = await self._reconcile(call, node, arguments)
            if isinstance(outcome, Done):
                return {"answer": "done", "result": outcome.result}
            if isinstance(outcome, NotDone) or outcome is NotDone:
                return {"answer": "not_done"}
            raise Permanent(f"reconcile of {call.name} must return Done(result) or NotDone(), got {outcome!r}")
        if call.on_doubt == "retry":
            return {"answer": "not_done"}
        if call.on_doubt == "fail":
            return {"answer": "fail"}
        await attempt.waits.ask(node, doubt_key(node), misfit)
        raise AssertionError("an operator's answer comes with another attempt")


def leave_job() -> None:
    """Take a context out of the job: what runs in it is not the job's code."""
    conductor.set(None)
    if job_thread.get() is not None:
        job_thread.set(None)


def recorded_outcome(call: Call[..., Any], node: str, outcome: Outcome) -> Any:
    """Return the result of a call, or raise its failure. Every replay gives the same (E13)."""
    if isinstance(outcome, Success):
        return call.signature.decode_result(outcome.result)
    assert isinstance(outcome, Failure), "a call ends with a result or a failure"
    if outcome.kind == "InDoubt":
        raise InDoubt(call.name, outcome.kind, outcome.reason)
    raise StepFailed(call.name, outcome.kind, outcome.reason, node)


class Outcomes:
    """The outcomes of one attempt's calls."""

    def __init__(self, attempt: Attempt, effects: EffectStore | None) -> None:
        self._attempt = attempt
        self._store = effects
        self.stored_apart = effects is not None
        self._effects_left: dict[str, Effect] = {}  # left by earlier attempts, perhaps without their events
        self.unconfirmed: deque[tuple[int, str, int, Any, str | None]] = deque()  # tools whose end is being written

    async def begin(self) -> None:
        """Shut earlier attempts out of the effect store, and read the effects that they left.

        No call is made before this.

        Raises:
            Suspended: this attempt is itself an earlier one, or the effect store cannot be used.
        """
        if self._store is None:
            return
        try:
            self._effects_left = await self._store.begin(self._attempt.job, self._attempt.attempt)
        except StaleAttempt as error:
            self._attempt.lose()
            raise Suspended from error
        except StoreUnavailable as error:
            self._attempt.postpone("effects_unavailable", EFFECTS_PAUSE_SECONDS)
            raise Suspended from error

    def take_effect(self, node: str) -> Effect | None:
        """Return the effect of this call that an earlier attempt left, once."""
        return self._effects_left.pop(node, None)

    async def keep(self, call: Call[..., Any], node: str, value: Any, content: bytes | None) -> None:
        """Store the effect (phase one), if there is an effect store. `content` is the JSON of a large value."""
        attempt = self._attempt
        if self._store is None:
            return
        number = attempt.replay.tries[node]
        if not call.tool and attempt.durable_events < attempt.decided_events:
            await attempt.durable()  # or another attempt decides otherwise and finds this; a tool has waited
        effect = Effect(attempt.job, node, attempt.attempt, number, value)
        try:
            await self._store.put(effect)
        except (StaleAttempt, StoreUnavailable, EffectConflict) as error:
            if not isinstance(error, StoreUnavailable):
                self.late(node, number, *((value,) if content is None else (None, _too_large(len(content)))))
            attempt.lose()
            raise Suspended from error

    def events(self, call: Call[..., Any], node: str, value: Any, **more: Any) -> list[Written]:
        """Return the events of phase two. They are recorded when the outcome is delivered."""
        kind = TOOL_FINISHED if call.tool else COMMAND_COMMITTED
        committed = {"node": node, "name": call.name, "result": value, **more}
        return [(kind, committed), (NODE_FINISHED, {"node": node, "result_type": "success"})]

    def confirm(self, node: str, number: int, value: Any, error: str | None) -> None:
        """Remember a tool's recorded end until it is on disk."""
        self.unconfirmed.append((self._attempt.recorded_events, node, number, value, error))

    def written(self, durable: int, error: Exception | None) -> None:
        """Count events that are on disk. If they were refused, keep the ends of tools among them as evidence."""
        while self.unconfirmed and self.unconfirmed[0][0] <= durable:
            _, node, number, value, unkept = self.unconfirmed.popleft()
            if isinstance(error, StaleAttempt):
                self.late(node, number, value, unkept)

    def late(self, node: str, number: int, value: Any = None, error: str | None = None) -> None:
        """Store a late result as evidence."""
        attempt = self._attempt
        evidence = Evidence(attempt.job, node, attempt.attempt, number, value, error)
        keeping = attempt.journal.enqueue(KeepEvidence(evidence))
        keeping.add_done_callback(_ignore_error)


def _too_large(size: int) -> str:
    return f"it returned {size:,} bytes of JSON, which are too many to be kept as evidence"


def _ignore_error(keeping: asyncio.Future[Any]) -> None:
    if not keeping.cancelled():
        keeping.exception()  # the store is away: this evidence is lost, and nothing depends on it


class AbandonableTool:
    """A plain tool in a thread, which cannot be stopped. A result after the caller stopped waiting is still kept."""

    def __init__(self, function: Callable[..., Any], late: Callable[[Any, str | None], None]) -> None:
        self._function = function
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ended: tuple[Any, str | None] | None = None
        self._begun = False
        self._abandoned = False

    def __call__(self, **kwargs: Any) -> Any:
        """Run the tool in its thread, unless its caller no longer waits for it."""
        with self._lock:
            self._begun = not self._abandoned
        if not self._begun:
            return None
        try:
            value = self._function(**kwargs)
        except Exception as error:
            self._end(None, f"{type(error).__name__}: {error_text(error)}")
            raise
        self._end(value, None)
        return value

    def abandon(self) -> bool:
        """Stop waiting for the tool. Return whether it has begun. If not, it never will."""
        with self._lock:
            self._abandoned = True
            ended = self._ended
        if ended is not None:
            self._late(*ended)
        return self._begun

    def _end(self, value: Any, error: str | None) -> None:
        with self._lock:
            self._ended = (value, error)
            abandoned = self._abandoned
        if abandoned and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._late, value, error)
