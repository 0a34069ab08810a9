"""Calling steps and tools: recorded, at most once where it must be, tried again where it may be (SPEC E1 to E7, E10).

Each call that has no recorded outcome is driven by a task of its own, on the worker's loop. In this order (E3): an
effect without its events is caught up with. A tool that was started and has no end is in doubt and is settled by its
policy, never called blindly. Otherwise it is called: declared first (a tool's declaration is on disk before it acts).
Its outcome is recorded when it is delivered to the code.

Whatever a step raises is its own failure. KeyboardInterrupt, SystemExit and the like end neither the worker nor its
loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.authoring.conductor import Suspended, conductor, external, job_thread, place
from holdfast.authoring.functions import Call, Done, NotDone
from holdfast.authoring.spend import RetryAfter
from holdfast.engine.ending_events import Written, error_text, kind_of, trace_of
from holdfast.engine.gate_admission import acquire_share, close_gate
from holdfast.engine.job_code import Pending, cut_off
from holdfast.engine.outcomes import AbandonableTool
from holdfast.engine.replay import CUT_OFF, CutOff, Failure, Outcome, Success
from holdfast.engine.thread_pool import as_runtime_error
from holdfast.errors import (
    InDoubt,
    InvalidResult,
    PayloadTooLarge,
    Permanent,
    StepFailed,
    StoreUnavailable,
)
from holdfast.machines import HistoryEvent
from holdfast.store.decide import DOUBT

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Calls", "recorded_outcome"]


NODE_STARTED, NODE_FINISHED = HistoryEvent.NODE_STARTED.value, HistoryEvent.NODE_FINISHED.value
TOOL_STARTED, TOOL_FINISHED = HistoryEvent.TOOL_STARTED.value, HistoryEvent.TOOL_FINISHED.value


REASON_MAX = 2000
POSTPONED_MAX = 100  # times that a call may be asked to come back later; from then on that is a failure


class _TimedOut(Exception):
    """The call did not end in its time. For a tool: nobody knows what it did."""


class _End(NamedTuple):
    """How a call ended: its outcome, the events for it, and what to do when they are recorded or cannot be."""

    outcome: Outcome
    events: list[Written]
    delivered: Callable[[], None] | None = None
    dropped: Callable[[], None] | None = None


class Calls:
    """The calls of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._declared: set[str] = set()  # calls with a try under way
        self._not_begun: set[str] = set()  # tools whose time was over before a thread was free for them
        self._out_of_time: set[str] = set()  # tools in doubt because their time was over
        self._errors: dict[str, Exception] = {}  # what the last try of a call through a gate raised
        self._closed_gates: dict[str, str] = {}  # calls that were asked to come back later, and by which gate

    async def call(self, call: Call[..., Any], arguments: dict[str, Any]) -> Any:
        """Wait for the outcome of a call, in the code of the job."""
        attempt = self._attempt
        node = attempt.replay.node(call.name, arguments, call.key)
        begin = partial(self._begin, call, arguments, contextvars.copy_context())
        outcome = await attempt.code.outcome(node, call.name, begin, arguments, partial(self._cut_off, call, node))
        return recorded_outcome(call, node, outcome)

    def _begin(
        self, call: Call[..., Any], arguments: dict[str, Any], context: contextvars.Context, pending: Pending
    ) -> None:
        """Start a call, on the worker's loop, in a copy of the caller's context: inside it there is no conductor."""
        attempt = self._attempt
        attempt.waits.busy += 1
        context.run(conductor.set, None)
        context.run(job_thread.set, None)
        driver = pending.driver = attempt.loop.create_task(self._drive(call, pending.node, arguments), context=context)
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
            return  # the attempt is over, or its call waits for another
        else:
            attempt.code_failed(error)
            return
        attempt.code.arrive(pending, end.outcome, end.events, delivered=end.delivered, dropped=end.dropped, now=True)
        attempt.call_left()

    def _cut_off(self, call: Call[..., Any], node: str) -> list[Written]:
        """The code has cut a call off (E15): settled, whatever it has done; no operator is asked about it."""
        if node not in self._declared and node not in self._attempt.replay.in_doubt:
            return [cut_off(node)]
        self._declared.discard(node)
        self._attempt.replay.in_doubt.pop(node, None)
        reason = "the job's code stopped waiting for it"
        return self._failure(call, node, CUT_OFF, reason, retry_at=None, hopeless=True)

    async def _drive(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> _End:
        """Bring an outcome about."""
        attempt = self._attempt
        await attempt.keep_up()
        if attempt.pausing:
            await attempt.waits.pause()
        end = self._catch_up(call, node, arguments)
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

    def _catch_up(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> _End | None:
        """An effect that was kept before its events could be: append them, and do not call again (E3)."""
        attempt = self._attempt
        effect = attempt.outcomes.take_effect(node)
        if effect is None:
            return None
        if not attempt.replay.tries[node]:  # a step's declaration does not wait for the disk, and was lost
            self._declare(call, node, arguments)
        attempt.replay.in_doubt.pop(node, None)
        return self._success(call, node, effect.result, caught_up=True)

    def _success(self, call: Call[..., Any], node: str, value: Any, **more: Any) -> _End:
        """The end of a call that has given this."""
        outcomes, number = self._attempt.outcomes, self._attempt.replay.tries[node]
        events = outcomes.events(call, node, value, **more)
        self._declared.discard(node)
        if not call.tool:
            return _End(Success(value), events)
        confirm = partial(outcomes.confirm, node, number, value)
        return _End(Success(value), events, confirm, partial(outcomes.late, node, number, value))

    def _declare(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> None:
        attempt = self._attempt
        attempt.replay.tries[node] += 1
        kind = TOOL_STARTED if call.tool else NODE_STARTED
        at = place.get()  # in a plan, what others gave is referred to, and not copied
        recorded = arguments if at is None else at.arguments
        payload = {"node": node, "name": call.name, "try": attempt.replay.tries[node], "args": recorded}
        self._declared.add(node)
        attempt.record((kind, payload))

    async def _due(self, node: str) -> None:
        """Wait until a failed call may be tried again: here, or, if that is long, in the store."""
        attempt = self._attempt
        delay = attempt.replay.retry_at[node] - attempt.now()
        if delay > attempt.config.inline_retry_seconds:
            await attempt.waits.retry_later(node, attempt.now() + delay, self._closed_gates.get(node))
        if delay > 0:
            await asyncio.sleep(delay)
            attempt.check_cancelled()

    async def _through_gate(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> _End | None:
        """One try, when the call's gate lets it through; how it ended is what the gate learns of the other side."""
        assert call.gate is not None, "it has one"
        try:
            share = await acquire_share(self._attempt, call.gate, node)
        except StoreUnavailable as error:  # of a ledger: as in `write`, no failure of the code
            self._attempt.lose()
            raise Suspended from error
        try:
            end = await self._try(call, node, arguments)
        except BaseException as error:
            share.release(self._errors.pop(node, error))
            raise
        share.release(self._errors.pop(node, None))
        return end

    async def _try(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> _End | None:
        """One try. How the call ended, or None if there is to be another try."""
        attempt = self._attempt
        self._declare(call, node, arguments)
        if call.tool:
            await attempt.durable()  # declaration before action (E4)
        try:
            result = await self._run_with_exports(call, node, arguments)
            value = call.signature.encode_outcome(result, attempt.config.payload_bytes_max)
        except _TimedOut:
            self._note_failure(call, node, TimeoutError("step timeout"))
            if call.tool and node not in self._not_begun:
                attempt.replay.in_doubt[node] = attempt.attempt
                self._out_of_time.add(node)
                return None  # it may have acted: settled by its policy, not called again
            self._not_begun.discard(node)
            return self._failed(call, node, TimeoutError("step timeout"), "step timeout")
        except Exception as error:  # whatever a user's function raises is its failure
            attempt.check_cancelled()
            self._note_failure(call, node, error)
            return self._failed(call, node, error, error_text(error))
        if attempt.spends:
            attempt.budget.ended(node)
        await attempt.outcomes.keep(call, node, value)
        return self._success(call, node, value)

    async def _run_with_exports(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> Any:
        """Run the function. What it handed out is on disk before its end is: nobody runs it again to hand it out."""
        try:
            result = await self._invoke(call, node, arguments)
        except Exception:
            await self._attempt.reports.exports_written()
            raise
        await self._attempt.reports.exports_written()
        return result

    async def _invoke(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> Any:
        """Run the function itself. Whatever it raises is an Exception when it leaves here, unless it was cancelled."""
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
        if limit.expired():  # it was told to stop, went on, and came too late (L8)
            if call.tool:
                self._late_callback(call, node, self._attempt.replay.tries[node])(value, None)
            raise _TimedOut
        return value

    async def _in_thread(self, call: Call[..., Any], node: str, kwargs: dict[str, Any]) -> Any:
        """Run a plain function. A thread cannot be stopped: what a tool gives after its time is kept as evidence."""
        attempt = self._attempt
        if not call.tool:
            return await attempt.in_thread(call.function, kwargs)
        reporting = AbandonableTool(call.function, self._late_callback(call, node, attempt.replay.tries[node]))
        try:
            return await attempt.in_thread(reporting, kwargs)
        except asyncio.CancelledError:
            if not reporting.abandon():
                self._not_begun.add(node)
            raise

    def _late_callback(self, call: Call[..., Any], node: str, number: int) -> Callable[[Any, str | None], None]:
        """Give what keeps the end of this try as evidence."""
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
        """Write what a failed try has spent, and keep its error for its gate."""
        if self._attempt.spends:
            self._attempt.budget.ended(node)
        if call.gate is not None:
            self._errors[node] = error

    def _postpone(self, call: Call[..., Any], node: str, error: RetryAfter, reason: str) -> bool:
        """The other side asks to be left alone: its gate is closed for all, and the call is made again after that."""
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
        """A try failed: record it and when the next is due; or give the end, if there is to be none."""
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
            events = self._failure(call, node, kind, reason, retry_at=None, hopeless=hopeless, trace=trace)
            return _End(Failure(kind, reason[:REASON_MAX]), events)
        delay = backoff.delay_seconds(failures, random.random())  # noqa: S311 - only spreads load
        retry_at = attempt.replay.retry_at[node] = attempt.now() + delay
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
        """Give the events for a failed try."""
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
        """Settle a tool in doubt: its end if it has acted or gives up, None if it may be called (E5)."""
        attempt = self._attempt
        answer = attempt.replay.answers.pop(node, None)
        if answer is None or not self._fits(call, answer):
            answer = await self._ask_policy(call, node, arguments)
        del attempt.replay.in_doubt[node]
        if node in attempt.replay.undeclared:
            attempt.replay.undeclared.discard(node)
            if answer.get("answer") != "not_done":
                self._declare(call, node, arguments)  # its end needs a beginning: the last try was cut off
        match answer.get("answer"):
            case "done":
                value = call.signature.encode_outcome(answer.get("result"), attempt.config.payload_bytes_max)
                await attempt.outcomes.keep(call, node, value)
                return self._success(call, node, value)
            case "not_done":
                if node in self._out_of_time:  # a try like others: it is not called without end
                    self._out_of_time.discard(node)
                    return self._failed(call, node, TimeoutError("step timeout"), "step timeout")
                return None
            case _:
                reason = "it was started, and nobody knows whether it acted"
                events = self._failure(call, node, "InDoubt", reason, retry_at=None, hopeless=True)
                return _End(Failure("InDoubt", reason), events)

    def _fits(self, call: Call[..., Any], answer: dict[str, Any]) -> bool:
        """Whether an operator's answer can be the tool's result; if not, he is asked again, and nothing is lost."""
        try:
            call.signature.encode_outcome(answer.get("result"), self._attempt.config.payload_bytes_max)
        except (InvalidResult, PayloadTooLarge):
            return answer.get("answer") != "done"
        return True

    async def _reconcile(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> Any:
        """Ask the tool's reconcile function; a arguments one runs in a thread, as arguments tools do."""
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

    async def _ask_policy(self, call: Call[..., Any], node: str, arguments: dict[str, Any]) -> dict[str, Any]:
        attempt = self._attempt
        if call.reconcile is not None:
            outcome = await self._reconcile(call, node, arguments)
            if isinstance(outcome, Done):
                return {"answer": "done", "result": outcome.result}
            if isinstance(outcome, NotDone) or outcome is NotDone:
                return {"answer": "not_done"}
            raise Permanent(f"reconcile of {call.name} must return done(result) or not_done, got {outcome!r}")
        if call.on_doubt == "retry":
            return {"answer": "not_done"}
        if call.on_doubt == "fail":
            return {"answer": "fail"}
        await attempt.waits.ask(node, f"{DOUBT}{node}")
        raise AssertionError("an operator's answer comes with another attempt")


def recorded_outcome(call: Call[..., Any], node: str, outcome: Outcome) -> Any:
    """Give the result of a call, or raise its failure: the same the first time and in every replay (E13)."""
    if isinstance(outcome, Success):
        return call.signature.decode_result(outcome.result)
    assert isinstance(outcome, Failure), "a call ends with a result or a failure"
    if outcome.kind == "InDoubt":
        raise InDoubt(call.name, outcome.kind, outcome.reason)
    raise StepFailed(call.name, outcome.kind, outcome.reason, node)
