"""A worker: claims jobs, keeps their leases, runs their attempts, and sweeps what time has ended (SPEC section 2).

It does not poll for work. It wakes when this process or, as the store reports, another process has committed something.
It also wakes when something becomes due, such as a tick of a schedule, or when a slot is free.

What can go wrong, and what happens then:

- The store is away or silent. Claims and sweeps are retried with growing pauses. A watchdog, which never calls the
  store, stops jobs whose leases could not be renewed in time. It does so before another worker may take them. If the
  store's files were replaced, the worker ends.
- A job's code blocks the loop. Its lease is still renewed, and the watchdog logs what blocks the loop. After
  `loop_stall_seconds`, or if the loop has died, the worker gives up its leases and is dead.
- A plain function does not return although its job was cancelled. Its thread is abandoned, and another replaces it.
- The worker is stopped. It claims nothing more, lets its jobs run for a while, then requeues them.
- The worker is killed. Other workers see that its lock is released or its leases expire, and take its jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.authoring.functions import JobFunction
from holdfast.clock import Clock
from holdfast.config import Config
from holdfast.engine.children import Submission
from holdfast.engine.config_watcher import watch_settings
from holdfast.engine.job_attempt import Attempt
from holdfast.engine.lease_keeper import LeaseKeeper, lose
from holdfast.engine.lost_attempts import LostAttempts
from holdfast.engine.own_thread import BriefSteps
from holdfast.engine.store_clock import StoreClock
from holdfast.engine.thread_pool import ThreadPool
from holdfast.engine.worker_gate import SOON_SECONDS, WorkGate, gate_cards
from holdfast.errors import InvalidSetting, LoopDied, StoreReplaced, StoreUnavailable
from holdfast.group_commit import Journal
from holdfast.ids import new_id
from holdfast.job_log import log_reclaimed
from holdfast.machines.ready_table import ReadyState
from holdfast.ready import Gate, OnViolation, WakeSource, log_violation
from holdfast.store import (
    Advance,
    Claim,
    Claimed,
    Claims,
    Command,
    Expire,
    Leases,
    Reclaim,
    ReleaseLeases,
    RemoveWorker,
    Store,
    WorkerCard,
)
from holdfast.store.commands import ASKED, DEATHS, LIMITS, ROOM, WORK
from holdfast.store.effects import EffectStore

CLAIM_MAX = 500  # jobs taken by one claim: a claim for many costs little more than for one
SWEEP_MAX = 100  # jobs, and schedules, that one sweep touches; a full sweep is followed by another at once
REST_FACTOR = 6  # while jobs wait, schedules rest for so many times as long as their last sweep took
REST_LATE_SECONDS = 20.0  # schedules do not rest if a tick is so late; it is missed or caught up after a minute
STAY_FACTOR = 4  # a job stays in memory at a wait for so many times as long as its last wait took
STAY_SECONDS_MAX = 0.2  # a job that would stay longer is suspended at once
FRESH_SECONDS = 0.1  # for which the store's time is reused, while nothing is reported
PAUSE_SECONDS_MAX = 5.0  # longest pause between tries while the store is away


class Worker:
    """Runs jobs of the given entries until it is stopped."""

    def __init__(  # noqa: PLR0913 - what a worker is made of
        self,
        store: Store,
        entries: Mapping[tuple[str, str], JobFunction[..., Any]],
        config: Config,
        *,
        children: Submission,
        effects: EffectStore | None = None,
        concurrency: int | None = None,
        queues: frozenset[str] | None = None,
        name: str | None = None,
        build: str | None = None,
        kept_only: bool = False,
        gates: Callable[[], Sequence[Gate]] = tuple,
        clock: Clock | None = None,
        steady: Callable[[], float] = time.monotonic,
        keeper: Callable[[Worker, Store, Config], LeaseKeeper] = LeaseKeeper,
        on_violation: OnViolation = log_violation,
        on_death: Callable[[LoopDied], object] = lambda _: None,
    ) -> None:
        self.name = name or new_id()
        self.gate = WorkGate(concurrency or config.concurrency, now=steady, on_violation=on_violation)
        self.running: dict[str, Attempt] = {}  # until their ends are on disk
        self.brief_steps = BriefSteps()
        self._gates = gates
        self._make_keeper = keeper
        self._fixed_slots = concurrency is not None
        self._store = store
        self._entries = entries
        self._config = config
        self._children = children
        self._effects = effects
        self._queues, self._kept_only = queues, kept_only
        self._pins = frozenset(key for key, job in entries.items() if job.pin)
        if self._pins and build is None:
            name = ", ".join(sorted(f"{plugin}.{entry}" for plugin, entry in self._pins))
            raise InvalidSetting("build", build, f"{name} has pin=True: set HOLDFAST_BUILD or App(build=…)")
        # Dicts, because a set of objects has another order in each process, and a simulation must repeat exactly.
        self._unsettled: dict[Attempt, None] = {}  # running attempts, and those that later attempts have replaced
        self._staying: dict[Attempt, None] = {}  # running attempts that may only wait, and give up slots on request
        self._suspended: dict[str, float] = {}  # jobs that were suspended just now, and when: the oldest first
        self._lost_attempts = LostAttempts(self._drop)
        self._stopping = self._gone = self._at_once = self._has_loop = False
        self._patience: asyncio.Timeout | None = None  # while a stopping worker lets its jobs run
        self._on_death = on_death
        self._dead: LoopDied | None = None  # set once its loop has died
        self._news = WORK | ASKED | DEATHS  # what was reported since the last turn
        self._sweep_at: float | None = 0.0  # when time alone brings something to do; None is never
        self._rests_until, self._has_backlog = 0.0, False  # until when schedules rest, and whether jobs wait
        self._asked, self._asked_at = 0.0, float("-inf")  # the store's time when last asked, and the loop's time then
        self._claim_under_way: asyncio.Future[Any] | None = None
        self._logging: set[asyncio.Task[None]] = set()  # they log reclaimed jobs
        self._may_claim_early = False  # whether a report of work may claim before the loop's own turn
        self._claim_open = False  # whether that claim's transaction has not begun
        self._claim_awaited = False  # whether the worker's loop waits for its answer
        self._claim_limit = 0
        self._looked_at = self._checked_at = 0.0  # when it last looked for dead workers, and for lost notices
        self._clock = StoreClock(clock)
        self.now = self._clock.now
        self._card = WorkerCard(
            name=self.name,
            host=platform.node(),
            pid=os.getpid(),
            slots=self.gate.slots,
            queues=tuple(sorted(queues)) if queues is not None else None,
            entries=tuple(sorted(f"{plugin}.{entry}" for plugin, entry in entries)),
            lease_seconds=config.lease_seconds,
            build=build,
            draining=kept_only,
        )

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped. With `until_idle`, stop when nothing runs, can be claimed or is due."""
        self._loop = asyncio.get_running_loop()
        self._checked_at = self._loop.time()
        self._task = asyncio.current_task()
        self._journal = Journal(self._store)
        self._wake = asyncio.Event()
        self._has_loop = True
        self._context = contextvars.copy_context()  # jobs begin in it, not in that of the job before them
        self._threads = ThreadPool(2 * self.gate.slots + 4, self._loop)  # for a plain job in every slot, and its call
        self._keeper = self._make_keeper(self, self._store, self._config)
        unsubscribe = self._store.subscribe(self._on_change)
        end_reloading = watch_settings(self._config, lambda new: self._loop.call_soon_threadsafe(self._reload, new))
        self._keeper.start()
        self._store.hold_liveness_lock(self.name)
        try:
            await self._work(until_idle=until_idle)
            await self._claims_answered()
            await self._hand_back()
            await asyncio.gather(*self._logging)
            if self._dead is not None:
                raise self._dead
            self._keeper.stop()  # or its last report would list the worker again, as if it were alive
            with contextlib.suppress(StoreUnavailable):
                await self._store.commit([RemoveWorker(self.name)])
        finally:
            self._gone = True
            self._keeper.stop()
            lose(self._unsettled)  # their leases are no longer renewed
            unsubscribe()
            end_reloading()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def renew_leases(self) -> None:
        """Renew the leases now, in addition to the heartbeat: time has jumped."""
        self._keeper.renew()

    @property
    def waits_for_others(self) -> bool:
        """Whether only a commit of another can give it something to do: it has no job, and nothing is due."""
        return not self.running and self._sweep_at is None and self.gate.wake_in_seconds() is None

    def threads_at_work(self) -> int:
        """Count the threads that run code of jobs. One that waits for a durable call does not count."""
        begun = [attempt for attempt in self._unsettled if "code" in vars(attempt)]
        waiting = sum(attempt.code.threads_waiting for attempt in begun)
        return self._threads.at_work - waiting

    def serves(self, plugin: str, entry: str, queue: str) -> bool:
        """Return whether this worker can run a job."""
        return (plugin, entry) in self._entries and (self._queues is None or queue in self._queues)

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more, let jobs run for the shutdown time, requeue the rest. Safe from any thread.

        With `at_once`, requeue the jobs now.
        """
        self._stopping, self._at_once = True, self._at_once or at_once
        self._may_claim_early = False
        if not self._has_loop:
            return  # it ends as soon as it begins
        self._on_change(WORK)
        if at_once:
            with contextlib.suppress(RuntimeError):  # the loop was closed: the watchdog notices
                self._loop.call_soon_threadsafe(self._hurry)

    def _hurry(self) -> None:
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(self._loop.time())

    def _on_change(self, change: int) -> None:
        """Wake the loop if a commit concerns this worker. Called from any thread."""
        if not change & (WORK | ASKED | LIMITS):
            change &= ROOM if any(held.until is None for held in self.gate.held) else 0
        with contextlib.suppress(RuntimeError):  # the loop was closed: the watchdog notices
            if change:
                self._loop.call_soon_threadsafe(self._heard, change)

    def _heard(self, change: int) -> None:
        self._news |= change & ~ROOM  # ROOM has no due time
        if change & (WORK | LIMITS | ROOM):
            self.gate.heard(WakeSource.CONFIG_RELOAD if change & LIMITS else WakeSource.IO_READY)
            if self._may_claim_early:
                self._claim_if_ready()  # the turn of the worker's loop reads other things first
        self._wake.set()

    def _reload(self, config: Config) -> None:
        """Use new settings. Running jobs keep the settings they were started with."""
        self._config = config
        if not self._fixed_slots and config.concurrency != self.gate.slots:
            self._threads.resize(2 * config.concurrency + 4)
            self.gate.resized(config.concurrency)
        self._wake.set()

    async def _work(self, *, until_idle: bool) -> None:
        try:
            await self._turns(until_idle=until_idle)
        finally:
            self._may_claim_early = False

    async def _turns(self, *, until_idle: bool) -> None:
        pause, is_sure = 0.05, False
        while not self._stopping:
            if self._dead is not None:
                raise self._dead
            self._wake.clear()
            self._may_claim_early = self._asked_at > float("-inf")  # to wait for a limit needs the store's time
            try:
                begun = await self._time()
                has_news = self._news & WORK  # without it no new due time was written
                more = await self._turn(begun)
                now = await self._look_ahead(begun) if has_news or self._is_sweep_due(begun) else begun
                if not more:
                    if until_idle and self._rests():
                        if not is_sure:
                            is_sure = True
                            self._heard(WORK)  # an attempt's last write may be on its way: claim and look once more
                            continue
                        if not self._is_due_soon(now):
                            return
                    is_sure = False
                    await self._sleep(now)
                pause = 0.05
            except StoreReplaced:
                for attempt in list(self.running.values()):
                    attempt.lose()
                raise
            except StoreUnavailable:
                self._may_claim_early = False
                await self._claims_answered()
                self._news, pause = WORK | ASKED | DEATHS, min(pause * 2, PAUSE_SECONDS_MAX)
                self._leave_alone(pause)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()

    def _leave_alone(self, seconds: float) -> None:
        """Leave the store alone: it is away. The gate's own change must not wake the worker, or it would not pause."""
        woken = self._wake.is_set()
        self.gate.away(seconds)
        self._poll()
        if not woken:
            self._wake.clear()

    def _is_sweep_due(self, now: float) -> bool:
        return self._sweep_at is not None and self._sweep_at <= now and not self._rest_seconds(now)

    def _rest_seconds(self, now: float) -> float:
        """Return for how long the next sweep waits, so that many ticks leave most of the time to jobs."""
        late = self._sweep_at is not None and now - self._sweep_at > REST_LATE_SECONDS
        return max(0.0, self._rests_until - self._loop.time()) if self._has_backlog and not late else 0.0

    async def _look_ahead(self, begun: float) -> float:
        """Read what is due next after a time. Return the store's time."""
        self._sweep_at, now = await self._store.next_due(begun), await self._store.now()
        self.gate.due(self._sweep_at - now if self._sweep_at is not None else None)
        return now

    async def _time(self) -> float:
        """Return the store's time. The store is not asked again if only slots have become free since then."""
        if self._claim_under_way is not None:  # for a job that has just come: reads meanwhile would delay it
            self._claim_awaited = True
            await self._claim_under_way
            await asyncio.sleep(0)  # the code of the jobs that it took goes first, too
        since = self._loop.time() - self._asked_at
        if self._news or since > FRESH_SECONDS:
            self._asked, since = await self._store.now(), 0.0
            self._asked_at = self._loop.time()
        return self._asked + since

    def _rests(self) -> bool:
        """Return whether nothing runs, is left to claim, or was reported since the last claim."""
        works = self.running or self._claim_under_way is not None or self._lost_attempts.unwinding
        return not self.gate.fresh and not works and not self._wake.is_set()

    def _is_due_soon(self, now: float) -> bool:
        times = [self._sweep_at, *(held.until for held in self.gate.held)]
        return any(at is not None and at - now <= self._config.idle_seconds for at in times)

    async def _turn(self, now: float) -> bool:
        """Read requests, sweep what time has ended, claim. Return whether there may be more to do at once."""
        await self._lost_attempts.give_back(self._journal)
        news, self._news = self._news, 0
        if news & ASKED and self.running:
            requests = await self._store.requests_for(self.name)
            self._apply_leases(requests)
            for attempt in self._among(requests.signalled):
                attempt.check_inbox()
        full = False
        floor = self._store.floor_seconds
        if news & DEATHS or (floor is not None and now - self._looked_at >= floor / 2):
            self._looked_at = now
            await self._write(*map(ReleaseLeases, await self._store.dead_workers()))
            self._sweep_at = await self._store.next_due()
        if self._is_sweep_due(now):
            begun = self._loop.time()
            expired, reclaimed, advanced = await self._write(Expire(SWEEP_MAX), Reclaim(SWEEP_MAX), Advance(SWEEP_MAX))
            full = SWEEP_MAX in {len(expired.jobs), len(reclaimed.jobs)}
            if len(advanced.schedules) >= SWEEP_MAX:
                self._rests_until = self._loop.time() + REST_FACTOR * (self._loop.time() - begun)
                full = full or not self._rest_seconds(now)
            if reclaimed.jobs:  # in a task: the claims of this turn must not wait for the log
                task = asyncio.create_task(log_reclaimed(self._store, reclaimed.jobs), context=self._context)
                self._logging.add(task)
                task.add_done_callback(self._logging.discard)
            self.gate.heard(WakeSource.TIMER)
        ready = self.gate.poll_ready().state is ReadyState.READY
        if ready:
            claim = self._claim_next()
            self._claim_awaited = True
            await claim
            await asyncio.sleep(0)  # the code of the claimed jobs first, then reads of what is due
        return full or (ready and self.gate.fresh and self.gate.busy < self.gate.slots)

    # Claims. A slot is free when its job's code has ended. The claim that fills it follows that end in one transaction.
    # So a place in a limited queue is never empty, and no other worker can take it. The number of jobs to claim is
    # decided when the transaction begins. By then more slots may be free, and one claim fills them all.

    def _claim_next(self) -> asyncio.Future[Any]:
        """Claim with the next transaction. Return a future that ends when the jobs have been taken."""
        future = self._journal.trail(self._claim)
        if future is not self._claim_under_way:
            self._claim_under_way, self._claim_open, self._claim_awaited = future, True, False
            future.add_done_callback(self._claim_answered, context=self._context)
        return future

    def _claim_if_ready(self) -> None:
        """Claim with the next transaction if the gate allows it and no claim is waiting for that transaction."""
        if not self._claim_open and self.gate.poll_ready().state is ReadyState.READY:
            self._claim_next()

    async def _claims_answered(self) -> None:
        """Wait until no claim is under way."""
        while self._claim_under_way is not None:
            await asyncio.wait([self._claim_under_way])

    def _claim(self) -> Claim | None:
        """Return the claim for all free slots. Called when its transaction begins."""
        self._claim_open = False
        self._claim_limit = min(self.gate.slots - self.gate.busy, CLAIM_MAX)
        if self._claim_limit <= 0:
            return None
        self.gate.fresh = False  # changes from here on may come too late for this claim
        self._clock.request_sent()
        self._keeper.claim_sent()
        return Claim(
            worker=self.name,
            entries=frozenset(self._entries),
            queues=self._queues,
            limit=self._claim_limit,
            lease_seconds=self._config.lease_seconds,
            build=self._card.build,
            pins=self._pins,
            kept_only=self._kept_only,
        )

    def _claim_answered(self, future: asyncio.Future[Any]) -> None:
        awaited = self._claim_awaited or future is not self._claim_under_way
        if future is self._claim_under_way:
            self._claim_under_way = None
        if future.cancelled():
            return
        if future.exception() is not None:
            self.gate.fresh = True  # claim again when the store is back
            if not awaited:
                self._wake.set()
        elif (answer := future.result()) is not None:
            self._took(answer, self._claim_limit)

    def _took(self, answer: Claims, limit: int) -> None:
        """Start the claimed jobs."""
        claimed = answer.claimed
        if claimed:  # they carry the store's time, too
            self._asked, self._asked_at = claimed[0].job.updated_at, self._loop.time()
            self._clock.answered(self._asked)
        for job in claimed:
            self._start(job)
        now = self._asked + self._loop.time() - self._asked_at
        all_there_was = len(claimed) < limit and not self.gate.fresh
        self._has_backlog = len(claimed) >= limit
        if not self._has_backlog and self._rests_until:
            self._rests_until = 0.0
            self._wake.set()  # there is time for schedules
        took = {job.job.queue for job in claimed}
        self.gate.claimed(all_there_was=all_there_was, held=answer.held, now=now, took=took)
        self._reclaim_slots()

    async def _write(self, *commands: Command) -> list[Any]:
        """Run commands with the next batch of the journal. Return their answers."""
        answers = await asyncio.gather(*map(self._journal.enqueue, commands), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _start(self, claimed: Claimed) -> None:
        attempt = Attempt(
            claimed,
            self._entries[claimed.job.plugin, claimed.job.entry],
            journal=self._journal,
            threads=self._threads,
            config=self._config,
            now=self.now,
            children=self._children,
            effects=self._effects,
        )
        attempt.lease = self._keeper.claimed()
        if claimed.job.id in self.running:
            self.running[claimed.job.id].lose()  # its lease ran out unnoticed, and this worker claimed the job again
        if not attempt.lease.lasts():  # the answer came too late: the process was stopped, or the store was silent
            self._heard(WORK)  # look again at what is due: this lease ends
            return
        self.running[claimed.job.id] = attempt
        self._unsettled[attempt] = None
        self.gate.busy += 1
        attempt.stay_seconds = self._stay_seconds(claimed.job.id)
        attempt.start(self)

    def _stay_seconds(self, job: str) -> float:
        """Return how long a claimed job stays in memory at its next waits: not at all if its last one took long."""
        seconds = STAY_FACTOR * (self._loop.time() - self._suspended.pop(job, float("-inf")))
        return seconds if seconds <= STAY_SECONDS_MAX else 0.0

    def may_stay(self, attempt: Attempt) -> bool:
        """Return whether an attempt that only waits may keep its slot for now: nothing else needs it."""
        if self._stopping or self.gate.busy >= self.gate.slots or attempt.row.queue in self._held_queues():
            return False
        self._staying[attempt] = None
        return True

    def _held_queues(self) -> set[str]:
        """Return the queues with jobs that wait for room."""
        return {held.queue for held in self.gate.held}

    def _reclaim_slots(self) -> None:
        """Suspend the attempts that only wait, if their slots or their places in a queue are needed."""
        full, held = self._stopping or self.gate.busy >= self.gate.slots, self._held_queues()
        for attempt in [each for each in self._staying if full or each.row.queue in held]:
            del self._staying[attempt]
            attempt.leave()

    def _note_suspended(self, attempt: Attempt) -> None:
        """Remember when a job was suspended, for as long as that matters."""
        now = self._loop.time()
        while self._suspended and STAY_FACTOR * (now - next(iter(self._suspended.values()))) > STAY_SECONDS_MAX:
            del self._suspended[next(iter(self._suspended))]
        if attempt.is_suspended:
            self._suspended.pop(attempt.job, None)
            self._suspended[attempt.job] = now

    def freed(self, attempt: Attempt) -> None:
        """Free the slot of an attempt whose code has ended."""
        self._staying.pop(attempt, None)
        self._note_suspended(attempt)
        self.gate.freed()
        if not (self._stopping or self.abandoned()):
            self._claim_if_ready()
        self._wake.set()

    def settled(self, attempt: Attempt) -> None:
        """Forget an attempt that does nothing more."""
        self._unsettled.pop(attempt, None)
        if attempt.lost:
            self._lost_attempts.lost.append(attempt)
        if self.running.get(attempt.job) is attempt:  # otherwise a later attempt has taken its place
            del self.running[attempt.job]
        self._wake.set()

    def _drop(self, attempt: Attempt) -> None:
        """Forget an attempt that cannot be concluded."""
        self.settled(attempt)
        self.freed(attempt)

    def unwound(self, attempt: Attempt) -> None:
        """Wake the loop: the last call of an attempt has ended. If its lease was lost, its job can be requeued now."""
        if attempt.lost:
            self._wake.set()

    def abandoned(self) -> bool:
        """Return whether this worker was cancelled instead of being stopped."""
        return self._gone or (self._task is not None and self._task.cancelling() > 0)

    def _until(self, now: float) -> float:
        every = min(self._config.lease_seconds / 3, self._store.floor_seconds or float("inf"))
        floor = max(SOON_SECONDS, self._checked_at + every - self._loop.time())  # wakes meanwhile do not put it off
        if self._sweep_at is None:
            return floor
        return max(SOON_SECONDS, min(max(self._sweep_at - now, self._rest_seconds(now)), floor))

    def _poll(self) -> ReadyState:
        """Poll the gate until it is Ready or Pending. Return that state."""
        while (state := self.gate.poll_ready(self._wake.set).state) not in {ReadyState.READY, ReadyState.PENDING}:
            pass
        return state

    async def _sleep(self, now: float) -> None:
        """Wait for a wake, for what is due next, or until a check finds a change that was not reported."""
        begun = self._loop.time() - now
        while not self._wake.is_set() and self._poll() is ReadyState.PENDING:
            now = self._loop.time() - begun
            wait, longest = self.gate.wake_in_seconds(), self._until(now)
            try:
                # Not shorter: the gate may be ahead of the last known time of the store, and the worker would spin.
                async with asyncio.timeout(max(SOON_SECONDS, min(longest, wait if wait is not None else longest))):
                    await self._wake.wait()
            except TimeoutError:
                if wait is not None and wait < longest:
                    continue  # the gate has a timer
                due = self._is_sweep_due(self._loop.time() - begun)
                self._checked_at = self._loop.time()
                if not due and (self.running or await self._store.has_work()):
                    self.gate.heard()
                if due or self.running or self.gate.fresh:
                    self._news |= WORK | ASKED
                    return

    async def _hand_back(self) -> None:
        """Let running jobs continue for a while, then requeue them (L6)."""
        self._reclaim_slots()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._at_once else self._config.shutdown_seconds) as self._patience:
                await self._all_settled()
        self._patience = None
        for attempt in list(self.running.values()):
            attempt.release()
        await self._all_settled()
        await self._journal.settle()

    async def _all_settled(self) -> None:
        while self._unsettled:
            self._wake.clear()
            await self._wake.wait()

    def card(self) -> WorkerCard:
        """Describe this worker and the gates of its process, its own first. Safe from any thread."""
        at_gates = [
            (gate, job) for job, attempt in list(self.running.items()) for gate in list(attempt.held_by.values())
        ]
        cards = gate_cards([self.gate, *self._gates()], self.now(), at_gates)
        blocked = self._keeper.watchdog.blocked if "_keeper" in vars(self) else None  # None before it runs
        return msgspec.structs.replace(self._card, slots=self.gate.slots, gates=cards, blocked=blocked)

    def renewed(self, leases: Leases, held: Mapping[str, int]) -> None:
        """Apply the store's answer to a renewal."""
        self._apply_leases(leases, held)
        self._lost_attempts.conclude_stranded(self._unsettled)

    def stall_seconds(self) -> float:
        """Return how long the loop may stay silent. It is shorter for a worker that was asked to stop."""
        config, stopping = self._config, self._config.shutdown_seconds + self._config.grace_seconds
        return min(config.loop_stall_seconds, stopping) if self._stopping else config.loop_stall_seconds

    def died(self, error: LoopDied) -> None:
        """Note that the loop has died or hangs, and all leases were given up. Called from the watchdog's thread."""
        self._dead = error
        self._on_change(WORK)
        self._on_death(error)

    def _apply_leases(self, leases: Leases, held: Mapping[str, int] = {}) -> None:
        for attempt in self._among(leases.lost):
            if attempt.attempt == held.get(attempt.job):  # not a later attempt
                attempt.lose()
        for attempt in self._among(leases.cancel):
            attempt.cancel()
        for attempt in self._among(leases.pause):
            attempt.ask_to_pause()

    def _among(self, jobs: Collection[str]) -> list[Attempt]:
        """Return the running attempts at these jobs, in the order of their claims."""
        return [attempt for job, attempt in self.running.items() if job in jobs] if jobs else []
