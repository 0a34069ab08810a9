"""The leases of one worker, kept by the worker's own clock (SPEC L2, L4, L11).

Two threads share the work, so that a silent store cannot delay a decision. The heartbeat calls `renew`, which may block
in the store. It beats whatever the event loop does. An error in one beat is logged, and the next beat comes in time.
The watchdog calls `end_overdue`, which never calls the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import elapsed
from holdfast.config import Config
from holdfast.engine.job_attempt import Attempt
from holdfast.engine.lease import Lease
from holdfast.engine.watchdog import Watchdog
from holdfast.errors import LoopDied, StoreUnavailable
from holdfast.store import Leases, PutWorker, Reclaim, ReleaseLeases, Renew, Store

if TYPE_CHECKING:
    from holdfast.engine.worker import Worker

STOP_SECONDS = 5.0  # longest wait for the current beat
NAMED_MAX = 10  # jobs named in one log line
OUTAGE_LOG_SECONDS = 60.0  # between two log lines about a store that cannot be used
GIVE_UP_SECONDS = 5.0  # longest wait for the store when all leases are given up

_log = logging.getLogger("holdfast.worker")


def lose(attempts: Iterable[Attempt]) -> None:
    """Stop the code of attempts whose leases are over. Runs on the loop."""
    for attempt in list(attempts):
        if not attempt.lost:
            attempt.lose()


class Heartbeat(threading.Thread):
    """Calls a function at once, and then every so many seconds."""

    def __init__(self, beat: Callable[[], None], every_seconds: float) -> None:
        super().__init__(name="holdfast-heartbeat", daemon=True)
        self._beat = beat
        self._every_seconds = every_seconds
        self._ended = threading.Event()

    def run(self) -> None:
        """Beat until stopped."""
        self._beat_once()
        while not self._ended.wait(self._every_seconds):
            self._beat_once()

    def _beat_once(self) -> None:
        try:
            self._beat()
        except Exception:  # after any error the heartbeat must continue, or leases would be lost
            _log.exception("a heartbeat failed, the next comes in %g s", self._every_seconds)

    def end(self) -> None:
        """Stop after the current beat."""
        self._ended.set()

    @property
    def is_ending(self) -> bool:
        """Return whether it beats no more."""
        return self._ended.is_set()

    def stop(self) -> None:
        """Stop, and wait for the current beat. Do not wait longer for a store that is silent."""
        self.end()
        self.join(STOP_SECONDS)


class OutageLog:
    """Logs that a worker cannot use its store: when it begins, every minute, and when it ends."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._began_at: float | None = None
        self._logged_at = 0.0

    def goes_on(self, error: StoreUnavailable, now: float) -> None:
        """Note that the store could not be used."""
        if self._began_at is None:
            self._began_at = now
        elif now - self._logged_at < OUTAGE_LOG_SECONDS:
            return
        self._logged_at = now
        _log.warning("worker %s cannot use its store, and tries again: %s", self._worker, error)

    def has_ended(self, now: float) -> None:
        """Note that the store could be used."""
        if self._began_at is not None:
            _log.warning("worker %s can use its store again, after %.0f s", self._worker, now - self._began_at)
            self._began_at = None


class Renewal(NamedTuple):
    """A renewal of all leases that is about to be sent."""

    attempts: list[tuple[str, Attempt]]
    command: Renew
    sent_at: float


