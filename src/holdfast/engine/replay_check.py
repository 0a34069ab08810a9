"""A check whether a recorded history still fits the code as it is now (SPEC E8).

The job's own code runs, but nothing that it calls. Steps, tools, waits and children are answered from the history or
not at all. A branch that makes an unrecorded call stops there. When every branch has stopped, or the code has ended,
the check reports a misfit in these cases:

- The code makes a new call of a name, and it has not made all recorded calls of that name. The engine would refuse it.
- The arguments of the job, or a recorded result, no longer have the type that the code expects.
- The code raises where the history goes on, or rests where nothing can wake it.
- The code returns a result that does not have the declared type. The engine would refuse it, and the run would fail.
- The history has ended, and the code ends otherwise or makes further calls.

Recorded calls that the code no longer makes are listed. They are not a misfit, because a job may be changed that way.

Timers of the code are not waited for: if nothing else moves, the next one is due at once. They are left alone when a
call has stopped, because they may be the timeout of that call.

What can go wrong: code that acts outside steps acts here, too. Code that waits long for something else, such as a
thread, is taken to have stopped. A check that fits is no proof: it follows the recorded results only.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from holdfast.authoring import plain_values
from holdfast.authoring.answer_form import Form
from holdfast.authoring.conductor import Continued, Submitter, Suspended, conductor, external, job_thread, place
from holdfast.authoring.functions import Call, JobFunction
from holdfast.authoring.redaction import Revealed, revealed
from holdfast.authoring.reports import reporter
from holdfast.engine.children import child_result, earlier_names, start_result
from holdfast.engine.job_code import JobCode, Pending
from holdfast.engine.misfit import forgotten_tools, left_by_plan
from holdfast.engine.replay import Ended, Outcome, Replay, call_text
from holdfast.engine.replay_report import (
    VERDICTS,
    Misfit,
    NoReports,
    ReplayReport,
    Verdict,
    line_of_caller,
    raised_at,
)
from holdfast.engine.step_calls import recorded_outcome
from holdfast.engine.thread_pool import ThreadPool
from holdfast.errors import (
    HoldfastError,
    InvalidArguments,
    InvalidResult,
    NonDeterminism,
    NotAwaited,
    NotInJobCode,
    SecretUnavailable,
    WaitTimeout,
)
from holdfast.machines import Event, JobEvent
from holdfast.machines.job_table import TARGETS
from holdfast.machines.keys import CHANGED

QUIET_SECONDS = 1.0  # without a new call: code that waits longer for something else is taken to have stopped
THREAD_PATIENCE = 10  # times as long for code in a thread, which a busy machine may not have begun yet
PATIENCE_MAX = 60  # times as long while this process works, perhaps for other runs
IDLE_SHARE = 0.2  # of a core: a process that uses less does not work
POLLS_MAX = 10_000  # timers and threads without a call, after those of the history: the code waits for the outside
# Errors of the code itself. No job is written to raise them.
MISTAKES = (NameError, AttributeError, TypeError, ImportError, InvalidArguments, NotAwaited, NotInJobCode)
_ENDS = {JobEvent.COMPLETED.value, JobEvent.FAILED.value, JobEvent.CANCELLED.value}


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
        self._refused: list[Misfit] = []
        self._lines: dict[str, str | None] = {}  # of open calls, by node
        self._marks: dict[str, bool] = {}
        self._over = False
        self._continuing = False
        self._polls_max = POLLS_MAX + max((max(event.payload.get("natives") or [0]) for event in events), default=0)
        self._progress = (0, 0)  # calls made and answered so far, and the native work that was made by then

    async def run(self) -> ReplayReport:
        """Run the code until it ends or every branch has stopped. Return the report."""
        loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._threads = ThreadPool(4, loop)  # code that never returns does not keep the process from ending
        self._still = asyncio.Event()
        self.code = JobCode(self, self.job, self._replay, loop, self._threads)
        self._context = contextvars.copy_context()
        self._context.run(self._set_up)
        self.code.begin(self._code(), self._context)
        loop.call_soon(self.code.turn)
        await self._until_still()
        return self._end()

    async def _until_still(self) -> None:
        """Wait until the code stops. Give up if it waits for something outside, or polls that."""
        made, waited, idle = 0, 0, 0
        while not self._still.is_set() and not self._only_polls():
            cpu_seconds, before = time.process_time(), made
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._still.wait()
            made = self.code.loop.natives_made + self.code.calls_made
            waited, idle = (waited + 1, idle) if made == before else (0, 0)
            idle += time.process_time() - cpu_seconds < IDLE_SHARE * QUIET_SECONDS
            if waited and (waited >= PATIENCE_MAX or idle >= (THREAD_PATIENCE if self.code.loop.works else 1)):
                return

    def _set_up(self) -> None:
        """Prepare the context of the code, as an attempt does."""
        revealed.set(Revealed())
        conductor.set(self)
        reporter.set(NoReports())
        place.set(None)
        external.set(None)
        job_thread.set(None)

    def _end(self) -> ReplayReport:
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
        """End the check if no part of the code can move. If only timers can, fire the next one."""
        if self._still.is_set():
            return
        if self.code.idle:
            self._note_stuck()
            self._still.set()
        elif (timer := self.code.loop.only_timer()) is not None:
            if self._standing() or self._only_polls():
                self._still.set()
            else:
                self.code.loop.fire(timer)
                self.code.turn_soon()

    def _only_polls(self) -> bool:
        """Return whether the code makes timers or threads without end, and no call: it looks at something outside."""
        calls, natives = self.code.calls_made + self._answered, self.code.loop.natives_made
        if calls != self._progress[0]:
            self._progress = calls, natives
        return natives - self._progress[1] > self._polls_max

    def _standing(self) -> list[Pending]:
        """Return the calls at which the code stands: they were not recorded."""
        return [pending for pending in self.code.open.values() if pending.started]

    def _note_stuck(self) -> None:
        """Refuse code that rests as the engine would: nothing can wake it, or it forgot to await a call."""
        standing = self._standing()
        error: HoldfastError | None = None
        if not standing:
            error = self.code.stuck()
        elif all(pending.cut is None for pending in standing):
            error = self.code.unawaited_calls(at_the_end=False)
        if error is not None:
            self._refused.append(Misfit(Verdict.STOPS, f"{type(error).__name__}: {error}"))

    def code_returned(self) -> None:
        """Wait for the tasks that the code left."""

    def code_ended(self) -> None:
        self._still.set()

    def code_failed(self, error: BaseException) -> None:
        """End the check: the engine would stop here."""
        if isinstance(error, NonDeterminism):
            reason = f"it now calls {error.asked}, but the history has {', '.join(error.recorded)}"
            self._refused.append(Misfit(Verdict.STOPS, reason, self._line_of(error.asked)))
        else:
            self._refused.append(Misfit(Verdict.STOPS, f"{type(error).__name__}: {error}"))
        self._still.set()

    def knows(self, name: str) -> bool:
        return self._function.starter.knows(name)

    def _line_of(self, asked: str) -> str | None:
        """Return the line that makes a call, which errors show as `asked`."""
        open_calls = [one for one in self.code.open.values() if call_text(one.name, one.arguments, one.node) == asked]
        return self._lines.get(open_calls[-1].node) if open_calls else None

    def _report(self, code: asyncio.Task[Any] | None) -> ReplayReport:
        misfits = self._refused or self._left_open(code) or self._other_end(code)
        unasked = self._replay.unasked()
        beyond = [node for _, node in self._beyond]
        is_unused = unasked and not self._stands_at_new_call()
        verdict = misfits[0].verdict if misfits else Verdict.UNUSED if is_unused else Verdict.FITS
        return ReplayReport(
            fits=not misfits,
            reasons=[misfit.reason for misfit in misfits],
            answered=self._answered,
            unasked=unasked,
            beyond=beyond,
            verdict=verdict,
            line=misfits[0].line if misfits else next((self._lines.get(node) for node in beyond), None),
            marks=dict(self._marks),
            signals=self._replay.unused_signals() if all(name == "wait" for name in self._new_calls()) else [],
            names=sorted(self._replay.names()),
        )

    def _stands_at_new_call(self) -> bool:
        """Return whether the code has come to a call that the history does not know. It may ask for the rest later."""
        return bool(self._new_calls())

    def _new_calls(self) -> list[str]:
        """Return the names of the calls at which the code stands, and that the history does not know."""
        waits = {
            place.get("node")
            for event in self._events
            if event.type == JobEvent.WAITING
            for place in [event.payload, *(event.payload.get("also") or ())]
        }
        return [name for name, node in self._beyond if node not in waits and not self._replay.has(node)]

    def _left_open(self, code: asyncio.Task[Any] | None) -> list[Misfit]:
        """Return a misfit for code that ends a history, and leaves open whether a tool has acted."""
        last = self._last_move()
        if code is None or code.cancelled() or isinstance(code.exception(), Suspended):
            return []
        if (last is not None and last.type in _ENDS) or (error := forgotten_tools(self._replay)) is None:
            return []
        return [Misfit(Verdict.STOPS, f"NonDeterminism: {error}")]

    def _other_end(self, code: asyncio.Task[Any] | None) -> list[Misfit]:
        """Return how the code's end differs from that of the history, if both have one."""
        last = next((event for event in reversed(self._events) if event.type in _ENDS), None)
        error = self._error_of(code)
        if isinstance(error, Suspended):
            code = error = None
        as_before = last is not None and last.payload.get("code") == type(error).__name__
        if isinstance(error, HoldfastError) and not self.code.calls_made and not as_before:
            is_about_arguments = isinstance(error, InvalidArguments)
            what = "its arguments do not fit" if is_about_arguments else f"it now raises {type(error).__name__}"
            return [Misfit(VERDICTS.get(type(error), Verdict.STOPS), f"{what}: {error}", raised_at(error))]
        if last is None or last is not self._last_move():
            if error is None:
                return self._unstorable(code)[1]
            return [] if Continued.is_all_of(error) else self._raises_now(error)
        if last.payload.get("reason") not in {None, "error"} or last.type == JobEvent.CANCELLED:
            return []  # the history has not ended by its code
        if code is None:
            beyond = ", ".join(node for _, node in self._beyond) or "something else"
            line = next((self._lines.get(node) for _, node in self._beyond), None)
            return [Misfit(Verdict.OTHER_END, f"it had ended, and now calls {beyond}", line)]
        if last.payload.get("continued_as") is not None:
            other = Misfit(Verdict.OTHER_END, "it continued as another run, and now does not")
            return [] if Continued.is_all_of(error) else [other]
        return self._other_way(last, code, error)

    def _last_move(self) -> Event | None:
        """Return the last event that has moved the job."""
        return next((event for event in reversed(self._events) if event.type in TARGETS), None)

    def _raises_now(self, error: BaseException) -> list[Misfit]:
        """Return the error of code that fails where the history goes on: a result is left, or the job waits."""
        past = (event for event in self._events if event.type in {JobEvent.REQUEUED, JobEvent.FAILED})
        if any(event.payload.get("code") == type(error).__name__ for event in past):
            return []  # it failed the same way before, and is retried
        last = self._last_move()
        went_on = self._replay.goes_further or (last is not None and last.type == JobEvent.WAITING)
        if not went_on and not isinstance(error, MISTAKES):
            return []  # it may have been about to raise
        verdict = VERDICTS.get(type(error), Verdict.STOPS)
        return [Misfit(verdict, f"it now raises {type(error).__name__}: {error}", raised_at(error))]

    def _other_way(self, last: Event, code: asyncio.Task[Any], error: BaseException | None) -> list[Misfit]:
        """Compare results, or kinds of errors."""
        was = "returned" if last.type == JobEvent.COMPLETED else f"raised {last.payload.get('code')}"
        now = "returns" if error is None else f"raises {type(error).__name__}: {error}"
        if was.partition(" ")[2] != (type(error).__name__ if error is not None else ""):
            verdict = VERDICTS.get(type(error), Verdict.OTHER_END) if error is not None else Verdict.OTHER_END
            return [Misfit(verdict, f"it {was}, and now {now}", raised_at(error))]
        if error is None:
            return self._other_result(last.payload.get("result"), code)
        return []

    def _error_of(self, code: asyncio.Task[Any] | None) -> BaseException | None:
        """Return the error of the code. Also for code that caught what `continue_as` raised, and returned."""
        if code is None or code.cancelled():
            return None
        error = code.exception()
        if error is None or Continued.is_all_of(error):
            error = self.code.unawaited_calls(at_the_end=True) or error
        return Continued.caught() if error is None and self._continuing else error

    def _other_result(self, was: Any, code: asyncio.Task[Any]) -> list[Misfit]:
        now, misfits = self._unstorable(code)
        if misfits or now == was:
            return misfits
        return [Misfit(Verdict.OTHER_END, f"it returned {was!r:.200}, and now returns {now!r:.200}")]

    def _unstorable(self, code: asyncio.Task[Any] | None) -> tuple[Any, list[Misfit]]:
        """Return the result of code that has returned, and why the engine would refuse it: then the run would fail."""
        if code is None or code.cancelled():
            return None, []
        try:
            return self._context.copy().run(self._function.signature.encode_result, code.result()), []
        except Exception as error:  # InvalidResult, SecretUnavailable, or what a codec of the user raises
            verdict = VERDICTS.get(type(error), Verdict.STOPS)
            return None, [Misfit(verdict, f"it now ends with {type(error).__name__}: {error}", self._declared_at())]

    def _declared_at(self) -> str | None:
        """Return the first line of the job's function, as file:line."""
        code = getattr(inspect.unwrap(self._function.function), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None

    # Conductor: what the code calls

    def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        line = line_of_caller()
        return self._tracked(call.name, lambda: self._call(call, args, kwargs, line))

    async def _call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], line: str | None) -> Any:
        arguments = call.signature.encode(args, kwargs)
        node = self._replay.node(call.name, arguments, call.key, call.aliases)
        outcome = await self._outcome(node, call.name, line, arguments, acts=call.tool)
        try:
            return recorded_outcome(call, node, outcome)
        except (InvalidResult, SecretUnavailable) as error:
            self._refused.append(Misfit(VERDICTS[type(error)], f"the recorded result of {node}: {error}", line))
            raise

    def _tracked(self, name: str, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a durable call. It begins when the code awaits it, as in an attempt."""
        token = object()
        return self.code.tracked(token, name, self._begun(token, begin))

    async def _begun(self, token: object, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.code.awaited(token)
        return await begin()

    def wait(
        self, key: str, timeout: float | None, wait_type: str, form: Form | None = None
    ) -> Coroutine[Any, Any, Any]:
        del timeout, wait_type
        line = line_of_caller()
        if form is None:
            return self._tracked("wait_for", lambda: self._wait(key, line))
        return self._tracked("wait_for", lambda: self._answer(key, form, line))

    async def _answer(self, key: str, form: Form, line: str | None) -> Any:
        while True:  # an answer that could not be used was asked for again
            with contextlib.suppress(InvalidArguments):
                return form.decode(await self._wait(key, line))

    async def _wait(self, key: str, line: str | None) -> Any:
        outcome = await self._outcome(self._replay.node("wait", {}, key), "wait", line)
        assert isinstance(outcome, Ended), "a wait ends"
        if outcome.completed.get("outcome") == "expired":
            raise WaitTimeout(key)
        return plain_values.as_recorded(outcome.completed.get("payload"))

    def sleep(self, duration: float) -> Coroutine[Any, Any, None]:
        line = line_of_caller()
        return self._tracked("sleep", lambda: self._sleep(duration, line))

    async def _sleep(self, duration: float, line: str | None) -> None:
        await self._outcome(self._replay.node("sleep", {}, f"{duration:g}"), "sleep", line)

    def child(
        self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        line = line_of_caller()
        return self._tracked(job.name, lambda: self._child(job, args, kwargs, line))

    async def _child(
        self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], line: str | None
    ) -> Any:
        arguments = job.signature.encode(args, kwargs)
        node = self._replay.node(f"job.{job.name}", arguments, job.chosen.key, earlier_names("job", job))
        outcome = await self._outcome(node, f"job.{job.name}", line, arguments, acts=True)
        return child_result(job, arguments, node, outcome)

    async def start_run(self, job: JobFunction[..., Any], arguments: dict[str, Any], submit: Submitter) -> str:
        del submit
        name = f"start.{job.name}"
        node = self._replay.node(name, arguments, job.chosen.key, earlier_names("start", job))
        return str(start_result(job.name, await self._outcome(node, name, line_of_caller(), arguments, acts=True)))

    async def send_signal(self, payload: dict[str, Any], send: Submitter) -> str:
        del send
        node = self._replay.node("signal", payload, None)
        return str(start_result("signal", await self._outcome(node, "signal", line_of_caller(), payload)))

    def continue_as(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        self.code.check_main("continue_as")
        self._function.signature.encode(args, kwargs)
        self._continuing = True
        raise Continued

    async def outside(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.code.loop.outside(work)

    async def _outcome(
        self, node: str, name: str, line: str | None, arguments: Any = None, *, acts: bool = False
    ) -> Outcome:
        cut: Any = None if arguments is None else list  # a call ends in its turn when it is cut off, a wait at once
        self._lines[node] = line
        outcome = await self.code.outcome(node, name, self._stand_still, arguments, cut, acts=acts)
        del self._lines[node]
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

    def changed(self, mark: str) -> bool:
        if self.in_loop():
            return self._changed(mark)
        return bool(self.code.on_host(self._changed, mark))

    def _changed(self, mark: str) -> bool:
        if mark not in self._marks:
            self._marks[mark] = bool(self.recorded(f"{CHANGED}{mark}", lambda: self.code.is_new_ground))
        return self._marks[mark]

    def recorded(self, node: str, make: Callable[[], Any]) -> Any:
        return self._replay.values[node] if node in self._replay.values else make()

    def known(self, node: str) -> Any:
        return self._replay.values.get(node)

    def known_names(self, beginning: str) -> list[str]:
        return [node for node in self._replay.values if node.startswith(beginning)]

    def plan(self, new_plan: dict[str, Any] | None = None) -> dict[str, Any] | None:
        if self._replay.plan is None and new_plan is not None:
            self.code.refuse(left_by_plan(self._replay, new_plan))
        return self._replay.plan if self._replay.plan is not None else new_plan

    def check_cancelled(self) -> None:
        """Do nothing: a check is never cancelled."""

    def in_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def call_in_thread(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.from_thread(self.call(call, args, kwargs))

    def from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.code.from_thread(coroutine)
