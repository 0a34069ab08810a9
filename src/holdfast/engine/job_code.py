"""The running code of one job: runs it until it rests, and delivers one outcome at a time (SPEC E8, E14).

A *turn* runs the code until its ready queue is empty, then releases at most one thing. It repeats this until there is
nothing to release.

During a replay, the next thing is the next outcome in the order of the stream. The native work that the code had seen
before it is released first. The *frontier* is reached when no recorded outcome is left that the code asks for. Then the
held calls are started, and outcomes are delivered as they arrive. Each outcome is recorded when it is delivered. So the
order of the stream is the order in which the code saw the outcomes.

Time decides nothing here. Slow code keeps native work under way, and a turn that finds such work waits for it.

All of this runs on the worker's loop. Only `run_ready` runs user code.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol
from zlib import crc32

import msgspec

from holdfast.authoring.conductor import Suspended, job_thread, place
from holdfast.engine.code_line import line_of
from holdfast.engine.job_loop import DurableFuture, JobLoop, JobTask
from holdfast.engine.replay import CutOff, Outcome, Recorded, Replay, begin_trail, call_text
from holdfast.engine.thread_pool import ThreadPool
from holdfast.errors import InvalidArguments, JobStuck, NonDeterminism, NotAwaited
from holdfast.machines.keys import ended_name

TURN_MAX = 1000  # callbacks of one job before other jobs of the worker have their turn
OUT_OF_TURN_SECONDS = 1.0  # that a call waits for others of threads of its own that come before it in the history
POLLING_MAX = 10_000  # callbacks without a rest: the code polls, and gets outcomes although it does not rest

Written = tuple[str, dict[str, Any]]


class CodeHost(Protocol):
    """What runs the code: an attempt, or a check of a replay."""

    def goes_on(self) -> bool:
        """Return whether nothing has ended this attempt yet."""
        ...

    def record(self, *events: Written) -> None:
        """Append events to the stream."""
        ...

    def code_rests(self) -> None:
        """Handle that the code rests, and there is nothing to deliver to it."""
        ...

    def code_returned(self) -> None:
        """Handle that the job's function has ended and left tasks, which are being cancelled."""
        ...

    def code_ended(self) -> None:
        """Handle that the job's function and everything that it started have ended."""
        ...

    def code_failed(self, error: BaseException) -> None:
        """Fail the job. It cannot continue, whatever its code does."""
        ...

    def knows(self, name: str) -> bool:
        """Return whether the code has a function of this name; a job has it after `job.` or `start.`."""
        ...


class Pending(msgspec.Struct, eq=False):
    """A durable call that the code has made and that has no outcome yet."""

    node: str
    name: str
    begin: Callable[[Pending], None]  # starts it, when no recorded outcome is left to deliver
    future: DurableFuture
    arguments: Any
    cut: Callable[[], list[Written]] | None  # returns the events for its cut-off, delivered in turn; None for a wait
    asked_at: int  # how often the code had rested when it made the call
    checked: bool  # whether its arguments must be the recorded ones; plan nodes are known by name, in any order
    acts: bool  # whether it acts outside: a tool, a child, a start
    cutting: bool = False  # whether the code has cut it off and waits for its end
    started: bool = False
    driver: asyncio.Task[Any] | None = None  # the task that runs it, on the worker's loop
    left: Callable[[], None] | None = None  # called when the code no longer waits for it
    delayed_at: float | None = None  # when the code made it although it does not seem to fit


class _Arrival(msgspec.Struct, eq=False):
    """An outcome that arrived while the job runs, and the events that record it."""

    pending: Pending
    outcome: Outcome
    events: Sequence[Written]
    delivered: Callable[[], None] | None
    dropped: Callable[[], None] | None