class LeaseKeeper:
    """Renews the leases of a worker's attempts, and ends leases that were not renewed in time.

    If the worker's loop dies, it gives up all leases. Create it on the worker's loop.

    Args:
        worker: the worker.
        store: the store.
        config: the settings.
        steady: a clock that never jumps.
    """

    def __init__(self, worker: Worker, store: Store, config: Config, steady: Callable[[], float] = elapsed) -> None:
        self._steady = steady
        self._worker = worker
        self._store = store
        self._seconds = config.lease_seconds
        self._loop = asyncio.get_running_loop()
        self._claim_sent_at = steady()
        self._given_up = False
        self._outage = OutageLog(worker.name)
        every = config.lease_seconds / 3
        self._heartbeat = Heartbeat(self.renew, every)
        self.watchdog = Watchdog(worker.name, self.end_overdue, worker.stall_seconds, self._die, every_seconds=every)

    def start(self) -> None:
        """Start to renew and to watch."""
        self._heartbeat.start()
        self.watchdog.start()

    def stop(self) -> None:
        """Stop both threads."""
        self.watchdog.stop()
        self._heartbeat.stop()

    def claim_sent(self) -> None:
        """Count the leases of the next claim from now: it is about to be sent."""
        self._claim_sent_at = self._steady()

    def claimed(self) -> Lease:
        """Return the lease for a job of the last claim."""
        self.watchdog.wake()
        return Lease(self._claim_sent_at, self._seconds, self._steady)

    def renew(self) -> None:
        """Renew all leases, pass the answer to the worker, then report the worker. May block in the store."""
        renewal = self.next_renewal()
        if renewal is None:
            return
        try:
            (leases,) = self._store.commit_blocking([renewal.command])
            self.renewed(renewal, leases)
            # After the renewal, because a gate may need time to describe itself.
            self._store.commit_blocking([PutWorker(self._worker.card())])
        except StoreUnavailable as error:  # the watchdog ends leases that are not renewed in time
            if not self._heartbeat.is_ending:
                self._outage.goes_on(error, self._steady())
        else:
            self._outage.has_ended(self._steady())

    def next_renewal(self) -> Renewal | None:
        """Return the renewal to send now, or None if the leases were given up."""
        if self._given_up:
            return None
        attempts = [(job, attempt) for job, attempt in list(self._worker.running.items()) if attempt.lease.lasts()]
        held = tuple((job, attempt.attempt) for job, attempt in attempts)
        return Renewal(attempts, Renew(self._worker.name, held, self._seconds), self._steady())

    def renewed(self, renewal: Renewal, leases: Leases) -> None:
        """Count the leases from a confirmed renewal, and pass the answer to the worker."""
        for job, attempt in renewal.attempts:
            if job not in leases.lost:
                attempt.lease.renewed(renewal.sent_at, self._seconds)
        self._soon(self._worker.renewed, leases, dict(renewal.command.held))

    def end_overdue(self) -> float | None:
        """End the leases that were not renewed in time. Return the seconds until the next one is due, or None."""
        now = self._steady()
        attempts = list(self._worker.running.values())
        overdue = [attempt for attempt in attempts if attempt.lease.stops_at <= now and not attempt.lost]
        for attempt in overdue:
            attempt.lease.give_up()  # at once: the loop may be blocked, and a thread may be about to act
        if overdue:
            jobs = ", ".join(attempt.job for attempt in overdue[:NAMED_MAX])
            others = f" and {len(overdue) - NAMED_MAX} more" if len(overdue) > NAMED_MAX else ""
            _log.warning("worker %s could not renew leases in time: it stops %s%s", self._worker.name, jobs, others)
            self._soon(lose, overdue)
        return min((attempt.lease.stops_at - now for attempt in attempts if attempt not in overdue), default=None)

    def give_up(self) -> None:
        """End all leases at once, here and in the store, so that other workers take the jobs (L10, L11)."""
        self._given_up = True
        for attempt in list(self._worker.running.values()):
            attempt.lease.give_up()
        telling = threading.Thread(target=self._tell_store, name="holdfast-give-up", daemon=True)
        telling.start()
        telling.join(GIVE_UP_SECONDS)  # without an answer the leases expire

    def _tell_store(self) -> None:
        try:
            self._store.commit_blocking([ReleaseLeases(self._worker.name), Reclaim()])
        except StoreUnavailable as error:
            _log.warning("the leases of worker %s will expire by themselves: %s", self._worker.name, error)

    def _die(self, error: LoopDied) -> None:
        """Give up all leases: the loop has died or hangs. Called from the watchdog's thread."""
        _log.error("%s. Its leases are released.", error)
        self._heartbeat.end()
        self.give_up()
        self._soon(lose, list(self._worker.running.values()))  # in case the loop answers again
        self._worker.died(error)

    def _soon(self, callback: Callable[..., object], *args: object) -> None:
        """Call a function on the loop. If the loop is closed, the watchdog notices."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)
