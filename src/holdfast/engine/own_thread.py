"""Plain steps that run in the own thread of the plain job that calls them.

Otherwise the thread of a plain job blocks in every call, while the worker's loop has another thread run the function.
Only one thread at a time runs Python code, so these hand-overs take longer than most functions.

Here the job's thread runs the function itself, and continues with its result. The recorded events are the same, in the
same order. The thread posts them to the worker's loop, which records them. The declaration is posted before the
function begins. The code may run ahead of the loop, as it may run ahead of the disk (output commit).

The thread does so only where the loop would have nothing to decide. The code is past its history, nothing else of it is
under way, its lease lasts, and the call is a step without a timeout or a gate. A process that was forked from the
thread does not: it has no loop that reads what it posts. If the function does not return a plain result, the loop
continues the call from there.

A thread cannot be interrupted. If a job is cancelled while its thread blocks in a call, its code sees that at once.
While the thread runs a function, the code sees it after that. So a step runs here only if its last run was brief.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.authoring.conductor import Suspended, external, job_thread, place
from holdfast.authoring.functions import Call
from holdfast.engine.ending_events import Written
from holdfast.engine.step_calls import leave_job
from holdfast.engine.thread_pool import as_runtime_error, for_caller
from holdfast.machines.event import Frozen, freeze_plain

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

BRIEF_SECONDS = 0.05  # a cancelled job may wait for a step that took less the last time
AHEAD_MAX = 64  # posts that the loop has not read, before the thread waits for it; a large one counts as many
LARGE_BYTES = 4096  # of a post that counts as two

_Rest = Callable[[], Coroutine[Any, Any, Any]]  # continues a call on the loop


class BriefSteps:
    """The plain steps of a worker whose last run was brief. Safe from any thread.

    Args:
        seconds: how long a brief run takes at most. With 0 none is brief. Default: `BRIEF_SECONDS`.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def run(self, call: Call[..., Any], kwargs: dict[str, Any]) -> Any:
        """Run the function of a step, and note how long it took."""
        began = time.monotonic()
        try:
            return call.function(**kwargs)
        finally:
            longest = BRIEF_SECONDS if self._seconds is None else self._seconds
            (self._names.add if time.monotonic() - began < longest else self._names.discard)(call.name)


class OwnThread:
    """The calls that the thread of one plain job carries out itself. All methods but `_record` run in that thread."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._calls = attempt.calls
        _ = attempt.outcomes  # made here, on the loop, because the thread uses it
        self._pid = os.getpid()  # a forked child has this thread, and no loop that reads its posts
        self._begun, self._ended = partial(self._record, begins=True), partial(self._record, begins=False)
        self._posted = 0  # what was posted; changed by the thread alone
        self._recorded = 0  # and what the loop has read of that; changed by the loop alone

    def takes(self, call: Call[..., Any]) -> bool:
        """Return whether the calling thread may carry out a call itself."""
        own = job_thread.get()
        return (
            call.name in self._attempt.brief_steps
            and not (call.is_async or call.tool)
            and call.timeout_seconds is None
            and call.gate is None
            and own is not None
            and own.number == 0
            and own.ident == threading.get_ident()
            and place.get() is None
            and _get_running_loop() is None
            and os.getpid() == self._pid
            and self._posted - self._recorded < AHEAD_MAX
            and self._attempt.is_undisturbed()
        )

    def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call, and return its result or raise its failure."""
        value, rest = contextvars.copy_context().run(self._call, call, args, kwargs)  # as calls on the loop have
        if rest is None:
            return call.signature.decode_result(value)  # in the context of the code, as in a replay
        return self._attempt.from_thread(self._attempt.tracked(call.name, rest))

    def _call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, _Rest | None]:
        """Return the result, or what continues the call on the loop."""
        attempt, calls = self._attempt, self._calls
        arguments = call.signature.encode(args, kwargs, attempt.config.payload_bytes_max)
        node = attempt.replay.node(call.name, arguments, call.key, call.aliases)
        if node in attempt.replay.retry_at:  # it failed in an earlier attempt, and may not be due
            return None, partial(calls.outcome, call, node, arguments)
        self._post(calls.declaration(call, node, arguments), begins=True)
        leave_job()
        external.set((f"holdfast:{attempt.job}:{node}", attempt.attempt))
        try:
            result = attempt.brief_steps.run(call, call.signature.typed(arguments))
            value, content = calls.encoded(call, result)
        except BaseException as error:  # the loop decides what follows
            return None, partial(calls.outcome, call, node, arguments, partial(_raised, _failure(error)))
        if content is not None or attempt.spends or attempt.is_exporting:
            return None, partial(calls.outcome, call, node, arguments, partial(_returned, result))
        self._post(*calls.success(call, node, value).events)
        return value, None

    def _post(self, *events: Written, begins: bool = False) -> None:
        """Have the loop record events. They are frozen here, because the code may change the values after this."""
        frozen = [(kind, freeze_plain(payload)) for kind, payload in events]
        weight = 1 + sum([len(each.text) for _, each in frozen]) // LARGE_BYTES
        self._posted += weight
        try:
            self._attempt.threads.inbox.put(self._begun if begins else self._ended, frozen, weight)
        except RuntimeError:  # the worker's loop is closed
            raise Suspended from None

    def _record(self, events: list[tuple[str, Frozen]], weight: int, *, begins: bool) -> None:
        """Record events on the loop, unless the attempt may write no more."""
        self._recorded += weight
        attempt = self._attempt
        attempt.own_step = begins
        attempt.code.live = True  # it is past its history, although it has not rested
        attempt.code.calls_made += not begins
        if not begins and attempt.code.threads_waiting:  # the code may have rested but for this step
            attempt.code.turn_soon()
        with suppress(Suspended):
            self._attempt.record_frozen(events)


def _failure(error: BaseException) -> Exception:
    """Return what a step failed with: as it is, unless it would end more than the step."""
    error = for_caller(error)
    return error if isinstance(error, Exception) else as_runtime_error(error)


async def _returned(result: Any) -> Any:
    return result


async def _raised(error: Exception) -> Any:
    raise error
