"""When it is durable: many jobs' writes, one transaction (group commit); work runs on meanwhile (output commit).

All durable writes of a loop go through one `Journal`. While one batch is being committed the next one gathers, so the
cost of a commit is shared by everybody who wrote meanwhile. Nobody has to wait for his write unless the outside is
about to see something: `append` returns at once and tells later, and `write` waits.

Writes of one job keep their order. Events that one attempt writes while a batch is under way are joined to one command.
One command may go last in a batch, made when the batch is taken: a claim, which so finds the places of all the jobs
whose ends are in the same transaction.

What can go wrong: the store raises. Then nobody of the batch knows whether it was written, and everybody gets the
error. A worker's answer to that is to give the attempt up and let the job be taken again from what the store has.
Whatever that attempt wrote behind what failed, or still writes, fails with it: a stream has no holes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.errors import StoreUnavailable
from holdfast.machines.event import Frozen
from holdfast.store import Append, Command, Signal, Store, Successor

__all__ = ["Journal", "Writer"]

_log = logging.getLogger("holdfast")

# Turns of the loop before a batch is taken: whoever is about to write comes along, and a job's end goes with its last
# result, which it follows by three turns.
GATHER_TURNS = 3
BATCH_MAX = 2000  # commands in one transaction: enough to share a commit well, few enough to keep the lock short

Events = Sequence[tuple[str, Frozen]]  # payloads are frozen: what is written is what was meant, whatever comes after


class Writer(Protocol):
    """An attempt, as the journal sees it."""

    job: str
    attempt: int
    parent: str | None
    gathered: list[tuple[str, Frozen]]  # its events that wait for the next batch; the journal's to fill and to empty
    uses: list[str]  # signals that are used up in the same transaction; the journal's to empty
    successor: Successor | None  # of a job that ends by `continue_as`, with its last event

    def written(self, count: int, error: Exception | None) -> None:
        """So many more of its events are on disk; or they were refused, or nobody knows, and why."""
        ...


class _Request:
    """A command that waits for the next batch, and a future for its answer."""

    __slots__ = ("command", "future")

    def __init__(self, command: Command, future: asyncio.Future[Any]) -> None:
        self.command = command
        self.future = future

    def answer(self, answer: Any) -> None:
        if self.future.done():
            return  # whoever asked has given up waiting
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


class Journal:
    """The one way to the store for everything that is written; see the module's text."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()  # code of a job, which writes too, runs on a loop of its own
        self._waiting: list[_Request | Writer] = []
        self._last: tuple[Callable[[], Command | None], asyncio.Future[Any]] | None = None
        self._draining: asyncio.Task[None] | None = None

    async def write(self, command: Command) -> Any:
        """Carry out one command, durably; return its answer or raise its refusal."""
        return await self.enqueue(command)

    def enqueue(self, command: Command) -> asyncio.Future[Any]:
        """Carry out a command with the next batch; the future has its answer or its refusal."""
        asked = _Request(command, self._loop.create_future())
        self._put(asked)
        return asked.future

    def trail(self, make: Callable[[], Command | None]) -> asyncio.Future[Any]:
        """Carry out a command behind everything that is written until the next batch is taken, and made only then.

        Who asks again before that gets the same future. Its answer is None if nothing was made after all.
        """
        if self._last is None:
            self._last = make, self._loop.create_future()
            self._begin()
        return self._last[1]

    def append(self, writer: Writer, events: Events) -> None:
        """Write events under an attempt with the next batch, joined to what that attempt has there already."""
        if not writer.gathered:
            self._put(writer)
        writer.gathered += events

    async def inbox(self, job: str) -> list[Signal]:
        """Read the signals that wait in a job's inbox."""
        return await self._store.inbox(job)

    async def exports(self, job: str, number: int) -> dict[str, int]:
        """Read which exports a run has, by key."""
        return {row.key: row.number for row in await self._store.exports(job, number, 0, 2**31)}

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self._draining is not None:
            await asyncio.shield(self._draining)

    def _put(self, entry: _Request | Writer) -> None:
        self._waiting.append(entry)
        self._begin()

    def _begin(self) -> None:
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._waiting or self._last is not None:
                for _ in range(GATHER_TURNS):
                    await asyncio.sleep(0)
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                if self._last is not None and not self._waiting:  # else what it goes behind is not all here
                    batch += self._made()
                if batch:
                    await self._commit(batch)
        finally:
            self._draining = None
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Answer writes that were gathered for a batch that will not be taken, because the drain was interrupted."""
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            self._tell(entry, entry.command if isinstance(entry, _Request) else _taken(entry), _interrupted())
        if self._last is not None:
            (_, future), self._last = self._last, None
            if not future.done():
                future.set_exception(_interrupted())

    def _made(self) -> list[_Request | Writer]:
        assert self._last is not None, "somebody has asked"
        (make, future), self._last = self._last, None
        try:
            command = make()
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it, and others go on
            if not future.done():
                future.set_exception(error)
            return []
        if command is not None:
            return [_Request(command, future)]
        if not future.done():
            future.set_result(None)
        return []

    async def _commit(self, batch: list[_Request | Writer]) -> None:
        commands: list[Any] = [entry.command if isinstance(entry, _Request) else _taken(entry) for entry in batch]
        try:
            answers = await self._store.commit(commands)
        except Exception as error:  # noqa: BLE001 - whatever it is, everybody of the batch must hear of it
            answers = [error] * len(batch)
        except BaseException:
            for entry, command in zip(batch, commands, strict=True):
                self._tell(entry, command, _interrupted())
            raise
        for entry, command, answer in zip(batch, commands, answers, strict=True):
            self._tell(entry, command, answer)

    def _tell(self, entry: _Request | Writer, command: Any, answer: Any) -> None:
        """Hand an answer to whom it is for; an error in taking it is not one of the others in the batch."""
        try:
            if isinstance(entry, _Request):
                entry.answer(answer)
            elif isinstance(answer, Exception):
                self._fail(entry, len(command.events), answer)
            else:
                entry.written(len(command.events), None)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("an answer of the store was not taken")

    def _fail(self, writer: Writer, count: int, error: Exception) -> None:
        """An attempt's write has failed: so has what it wrote behind it. It writes no more once it knows."""
        if writer.gathered:
            if writer in self._waiting:
                self._waiting.remove(writer)
            count += len(_taken(writer).events)
        writer.written(count, error)


def _interrupted() -> StoreUnavailable:
    return StoreUnavailable("the write was interrupted: whether it counts is not known; try again")


def _taken(writer: Writer) -> Append:
    events, writer.gathered = tuple(writer.gathered), []
    uses, writer.uses = tuple(writer.uses), []
    return Append(writer.job, writer.attempt, events, uses, writer.parent, writer.successor)
