"""Ends waits of a job that runs: in one branch it waits, in another it works on, so that it is not let go.

A signal for such a wait is taken from the inbox and recorded in the stream, in one fenced transaction, as a value of
the job: a replay finds it there. So is the end of a wait whose time is up. (A job of which nothing else is left to do
is let go instead, and the store ends its wait.)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.errors import StoreUnavailable
from holdfast.machines import HistoryEvent
from holdfast.store import Signal

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.engine.waits import Waiting

__all__ = ["Deliveries"]


class Deliveries:
    """What ends the waits of one attempt while it goes on."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._taken: set[str] = set()  # signals that were taken and may not be marked so on disk yet
        self._looking: asyncio.Task[None] | None = None
        self._again = False

    def recorded(self, node: str) -> dict[str, Any] | None:
        """How a wait was ended while the job ran, by this attempt or an earlier one."""
        ended: dict[str, Any] | None = self._attempt.replay.values.get(f"{node}:ended")
        return ended

    def look(self) -> None:
        """See soon whether a signal has come for one of the places that wait."""
        self._again = True
        if self._looking is None and self._attempt.waits.signalled():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            while self._again and self._attempt.goes_on():
                self._again = False
                for signal in await self._attempt.journal.inbox(self._attempt.job):
                    self._offer(signal)
        except StoreUnavailable:
            pass  # whoever works will notice; a signal in the inbox is not lost
        finally:
            self._looking = None

    def _offer(self, signal: Signal) -> None:
        place = self._attempt.waits.waiting_for(signal.key)
        if place is None or signal.id in self._taken or not self._attempt.goes_on():
            return
        self._taken.add(signal.id)
        self._attempt.uses.append(signal.id)
        self._end(place, {"outcome": "signal", "payload": signal.payload, "signal": signal.id})

    def expire(self, place: Waiting) -> None:
        """The time of a wait is up; but a signal that is about to be read may have come before (E12)."""
        if self._looking is not None and place.intent[1]["wait_type"] != "timer":
            self._looking.add_done_callback(lambda _: self.expire(place))
        elif self._attempt.goes_on() and not place.future.done():
            self._end(place, {"outcome": "expired"})

    def _end(self, place: Waiting, ended: dict[str, Any]) -> None:
        node = place.intent[1]["node"]
        self._attempt.replay.values[f"{node}:ended"] = ended
        self._attempt.record((HistoryEvent.VALUE_RECORDED.value, {"node": f"{node}:ended", "value": ended}))
        place.future.set_result(ended)
