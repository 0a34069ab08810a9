"""Group commit: one transaction for the writes of many jobs, which go on meanwhile (output commit).

All durable writes of a loop go through one `Journal`. While it commits one batch, it gathers the next, so many writers
share the cost of a commit. A writer waits only before the outside world sees an effect: `append` returns at once and
reports later, and `write` waits.

The writes of one job keep their order. Events that an attempt writes during a commit are joined into one command. One
command may go last in a batch, and is made when the batch is taken. This is a claim, which thus finds the slots of all
jobs that end in the same transaction.

Threads without a loop have a `ThreadJournal`.

What can fail: the store raises. Then it is unknown whether the batch was written, and every writer in it gets the
error. A worker then abandons the attempt, and the job is claimed again from its stored state. Every later write of that
attempt fails as well, so a stream has no holes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.errors import StoreUnavailable
from holdfast.machines.event import Frozen
from holdfast.store import Append, Command, Signal, Store, Successor, WorkerCard

_log = logging.getLogger("holdfast")

# Turns of the loop before a batch is taken, so that writers about to write are included. The end of a job follows its
# last result by three turns.
GATHER_TURNS = 3
LARGE_BYTES = 4096  # events from this size on are counted in `bytes_under_way`
LOOK_SECONDS = 0.5  # until a thread that waits looks whether the one that commits was interrupted
BATCH_MAX = 2000  # commands in one transaction: enough to share a commit well, few enough to keep the lock short

Events = Sequence[tuple[str, Frozen]]  # frozen: later changes to a payload do not change what is written


class Writer(Protocol):
    """An attempt, as the journal sees it."""

    job: str
    attempt: int
    parent: str | None
    gathered: list[tuple[str, Frozen]]  # its events for the next batch; only the journal changes it
    uses: list[str]  # signals used in the same transaction; the journal empties it
    successor: Successor | None  # for a job that ends by `continue_as`, with its last event

    def written(self, count: int, error: Exception | None) -> None:
        """Report that `count` more of its events are on disk; or with `error`, that they may not be."""
        ...


class _Request:
    """A command that waits for the next batch, and a future for its result."""

    __slots__ = ("command", "future")

    def __init__(self, command: Command, future: asyncio.Future[Any]) -> None:
        self.command = command
        self.future = future

    def answer(self, answer: Any) -> None:
        if self.future.done():
            return  # the caller no longer waits
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


class Journal:
    """The write path to the store. The module's docstring has its guarantees."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()  # job code also writes, from its own loop
        self._waiting: list[_Request | Writer] = []
        self._last: tuple[Callable[[], Command | None], asyncio.Future[Any]] | None = None
        self._draining: asyncio.Task[None] | None = None
        self.bytes_under_way = 0  # of large events of attempts that are not on disk yet

    async def write(self, command: Command) -> Any:
        """Run one command durably. Return its result or raise its refusal."""
        return await self.enqueue(command)

    def enqueue(self, command: Command) -> asyncio.Future[Any]:
        """Run a command with the next batch. The future gets its result or its refusal."""
        request = _Request(command, self._loop.create_future())
        self._put(request)
        return request.future

    def trail(self, make: Callable[[], Command | None]) -> asyncio.Future[Any]:
        """Run a command last in the next batch. `make` returns it when the batch is taken.

        A second request before that gets the same future. The result is None if `make` returns None.
        """
        if self._last is None:
            self._last = make, self._loop.create_future()
            self._begin()
        return self._last[1]

    def append(self, writer: Writer, events: Events) -> None:
        """Write events of an attempt with the next batch, joined with those already there."""
        if not writer.gathered:
            self._put(writer)
        writer.gathered += events
        for _, frozen in events:
            if len(frozen.text) >= LARGE_BYTES:
                self.bytes_under_way += len(frozen.text)

    async def parent_of(self, job: str) -> str | None:
        """Return the id of the job that started this one as a child; None if no job did, or this one was removed."""
        row = await self._store.get(job)
        return row.parent if row is not None else None

    async def inbox(self, job: str) -> list[Signal]:
        """Return the signals in a job's inbox."""
        return await self._store.inbox(job)

    async def exports(self, job: str, number: int) -> dict[str, int]:
        """Return the numbers of a run's exports, by key."""
        return {row.key: row.number for row in await self._store.exports(job, number, 0, 2**31)}

    async def workers(self) -> list[WorkerCard]:
        """Read the listed workers."""
        return await self._store.workers()

    async def blob(self, job: str, blob: str, number: int) -> bytes | None:
        """Return one piece of a blob, from 1, or None after the last."""
        return await self._store.blob(job, blob, number)

    async def settle(self) -> None:
        """Wait until no write is in progress."""
        while self._draining is not None:
            await asyncio.shield(self._draining)

    def _put(self, entry: _Request | Writer) -> None:
        self._waiting.append(entry)
        self._begin()

    def _begin(self) -> None:
        if self._draining is None:
            # In a context of its own: job code may be what begins it, and the batch has the writes of other jobs, too.
            self._draining = self._loop.create_task(self._drain(), context=contextvars.Context())

    async def _drain(self) -> None:
        try:
            while self._waiting or self._last is not None:
                for _ in range(GATHER_TURNS if self._waiting else 0):  # nothing is to follow a claim alone
                    await asyncio.sleep(0)
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                if self._last is not None and not self._waiting:  # else writes that must come first are missing
                    batch += self._trailing()
                if batch:
                    await self._commit(batch)
        finally:
            self._draining = None
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Fail the writes that were gathered for a batch that will not be taken: the drain was interrupted."""
        if self._loop.is_closed():
            return  # no caller on it can hear of anything
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            self._tell(entry, entry.command if isinstance(entry, _Request) else _taken(entry), _interrupted())
        if self._last is not None:
            (_, future), self._last = self._last, None
            if not future.done():
                future.set_exception(_interrupted())

    def _trailing(self) -> list[_Request | Writer]:
        assert self._last is not None, "a command was requested"
        (make, future), self._last = self._last, None
        try:
            command = make()
        except Exception as error:  # the caller gets it, and the others go on
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
        except Exception as error:  # every writer of the batch gets it
            answers = [error] * len(batch)
        except BaseException:
            for entry, command in zip(batch, commands, strict=True):
                self._tell(entry, command, _interrupted())
            raise
        for entry, command, answer in zip(batch, commands, answers, strict=True):
            self._tell(entry, command, answer)

    def _tell(self, entry: _Request | Writer, command: Any, answer: Any) -> None:
        """Deliver a result. An error in one receiver must not affect the others in the batch."""
        try:
            if isinstance(entry, _Request):
                entry.answer(answer)
                return
            if self.bytes_under_way:
                self.bytes_under_way -= _large_bytes(command.events)
            if isinstance(answer, Exception):
                self._fail(entry, len(command.events), answer)
            else:
                entry.written(len(command.events), None)
        except Exception:  # the others in the batch go on
            _log.exception("the caller of a store command failed to handle its result")

    def _fail(self, writer: Writer, count: int, error: Exception) -> None:
        """Fail an attempt's write, and what it has written after it. It writes no more once it knows."""
        if writer.gathered:
            if writer in self._waiting:
                self._waiting.remove(writer)
            taken = _taken(writer)
            self.bytes_under_way -= _large_bytes(taken.events)
            count += len(taken.events)
        writer.written(count, error)