class ThreadWaiter:
    """The outcome of a durable call, for the thread that made it, which blocks until the loop sets it."""

    __slots__ = ("_error", "_is_done", "_result", "_unset")

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()
        self._is_done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether there is an outcome."""
        return self._is_done

    def set_result(self, result: Any) -> None:
        """Let the thread continue with this result."""
        self._result, self._is_done = result, True
        self._unset.release()

    def set_exception(self, error: BaseException) -> None:
        """Let the thread continue with this error."""
        self._error, self._is_done = error, True
        self._unset.release()

    def result(self) -> Any:
        """Wait for the outcome. Return the result or raise the error."""
        self._unset.acquire()
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            del self  # the traceback refers to this frame


class JobCode:
    """The code of one attempt; see the module's docstring."""

    def __init__(
        self, host: CodeHost, job: str, replay: Replay, loop: asyncio.AbstractEventLoop, threads: ThreadPool
    ) -> None:
        self._host = host
        self._replay = replay
        self._inbox = threads.inbox
        self.loop = JobLoop(loop, threads, self.turn, crc32(job.encode()) << 20)
        self.main: JobTask | None = None
        self.open: dict[str, Pending] = {}
        self.calls_made = 0
        self.frontier = replay.head() is None
        self.live = False  # whether the code has rested after everything recorded that it asks for was delivered
        self._held: list[Pending] = []
        self._delays = False  # whether one of them does not fit yet, and others may come before it
        self._late: deque[Pending] = deque()  # made after the frontier, with a recorded outcome
        self._arrivals: deque[_Arrival] = deque()
        self._unawaited: dict[object, tuple[str, Coroutine[Any, Any, Any]]] = {}
        self._threads_blocked: dict[JobTask, ThreadWaiter] = {}
        self._foreign_calls: set[JobTask] = set()  # of threads that the code has started itself
        self._unrested = 0
        self._rests = 0  # how often the code has rested
        self._turn_requested = False
        self._closed = False
        self._cleaning_up = False  # whether the job's function has ended, and left tasks are being cancelled

    @property
    def threads_waiting(self) -> int:
        """The number of threads that wait for a durable call."""
        return len(self._threads_blocked)

    # Life

    def begin(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> None:
        """Start the job's function. It runs with the next turn."""
        context.run(begin_trail)
        self.loop.turning = True  # or the loop would request a turn: it may have to wait for the effect store
        try:
            self.main = self.loop.create_task(coroutine, name="job", context=context)
        finally:
            self.loop.turning = False

    def turn(self) -> None:
        """Run the code until it rests and there is nothing to deliver to it."""
        loop = self.loop
        if loop.turning or self._closed:
            return
        loop.turning = True
        try:
            moved = self._run()
        finally:
            loop.turning = False
        if self._is_closed():
            return
        loop.arm()
        if moved is None:
            self.turn_soon()
        if self._cleaning_up:
            if moved is not None and not (loop.unfinished() and (loop.works or self._calls_under_way())):
                self._host.code_ended()
        elif moved is not None or self._unrested >= POLLING_MAX:
            self._host.code_rests()

    def turn_soon(self) -> None:
        """Take a turn in a later callback of the worker's loop. Requests until then share it."""
        if not self._turn_requested:
            self._turn_requested = True
            self.loop.host.call_soon(self._requested_turn)

    def _requested_turn(self) -> None:
        self._turn_requested = False
        self.turn()

    def _is_closed(self) -> bool:
        return self._closed

    def _calls_under_way(self) -> bool:
        return any(call.driver is not None and not call.driver.done() for call in self.open.values())

    def _run(self) -> bool | None:
        """Run and release. Return None if other jobs should have their turn first."""
        loop, count = self.loop, 0
        while not self._closed:
            rests = self._rests
            ran = loop.run_ready(TURN_MAX, self._release_next) if loop.ready else 0
            count += ran
            if loop.fatal is not None:
                if self.main_done and self.main is not None and not self.main.cancelled():
                    self.main.exception()  # mark as retrieved: the host gets the fatal error below
                self._host.code_failed(loop.fatal)
                return False
            if self.main is not None and self.main.done() and not self._cleaning_up:
                self._cancel_left_tasks()
                continue
            self._unrested = self._unrested + ran if loop.ready and rests == self._rests else 0
            if loop.ready and self._unrested < POLLING_MAX:
                return None
            released = self._release_last() if self._cleaning_up else self._release()
            if not released and not loop.ready:
                return False
            if count >= TURN_MAX:
                return None
        return False

    def _cancel_left_tasks(self) -> None:
        """Cancel the tasks that the job's function left when it ended, as `asyncio.run` does."""
        self._cleaning_up = True
        left = self.loop.unfinished()
        for task in left:
            task.cancel()
        if left:
            self._host.code_returned()

    def close(self) -> None:
        """End the code where it is. It sees no cancellation, and nothing of it runs again."""
        if self._closed:
            return
        self._closed = True
        self.loop.close()
        for waiter in self._threads_blocked.values():
            if not waiter.done():
                waiter.set_exception(Suspended())
        self._threads_blocked.clear()
        for _, coroutine in self._unawaited.values():
            coroutine.close()
        self._unawaited.clear()
        self._arrivals.clear()

    @property
    def main_done(self) -> bool:
        """Return whether the job's function has returned or raised."""
        return self.main is not None and self.main.done()

    def forget(self) -> None:
        """Drop references to the attempt. Nothing of it is under way, so everything is freed at once."""
        self._host = _ENDED_HOST
        self.loop.forget()

    def refuse(self, error: NonDeterminism | None) -> None:
        """Stop the code here if there is an error: it does not fit, and nothing that it catches changes that.

        Raises:
            NonDeterminism: this error.
        """
        if error is not None:
            self.loop.fatal = error
            raise error

    def check_main(self, name: str) -> None:
        """Check that the caller is the job's own function.

        Raises:
            InvalidArguments: it is a task or a thread that the function has started.
        """
        thread = job_thread.get()
        if thread is not None:
            in_main = not thread.number
        else:
            in_main = _get_running_loop() is not None and asyncio.current_task() is self.main
        if not in_main:
            reason = "call it in the job's own function, not in a task or a thread that the function has started"
            raise InvalidArguments(name, reason)

    @property
    def is_new_ground(self) -> bool:
        """Return whether the code is at a place that the history has not passed."""
        return self.live or not self._replay.goes_further

    @property
    def is_alone(self) -> bool:
        """Return whether the code is past its history, and nothing of it but its own function is under way."""
        busy = self.open or self._foreign_calls or self.loop.natives_made or self._cleaning_up or self._closed
        return self.frontier and not busy and not self._replay.may_be_unasked

    # What the code calls

    def tracked(self, token: object, name: str, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Remember a durable call's coroutine until it is awaited."""
        self._unawaited[token] = name, coroutine
        return coroutine

    def awaited(self, token: object) -> None:
        """Forget a durable call's coroutine: it has begun."""
        self._unawaited.pop(token, None)

    def unawaited_calls(self, *, at_the_end: bool) -> NotAwaited | None:
        """Return an error that names the calls that were never awaited.

        At the end these are all calls that were not awaited. Before it, they are those that nothing can await.
        """
        lost = [
            name
            for name, coroutine in self._unawaited.values()
            if at_the_end or sys.getrefcount(coroutine) <= HELD_BY_US
        ]
        return NotAwaited(lost) if lost else None

    async def outcome(
        self,
        node: str,
        name: str,
        begin: Callable[[Pending], None],
        arguments: Any = None,
        cut: Callable[[], list[Written]] | None = None,
        *,
        acts: bool = False,
    ) -> Outcome:
        """Wait for the outcome of a durable call: the recorded one in its turn, or that of a call started now."""
        self.calls_made += 1
        checked = arguments is not None and place.get() is None
        pending = Pending(node, name, begin, DurableFuture(loop=self.loop), arguments, cut, self._rests, checked, acts)
        self.open[node] = pending
        recorded = self._replay.recorded(node)
        if recorded is not None and self.frontier and isinstance(recorded.outcome, CutOff):
            self._replay.drop(node)  # the code makes this call later than before, and no longer cuts it off
            recorded = None
        if recorded is None:
            self._held.append(pending)
        elif self.frontier:
            self._late.append(pending)
        try:
            while True:
                try:
                    outcome: Outcome = await pending.future
                except asyncio.CancelledError:
                    if not self._cut_off(pending):
                        raise
                    continue
                if pending.cutting or isinstance(outcome, CutOff):
                    raise asyncio.CancelledError  # even after a recorded result: a cancel is never lost
                return outcome
        finally:
            self.open.pop(node, None)
            if pending.left is not None:
                pending.left()

    def _cut_off(self, pending: Pending) -> bool:
        """Cut off a call that the code no longer waits for (E15). Return whether its end must come first."""
        if not pending.future.cancelled():
            return False  # the outcome was delivered, and the code has dropped it
        pending.future = DurableFuture(loop=self.loop)
        if pending.cutting:
            return True  # it was cut off before, and its end is on its way
        if pending.cut is not None and pending.asked_at != self._rests:  # otherwise it has not begun
            pending.cutting = True
            if pending.driver is not None:
                pending.driver.cancel()  # if it has ended by now, its outcome is on its way
            elif pending.started:
                self._cut_now(pending)
            return True  # its end comes in its turn: as recorded, or after the replay
        recorded = self._replay.recorded(pending.node)
        if recorded is not None and not isinstance(recorded.outcome, CutOff) and not self.frontier:
            pending.cutting = True
            return True  # it ended all the same, and its outcome is still to come
        if self._host.goes_on():
            if recorded is not None:
                self._replay.take(pending.node)
            else:
                self._host.record(cut_off(pending.node))
        return False

    def _cut_now(self, pending: Pending) -> None:
        """Queue the cut-off of a call after the outcomes that arrived before it."""
        events = pending.cut() if pending.cut is not None else [cut_off(pending.node)]
        self._arrivals.append(_Arrival(pending, CutOff(), events, None, None))

    # Outcomes

    def arrive(
        self,
        pending: Pending,
        outcome: Outcome,
        events: Sequence[Written],
        *,
        delivered: Callable[[], None] | None = None,
        dropped: Callable[[], None] | None = None,
        now: bool = False,
    ) -> None:
        """Deliver an outcome when the code rests. Its events are recorded at that moment.

        With `now`, deliver in this callback of the worker's loop. It is never inside a task: the code has its own loop.
        """
        arrival = _Arrival(pending, outcome, events, delivered, dropped)
        if self._closed:
            self._record_undelivered(arrival)
            return
        self._arrivals.append(arrival)
        if now:
            self.turn()
        elif not self.loop.turning:
            self.turn_soon()

    def _record_undelivered(self, arrival: _Arrival) -> None:
        """Record an outcome for the next attempt: the code is closed, and this attempt still writes."""
        if not isinstance(arrival.outcome, CutOff):
            self._record(arrival, arrival.events)

    def _record(self, arrival: _Arrival, events: Sequence[Written]) -> bool:
        """Record an outcome. Return whether that was possible."""
        try:
            self._host.record(*events)
        except Suspended:
            if arrival.dropped is not None:
                arrival.dropped()
            return False
        if arrival.delivered is not None:
            arrival.delivered()
        return True

    def _release(self) -> bool:
        """Deliver the next thing to the resting code. Return whether there was one."""
        self._rests += 1
        if not self.frontier:
            handed = self._release_recorded()
            if handed is not None:
                return handed
        self.live = self.live or not self.loop.may_move
        if self._held:
            self._start_all_held()
        if self._closed:
            return False
        if self.loop.completed and self.loop.hand_over():
            return True
        while self._late:
            pending = self._late.popleft()
            outcome = self._replay.take(pending.node)
            if not pending.future.done() and outcome is not None:
                pending.future.set_result(outcome)
                return True
        while self._arrivals:
            if self._deliver(self._arrivals.popleft()):
                return True
        return False

    def _release_next(self) -> bool:
        """Deliver the next outcome of the stream if the code waits for just that, as in most of a replay."""
        if self.frontier or self._closed or self._cleaning_up or self.main_done:
            return False
        item = self._replay.head()
        if item is None or item.natives or self.calls_made < item.calls_made:
            return False
        pending = self.open.get(item.node)
        if pending is None or not self._may_take(pending, item):
            return False
        self._rests += 1
        return self._hand_out(pending)

    def _release_last(self) -> bool:
        """Deliver what ends tasks that were left and cancelled. Nothing is started for them."""
        if not self.frontier:
            handed = self._release_recorded()
            if handed is not None:
                return handed
        held, self._held = self._held, []
        for pending in held:
            if pending.cutting and self.open.get(pending.node) is pending:
                self._cut_now(pending)
        if self.loop.hand_over():
            return True
        return bool(self._arrivals) and (self._deliver(self._arrivals.popleft()) or bool(self._arrivals))

    def _release_recorded(self) -> bool | None:
        """Deliver the next outcome of the stream. Return False to wait, None if the replay is over."""
        replay, loop = self._replay, self.loop
        while (item := replay.head()) is not None:
            waits = self._release_natives(item)
            if waits is not None:
                return waits
            pending = self.open.get(item.node)
            if pending is not None and self.calls_made >= item.calls_made and self._may_take(pending, item):
                return self._hand_out(pending)
            if item.outcome is None:
                item.taken = True
                continue
            if loop.hand_over():
                return True
            if loop.may_move and not self._waits_in_vain():
                return False  # slow code is not changed code
            other = self._another_open()  # the code has changed
            if other is not None:
                return self._hand_out(other)
            if not isinstance(item.outcome, CutOff):
                break
            replay.drop(item.node)  # the code no longer cuts it off, and a cut-off is never forced
        self._reach_frontier()
        return None

    def _waits_in_vain(self) -> bool:
        """Return whether the code rests at a call, does not ask for the next outcome, and only time limits can move it.

        The timers that had fired before the outcome have fired, and nothing sleeps. So this code is changed, not slow.
        Such a limit may be the timeout of the call, and must not end before the call is made.
        """
        if self._replay.is_fork or self.loop.has_foreign_work or not self.loop.has_only_time_limits():
            return False  # the history of a fork does not have the timers that had fired
        return self._another_open() is not None or any(self.open.get(one.node) is one for one in self._held)

    def _reach_frontier(self) -> None:
        """End the replay. Start calls whose recorded cut-off did not happen this time."""
        self.frontier = True
        held = set(map(id, self._held))
        for pending in self.open.values():
            recorded = self._replay.recorded(pending.node)
            if recorded is not None and not self._may_take(pending, recorded):
                self._replay.drop(pending.node)
                recorded = None
            if recorded is None and not pending.started and id(pending) not in held:
                self._held.append(pending)

    def _release_natives(self, item: Recorded) -> bool | None:
        """Hand over the native work that the code saw before an outcome. Return None when all of it was."""
        loop = self.loop
        while item.natives:
            at_its_place = type(item.outcome) is CutOff and item.node in self.open
            number, state = loop.find(*item.natives[0], at_its_place=at_its_place)
            if state == "completed":
                loop.hand_over(number)
            elif state == "timer":
                loop.fire(number)
            elif state == "running":
                return False
            elif state == "unmade":
                if loop.hand_over():
                    return True
                if loop.may_move and not self._waits_in_vain():
                    return False
            item.natives = item.natives[1:]
            if state in {"completed", "timer"}:
                return True
        return None

    def _may_take(self, pending: Pending, item: Recorded) -> bool:
        return pending.cutting or type(item.outcome) is not CutOff

    def _another_open(self) -> Pending | None:
        """Return the first open call with a recorded outcome, in the order of the stream."""
        recorded = self._replay.recorded
        known = {
            node for node, pending in self.open.items() if (item := recorded(node)) and self._may_take(pending, item)
        }
        if not known:
            return None
        return next(self.open[item.node] for item in self._replay.order if not item.taken and item.node in known)

    def _hand_out(self, pending: Pending) -> bool:
        outcome = self._replay.take(pending.node)
        if not pending.future.done():
            pending.future.set_result(outcome)
        return True

    def _start_all_held(self) -> None:
        """Start the held calls, and those that the code makes meanwhile, but not those that do not fit yet."""
        delayed: list[Pending] = []
        while self._held and not self._closed:
            self._start_held(delayed)
        self._held, self._delays = delayed, bool(delayed)

    def _start_held(self, delayed: list[Pending]) -> None:
        """Start the held calls. One that does not fit waits in `delayed` while a thread of the code may make others."""
        held, self._held = self._held, []
        for pending in held:
            if self.open.get(pending.node) is not pending or pending.future.done():
                continue  # the code has cut it off
            if unasked := self._left_out(pending):  # also if the code no longer waits for it: it had rested there
                if (self.loop.works and self.loop.only_timer() is None) or self._may_be_out_of_turn(pending):
                    delayed.append(pending)  # slow code is not changed code
                    continue
                self._host.code_failed(self._misfit(pending, unasked))
                return
            if pending.cutting:
                self._cut_now(pending)
                continue
            pending.started = True
            pending.begin(pending)
            if self._closed:
                return

    def _may_be_out_of_turn(self, pending: Pending) -> bool:
        """Return whether threads that the code has started itself may make the recorded calls a moment later.

        Nothing is known of such threads, and the order of their calls is not that of the history.
        """
        host = self.loop.host
        if not self._foreign_calls:
            return False
        if pending.delayed_at is None:
            pending.delayed_at = host.time()
            host.call_later(OUT_OF_TURN_SECONDS, self.turn_soon)
        return host.time() - pending.delayed_at < OUT_OF_TURN_SECONDS

    def _misfit(self, pending: Pending, unasked: list[str]) -> NonDeterminism:
        asked = call_text(pending.name, pending.arguments, pending.node)
        error = NonDeterminism(asked, [self._replay.describe(node) for node in unasked])
        error.node, error.nodes = pending.node, unasked
        error.line = line_of(pending.future, self.loop.unfinished(), self._threads_blocked)
        return error

    def _left_out(self, pending: Pending) -> list[str]:
        """Return the recorded calls of the same name that the code has not made. With any, a new call does not fit.

        The name of a tool or a child may have been another one.
        """
        if not (pending.checked and self._replay.may_be_unasked):
            return []
        unasked = self._replay.unasked(pending.name)
        if not unasked and pending.acts:
            unasked = self._replay.unknown(pending.node, self._host.knows)
        return [node for node in unasked if node not in self.open]

    def _deliver(self, arrival: _Arrival) -> bool:
        pending = arrival.pending
        if self.open.get(pending.node) is not pending:
            if arrival.dropped is not None:
                arrival.dropped()
            return False
        events = arrival.events
        if events and (self.loop.natives_made or self.loop.works):
            kind, payload = events[0]
            events = [(kind, {**payload, "asked": self.calls_made}), *events[1:]]
        if not self._record(arrival, events) and not isinstance(arrival.outcome, CutOff):
            return False
        if not pending.future.done():
            pending.future.set_result(arrival.outcome)
        return True

    # Threads

    def from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a durable call of a thread, and block the thread until it ends."""
        waiter = ThreadWaiter()
        context = contextvars.copy_context()
        try:
            own = job_thread.get()
            foreign = own is not None and own.ident != threading.get_ident()  # a thread that the code has started
            self._inbox.put(self._enter, coroutine, context, own, waiter, foreign)
        except RuntimeError:  # the worker's loop is closed
            coroutine.close()
            raise Suspended from None
        return waiter.result()

    def _enter(
        self,
        coroutine: Coroutine[Any, Any, Any],
        context: contextvars.Context,
        thread: Any,
        waiter: ThreadWaiter,
        foreign: bool,  # noqa: FBT001 - an inbox takes no keywords
    ) -> None:
        if self._closed:
            coroutine.close()
            waiter.set_exception(Suspended())
            return
        task = self.loop.create_task(coroutine, context=context)
        self._threads_blocked[task] = waiter
        if foreign:
            self._foreign_calls.add(task)
        self.loop.block(thread)
        task.add_done_callback(lambda ended: self._leave(ended, thread, waiter))
        self.turn()

    def on_host(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on the worker's loop, and block this thread until it returns."""
        waiter = ThreadWaiter()

        def call() -> None:
            try:
                waiter.set_result(function(*args))
            except BaseException as error:  # the calling thread gets every error
                waiter.set_exception(error)

        try:
            self._inbox.put(call)
        except RuntimeError:  # the worker's loop is closed
            raise Suspended from None
        return waiter.result()

    def _leave(self, task: Any, thread: Any, waiter: ThreadWaiter) -> None:
        self._threads_blocked.pop(task, None)
        self._foreign_calls.discard(task)
        self.loop.unblock(thread)
        if waiter.done():
            return
        if task.cancelled():
            waiter.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(task.result())

    def cancel_threads(self) -> None:
        """Raise CancelledError in the durable calls that threads wait in."""
        for task in list(self._threads_blocked):
            task.cancel()

    # What keeps the job in memory

    @property
    def idle(self) -> bool:
        """Return whether no part of the code can move without an outcome."""
        waits = not (self._arrivals or self.loop.ready or self.loop.completed or self._delays)
        return waits and self.loop.busy_with() is None

    def stuck(self) -> JobStuck:
        """Return an error that says where each task waits."""
        return JobStuck([_where(task) for task in self.loop.unfinished()])


class _EndedHost:
    """A host that replaces an attempt that is over."""

    def goes_on(self) -> bool:
        return False

    def record(self, *events: Written) -> None:
        del events
        raise Suspended

    def code_rests(self) -> None:
        """Do nothing."""

    code_returned = code_ended = code_rests

    def code_failed(self, error: BaseException) -> None:
        """Do nothing."""

    def knows(self, name: str) -> bool:
        del name
        return True


_ENDED_HOST = _EndedHost()
# The references to a coroutine that only `unawaited_calls` knows: the entry, the loop's variable, the argument.
HELD_BY_US = 3


def cut_off(node: str) -> Written:
    """Return the event for a wait, or a call that had not begun, which the code has cut off."""
    return "value_recorded", {"node": ended_name(node), "value": {"outcome": "cut_off"}}


def _where(task: JobTask) -> str:
    frames = task.get_stack(limit=1)
    at = f" at {frames[0].f_code.co_filename.rpartition('/')[2]}:{frames[0].f_lineno}" if frames else ""
    return f"{task.get_name()}{at}"
