"""A recorded history, run through code as it is now: whether the two still fit (SPEC E8).

The job's own code runs; nothing that it calls does. A step, tool, wait or child is answered from the history or not at
all: a branch that asks for what was not recorded stands still there. When every branch stands still, or the code has
ended, what happened is judged:

- the code asks for a new call of a name of which recorded ones were not asked for: the engine would refuse it;
- the history has ended, and the code ends otherwise, or asks for more.

Recorded calls that are no longer asked for are told, and no misfit: a job may be changed that way. What can go wrong:
code that does something outside steps does it here, too; code that waits for something else for long is taken to stand
still.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.authoring.context import Suspended, conductor
from holdfast.authoring.functions import Call, JobFunction
from holdfast.engine.calls import handed_out
from holdfast.engine.children import outcome_of
from holdfast.engine.replay import PATIENCE_PARTS, Replay
from holdfast.errors import HoldfastError, InvalidResult, WaitTimeout
from holdfast.machines import Event, JobEvent

__all__ = ["Rehearsal", "Rehearsed"]

_ENDS = {JobEvent.COMPLETED.value, JobEvent.FAILED.value, JobEvent.CANCELLED.value}


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a rehearsal.

    Attributes:
        fits: the engine would go on with this code, and what has ended would end the same.
        reasons: why it does not fit; empty if it does.
        answered: how many recorded calls, waits and children the code asked for.
        unasked: recorded results that it did not ask for.
        beyond: what it asked for that was not recorded: where it would go on.
    """

    fits: bool
    reasons: list[str]
    answered: int
    unasked: list[str]
    beyond: list[str]