class ThreadJournal:
    """Group commit for threads: each blocks until its command is durable.

    The first thread commits its own command itself, without a loop in between. Threads that come meanwhile wait. One of
    them commits all of theirs next.

    A signal handler may interrupt a thread at any line, and write, or raise an error. So nothing here depends on code
    that cleans up. A request is marked as taken before its commit: without an answer, that commit was interrupted. A
    thread that was not woken looks for itself after `LOOK_SECONDS`.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._committing = threading.RLock()  # a signal handler may write in the middle of a commit of its thread
        self._waiting: deque[_ThreadRequest] = deque()
        self._leader: int | None = None  # the thread that commits, or was woken to do so; a hint, the lock decides

    def write(self, command: Command) -> Any:
        """Run one command durably. Return its result or raise its refusal."""
        request = _ThreadRequest(command, threading.get_ident())
        try:
            self._waiting.append(request)
            if self._leader is None:
                self._leader = request.thread
            elif self._leader != request.thread:
                request.woken.acquire(timeout=LOOK_SECONDS)
            if request.answer is _NONE:
                self._lead(request)
        except BaseException:  # the thread was interrupted
            request.is_left = True
            if self._leader == request.thread:
                self._leader = None
            raise
        if request.answer is _NONE:
            raise _interrupted()
        if isinstance(request.answer, Exception):
            raise request.answer
        return request.answer

    def _lead(self, request: _ThreadRequest) -> None:
        """Commit what waits, until this request is among it. Then let the first thread that came meanwhile do so."""
        with self._committing:
            while not request.taken:
                self._commit()
        self._leader = None
        if self._waiting:  # a thread that came before the line above relies on being woken
            with contextlib.suppress(IndexError):  # it was taken meanwhile
                following = self._waiting[0]
                self._leader = following.thread
                following.wake()

    def _commit(self) -> None:
        batch: list[_ThreadRequest] = []
        while self._waiting and len(batch) < BATCH_MAX:
            request = self._waiting[0]  # only this thread removes any
            if not request.taken and not request.is_left:  # else a commit was interrupted at this line, or its thread
                request.taken = True
                batch.append(request)
            self._waiting.popleft()
        try:
            answers: Sequence[Any] = self.store.commit_blocking([request.command for request in batch])
        except Exception as error:  # every thread of the batch gets it
            answers = [error] * len(batch)
        for request, answer in zip(batch, answers, strict=True):
            request.answer = answer
            request.wake()


class _ThreadRequest:
    """A command of a thread. The thread is woken when the command has an answer, or when it is to commit."""

    __slots__ = ("answer", "command", "is_left", "taken", "thread", "woken")

    def __init__(self, command: Command, thread: int) -> None:
        self.command = command
        self.thread = thread
        self.taken = False  # by a thread that commits it
        self.is_left = False  # whether its thread was interrupted
        self.answer: Any = _NONE
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken before
            self.woken.release()


_NONE = object()  # no answer yet


def _interrupted() -> StoreUnavailable:
    return StoreUnavailable("the write was interrupted: whether it counts is not known; try again")


def _large_bytes(events: Sequence[tuple[str, Any]]) -> int:
    size = 0
    for _, frozen in events:
        if len(frozen.text) >= LARGE_BYTES:
            size += len(frozen.text)
    return size


def _taken(writer: Writer) -> Append:
    events, writer.gathered = tuple(writer.gathered), []
    uses, writer.uses = tuple(writer.uses), []
    return Append(writer.job, writer.attempt, events, uses, writer.parent, writer.successor)
