"""When it is durable: many jobs' writes, one transaction (group commit); work runs on meanwhile (output commit).

All durable writes of a loop go through one `Journal`. While one batch is being committed the next one gathers, so the
cost of a commit is shared by everybody who wrote meanwhile. Nobody has to wait for his write unless the outside is
about to see something: `append` returns at once with a future, and `write` waits.

Writes of one job keep their order. Events that one attempt writes while a batch is under way are joined to one command.

What can go wrong: the store raises. Then nobody of the batch knows whether it was written, and everybody gets the
error. A worker's answer to that is to give the attempt up and let the job be taken again from what the store has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.store import Append, Command, Store

__all__ = ["Journal"]

BATCH_MAX = 2000  # commands in one transaction: enough to share a commit well, few enough to keep the lock short

Events = Sequence[tuple[str, dict[str, Any]]]


@dataclass(slots=True)
class _Entry:
    """One command that waits for the next batch. Appends are put together only when they are taken."""

    future: asyncio.Future[Any]
    command: Command | None = None
    job: str = ""
    attempt: int = 0
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def taken(self) -> Command:
        return self.command if self.command is not None else Append(self.job, self.attempt, tuple(self.events))


class Journal:
    """The one way to the store for everything that is written; see the module's text."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Entry] = []
        self._joinable: dict[tuple[str, int], _Entry] = {}
        self._draining: asyncio.Task[None] | None = None

    async def write(self, command: Command) -> Any:
        """Carry out one command, durably; return its answer or raise its refusal."""
        return await self.enqueue(command)

    def enqueue(self, command: Command) -> asyncio.Future[Any]:
        """Carry out a command with the next batch; the future has its answer or its refusal."""
        entry = _Entry(self._future(), command)
        self._put(entry)
        return entry.future

    def append(self, job: str, attempt: int, events: Events) -> asyncio.Future[Any]:
        """Write events under an attempt with the next batch, joined to what that attempt has there already."""
        entry = self._joinable.get((job, attempt))
        if entry is None:
            entry = _Entry(self._future(), None, job, attempt)
            self._joinable[job, attempt] = entry
            self._put(entry)
        entry.events.extend(events)
        return entry.future

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self._draining is not None:
            await asyncio.shield(self._draining)

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _put(self, entry: _Entry) -> None:
        self._waiting.append(entry)
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # whoever is about to write in this turn of the loop comes along
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                for entry in batch:
                    if entry.command is None:
                        del self._joinable[entry.job, entry.attempt]
                await self._commit(batch)
        finally:
            self._draining = None

    async def _commit(self, batch: list[_Entry]) -> None:
        try:
            answers = await self._store.commit([entry.taken() for entry in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, everybody of the batch must hear of it
            answers = [error] * len(batch)
        for entry, answer in zip(batch, answers, strict=True):
            if entry.future.done():
                continue  # whoever asked has given up waiting
            if isinstance(answer, Exception):
                entry.future.set_exception(answer)
            else:
                entry.future.set_result(answer)
