"""Where the outcome of a call goes: to the effect store, if there is one, then to the stream; too late, to evidence.

Two phases (SPEC E2). With the default, effects are in the stream and both phases are one transaction. With an external
effect store the effect is put there first. A crash between the two leaves an effect that the next attempt finds: the
missing events are appended from it, and the call is not made again (E3).

A result that comes when its attempt may no longer write (its lease was lost, or its time was up) is kept as evidence
for whoever has to answer for the call (E5). It is never applied by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.authoring.conductor import Suspended
from holdfast.authoring.functions import Call
from holdfast.engine.ending_events import Written, error_text
from holdfast.errors import EffectConflict, StaleAttempt, StoreUnavailable
from holdfast.machines import HistoryEvent
from holdfast.store import Evidence, KeepEvidence
from holdfast.store.effects import Effect, EffectStore

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["AbandonableTool", "Outcomes"]


EFFECTS_PAUSE_SECONDS = 1.0  # until a job is tried again whose effect store was away
TOOL_FINISHED, COMMAND_COMMITTED = HistoryEvent.TOOL_FINISHED.value, HistoryEvent.COMMAND_COMMITTED.value
NODE_FINISHED = HistoryEvent.NODE_FINISHED.value


class Outcomes:
    """The outcomes of one attempt's calls."""

    def __init__(self, attempt: Attempt, effects: EffectStore | None) -> None:
        self._attempt = attempt
        self._store = effects
        self._effects_left: dict[str, Effect] = {}  # by earlier attempts, without their events perhaps
        self.unconfirmed: deque[tuple[int, str, int, Any]] = deque()  # tools whose end is under way to the disk

    async def begin(self) -> None:
        """Shut earlier attempts out of the effect store, and see what they have left there; else nothing is called.

        Raises:
            Suspended: this attempt is an earlier one itself, or the effect store cannot be used.
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
        """Hand out the effect that an earlier attempt has left of this call, once."""
        return self._effects_left.pop(node, None)

    async def keep(self, call: Call[..., Any], node: str, value: Any) -> None:
        """Phase one: keep the effect, if there is a store for it."""
        attempt = self._attempt
        if self._store is None:
            return
        number = attempt.replay.tries[node]
        if not call.tool and attempt.durable_events < attempt.decided_events:
            await attempt.durable()  # or another attempt decides otherwise, and finds this; a tool has waited
        effect = Effect(attempt.job, node, attempt.attempt, number, value)
        try:
            await self._store.put(effect)
        except (StaleAttempt, StoreUnavailable, EffectConflict) as error:
            if not isinstance(error, StoreUnavailable):
                self.late(node, number, value)
            attempt.lose()
            raise Suspended from error

    def events(self, call: Call[..., Any], node: str, value: Any, **more: Any) -> list[Written]:
        """Phase two: give the events, which are recorded when the outcome is delivered."""
        kind = TOOL_FINISHED if call.tool else COMMAND_COMMITTED
        return [
            (kind, {"node": node, "name": call.name, "result": value, **more}),
            (NODE_FINISHED, {"node": node, "result_type": "success"}),
        ]

    def confirm(self, node: str, number: int, value: Any) -> None:
        """A tool's end was recorded: remember it until it is on disk."""
        self.unconfirmed.append((self._attempt.recorded_events, node, number, value))

    def written(self, durable: int, error: Exception | None) -> None:
        """So many events are on disk. If they were refused instead, the ends of tools among them are evidence now."""
        while self.unconfirmed and self.unconfirmed[0][0] <= durable:
            _, node, number, value = self.unconfirmed.popleft()
            if isinstance(error, StaleAttempt):
                self.late(node, number, value)

    def late(self, node: str, number: int, value: Any = None, error: str | None = None) -> None:
        """Keep what came too late."""
        attempt = self._attempt
        evidence = Evidence(attempt.job, node, attempt.attempt, number, value, error)
        keeping = attempt.journal.enqueue(KeepEvidence(evidence))
        keeping.add_done_callback(_ignore_error)


def _ignore_error(keeping: asyncio.Future[Any]) -> None:
    if not keeping.cancelled():
        keeping.exception()  # the store is away: what it would have been told is lost, and nothing depends on it


class AbandonableTool:
    """A plain tool in its thread, which cannot be stopped: what it gives after nobody waits any more is still heard."""

    def __init__(self, function: Callable[..., Any], late: Callable[[Any, str | None], None]) -> None:
        self._function = function
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ended: tuple[Any, str | None] | None = None
        self._begun = False
        self._abandoned = False

    def __call__(self, **kwargs: Any) -> Any:
        """Run it, in its thread; unless nobody waits for it any more."""
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
        """Nobody waits for it any more; whether it has begun. If not, it never will."""
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
