"""The worker of one app, for programs that run their own jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

import holdfast.build_id  # noqa: F401 - now: a fork while a thread imports it would leave a part of it to the child
from holdfast.client.overview.builds import release_periodically, release_stranded
from holdfast.client.retention.retention_schedule import NAME as RETENTION_NAME
from holdfast.client.retention.retention_schedule import declare_retention
from holdfast.client.schedules.store_schedules import declare
from holdfast.client.worker_status import GateView
from holdfast.engine.worker import Worker
from holdfast.errors import InvalidSetting, LoopDied, StoreUnavailable
from holdfast.import_guard import refuse_while_importing
from holdfast.machines.keys import BUILTIN
from holdfast.machines.ready_table import ReadyState
from holdfast.store.schedule_commands import Declared

if TYPE_CHECKING:
    from holdfast.client.app import App

END_SECONDS = 2.0  # for a worker that ends at once to release its jobs
DECLARE_SECONDS = 5.0  # between tries to declare schedules while the store is away
DRAIN_SECONDS = 1.0  # between looks whether a build is drained
EVICT_SECONDS = 60.0  # between two removals of runs that the retention settings do not keep

_log = logging.getLogger("holdfast.worker")


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
        self._signals: list[int] = []  # that have asked `run` to stop
        # The watchdog's thread calls this when the loop has died.
        self.on_death: Callable[[LoopDied], object] = lambda _: None

    async def arun(self, *, until_idle: bool = False, until_drained: bool = False) -> None:
        """Claim and run jobs until `stop` is called.

        Args:
            until_idle: Return as soon as there is no job to run.
            until_drained: Take only runs that are kept for the build of this worker, and return when there are none.

        Raises:
            InvalidSetting: The worker has no build, and `until_drained` or a job with ``pin=True`` needs one.
            LoopDied: The loop did not answer for `loop_stall_seconds`. The worker has released its jobs.
        """
        loop = asyncio.get_running_loop()
        if until_drained and self._app.build is None:
            raise InvalidSetting("build", None, "until_drained needs a build: set HOLDFAST_BUILD or App(build=…)")
        entries, queues = self._with_retention(until_drained=until_drained)
        self._worker = Worker(
            self._app.store(),
            entries,
            self._app.config,
            children=self._app.submission,
            effects=self._app.effects(),
            concurrency=self._concurrency,
            queues=queues,
            name=self._name,
            build=self._app.build,
            kept_only=until_drained,
            gates=self._app.shared_gates,
            on_death=lambda error: self._died(loop, error),
        )
        if self._stopped:
            return
        self._app.own_workers.add(self)
        config = self._app.config
        keeps_all = not (config.keep_seconds or config.keep_runs or config.keep_audit_seconds)
        evicting = asyncio.create_task(self._evict()) if not keeps_all else None
        background = [asyncio.create_task(release_periodically(self._app.store(), config.lease_seconds))]
        background += [evicting] if evicting is not None else []
        try:
            with contextlib.suppress(StoreUnavailable):
                await release_stranded(self._app.store())
            if not until_drained and not await self._declare():
                background.append(asyncio.create_task(self._declare_later()))
            draining = asyncio.create_task(self._drain()) if until_drained else None
            background += [draining] if draining is not None else []
            await self._worker.run(until_idle=until_idle)
        finally:
            self._app.own_workers.discard(self)
            for task in background:
                task.cancel()
            await asyncio.wait(background)
        if evicting is not None and until_idle:
            await self._app.aevict()

    def _with_retention(self, *, until_drained: bool) -> tuple[dict[tuple[str, str], Any], frozenset[str] | None]:
        """Return the jobs and queues of this worker, with the job that removes old runs if the settings have rules."""
        if self._app.config.retention_rules() is None or until_drained:
            return self._app.entries, self._queues
        from holdfast.client.builtin_jobs import BuiltinJobs  # noqa: PLC0415 - most workers do not need them

        job = (BUILTIN, RETENTION_NAME)
        queues = self._queues | {BUILTIN} if self._queues is not None else None
        return {**self._app.entries, job: BuiltinJobs(self._app).entries[job]}, queues

    async def _declare(self) -> bool:
        """Make the schedules as the code declares them. Return whether the store was there."""
        if self._app.name == BUILTIN:
            return True  # the apps of the store declare its schedule
        try:
            for name, what in ((self._app.name, declare), (BUILTIN, declare_retention)):
                self._log_declared(name, await what(self._app))
        except StoreUnavailable:
            return False
        return True

    def _log_declared(self, name: str, declared: Declared) -> None:
        if declared.newer is not None:
            _log.warning("the schedules of %s stay as the newer build %s declares them", name, declared.newer)
        for verb in ("created", "changed", "paused", "resumed"):
            if names := getattr(declared, verb):
                _log.info("schedules of %s %s: %s", name, verb, ", ".join(names))

    async def _declare_later(self) -> None:
        while not await self._declare():  # noqa: ASYNC110 - no event says that the store is back
            await asyncio.sleep(DECLARE_SECONDS)

    async def _drain(self) -> None:
        """Stop the worker when no run is kept for its build and it runs none."""
        assert self._worker is not None, "it was made before"
        assert self._app.build is not None, "this was checked before"
        while True:
            with contextlib.suppress(StoreUnavailable):  # the next round tries again
                kept = await self._app.store().kept_jobs(self._app.build, None, 1)
                if not kept and not self._worker.running:
                    self.stop()
                    return
            await asyncio.sleep(DRAIN_SECONDS)

    async def _evict(self) -> None:
        """Remove periodically the runs that the retention settings do not keep."""
        while True:
            with contextlib.suppress(StoreUnavailable):  # the next round tries again
                await self._app.aevict()
            await asyncio.sleep(EVICT_SECONDS)

    def run(self, *, until_idle: bool = False, until_drained: bool = False) -> None:
        """Claim and run jobs until `stop` is called, and block the caller.

        In the main thread, Ctrl-C and SIGTERM stop the worker in order, unless the program has its own handlers. The
        worker lets its jobs run for `shutdown_seconds` and releases the rest. A second Ctrl-C ends it at once.

        Args:
            until_idle: Return as soon as there is no job to run.
            until_drained: Take only runs that are kept for the build of this worker, and return when there are none.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed twice, or once with `until_idle`.
            SystemExit: SIGTERM stopped a worker with `until_idle`.
            LoopDied: The loop has died or did not answer for `loop_stall_seconds`. The worker has released its jobs.
        """
        number = self.run_until_signal(until_idle=until_idle, until_drained=until_drained)
        if until_idle and number == signal.SIGINT:
            raise KeyboardInterrupt
        if until_idle and number is not None:
            raise SystemExit(128 + number)

    def run_until_signal(self, *, until_idle: bool = False, until_drained: bool = False) -> int | None:
        """Run as `run` does. Return the number of the signal that stopped the worker, or None."""
        refuse_while_importing("runs a worker")
        self._ended.clear()
        self._signals = []
        if threading.current_thread() is not threading.main_thread():
            self._app.block(self._work(until_idle=until_idle, until_drained=until_drained))
            return None
        handlers = self._handle_signals()
        try:
            self._in_thread(until_idle=until_idle, until_drained=until_drained)
        except KeyboardInterrupt:
            self.stop(at_once=bool(self._signals))
            self._ended.wait(END_SECONDS if self._signals else None)
            raise
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return self._signals[0] if self._signals else None

    async def _work(self, *, until_idle: bool, until_drained: bool) -> None:
        try:
            await self.arun(until_idle=until_idle, until_drained=until_drained)
        finally:
            self._ended.set()

    def _in_thread(self, *, until_idle: bool, until_drained: bool) -> None:
        """Run the worker while the main thread waits for its end or for a signal.

        Python calls signal handlers in the main thread only. If the system delivers a signal to another thread, a main
        thread that waits for a lock does not notice. So it reads from a socket to which Python writes each signal.
        """
        failures: list[BaseException] = []
        receiver, sender = socket.socketpair()
        sender.settimeout(0)

        def work() -> None:
            try:
                self._app.block(self._work(until_idle=until_idle, until_drained=until_drained))
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                failures.append(error)
            finally:
                self._ended.set()
                with contextlib.suppress(OSError):
                    sender.send(b"\0")

        previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=work, name="holdfast-worker", daemon=True)
        try:
            thread.start()
            while thread.is_alive() and not self._ended.is_set():
                receiver.recv(64)
            thread.join()
        finally:
            signal.set_wakeup_fd(previous)
            receiver.close()
            sender.close()
        if failures:
            raise failures[0]

    def _handle_signals(self) -> dict[int, Any]:
        """Handle SIGINT and SIGTERM if the program does not. Return the handlers to restore."""
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        replaced: dict[int, Any] = {number: own for number, own in usual.items() if signal.getsignal(number) is own}
        for number in replaced:
            signal.signal(number, self._on_signal)
        return replaced

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Stop in order. A second SIGINT ends `run`. SIGTERM may come twice, from a supervisor and its group."""
        del frame
        self._signals.append(number)
        if self._signals.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
        if len(self._signals) == 1:
            self.stop()
            running = len(self._worker.running) if self._worker is not None else 0
            jobs = "1 job has" if running == 1 else f"{running} jobs have"
            time_left = f": {jobs} {self._app.config.shutdown_seconds:g} s to finish" if running else ""
            hint = "; press Ctrl-C again to end at once" if running and number == signal.SIGINT else ""
            _log.log(logging.WARNING if running else logging.INFO, "stopping%s%s", time_left, hint)

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

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the worker in order. Any thread may call this.

        The worker claims no more jobs, lets running jobs continue for `shutdown_seconds`, then releases the rest.

        Args:
            at_once: Release running jobs now. Other workers take them.
        """
        self._stopped = True
        if self._worker is not None:
            self._worker.stop(at_once=at_once)
