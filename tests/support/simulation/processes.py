"""Simulated processes: a real worker on a loop and a connection of its own. Its threads are callbacks of that loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.client.overview.builds import release_periodically
from holdfast.config import Config
from holdfast.engine.lease_keeper import LeaseKeeper, Renewal
from holdfast.engine.worker import Worker
from holdfast.errors import StoreUnavailable
from holdfast.store import PutWorker, Store
from support.simulation.network import Connection
from support.simulation.programs import CONFIG, app_of
from support.simulation.scheduler import ProcessLoop

if TYPE_CHECKING:
    from holdfast.engine.worker_gate import WorkGate
    from support.simulation.scenario import ProcessSpec
    from support.simulation.world import Simulation

LOOK_SECONDS = 1.0  # longest pause between two checks of leases, as the watchdog has it
REPORT_BEATS = 2  # a worker reports itself with every second heartbeat, which is often enough
START = 1_800_000_000.0  # the store's time when a simulation begins


class Work(NamedTuple):
    """A function of a call that runs: its job and attempt, and a number that no other has."""

    job: str
    attempt: int
    number: int


class HostClock:
    """The clock of a host, which may be wrong."""

    def __init__(self, loop: ProcessLoop, skew: float) -> None:
        self._loop = loop
        self._skew = skew

    def now(self) -> float:
        return START + self._loop.time() + self._skew


class SimulatedKeeper(LeaseKeeper):
    """Renews leases and ends overdue ones at the same times as the threads of a real worker do."""

    def __init__(self, process: Process, worker: Worker, store: Store, config: Config) -> None:
        super().__init__(worker, store, config, process.loop.time)
        self._process = process
        self._every = config.lease_seconds / 3
        self._stopped = False
        self._beats = 0

    def start(self) -> None:
        self._process.loop.thread_later(0.0, self._beat)
        self._process.loop.thread_later(0.0, self._look)

    def stop(self) -> None:
        self._stopped = True

    def _beat(self) -> None:
        renewal = None if self._stopped else self.next_renewal()
        if renewal is None:
            return
        if renewal.attempts:
            self._process.send(renewal.command, beats=True).add_done_callback(partial(self._answered, renewal))
        if self._beats % REPORT_BEATS == 0:
            self._process.send(PutWorker(self._worker.card())).add_done_callback(_ignored)
        self._beats += 1
        self._process.loop.thread_later(self._every, self._beat)

    def _answered(self, renewal: Renewal, answer: asyncio.Future[Any]) -> None:
        if answer.exception() is not None or self._stopped:
            return
        self.renewed(renewal, answer.result()[0])

    def _look(self) -> None:
        if not self._stopped:
            due = self.end_overdue()
            pause = self._every if due is None else min(LOOK_SECONDS, self._every, max(0.01, due))
            self._process.loop.thread_later(pause, self._look)


def _ignored(answer: asyncio.Future[Any]) -> None:
    answer.exception()


class Process:
    """One process with a worker; or without a spec, the process of the clients.

    Args:
        simulation: the simulation.
        index: its place; a process that replaces another one has the same.
        spec: what it is.
    """

    def __init__(self, simulation: Simulation, index: int, spec: ProcessSpec | None) -> None:
        self.simulation = simulation
        self.index = index
        self.spec = spec
        self.loop = ProcessLoop(simulation.scheduler, self._failed)  # type: ignore[abstract]  # - what is used of it
        self.connection = Connection(simulation.network, self, simulation.store)
        self.resumed_at: float | None = None  # when it last went on after a pause
        self.free_since = simulation.scheduler.now  # since when its worker has a free slot, if it has one
        self.at_work: dict[Work, float | None] = {}  # functions that run, and since when each cleans up
        self.worker: Worker | None = None
        if spec is not None:
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        assert self.spec is not None, "only a process with a worker begins so"
        app = app_of(self.spec.build)
        store = cast("Store", self.connection)
        self.worker = Worker(
            store, app.entries, CONFIG, children=app.submission, concurrency=self.spec.slots, build=self.spec.build,
            clock=HostClock(self.loop, self.spec.skew), steady=self.loop.time,
            keeper=partial(SimulatedKeeper, self), on_violation=self._violated,
        )  # fmt: skip
        self.simulation.workers[self.worker.name] = self
        self._note_free_slots(self.worker.gate)
        self._releasing = self.loop.create_task(release_periodically(store, CONFIG.lease_seconds))
        self._working = self.loop.create_task(self.worker.run())
        self._working.add_done_callback(self._ended)

    def _note_free_slots(self, gate: WorkGate) -> None:
        """Note when the worker has a free slot again after it had none."""
        freed = gate.freed

        def noted() -> None:
            if gate.busy >= gate.slots:
                self.free_since = self.simulation.scheduler.now
            freed()

        gate.freed = noted  # type: ignore[method-assign]  # - it must be seen when it happens

    def resume(self) -> None:
        """Let the process go on after a pause."""
        if self.loop.paused:
            self.loop.paused, self.resumed_at = False, self.simulation.scheduler.now

    def has_paused_since(self, at: float) -> bool:
        """Return whether the process was paused at this time, or later."""
        return self.resumed_at is not None and self.resumed_at >= at

    def stop(self) -> None:
        """Stop the worker in order. The process ends when it has."""
        if self.worker is not None:
            self.worker.stop()

    def _ended(self, working: asyncio.Task[None]) -> None:
        if not working.cancelled() and (error := working.exception()) is not None:
            self.simulation.violated("worker", f"the worker of process {self.index} ended: {error!r}")
        elif self.worker is not None and (self.worker.running or self.worker.gate.busy):
            self.simulation.violated("L6", f"process {self.index} stopped and still has {list(self.worker.running)}")
        self.simulation.ended(self)

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, StoreUnavailable):
            return  # of a write that no caller waits for any more
        self.simulation.violated("engine", f"{context.get('message')}: {error!r}")

    def _violated(self, *what: object) -> None:
        self.simulation.violated("S3", f"a gate broke its contract: {what}")

    def send(self, command: Any, *, beats: bool = False) -> asyncio.Future[Any]:
        """Send one command from a thread of the process."""
        action = partial(self.simulation.store.commit_of, self.index, [command])
        return self.connection.send(action, writes=True, beats=beats)

    def next_fate(self, *, beats: bool) -> tuple[str | None, float]:
        """Return what happens to the next call, or the next heartbeat, of this process."""
        return self.simulation.next_fate(self.index, beats=beats)
