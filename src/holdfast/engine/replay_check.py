"""A check whether a recorded history still fits the code as it is now (SPEC E8).

The job's own code runs, but nothing that it calls. Steps, tools, waits and children are answered from the history or
not at all. A branch that makes an unrecorded call stops there. When every branch has stopped, or the code has ended,
the check reports a misfit in these cases:

- The code makes a new call of a name, and it has not made all recorded calls of that name. The engine would refuse it.
- The history has ended, and the code ends otherwise or makes further calls.

Recorded calls that the code no longer makes are listed. They are not a misfit, because a job may be changed that way.

What can go wrong: code that acts outside steps acts here, too. Code that waits long for something else is taken to have
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import msgspec

from holdfast.authoring.answer_form import Form
from holdfast.authoring.conductor import Continued, Submitter, Suspended, conductor
from holdfast.authoring.functions import Call, JobFunction
from holdfast.engine.children import child_result, start_result
from holdfast.engine.job_code import JobCode, Pending
from holdfast.engine.replay import Ended, Outcome, Replay
from holdfast.engine.step_calls import recorded_outcome
from holdfast.errors import HoldfastError, InvalidArguments, InvalidResult, NonDeterminism, WaitTimeout
from holdfast.machines import Event, JobEvent

QUIET_SECONDS = 1.0  # without a new call: code that waits longer for something else is taken to have stopped
_ENDS = {JobEvent.COMPLETED.value, JobEvent.FAILED.value, JobEvent.CANCELLED.value}


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay check.

    Attributes:
        fits: the engine would continue with this code, and an ended history would end the same.
        reasons: why it does not fit; empty if it does.
        answered: number of recorded calls, waits and children that the code made.
        unasked: recorded calls that it did not make.
        beyond: unrecorded calls that it made: where it would continue.
    """

    fits: bool
    reasons: list[str]
    answered: int
    unasked: list[str]
    beyond: list[str]


