"""Where a job's code waits, and when its job is let go.

Every place in the code that cannot go on registers here what is to be written if the whole job has to wait there: a
signal, a time, a child, an operator's answer, a pause, a retry that is due much later. The job is let go only when
nothing of it does anything else: a branch that waits does not stop the others, and no call is cut off in the middle.

A job is let go at the place that ends first by time; the others are listed with it, so that a signal for any of them
brings the job back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.authoring.context import Suspended
from holdfast.authoring.context import place as place_in_plan
from holdfast.engine.verdict import Written
from holdfast.machines import JobEvent
from holdfast.store.decide import PAUSE_KEY

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Waiting", "Waits"]

PATIENCE_TURNS = 64  # of a busy loop, until a job is taken to have nothing left to do
PLACE = frozenset({"node", "correlation_key", "wait_type", "deadline", "park"})
PAUSED = float("-inf")  # before all other places: nothing but a resume brings the job back


class Waiting(NamedTuple):
    """A place that waits: when it ends by itself, what to write if the job waits there, and how its code is unwound."""

    until: float
    intent: Written
    future: asyncio.Future[Any]


class Waits:
    """The places at which one attempt's code waits, and a count of what it does meanwhile."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._places: list[Waiting] = []
        self.busy = 0
        self._looking = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """The code does something that is not waiting; meanwhile the job is not let go."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.look()

    async def blocked_on(
        self,
        node: str,
        key: str,
        wait_type: str,
        timeout: float | None = None,  # noqa: ASYNC109 - kept over restarts
        said: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Wait at this place; how the wait was completed, in this attempt or an earlier one."""
        attempt = self._attempt
        completed = attempt.replay.completed_waits.pop(node, None) or attempt.deliveries.recorded(node)
        if completed is not None:
            return completed
        deadline = None
        if timeout is not None:
            deadline = attempt.recorded(f"{node}:until", lambda: attempt.now() + timeout)
        long = deadline is None or deadline - attempt.now() > attempt.config.park_seconds
        place = {"node": node, "correlation_key": key, "wait_type": wait_type, "deadline": deadline, "park": long}
        ended: dict[str, Any] = await self._wait(
            float("inf") if deadline is None else deadline, (JobEvent.WAITING.value, {**place, **(said or {})})
        )
        return ended

    async def ask(self, node: str, key: str) -> None:
        """Wait for an operator's answer, from inside a call."""
        _leave()
        with self.not_working():
            await self.blocked_on(node, key, "human")

    async def pause(self) -> None:
        """Stop here until somebody lets the job go on, from inside a call (J13)."""
        said = {"node": None, "correlation_key": PAUSE_KEY, "wait_type": "human", "park": True}
        with self.not_working():
            await self._wait(PAUSED, (JobEvent.WAITING.value, said))

    async def retry_later(self, node: str, not_before: float, gate: str | None = None) -> None:
        """Give the job back until a retry is due or a gate opens, from inside a call (J11)."""
        said = {"reason": "step_retry", "not_before": not_before, "node": node}
        if gate is not None:
            said["gate"] = gate
        _leave()
        with self.not_working():
            await self._wait(not_before, (JobEvent.REQUEUED.value, said))

    def look(self) -> None:
        """Soon, when every branch that can go on has gone on: if all that is left waits, let go of the job."""
        if self._places and not self.busy and not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look, PATIENCE_TURNS)

    def _look(self, turns: int) -> None:
        """Let other callbacks go first: a result on its way through nested branches needs a few turns of the loop."""
        loop = asyncio.get_running_loop()
        others = getattr(loop, "_ready", True)  # what is about to run; a loop that does not tell is given all turns
        if turns and others and not self.busy:
            loop.call_soon(self._look, turns - 1)
            return
        self._looking = False
        self._let_go()

    def unwind(self) -> None:
        """End every wait: the attempt is over."""
        for place in self._places:
            if not place.future.done():
                place.future.set_exception(Suspended())
                place.future.exception()  # seen: nobody may be left to see it

    async def _wait(self, until: float, intent: Written) -> Any:
        loop = asyncio.get_running_loop()
        place = Waiting(until, intent, loop.create_future())
        self._places.append(place)
        self.look()
        timer = None
        if intent[0] == JobEvent.WAITING:
            self._attempt.deliveries.look()
            if PAUSED < until < float("inf"):
                timer = loop.call_later(until - self._attempt.now(), self._attempt.deliveries.expire, place)
        try:
            return await place.future
        finally:
            if timer is not None:
                timer.cancel()
            self._places.remove(place)  # also when its branch was cancelled: the job does not wait there any more

    def signalled(self) -> bool:
        """Whether a signal could end one of the waits while other branches work on."""
        return self.busy > 0 and any(place.intent[0] == JobEvent.WAITING for place in self._places)

    def waiting_for(self, key: str) -> Waiting | None:
        """The first place that waits for a signal with this key."""
        open_places = (place for place in self._places if not place.future.done())
        return next((place for place in open_places if place.intent[1].get("correlation_key") == key), None)

    def _let_go(self) -> None:
        still = [place for place in self._places if not place.future.done()]
        if still and not self.busy and self._attempt.goes_on():
            first, *others = sorted(still, key=lambda place: place.until)
            self._attempt.suspend(first.intent if first.until == PAUSED else _with(first.intent, others))

    @contextlib.contextmanager
    def not_working(self) -> Iterator[None]:
        """Inside a call: it only waits."""
        self.busy -= 1
        try:
            yield
        finally:
            self.busy += 1


def _leave() -> None:
    """In a plan: a call that waits here for another attempt takes no place among those that are under way."""
    at = place_in_plan.get()
    if at is not None and at.leave is not None:
        at.leave()


def _with(intent: Written, others: list[Waiting]) -> Written:
    """What to write for a job that waits at several places: the first, and the others that a signal may end."""
    waits = [place.intent[1] for place in others if place.intent[0] == JobEvent.WAITING]
    if not waits:
        return intent
    kind, said = intent
    if kind != JobEvent.WAITING:  # a retry that is due later: as a timer, so that a signal for another place counts
        node = said["node"]
        key, timer = f"holdfast:retry:{node}", {"wait_type": "timer", "deadline": said["not_before"], "park": False}
        said = {"node": f"{node}:retry", "correlation_key": key, **timer}
    also = [{"node": wait["node"], "correlation_key": wait["correlation_key"]} for wait in waits]
    told = {name: value for wait in waits for name, value in wait.items() if name not in PLACE}  # why it waits there
    return JobEvent.WAITING.value, {**told, **said, "also": also}
