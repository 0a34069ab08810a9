"""The worker of one app, for programs that run their own jobs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.client.worker_status import GateView
from holdfast.engine.worker import Worker
from holdfast.errors import LoopDied, StoreUnavailable
from holdfast.machines.ready_table import ReadyState

if TYPE_CHECKING:
    from holdfast.client.app import App

EVICT_SECONDS = 60.0  # between two removals of runs that the retention settings do not keep


class AppWorker:
    """A worker of one app. `run` blocks the caller; `arun` runs on the caller's event loop."""

    def __init__(
        self, app: App, concurrency: int | None, queues: frozenset[str] | None, name: str | None = None
    ) -> None:
        self._app = app
        self._name = name
        self._concurrency = concurrency
        self._queues = queues
        self._worker: Worker | None = None
        self._stopped = False
        self._ended = threading.Event()
        # The watchdog's thread calls this when the loop has died.
        self.on_death: Callable[[LoopDied], object] = lambda _: None

    async def arun(self, *, until_idle: bool = False) -> None:
        """Claim and run jobs until `stop` is called.

        Args:
            until_idle: Return as soon as there is no job to run.

        Raises:
            LoopDied: The loop did not answer for `loop_stall_seconds`. The worker has released its jobs.
        """
        loop = asyncio.get_running_loop()
        self._worker = Worker(
            self._app.store(),
            self._app.entries,
            self._app.config,
            children=self._app.submission,
            effects=self._app.effects(),
            concurrency=self._concurrency,
            queues=self._queues,
            name=self._name,
            gates=self._app.shared_gates,
            on_death=lambda error: self._died(loop, error),
        )
        if self._stopped:
            return
        self._app.own_workers.add(self)
        config = self._app.config
        evicting = asyncio.create_task(self._evict()) if config.keep_seconds or config.keep_runs else None
        try:
            await self._worker.run(until_idle=until_idle)
        finally:
            self._app.own_workers.discard(self)
            if evicting is not None:
                evicting.cancel()
                await asyncio.wait([evicting])
        if evicting is not None and until_idle:
            await self._app.aevict()

    async def _evict(self) -> None:
        """Remove periodically the runs that the retention settings do not keep."""
        while True:
            with contextlib.suppress(StoreUnavailable):  # the next round tries again
                await self._app.aevict()
            await asyncio.sleep(EVICT_SECONDS)

    def run(self, *, until_idle: bool = False) -> None:
        """Claim and run jobs until `stop` is called, and block the caller.

        Ctrl-C stops the worker in order. It releases its jobs before it raises `KeyboardInterrupt`.

        Args:
            until_idle: Return as soon as there is no job to run.

        Raises:
            LoopDied: The loop has died or did not answer for `loop_stall_seconds`. The worker has released its jobs.
        """

        async def work() -> None:
            try:
                await self.arun(until_idle=until_idle)
            finally:
                self._ended.set()

        self._ended.clear()
        try:
            self._app.block(work())
        except KeyboardInterrupt:
            self.stop()
            self._ended.wait()
            raise

    def _died(self, loop: asyncio.AbstractEventLoop, error: LoopDied) -> None:
        """End every call that waits for the dead loop. The watchdog's thread calls this."""
        self._app.loop_died(loop, error)
        self._ended.set()
        self.on_death(error)

    def after_fork_in_child(self) -> None:
        """Leave the worker to the parent process. Calls of its job code in the child raise instead of hanging."""
        closed = asyncio.new_event_loop()
        closed.close()
        for attempt in list(self._worker.running.values()) if self._worker is not None else ():
            attempt.loop = closed

    def gate(self) -> GateView | None:
        """Return the current readiness of the worker, or None if it does not run. Any thread may call this."""
        worker = self._worker
        if worker is None:
            return None
        card = worker.card().gates[0]
        if self._stopped:
            card = msgspec.structs.replace(
                card, held=ReadyState.BUSY.value, why="the worker is stopping", opens_at=None
            )
        return GateView(worker.name, worker.now(), card)

    def stop(self) -> None:
        """Stop the worker in order. Any thread may call this.

        The worker claims no more jobs, lets running jobs continue for `shutdown_seconds`, then releases the rest.
        """
        self._stopped = True
        if self._worker is not None:
            self._worker.stop()
