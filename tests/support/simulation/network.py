"""The connections of simulated processes to one store: calls take time, fail, arrive late; notices are lost or late.

A call that was sent arrives, whatever happens to its sender. Its answer does not reach a process that has crashed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import StoreUnavailable
from holdfast.store import Command
from support.simulation.scenario import CHAOS_SECONDS

if TYPE_CHECKING:
    from support.simulation.processes import Process
    from support.simulation.watched_store import WatchedStore
    from support.simulation.world import Simulation


def finished(coroutine: Any) -> Any:
    """Run a coroutine that never waits for anything to its end."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value


class _SameThread(asyncio.AbstractEventLoop):
    """The loop of code that `finished` runs. What such code gives to a thread is done at once."""

    def run_in_executor(  # type: ignore[override]  # - what it returns is a future
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        del executor
        answer = asyncio.Future[Any](loop=self)
        try:
            answer.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            answer.set_exception(error)
        return answer

    def get_debug(self) -> bool:
        return False


def finished_with_threads(coroutine: Any) -> Any:
    """Run a coroutine that waits for nothing but its own threads to its end."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(_SameThread())  # type: ignore[abstract]  # - what is used of it
    try:
        return finished(coroutine)
    finally:
        asyncio._set_running_loop(before)


class Network:
    """All connections of one simulation.

    Args:
        simulation: the simulation.
        latency: the longest time that a request or an answer takes.
        notice_loss: the share of notices that is lost.
        notice_delay: the longest time that a notice takes.
    """

    def __init__(self, simulation: Simulation, latency: float, notice_loss: float, notice_delay: float) -> None:
        self._simulation = simulation
        self.latency = latency
        self.notice_loss = notice_loss
        self.notice_delay = notice_delay
        self.outage_until = 0.0
        self.committer: Process | None = None  # the process whose commit is applied
        self._listeners: list[tuple[Process, Callable[[int], None]]] = []

    def heal(self) -> None:
        """Let every call through from now on. Notices may still get lost: no guarantee depends on them."""
        self.latency, self.notice_delay = min(self.latency, 0.01), 0.0
        self.outage_until = 0.0

    def delay(self) -> float:
        """Draw the time that one message takes."""
        scheduler = self._simulation.scheduler
        return self.latency * scheduler.random.random() if self.latency else 0.0

    def listen(self, process: Process, notice: Callable[[int], None]) -> Callable[[], None]:
        """Pass notices of the store to a process."""
        entry = (process, notice)
        self._listeners.append(entry)

        def leave() -> None:
            if entry in self._listeners:
                self._listeners.remove(entry)

        return leave

    def notify(self, change: int) -> None:
        """Report a commit to all processes that listen. To others than the one that commits, a notice may get lost."""
        scheduler = self._simulation.scheduler
        for process, notice in list(self._listeners):
            if not process.loop.alive:
                continue
            if self.notice_loss and scheduler.random.random() < self.notice_loss and process is not self.committer:
                continue
            delay = self.notice_delay * scheduler.random.random() if self.notice_delay else self.delay()
            if delay:
                scheduler.after(delay, partial(_tell, process, notice, change))
            else:
                process.loop.call_soon_threadsafe(notice, change)


def _tell(process: Process, notice: Callable[[int], None], change: int) -> None:
    if process.loop.alive:
        process.loop.call_soon_threadsafe(notice, change)


class Connection:
    """A store as one process sees it."""

    floor_seconds: float | None = None

    def __init__(self, network: Network, process: Process, store: WatchedStore) -> None:
        self._network = network
        self._process = process
        self._store = store

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        """Commit a batch, if it gets there."""
        answers: list[Any] = await self.send(partial(self._commit, batch), writes=True)
        return answers

    def _commit(self, batch: Sequence[Command]) -> list[Any]:
        self._network.committer = self._process
        try:
            return self._store.commit_of(self._process.index, batch)
        finally:
            self._network.committer = None

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        """Refuse: threads of simulated processes send their commands with `send`."""
        raise StoreUnavailable(f"not in a simulation: {batch}")

    def subscribe(self, notice: Callable[[int], None]) -> Callable[[], None]:
        """Pass on the notices of the store that get there."""
        return self._network.listen(self._process, notice)

    def hold_liveness_lock(self, worker: str) -> None:
        """Do nothing: the supervisor notices a death."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found
        call = partial(self._read, found)
        setattr(self, name, call)
        return call

    async def _read(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self.send(lambda: finished(read(*args, **kwargs)), writes=False)

    def send(self, action: Callable[[], Any], *, writes: bool, beats: bool = False) -> asyncio.Future[Any]:
        """Send a call. Return a future for its answer.

        Args:
            action: what the call does when it arrives.
            writes: whether it writes. What a read returns may be old, so it needs no time of its own on the way back.
            beats: whether it is a heartbeat.
        """
        process, network, simulation = self._process, self._network, process_simulation(self._process)
        answer = process.loop.create_future()
        if not process.loop.alive:
            return answer
        fate, seconds = process.next_fate(beats=beats)
        before, after = network.delay(), network.delay() if writes else 0.0
        scheduler = simulation.scheduler
        if scheduler.now < network.outage_until or fate == "refused":
            simulation.count("calls refused")
            scheduler.after(before + after, partial(self._refuse, answer, "not sent"))
            return answer
        if fate == "crash before":
            simulation.count("crashes at a call")
            simulation.crash(process)
            return answer
        if fate == "late" and writes:
            simulation.count("calls late")
            scheduler.after(before, partial(self._refuse, answer, "no answer"))
            scheduler.after(before + seconds, partial(simulation.guarded, action))
            return answer
        if fate == "slow":
            simulation.count("calls slow")
            before += min(seconds, max(0.0, CHAOS_SECONDS - scheduler.now))  # it arrives before everything is healed
        if before:
            scheduler.after(before, partial(self._arrive, action, answer, after, fate))
        else:
            self._arrive(action, answer, after, fate)
        return answer

    def _arrive(self, action: Callable[[], Any], answer: asyncio.Future[Any], after: float, fate: str | None) -> None:
        simulation = process_simulation(self._process)
        result = simulation.guarded(action)
        if fate == "crash after":
            simulation.count("crashes at a call")
            simulation.crash(self._process)
        elif fate == "applied":
            simulation.count("answers lost")
            simulation.scheduler.after(after, partial(self._refuse, answer, "the answer got lost"))
        elif after:
            simulation.scheduler.after(after, partial(self._answer, answer, result))
        else:
            self._answer(answer, result)

    def _answer(self, answer: asyncio.Future[Any], result: Any) -> None:
        if self._process.loop.alive:
            self._process.loop.call_soon_threadsafe(_deliver, answer, result)

    def _refuse(self, answer: asyncio.Future[Any], why: str) -> None:
        self._answer(answer, StoreUnavailable(f"simulated: {why}"))


def process_simulation(process: Process) -> Simulation:
    """Return the simulation of a process."""
    return process.simulation


def _deliver(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
