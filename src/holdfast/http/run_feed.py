"""The changes of all runs, for everybody who listens: one look at the store for all of them, while there is anybody.

A look reads the newest runs and those that have not ended, and compares them with the look before. So it tells where
each run has got to, not every step on its way; a run that was created and ended between two looks is told once. It
follows up to a thousand runs that have not ended, and as many new ones in a look.

The newest changes are kept in a ring; a client has only a place in it. One that falls behind the ring is dropped. Those
who may see one group alone share a look at that group's runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque

from holdfast.client.interface import Client
from holdfast.client.views import RunFilter
from holdfast.errors import HoldfastError, UnknownJob
from holdfast.http.response import encode
from holdfast.http.run_channel import Seat
from holdfast.ids import new_id
from holdfast.machines import TERMINAL_RUN_STATUSES, RunRecord, RunStatus

__all__ = ["Feed"]

LOOK_SECONDS = 0.25
NEWEST = 100  # runs that every look reads, besides those that have not ended
RUNS_MAX = 1000
RING = 1024

_ACTIVE = tuple(status for status in RunStatus if status not in TERMINAL_RUN_STATUSES)
_PLACE = re.compile(r"([0-9a-f]{8})-(\d{1,15})\Z", re.ASCII)


class Feed:
    """What all clients of the stream of all runs share; of those of one group, if one is given."""

    def __init__(self, client: Client, group: str | None) -> None:
        self._client = client
        self._newest, self._active = RunFilter(group=group), [RunFilter(status=_ACTIVE)]
        if group is not None:  # one by one: so each is found by its index, however many runs of the group have ended
            self._active = [RunFilter(group=group, status=(status,)) for status in _ACTIVE]
        self._name = new_id()[-8:]  # places of another process mean nothing here
        self.users: set[Seat] = set()
        self.ended = False
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=RING)
        self._number = 0
        self._known: dict[str, RunRecord] | None = None
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def place(self, said: str | None) -> int:
        """Give the place that a client's Last-Event-ID means; now, if it means none here."""
        found = _PLACE.match(said or "")
        return min(int(found[2]), self._number) if found is not None and found[1] == self._name else self._number

    def after(self, number: int) -> tuple[int | None, list[bytes]]:
        """Give what is behind a place, and the new place; None if what is behind it is no longer known."""
        if self._ring and self._ring[0][0] > number + 1:
            return None, []
        return self._number, [frame for at, frame in self._ring if at > number]

    def close(self) -> None:
        """Stop looking: nobody is left."""
        self._task.cancel()

    async def _watch(self) -> None:
        try:
            while True:
                if await self._look():
                    for user in self.users:
                        user.wake.set()
                await asyncio.sleep(LOOK_SECONDS)
        except HoldfastError:
            pass  # the store is away: the streams end, and their clients come back
        finally:
            self.ended = True
            for user in self.users:
                user.wake.set()

    async def _look(self) -> bool:
        newest = await self._client.apage(self._newest, NEWEST, None)
        before = self._known
        if before and newest and newest[-1].run_id > max(before):  # more of them are new than one page holds
            newest = await self._client.apage(self._newest, RUNS_MAX, None)
        found = {one.run_id: one for one in newest}
        for where in self._active:
            found |= {one.run_id: one for one in await self._client.apage(where, RUNS_MAX, None)}
        if before is None:
            self._known = found
            return False
        ended = [name for name, one in before.items() if name not in found and one.status in _ACTIVE]
        for name in ended:
            with contextlib.suppress(UnknownJob):  # removed meanwhile
                found[name] = await self._client.aget(name)
        changed = [one for name, one in found.items() if before.get(name) != one]
        self._known = found
        for record in sorted(changed, key=lambda one: one.updated_at):
            self._number += 1
            frame = b"event: run\nid: %b-%d\ndata: %b\n\n" % (self._name.encode(), self._number, encode(record))
            self._ring.append((self._number, frame))
        return bool(changed)
