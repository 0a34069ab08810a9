"""A laboratory for jobs: it runs them in virtual time, in the process of a test.

The lab borrows the app of a job: as long as the lab is open, the app uses the lab's store, loop and worker. The loop
runs in a thread of its own, so that tests with and without an event loop can use it. Time stands still between two
calls of the lab, and moves when one of them asks for it.

Leases are virtual, too. While a worker has jobs, no jump of the time is longer than the pause between two heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec

from holdfast.authoring.functions import Call, JobFunction
from holdfast.client.app import App
from holdfast.client.portal import Portal
from holdfast.client.run_handle import RunHandle, job_of_run
from holdfast.client.schedules.store_schedules import declare
from holdfast.deploys.history_files import history_text, read_history
from holdfast.durations import Duration, seconds
from holdfast.engine.own_thread import BriefSteps
from holdfast.engine.worker import Worker
from holdfast.errors import HoldfastError, InvalidArguments, LoopDied
from holdfast.machines import TERMINAL_JOB_STATES, Event, JobState
from holdfast.machines.keys import CHILD_KEY, RETRY_KEY, TIMER_KEY
from holdfast.ready.leaf_gate import LeafGate
from holdfast.store import Job, Store
from holdfast.testing.lab_stores import checked_store, open_lab_store
from holdfast.testing.virtual_loop import STORE_CALL, LoopWatcher, RealWork, VirtualLoop
from holdfast.testing.world import Recorded, call_fake, check_fake

if TYPE_CHECKING:
    from holdfast.testing.crash_report import CrashReport
    from holdfast.testing.replays import ReplaysReport

T = TypeVar("T")

LEASE_SECONDS = 86_400.0  # so long that few jumps of the time have to stop for a heartbeat
LONGEST_SECONDS = 10 * 366 * 86_400  # that a call of the lab moves the time by itself
IDLE_COMMITS = 200  # of ticks alone, after which a run that waits counts as stuck
OPEN_MAX = 1000  # jobs that are looked at then
START_AT = datetime(2027, 1, 1, tzinfo=UTC)
ENDING_THEMSELVES = (TIMER_KEY, CHILD_KEY, RETRY_KEY)  # waits that end without a signal


class RunStuck(HoldfastError):
    """A run cannot go on by itself: it waits for something that the test must do."""


class LabClock:
    """The lab's clock, in UTC epoch seconds. It moves with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start_at: datetime) -> None:
        self._loop = loop
        self._start = start_at.timestamp()

    def now(self) -> float:
        """Return the virtual time."""
        return self._start + self._loop.time()