class ReplayCheck:
    """The `Conductor` of code whose replay is checked."""

    def __init__(self, events: Sequence[Event], function: JobFunction[..., Any]) -> None:
        self.job = events[0].job
        self.attempt = max((event.attempt or 0 for event in events), default=0)
        self._events = events
        self._function = function
        self._replay = Replay(events)
        self._answered = 0
        self._beyond: list[tuple[str, str]] = []  # name and node
        self._refused: list[str] = []
        self._threads = ThreadPoolExecutor(4, "holdfast-replay-check")
        self._over = False
        self._continuing = False

    async def run(self) -> ReplayReport:
        """Run the code until it ends or every branch has stopped. Return the report."""
        loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._still = asyncio.Event()
        self.code = JobCode(self, self.job, self._replay, loop, self._threads)
        context = contextvars.copy_context()
        context.run(conductor.set, self)
        self.code.begin(self._code(), context)
        loop.call_soon(self.code.turn)
        seen = -1
        while not self._still.is_set() and seen != self.code.loop.natives_made + self.code.calls_made:
            seen = self.code.loop.natives_made + self.code.calls_made
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._still.wait()
        main = self.code.main
        report = self._report(main if main is not None and main.done() else None)
        self._over = True
        self.code.close()
        self._threads.shutdown(wait=False)
        return report

    async def _code(self) -> Any:
        kwargs = self._function.signature.decode(self._events[0].payload.get("args") or {})
        if self._function.is_async:
            return await self._function.function(**kwargs)
        return await self.code.loop.run_code(self._function.function, kwargs)

    # Callbacks of `JobCode`

    def goes_on(self) -> bool:
        return not self._over

    def record(self, *events: Any) -> None:
        """Record nothing."""

    def code_rests(self) -> None:
        """End the check if no part of the code can move."""
        if self.code.idle:
            self._still.set()

    def code_returned(self) -> None:
        """Wait for the tasks that the code left."""

    def code_ended(self) -> None:
        self._still.set()

    def code_failed(self, error: BaseException) -> None:
        """End the check: the engine would stop here."""
        if isinstance(error, NonDeterminism):
            self._refused.append(f"it now calls {error.asked}, but the history has {', '.join(error.recorded)}")
        else:
            self._refused.append(f"{type(error).__name__}: {error}")
        self._still.set()

    def _report(self, code: asyncio.Task[Any] | None) -> ReplayReport:
        reasons = self._refused or self._other_end(code)
        return ReplayReport(
            fits=not reasons,
            reasons=reasons,
            answered=self._answered,
            unasked=self._replay.unasked(),
            beyond=[node for _, node in self._beyond],
        )

    def _other_end(self, code: asyncio.Task[Any] | None) -> list[str]:
        """Return how the code's end differs from that of the history, if both have one."""
        last = next((event for event in reversed(self._events) if event.type in _ENDS), None)
        error = self._error_of(code)
        if isinstance(error, Suspended):
            code = error = None
        as_before = last is not None and last.payload.get("code") == type(error).__name__
        if isinstance(error, HoldfastError) and not self.code.calls_made and not as_before:
            return [f"its arguments do not fit: {error}"]
        if last is None or last is not self._events[-1] or last.payload.get("reason") not in {None, "error"}:
            return []  # the history has not ended, or not by its code
        if last.type == JobEvent.CANCELLED:
            return []
        if code is None:
            return [f"it had ended, and now calls {', '.join(node for _, node in self._beyond) or 'something else'}"]
        if last.payload.get("continued_as") is not None:
            return [] if Continued.is_all_of(error) else ["it continued as another run, and now does not"]
        return self._other_way(last, code, error)

    def _other_way(self, last: Event, code: asyncio.Task[Any], error: BaseException | None) -> list[str]:
        """Compare results, or kinds of errors."""
        was = "returned" if last.type == JobEvent.COMPLETED else f"raised {last.payload.get('code')}"
        now = "returns" if error is None else f"raises {type(error).__name__}: {error}"
        if was.partition(" ")[2] != (type(error).__name__ if error is not None else ""):
            return [f"it {was}, and now {now}"]
        if error is None:
            return self._other_result(last.payload.get("result"), code.result())
        return []

    def _error_of(self, code: asyncio.Task[Any] | None) -> BaseException | None:
        """Return the error of the code. Also for code that caught what `continue_as` raised, and returned."""
        if code is None or code.cancelled():
            return None
        error = code.exception()
        return Continued.caught() if error is None and self._continuing else error

    def _other_result(self, was: Any, value: Any) -> list[str]:
        try:
            now = self._function.signature.encode_result(value)
        except InvalidResult as error:
            return [str(error)]
        return [] if now == was else [f"it returned {was!r:.200}, and now returns {now!r:.200}"]

    # Conductor: what the code calls

    async def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = call.signature.encode(args, kwargs)
        node = self._replay.node(call.name, arguments, call.key)
        return recorded_outcome(call, node, await self._outcome(node, call.name, arguments))

    async def wait(
        self,
        key: str,
        timeout: float | None,  # noqa: ASYNC109 - as the protocol has it
        wait_type: str,
        form: Form | None = None,
    ) -> Any:
        while form is not None:  # an answer that could not be used was asked for again
            with contextlib.suppress(InvalidArguments):
                return form.decode(await self.wait(key, timeout, wait_type))
        outcome = await self._outcome(self._replay.node("wait", {}, key), "wait")
        assert isinstance(outcome, Ended), "a wait ends"
        if outcome.completed.get("outcome") == "expired":
            raise WaitTimeout(key)
        return outcome.completed.get("payload")

    async def sleep(self, duration: float) -> None:
        await self._outcome(self._replay.node("sleep", {}, f"{duration:g}"), "sleep")

    async def child(self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = job.signature.encode(args, kwargs)
        node = self._replay.node(f"job.{job.name}", arguments, job.chosen.key)
        return child_result(job, arguments, node, await self._outcome(node, f"job.{job.name}", arguments))

    async def start_run(self, job: JobFunction[..., Any], arguments: dict[str, Any], submit: Submitter) -> str:
        del submit
        node = self._replay.node(f"start.{job.name}", arguments, job.chosen.key)
        return str(start_result(job.name, await self._outcome(node, f"start.{job.name}", arguments)))

    async def send_signal(self, payload: dict[str, Any], send: Submitter) -> str:
        del send
        return str(
            start_result("signal", await self._outcome(self._replay.node("signal", payload, None), "signal", payload))
        )

    def continue_as(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        self.code.check_main("continue_as")
        self._function.signature.encode(args, kwargs)
        self._continuing = True
        raise Continued

    async def outside(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.code.loop.outside(work)

    async def _outcome(self, node: str, name: str, arguments: Any = None) -> Outcome:
        cut: Any = None if arguments is None else list  # a call ends in its turn when it is cut off, a wait at once
        outcome = await self.code.outcome(node, name, self._stand_still, arguments, cut)
        self._answered += 1
        return outcome

    def _stand_still(self, pending: Pending) -> None:
        """Stop the branch here: this call was not recorded."""
        self._beyond.append((pending.name, pending.node))

    def value(self, kind: str) -> Any:
        """Return a recorded value, or any other. What follows an unrecorded value was not recorded either."""
        make: dict[str, Callable[[], Any]] = {
            "now": time.time,
            "random": random.random,
            "uuid4": lambda: str(uuid.uuid4()),
        }
        node = self._replay.value_node(kind)
        return self._replay.values[node] if node in self._replay.values else make[kind]()

    def recorded(self, node: str, make: Callable[[], Any]) -> Any:
        return self._replay.values[node] if node in self._replay.values else make()

    def known(self, node: str) -> Any:
        return self._replay.values.get(node)

    def known_names(self, beginning: str) -> list[str]:
        return [node for node in self._replay.values if node.startswith(beginning)]

    def plan(self, new_plan: dict[str, Any] | None = None) -> dict[str, Any] | None:
        return self._replay.plan if self._replay.plan is not None else new_plan

    def check_cancelled(self) -> None:
        """Do nothing: a check is never cancelled."""

    def in_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.code.from_thread(coroutine)
