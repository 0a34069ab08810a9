"""The storage of a call's outcome: first in the effect store, if there is one, then in the stream.

There are two phases (SPEC E2). By default, effects are in the stream, and both phases are one transaction. With an
external effect store, the effect is stored there first. A crash between the phases leaves an effect that the next
attempt finds. That attempt appends the missing events and does not make the call again (E3).

A result may come when its attempt may no longer write: the lease was lost, or the call timed out. Such a result is kept
as evidence for the operator who has to answer for the call (E5). It is never applied automatically.
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

EFFECTS_PAUSE_SECONDS = 1.0  # until a job is retried whose effect store was away
TOOL_FINISHED, COMMAND_COMMITTED = HistoryEvent.TOOL_FINISHED.value, HistoryEvent.COMMAND_COMMITTED.value
NODE_FINISHED = HistoryEvent.NODE_FINISHED.value


class Outcomes:
    """The outcomes of one attempt's calls."""

    def __init__(self, attempt: Attempt, effects: EffectStore | None) -> None:
        self._attempt = attempt
        self._store = effects
        self._effects_left: dict[str, Effect] = {}  # left by earlier attempts, perhaps without their events
        self.unconfirmed: deque[tuple[int, str, int, Any]] = deque()  # tools whose end is being written

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

    async def keep(self, call: Call[..., Any], node: str, value: Any) -> None:
        """Store the effect (phase one), if there is an effect store."""
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
                self.late(node, number, value)
            attempt.lose()
            raise Suspended from error

    def events(self, call: Call[..., Any], node: str, value: Any, **more: Any) -> list[Written]:
        """Return the events of phase two. They are recorded when the outcome is delivered."""
        kind = TOOL_FINISHED if call.tool else COMMAND_COMMITTED
        return [
            (kind, {"node": node, "name": call.name, "result": value, **more}),
            (NODE_FINISHED, {"node": node, "result_type": "success"}),
        ]

    def confirm(self, node: str, number: int, value: Any) -> None:
        """Remember a tool's recorded end until it is on disk."""
        self.unconfirmed.append((self._attempt.recorded_events, node, number, value))

    def written(self, durable: int, error: Exception | None) -> None:
        """Count events that are on disk. If they were refused, keep the ends of tools among them as evidence."""
        while self.unconfirmed and self.unconfirmed[0][0] <= durable:
            _, node, number, value = self.unconfirmed.popleft()
            if isinstance(error, StaleAttempt):
                self.late(node, number, value)

    def late(self, node: str, number: int, value: Any = None, error: str | None = None) -> None:
        """Store a late result as evidence."""
        attempt = self._attempt
        evidence = Evidence(attempt.job, node, attempt.attempt, number, value, error)
        keeping = attempt.journal.enqueue(KeepEvidence(evidence))
        keeping.add_done_callback(_ignore_error)


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
