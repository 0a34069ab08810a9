"""The feed of the changes of all runs. One poll of the store serves all clients, and polling stops with the last one.

A poll reads the newest runs and the active runs, and compares them with the previous poll. So the feed reports the
current record of each run, not every step. A run that starts and ends between two polls is reported once. A poll
follows up to a thousand active runs and a thousand new ones.

The feed keeps the newest changes in a ring, and a client has only a position in it. The server ends the stream of a
client whose position has left the ring. A client that comes back, and has missed changes, is told so (`reset`). Clients
whose tokens are bound to the same group share one feed of that group.
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

LOOK_SECONDS = 0.25
NEWEST = 100  # newest runs that every poll reads, in addition to the active ones
RUNS_MAX = 1000
RING = 1024

_ACTIVE = tuple(status for status in RunStatus if status not in TERMINAL_RUN_STATUSES)
_PLACE = re.compile(r"([0-9a-f]{8})-(\d{1,15})\Z", re.ASCII)


class Feed:
    """The state that all clients of the feed share. A group restricts the feed to its runs."""

    def __init__(self, client: Client, group: str | None) -> None:
        self._client = client
        self._newest, self._active = RunFilter(group=group), [RunFilter(status=_ACTIVE)]
        if group is not None:  # one query per status uses the index, even if many runs of the group have ended
            self._active = [RunFilter(group=group, status=(status,)) for status in _ACTIVE]
        self._name = new_id()[-8:]  # a position from another process is not valid here
        self.users: set[Seat] = set()
        self.ended = False
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=RING)
        self._number = 0
        self._known: dict[str, RunRecord] | None = None
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def place(self, said: str | None) -> tuple[int, bytes]:
        """Return the position of a client, and what it gets first.

        A client that sends a Last-Event-ID gets the changes since then. If they are no longer known, because the server
        was restarted or the client was away for long, it gets a `reset`: it has to read its runs again.
        """
        found = _PLACE.match(said or "")
        number = int(found[2]) if found is not None and found[1] == self._name else None
        if number is not None and number <= self._number and not self._has_lost(number):
            return number, b""
        reset = b"event: reset\nid: %b-%d\ndata: {}\n\n" % (self._name.encode(), self._number)
        return self._number, reset if said else b""

    def _has_lost(self, number: int) -> bool:
        """Return whether the ring no longer has all frames after a position."""
        return bool(self._ring) and self._ring[0][0] > number + 1

    def after(self, number: int) -> tuple[int | None, list[bytes]]:
        """Return the new position and the frames after a position. The position is None if the ring has lost them."""
        if self._has_lost(number):
            return None, []
        return self._number, [frame for at, frame in self._ring if at > number]

    def close(self) -> None:
        """Stop polling, because the last client has left."""
        self._task.cancel()

    async def _watch(self) -> None:
        try:
            while True:
                if await self._look():
                    for user in self.users:
                        user.wake.set()
                await asyncio.sleep(LOOK_SECONDS)
        except HoldfastError:
            pass  # the store does not answer: the streams end and clients reconnect
        finally:
            self.ended = True
            for user in self.users:
                user.wake.set()

    async def _look(self) -> bool:
        newest = await self._client.apage(self._newest, NEWEST, None)
        before = self._known
        if before and newest and newest[-1].run_id > max(before):  # more new runs than one page holds
            newest = await self._client.apage(self._newest, RUNS_MAX, None)
        found = {one.run_id: one for one in newest}
        for where in self._active:
            found |= {one.run_id: one for one in await self._client.apage(where, RUNS_MAX, None)}
        if before is None:
            self._known = found
            return False
        ended = [name for name, one in before.items() if name not in found and one.status in _ACTIVE]
        for name in ended:
            with contextlib.suppress(UnknownJob):  # removed since the last poll
                found[name] = await self._client.aget(name)
        changed = [one for name, one in found.items() if before.get(name) != one]
        self._known = found
        for record in sorted(changed, key=lambda one: one.updated_at):
            self._number += 1
            frame = b"event: run\nid: %b-%d\ndata: %b\n\n" % (self._name.encode(), self._number, encode(record))
            self._ring.append((self._number, frame))
        return bool(changed)
