"""Execution of the built-in jobs: a worker in a thread of the server, while there is such a job to run.

The server executes them, because a store may have no other process: `verify` and `purge` work with a server alone. A
thread keeps their work off the server's event loop. There is no thread while no built-in job is open.

A server can die. So each server looks for open built-in jobs when it starts, and then every few seconds while requests
arrive. The job continues after its last recorded step. Several servers may run a worker at the same time: the lease
decides which one has the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

from holdfast.client.app import App
from holdfast.client.builtin_jobs import BuiltinJobs
from holdfast.errors import HoldfastError
from holdfast.machines import RunRecord
from holdfast.machines.keys import BUILTIN
from holdfast.store import Store

SLOTS = 2  # built-in jobs that a server runs at the same time: a verify must not hold up a purge
LOOK_SECONDS = 10.0  # between two looks for jobs of servers that have died
IDLE_LOOK_SECONDS = 0.2  # between two looks for the end of the last job, while the thread runs

_log = logging.getLogger("holdfast.http")


class Maintenance:
    """The built-in jobs of a server, and the thread that executes them."""

    def __init__(self, client: App) -> None:
        self.jobs = BuiltinJobs(client)
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = self._active = self._stopping = False
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Look for open built-in jobs, at most every few seconds. This returns at once and never raises."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS or self._stopping or not self.jobs.is_store_open():
            return
        self._looked_at = time.monotonic()
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        with contextlib.suppress(HoldfastError):  # the next look tries again
            if await self.jobs.need_worker():
                self.wake()

    def noticed(self, record: RunRecord) -> RunRecord:
        """Return the record of a run that was retried or resumed. Wake the thread if the run is a built-in one."""
        if record.plugin_id == BUILTIN:
            self.wake()
        return record

    def wake(self) -> None:
        """Start the thread, if it does not run."""
        with self._changing:
            self._woken = True
            if self._stopping or (self._active and self._thread is not None and self._thread.is_alive()):
                return
            self._active = True
            self._thread = threading.Thread(target=self._run, name="holdfast-maintenance", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let the thread give its jobs back and end. Another server, or this one after its restart, goes on."""
        self._stopping = True

    def join(self) -> None:
        """Wait for the end of the thread."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except asyncio.CancelledError:
            pass  # the app closed its store during a read
        except Exception:  # noqa: BLE001 - it must not end silently, whatever it is
            _log.exception("the worker of built-in jobs has ended; the server looks for open ones again")

    async def _work(self) -> None:
        store = self.jobs.store()
        worker = self.jobs.worker(concurrency=SLOTS)
        working = asyncio.create_task(worker.arun())
        try:
            while not working.done() and not self._is_done(needed=await self._is_needed(store)):
                await asyncio.wait([working], timeout=IDLE_LOOK_SECONDS)
        finally:
            worker.stop(at_once=True)
            await asyncio.wait([working])
        error = working.exception()
        if error is not None and self.jobs.is_current(store):  # else the app closed the store under the worker
            raise error

    async def _is_needed(self, store: Store) -> bool:
        if self._stopping or not self.jobs.is_current(store):  # the app was closed
            return False
        try:
            return await self.jobs.need_worker()
        except HoldfastError:
            return True  # the store is away: the worker waits for it

    def _is_done(self, *, needed: bool) -> bool:
        """Return whether the thread ends. From then on, `wake` starts another one."""
        with self._changing:
            woken, self._woken = self._woken, False
            self._active = needed or (woken and not self._stopping)
            return not self._active
