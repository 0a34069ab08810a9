"""The places at which a job waits: what ends a wait while the job runs, and what is written when the whole job waits.

Every branch that cannot continue registers here what to write if the job has to wait there: a signal, a time, a child,
an operator's answer, a pause, or a retry that is due much later. Some are waits of the code, others of a call.

The job is suspended only when no part of it can move. It is suspended at the place that ends first by time. The other
places are listed with it, so that a signal for any of them resumes the job. The store then ends the wait.

While some part of the job can move, its waits are served here. A signal is taken from the inbox and recorded in the
stream in one fenced transaction. So is the end of a wait whose time is up, after the inbox was checked (E12).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.conductor import Suspended
from holdfast.authoring.conductor import place as place_in_plan
from holdfast.engine.ending_events import Written
from holdfast.engine.job_code import Pending
from holdfast.engine.replay import Ended
from holdfast.errors import StoreUnavailable
from holdfast.machines import HistoryEvent, JobEvent
from holdfast.machines.keys import HUMAN, PAUSE_KEY, ended_name, is_reserved, retry_key, until_name
from holdfast.store import Signal

if TYPE_CHECKING:
    from holdfast.engine.job_attempt import Attempt

PLACE = frozenset({"node", "correlation_key", "wait_type", "deadline", "park", "form"})
ASKED = ("wait_type", "deadline", "form")  # what is written of a question that is not the first place
SERVED_MAX = 50  # places of a job that stays in memory: each rest looks at all of them
PAUSED = float("-inf")  # sorts before all other places: only a resume brings the job back


class OpenWait(msgspec.Struct, eq=False):
    """A place that waits: when it ends by itself, what to write if the job waits there, and who gets its end."""

    until: float
    intent: Written
    pending: Pending | None = None  # set for a wait of the code
    future: asyncio.Future[Any] | None = None  # set for a wait of a call
    timer: asyncio.TimerHandle | None = None
    due: bool = False  # whether its time is up and only a check of the inbox is missing
    ended: bool = False

    @property
    def signalled(self) -> bool:
        """Return whether a signal or a time ends the wait, not only the end of the attempt."""
        return self.intent[0] == JobEvent.WAITING and self.until != PAUSED


class Waits:
    """The places at which one attempt waits, and the number of its calls that do something else."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._places: dict[OpenWait, None] = {}  # in the order of their beginning
        self._by_key: dict[str, dict[OpenWait, None]] = {}  # those that a signal may end
        self._unchecked: dict[OpenWait, None] = {}  # those for which the inbox was not read yet
        self.busy = 0
        self._taken: set[str] = set()  # signals that were taken and may not be marked so on disk yet
        self._checking: asyncio.Task[None] | None = None
        self._again = False

    # Places

    def begin(
        self,
        pending: Pending,
        key: str,
        wait_type: str,
        timeout: float | None = None,  # kept over restarts
        form: dict[str, Any] | None = None,
    ) -> None:
        """Register a wait of the code. `form` is recorded with it, for people who answer."""
        until, (kind, place) = self._place(pending.node, key, wait_type, timeout)
        self._add(OpenWait(until, (kind, place if form is None else {**place, "form": form}), pending))

    async def blocked_on(
        self, node: str, key: str, wait_type: str, details: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Wait at a place inside a call. Return how the wait ended, if it ends in this attempt."""
        until, (kind, place) = self._place(node, key, wait_type, None)
        ended: dict[str, Any] = await self._wait(until, (kind, {**place, **(details or {})}))
        return ended

    def _place(self, node: str, key: str, wait_type: str, timeout: float | None) -> tuple[float, Written]:
        attempt, deadline = self._attempt, None
        if timeout is not None:
            deadline = attempt.recorded(until_name(node), lambda: attempt.now() + timeout)
        long = deadline is None or deadline - attempt.now() > attempt.config.park_seconds
        place = {"node": node, "correlation_key": key, "wait_type": wait_type, "deadline": deadline, "park": long}
        return float("inf") if deadline is None else deadline, (JobEvent.WAITING.value, place)

    async def ask(self, node: str, key: str, misfit: str | None) -> None:
        """Wait for an operator's answer, inside a call. `misfit` says why the last answer could not be used."""
        self._free_plan_slot()
        await self.blocked_on(node, key, "human", details={"misfit": misfit} if misfit is not None else None)

    async def pause(self) -> None:
        """Wait until an operator resumes the job, inside a call (J13)."""
        wait = {"node": None, "correlation_key": PAUSE_KEY, "wait_type": "human", "park": True}
        await self._wait(PAUSED, (JobEvent.WAITING.value, wait))

    async def retry_later(self, node: str, not_before: float, gate: str | None = None) -> None:
        """Requeue the job until a retry is due or a gate opens, inside a call (J11)."""
        requeue: dict[str, Any] = {"reason": "step_retry", "not_before": not_before, "node": node}
        if gate is not None:
            requeue["gate"] = gate
        self._free_plan_slot()
        await self._wait(not_before, (JobEvent.REQUEUED.value, requeue))

    def _free_plan_slot(self) -> None:
        """Free the plan's slot of a call that waits here for another attempt."""
        at = place_in_plan.get()
        if at is not None and at.leave is not None:
            self._attempt.code.loop.call_soon(at.leave)

    async def _wait(self, until: float, intent: Written) -> Any:
        place = OpenWait(until, intent, future=self._attempt.loop.create_future())
        with self.not_working():
            self._add(place)
            self._attempt.code.turn_soon()  # this wait may be all that is left to do
            try:
                return await place.future  # type: ignore[misc]  # - it has one
            finally:
                self._remove(place)

    def _add(self, place: OpenWait) -> None:
        self._places[place] = None
        if not place.signalled:
            return
        self._by_key.setdefault(place.intent[1]["correlation_key"], {})[place] = None
        self._unchecked[place] = None
        if place.until < float("inf"):
            attempt = self._attempt
            place.timer = attempt.loop.call_later(max(0.0, place.until - attempt.now()), self._expire, place)
        if place.pending is not None:
            place.pending.left = lambda: self._remove(place)

    def _remove(self, place: OpenWait) -> None:
        place.ended = True
        if place.timer is not None:
            place.timer.cancel()
        self._places.pop(place, None)
        self._unchecked.pop(place, None)
        if place.signalled:
            key = place.intent[1]["correlation_key"]
            same = self._by_key.get(key, {})
            same.pop(place, None)
            if not same:
                self._by_key.pop(key, None)

    @contextlib.contextmanager
    def not_working(self) -> Iterator[None]:
        """Do not count a call as busy while it only waits."""
        self.busy -= 1
        try:
            yield
        finally:
            self.busy += 1

    # What ends a wait while the job runs

    def check_inbox(self) -> None:
        """Check soon whether a signal has come for one of the places."""
        self._again = True
        if self._checking is None and self._by_key:
            self._checking = self._attempt.loop.create_task(self._check())

    def check_new(self) -> None:
        """Check whether a signal came before a wait began. The store does so only for a suspended job."""
        if self._unchecked:
            self.check_inbox()

    def has_several_new(self) -> bool:
        """Return whether the inbox may have signals for several places. The store would end only one wait."""
        return len(self._unchecked) > 1

    async def _check(self) -> None:
        self.busy += 1  # or the job could be suspended with its signals in the inbox
        try:
            while self._again and self._attempt.goes_on():
                self._again = False
                places, self._unchecked = self._unchecked, {}
                for signal in await self._attempt.journal.inbox(self._attempt.job):
                    self._offer(signal)
                for place in places:
                    if place.due and not place.ended and self._attempt.goes_on():
                        self._end(place, {"outcome": "expired"}, None)
        except StoreUnavailable:
            pass  # the journal notices it, too; a signal in the inbox is not lost
        finally:
            self._checking = None
            self.busy -= 1
            self._attempt.code.turn_soon()

    def _offer(self, signal: Signal) -> None:
        if signal.id in self._taken or not self._attempt.goes_on():
            return
        place = next(iter(self._by_key.get(signal.key, ())), None)
        if place is not None:
            self._taken.add(signal.id)
            self._end(place, {"outcome": "signal", "payload": signal.payload, "signal": signal.id}, signal)

    def _expire(self, place: OpenWait) -> None:
        """End a wait whose time is up, unless a signal came before (E12)."""
        if place.ended or not self._attempt.goes_on():
            return
        if place.intent[1]["wait_type"] == "timer":
            self._end(place, {"outcome": "expired"}, None)
            return
        place.due = True
        self._unchecked[place] = None
        self.check_inbox()

    def _end(self, place: OpenWait, ended: dict[str, Any], signal: Signal | None) -> None:
        """End a wait: a wait of the code when the code rests, a wait of a call at once."""
        attempt = self._attempt
        node = place.intent[1]["node"]
        event = HistoryEvent.VALUE_RECORDED.value, {"node": ended_name(node), "value": ended}
        self._remove(place)

        def delivered() -> None:
            attempt.replay.values[ended_name(node)] = ended
            if signal is not None:
                attempt.uses.append(signal.id)

        def dropped() -> None:
            if signal is not None:
                self._taken.discard(signal.id)  # its place has gone: the signal is for another place, or stays
                self.check_inbox()

        if place.pending is not None:
            attempt.code.arrive(place.pending, Ended(ended), [event], delivered=delivered, dropped=dropped)
            return
        attempt.record(event)
        delivered()
        if place.future is not None and not place.future.done():
            place.future.set_result(ended)

    # Suspending the job

    def intent(self) -> Written | None:
        """Return the event for a job that waits at its current places, or None if it waits nowhere."""
        if not self._places:
            return None
        first, *others = sorted(self._places, key=lambda place: place.until)
        return first.intent if first.until == PAUSED else _with_others(first.intent, others)

    def are_served_here(self) -> bool:
        """Return whether this attempt can end all its waits: they are few, and no person or operator ends one."""
        return len(self._places) <= SERVED_MAX and all(
            place.pending is not None and place.signalled and place.intent[1]["wait_type"] != HUMAN
            for place in self._places
        )

    def unwind(self) -> None:
        """End every wait of a call: the attempt is over."""
        for place in self._places:
            if place.timer is not None:
                place.timer.cancel()
            if place.future is not None and not place.future.done():
                place.future.set_exception(Suspended())
                place.future.exception()  # mark as retrieved: the call may be gone


def _with_others(intent: Written, others: list[OpenWait]) -> Written:
    """Return the event for a job that waits at several places: the first, and the others that a signal may end."""
    waits = [place.intent[1] for place in others if place.intent[0] == JobEvent.WAITING]
    if not waits:
        return intent
    kind, payload = intent
    if kind != JobEvent.WAITING:  # a later retry is written as a timer, so that a signal for another place counts
        node = payload["node"]
        key, timer = retry_key(node), {"wait_type": "timer", "deadline": payload["not_before"], "park": False}
        payload = {"node": f"{node}:retry", "correlation_key": key, **timer}
    also = [{"node": wait["node"], "correlation_key": wait["correlation_key"], **_asked(wait)} for wait in waits]
    details = {name: value for wait in waits for name, value in wait.items() if name not in PLACE}  # why it waits there
    return JobEvent.WAITING.value, {**details, **payload, "also": also}


def _asked(wait: dict[str, Any]) -> dict[str, Any]:
    """Return what people need to know to answer a wait of the code."""
    if wait["wait_type"] != HUMAN or is_reserved(wait["correlation_key"]):
        return {}
    return {name: wait[name] for name in ASKED if wait.get(name) is not None}
