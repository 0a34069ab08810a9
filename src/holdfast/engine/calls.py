"""Calling steps and tools: recorded, at most once where it must be, tried again where it may be (SPEC E1 to E7, E10).

For each call, in this order (E3): a recorded outcome is handed out. An effect without its events is caught up with. A
tool that was started and has no end is in doubt and is settled by its policy, never called blindly. Otherwise it is
called: declared first (a tool's declaration is on disk before it acts), then the outcome is recorded.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.authoring.context import Suspended, conductor, external, place
from holdfast.authoring.functions import Call, Done, NotDone
from holdfast.authoring.gating import RetryAfter
from holdfast.engine.admission import admitted, leave_alone
from holdfast.engine.outcomes import Reporting
from holdfast.engine.replay import PATIENCE_PARTS, Failure, Success
from holdfast.engine.threads import escaped
from holdfast.engine.verdict import words
from holdfast.errors import (
    InDoubt,
    InvalidResult,
    NonDeterminism,
    PayloadTooLarge,
    Permanent,
    StepFailed,
    StoreUnavailable,
)
from holdfast.machines import HistoryEvent
from holdfast.store.decide import DOUBT

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Calls", "handed_out"]


NODE_STARTED, NODE_FINISHED = HistoryEvent.NODE_STARTED.value, HistoryEvent.NODE_FINISHED.value
TOOL_STARTED, TOOL_FINISHED = HistoryEvent.TOOL_STARTED.value, HistoryEvent.TOOL_FINISHED.value


POSTPONED_MAX = 100  # times that a call may be asked to come back later; from then on that is a failure


class _TimedOut(Exception):
    """The call did not end in its time. For a tool: nobody knows what it did."""


class Calls:
    """The calls of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._delivered = asyncio.Event()  # a recorded result was handed out
        self._not_begun: set[str] = set()  # tools whose time was over before a thread was free for them
        self._out_of_time: set[str] = set()  # tools in doubt because their time was over
        self._errors: dict[str, BaseException] = {}  # of the last try of a call with a gate
        self._left_alone: dict[str, str] = {}  # calls that the other side has refused for a while, and their gates

    async def call(self, call: Call[..., Any], plain: dict[str, Any]) -> Any:
        """Hand out the recorded outcome, or bring one about and record it."""
        attempt = self._attempt
        node = attempt.replay.node(call.name, plain, call.key)
        recorded = attempt.replay.take(node)
        if recorded is not None:
            self._delivered.set()
            self._delivered = asyncio.Event()
            return handed_out(call, node, recorded)
        if attempt.replay.owed and place.get() is None:  # nodes of a plan are known by name: any order will do
            await self._frontier(call.name, node)
        if attempt.pausing:
            await attempt.waits.pause()
        outcome = self._caught_up(call, node, plain)
        while outcome is None:
            if node in attempt.replay.in_doubt:
                outcome = await self._settle(call, node, plain)
            if outcome is None:
                if node in attempt.replay.retry_at:
                    await self._due(node)
                if attempt.budgeted:
                    await attempt.budget.kept()
                outcome = await (self._try if call.gate is None else self._through_gate)(call, node, plain)
        return call.signature.decode_result(outcome.result)

    async def _frontier(self, name: str, node: str) -> None:
        """Before a new call: every recorded result that other branches will ask for is handed out first (E8)."""
        attempt, parts = self._attempt, PATIENCE_PARTS
        while parts and attempt.replay.owed and attempt.has_branches():
            try:
                await asyncio.wait_for(self._delivered.wait(), attempt.config.replay_patience_seconds / PATIENCE_PARTS)
            except TimeoutError:
                parts -= 1
        unasked = attempt.replay.owed_of(name)
        if unasked:
            raise NonDeterminism(node, unasked)

    def _caught_up(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> Success | None:
        """An effect that was kept before its events could be: append them, and do not call again (E3)."""
        attempt = self._attempt
        effect = attempt.outcomes.left(node)
        if effect is None:
            return None
        if not attempt.replay.tries[node]:  # a step's declaration does not wait for the disk, and was lost
            self._declare(call, node, plain)
        attempt.replay.in_doubt.pop(node, None)
        attempt.outcomes.committed(call, node, effect.result, caught_up=True)
        return Success(effect.result)

    def _declare(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> None:
        attempt = self._attempt
        attempt.replay.tries[node] += 1
        kind = TOOL_STARTED if call.tool else NODE_STARTED
        at = place.get()  # in a plan, what others gave is referred to, and not copied
        given = plain if at is None else at.arguments
        said = {"node": node, "name": call.name, "try": attempt.replay.tries[node], "args": given}
        attempt.record((kind, said))

    async def _due(self, node: str) -> None:
        """Wait until a failed call may be tried again: here, or, if that is long, in the store."""
        attempt = self._attempt
        delay = attempt.replay.retry_at[node] - attempt.now()
        if delay > attempt.config.inline_retry_seconds:
            await attempt.waits.retry_later(node, attempt.now() + delay, self._left_alone.get(node))
        if delay > 0:
            await asyncio.sleep(delay)
            attempt.check_cancelled()

    async def _through_gate(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> Success | None:
        """One try, when the call's gate lets it through; how it ended is what the gate learns of the other side."""
        assert call.gate is not None, "it has one"
        try:
            share = await admitted(self._attempt, call.gate, node)
        except StoreUnavailable as error:  # of a ledger: as in `write`, no failure of the code
            self._attempt.lose()
            raise Suspended from error
        try:
            outcome = await self._try(call, node, plain)
        except BaseException as error:
            share.release(self._errors.pop(node, error))
            raise
        share.release(self._errors.pop(node, None))
        return outcome

    async def _try(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> Success | None:
        """One try. Success, or None if there is to be another; a final failure raises."""
        attempt = self._attempt
        self._declare(call, node, plain)
        if call.tool:
            await attempt.durable()  # declaration before action (E4)
        try:
            result = await self._produced(call, node, plain)
            value = call.signature.encode_outcome(result, attempt.config.payload_bytes_max)
        except _TimedOut:
            self._note(call, node, TimeoutError("step timeout"))
            if call.tool and node not in self._not_begun:
                attempt.replay.in_doubt[node] = attempt.attempt
                self._out_of_time.add(node)
                return None  # it may have acted: settled by its policy, not called again
            self._not_begun.discard(node)
            self._failed(call, node, TimeoutError("step timeout"), "step timeout")
            return None
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is its failure
            attempt.check_cancelled()
            self._note(call, node, error)
            self._failed(call, node, error, words(error))
            return None
        if attempt.spends:
            attempt.budget.ended(node)
        await attempt.outcomes.succeeded(call, node, value)
        await attempt.keep_up()
        return Success(value)

    async def _produced(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> Any:
        """Run the function. What it handed out is on disk before its end is: nobody runs it again to hand it out."""
        try:
            result = await self._invoke(call, node, plain)
        except Exception:
            await self._attempt.products.kept()
            raise
        await self._attempt.products.kept()
        return result

    async def _invoke(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> Any:
        """Run the function itself. Inside it there is no conductor: what it calls is part of it."""
        attempt = self._attempt
        kwargs = call.signature.typed(plain)
        outer = conductor.set(None)
        named = external.set((f"holdfast:{attempt.job}:{node}", attempt.attempt))
        try:
            if call.timeout_seconds is not None:
                return await self._in_time(call, node, kwargs)
            return await (call.function(**kwargs) if call.is_async else self._in_thread(call, node, kwargs))
        except SystemExit as error:
            raise escaped(error) from error
        finally:
            conductor.reset(outer)
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
                self._late(call, node, self._attempt.replay.tries[node])(value, None)
            raise _TimedOut
        return value

    async def _in_thread(self, call: Call[..., Any], node: str, kwargs: dict[str, Any]) -> Any:
        """Run a plain function. A thread cannot be stopped: what a tool gives after its time is kept as evidence."""
        attempt = self._attempt
        if not call.tool:
            return await attempt.in_thread(call.function, kwargs)
        reporting = Reporting(call.function, self._late(call, node, attempt.replay.tries[node]))
        try:
            return await attempt.in_thread(reporting, kwargs)
        except asyncio.CancelledError:
            if not reporting.abandon():
                self._not_begun.add(node)
            raise

    def _late(self, call: Call[..., Any], node: str, number: int) -> Callable[[Any, str | None], None]:
        """Give what keeps the end of this try as evidence."""
        attempt = self._attempt

        def late(value: Any, error: str | None) -> None:
            try:
                most = attempt.config.payload_bytes_max
                plain = call.signature.encode_outcome(value, most) if error is None else None
            except (InvalidResult, PayloadTooLarge) as unkept:
                plain, error = None, str(unkept)
            attempt.outcomes.late(node, number, plain, error)

        return late

    def _note(self, call: Call[..., Any], node: str, error: Exception) -> None:
        """Write what a failed try has spent, and keep its error for its gate."""
        if self._attempt.spends:
            self._attempt.budget.ended(node)
        if call.gate is not None:
            self._errors[node] = error

    def _postponed(self, call: Call[..., Any], node: str, error: RetryAfter, reason: str) -> bool:
        """The other side asks to be left alone: its gate is closed for all, and the call is made again after that."""
        attempt = self._attempt
        leave_alone(call.gate, error.seconds)
        if attempt.replay.postponed[node] >= POSTPONED_MAX:
            return False
        attempt.replay.postponed[node] += 1
        if call.gate is not None:
            self._left_alone[node] = call.gate.name
        retry_at = attempt.replay.retry_at[node] = attempt.now() + error.seconds
        self._record_failure(call, node, "RetryAfter", reason, retry_at=retry_at, hopeless=False)
        return True

    def _failed(self, call: Call[..., Any], node: str, error: Exception, reason: str) -> None:
        """Record a failed try and when the next is due; raise if there is none."""
        attempt = self._attempt
        if isinstance(error, RetryAfter) and self._postponed(call, node, error, reason):
            return
        self._left_alone.pop(node, None)
        attempt.replay.failed_tries[node] += 1
        failures = attempt.replay.failed_tries[node]
        backoff = call.backoff
        hopeless = isinstance(error, (Permanent, InvalidResult, PayloadTooLarge)) or not isinstance(error, backoff.only)
        final = hopeless or failures > backoff.retries
        retry_at = None
        if not final:
            delay = backoff.delay_seconds(failures, random.random())  # noqa: S311 - only spreads load
            retry_at = attempt.replay.retry_at[node] = attempt.now() + delay
        self._record_failure(call, node, type(error).__name__, reason, retry_at=retry_at, hopeless=hopeless)
        if final:
            raise StepFailed(call.name, type(error).__name__, reason, node) from error

    def _record_failure(
        self, call: Call[..., Any], node: str, kind: str, reason: str, *, retry_at: float | None, hopeless: bool
    ) -> None:
        result_type = "permanent_failure" if hopeless else "retryable_failure"
        said: dict[str, Any] = {"node": node, "name": call.name, "result_type": result_type, "kind": kind}
        said["reason"] = reason[:2000]
        when = {"final": retry_at is None, **({"retry_at": retry_at} if retry_at is not None else {})}
        if kind == "RetryAfter" and retry_at is not None:
            when["postponed"] = True
        events = [(NODE_FINISHED, {**said, **when})]
        if call.tool:
            events.insert(0, (TOOL_FINISHED, said))
        self._attempt.record(*events)

    async def _settle(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> Success | None:
        """Settle a tool in doubt: Success if it has acted, None if it may be called (E5)."""
        attempt = self._attempt
        answer = attempt.replay.answers.pop(node, None)
        if answer is None or not self._fits(call, answer):
            answer = await self._ask_policy(call, node, plain)
        del attempt.replay.in_doubt[node]
        match answer.get("answer"):
            case "done":
                value = call.signature.encode_outcome(answer.get("result"), attempt.config.payload_bytes_max)
                await attempt.outcomes.succeeded(call, node, value)
                return Success(value)
            case "not_done":
                if node in self._out_of_time:  # a try like others: for ever is not how often it may be called
                    self._out_of_time.discard(node)
                    self._failed(call, node, TimeoutError("step timeout"), "step timeout")
                return None
            case _:
                reason = "it was started, and nobody knows whether it acted"
                self._record_failure(call, node, "InDoubt", reason, retry_at=None, hopeless=True)
                raise InDoubt(call.name, "InDoubt", reason)

    def _fits(self, call: Call[..., Any], answer: dict[str, Any]) -> bool:
        """Whether an operator's answer can be the tool's result; if not, he is asked again, and nothing is lost."""
        try:
            call.signature.encode_outcome(answer.get("result"), self._attempt.config.payload_bytes_max)
        except (InvalidResult, PayloadTooLarge):
            return answer.get("answer") != "done"
        return True

    async def _ask_policy(self, call: Call[..., Any], node: str, plain: dict[str, Any]) -> dict[str, Any]:
        attempt = self._attempt
        if call.reconcile is not None:
            found = call.reconcile(external_key=f"holdfast:{attempt.job}:{node}", **call.signature.decode(plain))
            outcome = await found if inspect.isawaitable(found) else found
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


def handed_out(call: Call[..., Any], node: str, recorded: Success | Failure) -> Any:
    """Give a recorded result, or raise a recorded failure, as the call would have."""
    if isinstance(recorded, Success):
        return call.signature.decode_result(recorded.result)
    if recorded.kind == "InDoubt":
        raise InDoubt(call.name, recorded.kind, recorded.reason)
    raise StepFailed(call.name, recorded.kind, recorded.reason, node)