class Rehearsal:
    """The `Conductor` of code that is only rehearsed."""

    def __init__(self, events: Sequence[Event], function: JobFunction[..., Any], patience_seconds: float) -> None:
        self.job = events[0].job
        self.attempt = max((event.attempt or 0 for event in events), default=0)
        self._events = events
        self._function = function
        self._patience_seconds = patience_seconds
        self._replay = Replay(events)
        self._asked = 0
        self._answered = 0
        self._beyond: list[tuple[str, str]] = []  # name and node
        self._threads = ThreadPoolExecutor(1, "holdfast-rehearsal")

    async def run(self) -> Rehearsed:
        """Run the code until it ends or stands still; judge."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        code = self._loop.create_task(self._code())
        seen = -1
        while not code.done() and seen != self._asked:
            seen = self._asked
            for _ in range(PATIENCE_PARTS):
                await asyncio.wait({code}, timeout=self._patience_seconds / PATIENCE_PARTS)
        ended = code.done()
        code.cancel()
        await asyncio.wait({code})
        self._threads.shutdown(wait=False)
        return self._judged(code if ended else None)

    async def _code(self) -> Any:
        conductor.set(self)
        kwargs = self._function.signature.decode(self._events[0].payload.get("args") or {})
        if self._function.is_async:
            return await self._function.function(**kwargs)
        context = contextvars.copy_context()
        return await self._loop.run_in_executor(self._threads, lambda: context.run(self._function.function, **kwargs))

    def _judged(self, code: asyncio.Task[Any] | None) -> Rehearsed:
        replay = self._replay
        reasons = [
            f"it asks for {node}, and recorded but not asked for is {', '.join(replay.owed_of(name))}"
            for name, node in self._beyond
            if replay.owed_of(name)
        ]
        reasons += [] if reasons else self._other_end(code)
        return Rehearsed(
            fits=not reasons,
            reasons=reasons,
            answered=self._answered,
            unasked=replay.unasked(),
            beyond=[node for _, node in self._beyond],
        )

    def _other_end(self, code: asyncio.Task[Any] | None) -> list[str]:
        """Say how the code's end differs from that of the history, if both have one."""
        last = next((event for event in reversed(self._events) if event.type in _ENDS), None)
        error = code.exception() if code is not None and not code.cancelled() else None
        if isinstance(error, Suspended):
            code = error = None
        if isinstance(error, HoldfastError) and not self._asked:
            return [f"its arguments do not fit: {error}"]
        if last is None or last is not self._events[-1] or last.payload.get("reason") not in {None, "error"}:
            return []  # it has not ended, or not by its code
        if last.type == JobEvent.CANCELLED:
            return []
        if code is None:
            return [f"it had ended, and now asks for {', '.join(node for _, node in self._beyond) or 'something else'}"]
        was = "returned" if last.type == JobEvent.COMPLETED else f"raised {last.payload.get('code')}"
        now = "returns" if error is None else f"raises {type(error).__name__}: {error}"
        if was.partition(" ")[2] != (type(error).__name__ if error is not None else ""):
            return [f"it {was}, and now {now}"]
        if error is None:
            return self._other_result(last.payload.get("result"), code.result())
        return []

    def _other_result(self, was: Any, value: Any) -> list[str]:
        try:
            now = self._function.signature.encode_result(value)
        except InvalidResult as error:
            return [str(error)]
        return [] if now == was else [f"it returned {was!r:.200}, and now returns {now!r:.200}"]

    # What the code asks for

    async def call(self, call: Call[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer for a step or tool."""
        self._asked += 1
        node = self._replay.node(call.name, call.signature.encode(args, kwargs), call.key)
        recorded = self._replay.take(node)
        if recorded is None:
            return await self._stand_still(call.name, node)
        self._answered += 1
        return handed_out(call, node, recorded)

    async def wait(self, key: str, timeout: float | None, wait_type: str) -> Any:  # noqa: ASYNC109 - as the protocol has it
        """Answer for a wait."""
        del timeout, wait_type
        completed = await self._completed("wait", self._replay.node("wait", {}, key))
        if completed.get("outcome") == "expired":
            raise WaitTimeout(key)
        return completed.get("payload")

    async def sleep(self, duration: float) -> None:
        """Answer for a sleep."""
        await self._completed("sleep", self._replay.node("sleep", {}, f"{duration:g}"))

    async def child(self, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer for a child."""
        name = f"job.{job.name}"
        node = self._replay.node(name, job.signature.encode(args, kwargs), job.chosen.key)
        return outcome_of(job, node, await self._completed(name, node))

    async def _completed(self, name: str, node: str) -> dict[str, Any]:
        self._asked += 1
        completed = self._replay.completed_waits.pop(node, None) or self._replay.values.get(f"{node}:ended")
        if completed is None:
            await self._stand_still(name, node)
        self._answered += 1
        return completed or {}

    async def _stand_still(self, name: str, node: str) -> None:
        self._beyond.append((name, node))
        if not self._function.is_async:
            raise Suspended  # its thread must come back
        await self._loop.create_future()

    def value(self, kind: str) -> Any:
        """Give a recorded value, or any other: what comes behind it was not recorded either."""
        made: dict[str, Callable[[], Any]] = {
            "now": time.time,
            "random": random.random,
            "uuid4": lambda: str(uuid.uuid4()),
        }
        node = self._replay.value_node(kind)
        return self._replay.values[node] if node in self._replay.values else made[kind]()

    def recorded(self, node: str, make: Callable[[], Any]) -> Any:
        """Give a recorded value, or make one."""
        return self._replay.values[node] if node in self._replay.values else make()

    def known(self, node: str) -> Any:
        """Give a recorded value, if there is one."""
        return self._replay.values.get(node)

    def known_names(self, beginning: str) -> list[str]:
        """List the names of recorded values that begin so, in order."""
        return [node for node in self._replay.values if node.startswith(beginning)]

    def plan(self, made: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Give the recorded plan, or the one that was made."""
        return self._replay.plan if self._replay.plan is not None else made

    def check_cancelled(self) -> None:
        """Nobody cancels a rehearsal."""

    def in_loop(self) -> bool:
        """Whether the caller runs on the loop."""
        return threading.get_ident() == self._thread

    def from_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the loop and block this thread for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