class Lab:
    """Runs jobs in virtual time. Use it as a context manager, or as the pytest fixture `lab`.

    Args:
        store: ``"memory"``, ``"sqlite"``, ``"postgres"`` or the URL of a PostgreSQL database. There the lab creates a
            schema, and removes it at the end. ``"postgres"`` is the database of the variable ``HOLDFAST_TEST_URL``.
        start_at: the virtual time at the start. Default: the beginning of 2027, in UTC.
        golden: where `golden` keeps histories: the path of a file, without its number and suffix.
        recording: whether `golden` writes its files. The option ``--holdfast-record`` of pytest sets it.
    """

    def __init__(
        self,
        store: str = "memory",
        *,
        start_at: datetime = START_AT,
        golden: Path | None = None,
        recording: bool = False,
    ) -> None:
        if getattr(start_at, "tzinfo", None) is None:
            example = "such as datetime(2027, 1, 1, tzinfo=UTC)"
            raise InvalidArguments("start_at", f"must be a datetime with a time zone, {example}; got {start_at!r:.80}")
        self._golden = golden
        self._recording = recording
        self._golden_runs = count(1)
        self._kind = checked_store(store)
        self._start_at = start_at
        self._open = contextlib.ExitStack()
        self._loop = VirtualLoop(self._work_under_way, self._before_jump)
        self._clock = LabClock(self._loop, start_at)
        self._is_closed = False
        self._beat_at = 0.0  # when the workers last sent a heartbeat
        self._calls = 0  # of a store with threads, under way
        try:
            self.store: Store = open_lab_store(self._kind, self._clock, self._count, self._open)
        except BaseException:
            self._open.close()
            self._loop.close()
            raise
        self.store.subscribe(lambda _: self._loop.note_progress())
        self._entries: dict[tuple[str, str], JobFunction[..., Any]] = {}
        self._apps: list[App] = []
        self._workers: dict[Worker, asyncio.Task[None]] = {}
        self._portal = Portal("the lab", self._loop)
        watcher = LoopWatcher(self._loop, lambda text: self._portal.die(LoopDied(text)))
        watcher.start()
        self._open.callback(self._portal.stop)
        self._open.callback(self._end_in_order)
        self._open.callback(watcher.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the jobs, and give the apps their stores back."""
        self._is_closed = True
        self._open.close()

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return datetime.fromtimestamp(self._clock.now(), UTC)

    # Jobs

    def use(self, app: App) -> None:
        """Borrow an app with its schedules: from now on `advance` lets their ticks start runs, as a worker does.

        `start` borrows the app of its job, too, but not its schedules.
        """
        if not isinstance(app, App):
            raise InvalidArguments("app", f"must be an App, got {app!r:.80}")
        self._serve(app)
        self.run(self._moving(declare(app)))
        self.run(self._loop.settle(self._loop.time()))

    def _serve(self, app: App) -> None:
        self.borrow(app)
        if not self._workers:
            self.run(self._hire(self.store))

    def borrow(self, app: App) -> None:
        """Borrow an app, and start no worker."""
        self._require_open()  # or the run would be in the app's own store
        if app in self._apps:
            return
        config = msgspec.structs.replace(app.config, lease_seconds=LEASE_SECONDS, effects="", blobs="")
        portal = cast("Portal", _MovingPortal(self._portal, self._moved))
        self._open.enter_context(app._borrowed(self.store, config, portal))  # noqa: SLF001 - for tests only
        for gate in {id(leaf): leaf for call in app.calls_by_name().values() for leaf in _leaves(call.gate)}.values():
            self._open.callback(gate.follow, gate.follow(self._loop.time))
        self._apps.append(app)
        self._entries.update(app.entries)

    def start(self, job: JobFunction[..., Any], *args: Any, **kwargs: Any) -> RunHandle:
        """Start a run of a job, and let it run as far as it can without the time moving."""
        __tracebackhide__ = True
        run = self.app_of(job).start(job, *args, **kwargs)
        self.run(self._loop.settle(self._loop.time()))
        return run

    def app_of(self, job: JobFunction[..., Any]) -> App:
        """Return the app of a job, and borrow it."""
        if not isinstance(job, JobFunction):
            raise InvalidArguments("job", f"must be a function with @app.job, got {job!r:.80}")
        app = job.starter
        if not isinstance(app, App):
            raise InvalidArguments("job", f"{job.name} belongs to no app yet: pass its app to lab.use first")
        self._serve(app)
        return app

    def advance(self, duration: Duration) -> None:
        """Move the time. Everything that is due meanwhile happens at its time.

        Args:
            duration: such as ``"2d"``, ``"90m"``, a number of seconds or a timedelta.
        """
        __tracebackhide__ = True
        self.run(self._loop.settle(self._loop.time() + seconds(duration)))

    def until_waiting(self, run: RunHandle, key: str | None = None) -> None:
        """Let time move until a run waits.

        Args:
            run: the run.
            key: the key of the wait. Default: any signal or answer; sleeps and children end by themselves.

        Raises:
            RunStuck: the run has ended, or can never wait for this.
        """
        __tracebackhide__ = True
        if key is not None and not isinstance(key, str):
            raise InvalidArguments("key", f"must be the key of a wait, such as 'approval', got {key!r:.80}")
        self._require(run)
        self.run(self._until_waiting(run, key))

    async def _until_waiting(self, run: RunHandle, key: str | None) -> None:
        others: dict[str, None] = {}  # keys that it waited for instead, in order

        async def is_there() -> bool:
            job = await self._row(run)
            others.update(dict.fromkeys(signal_keys(job)))
            return job.state in TERMINAL_JOB_STATES or waits_for(job, key)

        await self.until(is_there)
        job = await self._row(run)
        if not waits_for(job, key):
            what = f"does not wait for {key!r}" if key is not None else "does not wait"
            waited = f", it waited for {', '.join(map(repr, others))}" if others else ""
            raise RunStuck(f"run {run.id} {what}{waited}: {await self.explained(run)}")

    def result(self, run: RunHandle) -> Any:
        """Let time move until a run ends, and return its result.

        Raises:
            RunStuck: the run waits for something that only the test can do.
            RunFailed: the run failed.
            RunCanceled: the run was canceled.
            RunTimedOut: the run exceeded its deadline.
        """
        __tracebackhide__ = True
        self._require(run)
        return self.run(self._result(run))

    async def _result(self, run: RunHandle) -> Any:
        waiting = asyncio.ensure_future(run.aresult())
        try:
            if not await self._move_until(waiting):
                raise RunStuck(f"run {run.id} cannot go on by itself: {await self.explained(run)}")
            return waiting.result()
        finally:
            await end_tasks(waiting)

    def history(self, run: RunHandle) -> list[Event]:
        """Return the events of a run's job, oldest first."""
        __tracebackhide__ = True
        self._require(run)
        return run.events()

    def replace(self, call: Call[..., Any], fake: Callable[..., Any]) -> None:
        """Let a stand-in act in place of a step or tool, until the lab is closed.

        Args:
            call: the step or tool.
            fake: a function with or without async, or ``world.tool(…)``. It takes the same arguments.

        Raises:
            InvalidArguments: the call is not a step or tool, or the stand-in takes other arguments.
        """
        __tracebackhide__ = True
        if not isinstance(call, Call):
            raise InvalidArguments("call", f"must be a step or tool, got {call!r:.80}")
        check_fake(fake, call)
        if isinstance(fake, Recorded):
            fake = fake.standing_for(call)
        self._open.enter_context(replaced(call, fake))

    def crash_everywhere(self, job: JobFunction[..., Any], *args: Any, **kwargs: Any) -> CrashReport:
        """Run a job again and again, and let its process crash at each commit; see `holdfast.testing.crashes`.

        Args:
            job: the job.
            args: its positional arguments.
            kwargs: its keyword arguments, and ``signals={key: payload}``: what to send when it or a child waits for a
                key. With ``only=(3, "crash after")`` one case runs alone.

        Raises:
            CrashFailure: a tool acted twice, something was lost, or the job ended otherwise.
        """
        __tracebackhide__ = True
        from holdfast.testing.crashes import crash_everywhere  # noqa: PLC0415 - it imports this module

        return crash_everywhere(self, job, args, kwargs)

    def replays(self, run: RunHandle) -> ReplaysReport:
        """Run the code of a job through every prefix of a run's history; see `holdfast.testing.replays`.

        Raises:
            ReplayFailure: the code asks for something else than it did.
        """
        __tracebackhide__ = True
        from holdfast.testing.replays import check_replays  # noqa: PLC0415 - as above

        events = self.history(run)
        return check_replays(events, self._function(events[0], run))

    def golden(self, run: RunHandle) -> None:
        """Check that the code still fits a history that was recorded before, with ``pytest --holdfast-record``.

        The history is in ``histories/`` next to the test. Commit it: runs like it may be under way when the code
        changes.

        Args:
            run: the run whose history is recorded.

        Raises:
            ReplayFailure: the code would ask for something else, or there is no history yet.
        """
        __tracebackhide__ = True
        from holdfast.testing.replays import ReplayFailure, require_fit  # noqa: PLC0415 - as above

        if self._golden is None:
            raise InvalidArguments("golden", "the lab has no folder for histories: use the fixture, or Lab(golden=…)")
        events = self.history(run)
        path = self._golden.with_name(f"{self._golden.name}-{next(self._golden_runs)}.json")
        if self._recording:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(history_text(events), encoding="utf-8")
        if not path.exists():
            raise ReplayFailure(f"{path} does not exist: run pytest with --holdfast-record, and commit the file")
        recorded = read_history(path)
        require_fit(recorded, self._function(recorded[0], run), str(path))

    def _require(self, run: RunHandle) -> None:
        """Refuse what is not a run of this lab."""
        __tracebackhide__ = True
        if not isinstance(run, RunHandle):
            raise InvalidArguments("run", f"must be what lab.start returned, got {run!r:.80}")
        self.run(self._row(run))

    def _function(self, created: Event, run: RunHandle) -> JobFunction[..., Any]:
        entry = str(created.payload["plugin"]), str(created.payload["entry"])
        function = next((found for app in self._apps if (found := app.entries.get(entry)) is not None), None)
        if function is None:
            raise InvalidArguments("run", f"{run.id} is a run of {'.'.join(entry)}, which no app of this lab has")
        return function

    # Parts that `crashes` uses

    @property
    def apps(self) -> Sequence[App]:
        """The apps that the lab has borrowed."""
        return self._apps

    def another(self, later_seconds: float = 0.0) -> Lab:
        """Return a new lab of the same kind."""
        return Lab(self._kind, start_at=self._start_at + timedelta(seconds=later_seconds))

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the lab's loop, and wait for its end.

        Raises:
            InvalidArguments: the lab is closed.
        """
        __tracebackhide__ = True
        try:
            self._require_open()
        except InvalidArguments:
            story.close()  # it is not awaited
            raise
        return self._through_portal(story)

    def _through_portal(self, story: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True  # pytest shows the line of the test, and not those of the lab
        try:
            return self._portal.run(story)
        except LoopDied as error:
            raise RealWork(str(error)) from error
        except HoldfastError as error:  # its message says it all; the frames of another thread say nothing
            raise error.with_traceback(None) from error.__cause__

    def _require_open(self) -> None:
        __tracebackhide__ = True
        if self._is_closed:
            raise InvalidArguments("lab", "is closed: use it inside its `with` block, or in the test of its fixture")

    async def until(self, is_so: Callable[[], Awaitable[bool]], changed: asyncio.Event | None = None) -> bool:
        """Let time move until something is so. Return False if nothing can run any more before that.

        Args:
            is_so: is called after each commit.
            changed: set it when something else than a commit may have made it so.
        """
        seeing = asyncio.ensure_future(self.see(is_so, changed or asyncio.Event()))
        try:
            if await self._move_until(seeing):
                seeing.result()
                return True
            return await is_so()
        finally:
            await end_tasks(seeing)

    async def _move_until(self, task: asyncio.Future[Any]) -> bool:
        """Let time move until a task ends. Return False if nothing that can still run could end it."""
        settling = asyncio.ensure_future(self._loop.settle(self._loop.time() + LONGEST_SECONDS, stay=True))
        idling = asyncio.ensure_future(self._only_ticks())
        try:
            await asyncio.wait({task, settling, idling}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                for ended in (settling, idling):
                    if ended.done():
                        ended.result()  # may raise: something real is under way
            return task.done()
        finally:
            await end_tasks(settling, idling)

    async def _only_ticks(self) -> None:
        """Return when only the ticks of schedules go on: no older job can go on by itself."""
        if not await self.store.schedules("", 1):
            await asyncio.Event().wait()
        commits, known = 0, set[str]()

        async def is_so() -> bool:
            nonlocal commits, known
            commits += 1
            if commits % IDLE_COMMITS:
                return False
            jobs = await self.store.open_jobs(limit=OPEN_MAX)
            older = [job for job in jobs if job.id in known]
            known = {job.id for job in jobs}
            return commits > IDLE_COMMITS and not any(map(moves_itself, older))

        await self.see(is_so, asyncio.Event())

    async def see(self, is_so: Callable[[], Awaitable[bool]], changed: asyncio.Event) -> None:
        """Wait until something is so. Look after each commit, and when `changed` is set."""

        def notice(_: int) -> None:
            self._loop.call_soon_threadsafe(changed.set)

        forget = self.store.subscribe(notice)
        try:
            while not await is_so():
                await changed.wait()
                changed.clear()
        finally:
            forget()

    async def settle(self, duration: float) -> None:
        """Let time move by so many seconds."""
        await self._loop.settle(self._loop.time() + duration)

    async def _hire(self, store: Store) -> None:
        self.hire(store)

    def hire(self, store: Store) -> Worker:
        """Start a worker on a store. Call it on the lab's loop."""
        app = self._apps[0]
        worker = Worker(
            store, self._entries, app.config, children=app.submission, clock=self._clock, build=app.build,
            steady=self._loop.time,
        )  # fmt: skip
        worker.brief_steps = BriefSteps(0.0)  # so that a crash can come between any two events of a plain job
        self._workers[worker] = self._loop.create_task(worker.run())
        return worker

    async def kill(self, worker: Worker) -> None:
        """End a worker as a crash would: it writes nothing more."""
        await end_tasks(self._workers.pop(worker))

    def _moved(self, call: Coroutine[Any, Any, Any]) -> Any:
        if self._portal.is_dead:
            call.close()  # it is not awaited
        return self._through_portal(self._moving(call))

    async def _moving(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run a call of the app, such as ``run.result()``, and let time move until it ends."""
        if self._loop.is_settling:
            return await call
        task = asyncio.ensure_future(call)
        try:
            if not await self._move_until(task):
                raise RunStuck("the call cannot end: nothing can run any more. Do first what the run waits for")
            return task.result()
        finally:
            await end_tasks(task)

    async def explained(self, run: RunHandle) -> str:
        """Return in words what a run waits for."""
        if not self._apps:
            raise InvalidArguments("run", f"{run.id} was not started in this lab")
        return (await self._apps[0].aexplain(run.id)).explanation

    async def _row(self, run: RunHandle) -> Job:
        job = await self.store.get(job_of_run(run.id)[0])
        if job is None:
            raise InvalidArguments("run", f"{run.id} was not started in this lab")
        return job

    def _end_in_order(self) -> None:
        with contextlib.suppress(LoopDied):  # its code still blocks the loop
            self._portal.run(self._end())

    async def _end(self) -> None:
        await end_tasks(*self._workers.values())
        await self.store.close()

    def _before_jump(self, due: float) -> float | None:
        """Let a jump end where a heartbeat is due, and send one. None if the workers wait for others."""
        if self._workers and all(worker.waits_for_others for worker in self._workers):
            return None
        now, beat_at = self._loop.time(), self._beat_at + LEASE_SECONDS / 3
        if due < beat_at or not any(worker.running for worker in self._workers):
            return due
        self._beat_at = max(now, beat_at)
        self._loop.call_soon(self._beat)
        return self._beat_at

    def _beat(self) -> None:
        for worker in self._workers:
            worker.renew_leases()

    def _count(self, change: int) -> None:
        self._calls += change
        self._loop.note_progress()

    def _work_under_way(self) -> str | None:
        threads = sum(worker.threads_at_work() for worker in self._workers)
        if threads > 0:
            return "a function in a thread"
        return STORE_CALL if self._calls else None


class _MovingPortal:
    """The portal of a borrowed app. Its calls let the time move until they end."""

    def __init__(self, portal: Portal, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._portal = portal
        self._run = run

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the lab's loop, and wait for its result."""
        return cast("T", self._run(coroutine))

    def stop(self) -> None:
        """Do nothing: the lab goes on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._portal, name)


def _leaves(gate: Any) -> list[LeafGate]:
    """Return the gates that a gate consists of and that have a clock."""
    if isinstance(gate, LeafGate):
        return [gate]
    return [leaf for leaf in getattr(gate, "leaves", ()) if isinstance(leaf, LeafGate)]


@contextlib.contextmanager
def replaced(call: Call[..., Any], fake: Callable[..., Any]) -> Any:
    """Let a stand-in act in place of a step or tool for a while."""

    async def stand_in(**arguments: Any) -> Any:
        outcome = call_fake(fake, arguments)
        return await outcome if inspect.isawaitable(outcome) else outcome

    own, was_async = call.function, call.is_async
    call.replace_function(stand_in, is_async=True)
    try:
        yield
    finally:
        call.replace_function(own, is_async=was_async)


def waits_for(job: Job, key: str | None) -> bool:
    """Return whether a job waits for a signal with this key, or for any signal."""
    keys = signal_keys(job)
    return key in keys if key is not None else bool(keys)


def signal_keys(job: Job) -> list[str]:
    """Return the keys of what a job waits for that the test must send: not the ends of sleeps and children."""
    if job.wait is None or job.state in TERMINAL_JOB_STATES:
        return []
    keys = [place.correlation_key for place in job.wait.places()]
    return [key for key in keys if key is not None and not key.startswith(ENDING_THEMSELVES)]


def moves_itself(job: Job) -> bool:
    """Return whether a job goes on without a signal, an answer or another job."""
    times = (job.wake_at, job.ends_by, job.wait.deadline if job.wait is not None else None)
    return job.state in {JobState.QUEUED, JobState.RUNNING} or any(at is not None for at in times)


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
