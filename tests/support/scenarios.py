"""Scenarios: what durable job code must do, run live, replayed after every wait, and with a crash at every commit.

A scenario is a function that declares jobs on an app, and a description of how the job is driven and how it must end.
Tools report to an `Outside`, which keeps every act as the real world would: it survives crashes. Each mode must end
with the same outcome and the same acts.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast import App, Config, Done, NotDone, NotInsideJob, StoreUnavailable, external_key
from holdfast.client.verify import check_replay
from holdfast.clock import ManualClock
from holdfast.ids import new_id
from holdfast.machines import Event, HistoryEvent, JobState, RunRecord
from holdfast.store import Command, PutWorker, ReleaseLeases, Renew, Store
from support.stories import TooLate

__all__ = [
    "AT_ONCE",
    "BACKENDS",
    "KINDS",
    "SECONDS",
    "START",
    "Advance",
    "Answer",
    "Cancel",
    "Canceled",
    "Deploy",
    "DyingStore",
    "Ends",
    "Fails",
    "Gives",
    "Move",
    "Outside",
    "Pause",
    "Process",
    "Resume",
    "Retry",
    "Scenario",
    "Signal",
    "Start",
    "Story",
    "TimedOut",
    "crash_at",
    "live",
    "play_scenario",
    "registered",
    "replay_checked",
    "replayed",
    "run_worker",
    "scenario",
]  # fmt: skip

SECONDS = float(os.environ.get("HOLDFAST_SCENARIO_SECONDS", "90"))  # for one run of a scenario, on a slow machine
IDLE_SECONDS = 2.0  # what is due sooner is waited for
CONFIG = Config(url="memory:", poll_seconds=0.005, idle_seconds=IDLE_SECONDS, shutdown_seconds=0.05, grace_seconds=0.2)
LOST, UNACKNOWLEDGED = "not applied", "applied, unacknowledged"
KINDS = (LOST, UNACKNOWLEDGED)
AT_ONCE = 8  # crash points tried side by side on one loop

BACKENDS = ("memory", "sqlite", "postgres")
_NEVER = 1_000_000  # a commit that no run reaches
START = "start"  # a move with this mark is made before the first worker starts

_registered: dict[str, Scenario] = {}


# How a run is driven. A move is made when every job rests, or, with `at`, when the code has reached that mark.


@dataclass(frozen=True)
class Move:
    at: str | None = field(default=None, kw_only=True)
    to: str | None = field(default=None, kw_only=True)  # the entry whose runs it concerns; the scenario's own if None
    after: tuple[Any, ...] | None = field(default=None, kw_only=True)  # an act that must have happened by then


@dataclass(frozen=True)
class Signal(Move):
    key: str
    payload: Any = None
    id: str | None = None


@dataclass(frozen=True)
class Cancel(Move):
    reason: str | None = None


@dataclass(frozen=True)
class Pause(Move):
    pass


@dataclass(frozen=True)
class Resume(Move):
    pass


@dataclass(frozen=True)
class Retry(Move):
    pass


@dataclass(frozen=True)
class Start(Move):
    """Start a run of another entry, without arguments."""

    entry: str


@dataclass(frozen=True)
class Advance(Move):
    """Move the store's clock. A scenario with this move runs on a clock that only the scenario moves."""

    seconds: float


@dataclass(frozen=True)
class Answer(Move):
    """Answer which code goes on with a run that does not fit it."""

    answer: str


@dataclass(frozen=True)
class Deploy(Move):
    """Replace the worker by one with the next version of the code (`Outside.version`)."""


# How it must end.


@dataclass(frozen=True)
class Gives:
    result: Any


@dataclass(frozen=True)
class Fails:
    """The run fails. `texts` must be part of the error's code and message."""

    texts: tuple[str, ...]

    def __init__(self, *texts: str) -> None:
        object.__setattr__(self, "texts", texts)


@dataclass(frozen=True)
class Canceled:
    pass


@dataclass(frozen=True)
class TimedOut:
    pass


Ends = Gives | Fails | Canceled | TimedOut
Build = Callable[[App, "Outside"], Any]
Check = Callable[[list[Event]], None]


@dataclass(frozen=True)
class Scenario:
    name: str
    build: Build
    ends: Ends
    acts: tuple[tuple[Any, ...], ...]
    moves: tuple[Move, ...]
    args: tuple[Any, ...]
    others: Mapping[str, Sequence[str]]  # the statuses of all runs of other entries, by entry
    check: Check | None
    deadline: float | None
    in_order: bool  # whether the acts must come in this order
    crashes: bool  # whether a crash may come at any commit without changing the end
    refusable: bool  # whether the engine may refuse instead: the job then gives {"refused": message}, and nothing acts
    doubts: bool  # whether a tool may be in doubt though nothing crashed
    stores: tuple[str, ...]  # those that it concerns

    @property
    def clocked(self) -> bool:
        return any(isinstance(move, Advance) for move in self.moves)

    @property
    def can_be_replay_checked(self) -> bool:
        """Whether its history says all that the code of its last process saw."""
        succeeds = isinstance(self.ends, Gives) and not self.refusable
        return succeeds and not any(isinstance(move, (Deploy, Cancel, Retry)) for move in self.moves)


def scenario(  # noqa: PLR0913 - what a description can say
    ends: Ends,
    *,
    acts: Sequence[tuple[Any, ...]] = (),
    moves: Sequence[Move] = (),
    args: Sequence[Any] = (),
    others: Mapping[str, Sequence[str]] | None = None,
    check: Check | None = None,
    deadline: float | None = None,
    in_order: bool = False,
    crashes: bool = True,
    refusable: bool = False,
    doubts: bool = False,
    stores: tuple[str, ...] = BACKENDS,
) -> Callable[[Build], Build]:
    """Register a scenario. The function declares the jobs and returns the one to start."""

    def register(build: Build) -> Build:
        name = build.__name__
        assert name not in _registered, f"two scenarios have the name {name}"
        _registered[name] = Scenario(
            name=name, build=build, ends=ends, acts=tuple(acts), moves=tuple(moves), args=tuple(args),
            others=others or {}, check=check, deadline=deadline, in_order=in_order, crashes=crashes,
            refusable=refusable, doubts=doubts, stores=stores,
        )  # fmt: skip
        return build

    return register


def registered() -> dict[str, Scenario]:
    return _registered


class World:
    """What survives every crash: the acts of tools, by the key that the other side deduplicates by."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acts: list[tuple[Any, ...]] = []
        self.results: dict[str, Any] = {}
        self.repeated: list[tuple[Any, ...]] = []
        self.doubtful: list[str] = []  # tools whose outcome was asked for
        self.counts: Counter[str] = Counter()
        self.retried = 0
        self.too_late = False  # whether the machine stood still, and the run cannot show what it is to show
        self.version = 1


class Outside:
    """The outside world as one process sees it. After the process was killed, nothing of it acts any more."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._marks: Counter[str] = Counter()
        self.alive = True
        self.version = world.version
        self.safe = {"reconcile": self.reconcile}  # options of a tool that can be asked whether it has acted

    def act(self, name: str, *args: Any) -> str:
        """Act. The result names the act, so that results of equal calls can be told apart by their arguments."""
        key = self._key()
        with self._world.lock:
            if not self.alive:
                raise RuntimeError("this process was killed")
            if key in self._world.results:
                self._world.repeated.append((name, *args))
            self._world.acts.append((name, *args))
            result = f"{name}({', '.join(map(str, args))})"
            if key is not None:
                self._world.results[key] = result
        return result

    def act_numbered(self, name: str, *args: Any) -> int:
        """Act, and return how many acts of this name there were: equal acts have different results."""
        self.act(name, *args)
        key = self._key()
        with self._world.lock:
            number = sum(1 for act in self._world.acts if act[0] == name)
            if key is not None:
                self._world.results[key] = number
        return number

    def act_once(self, name: str, *args: Any) -> str:
        """Act as a service that deduplicates by key: a repeat returns the first result and changes nothing."""
        key = self._key()
        assert key is not None, "a tool has an external key"
        with self._world.lock:
            if key in self._world.results:
                return str(self._world.results[key])
        return self.act(name, *args)

    def remember(self, result: Any) -> Any:
        """Keep another result for the act that was just made: what a tool in doubt is answered with."""
        key = self._key()
        with self._world.lock:
            if key is not None and self.alive:
                self._world.results[key] = result
        return result

    def reconcile(self, *, external_key: str, **_: Any) -> Done | NotDone:
        """Answer for a tool in doubt."""
        with self._world.lock:
            self._world.doubtful.append(external_key)
            if external_key in self._world.results:
                return Done(self._world.results[external_key])
        return NotDone()

    def count(self, name: str) -> int:
        """Count calls that survive a crash; the new number."""
        with self._world.lock:
            self._world.counts[name] += 1
            return self._world.counts[name]

    def retries(self) -> int:
        """How often an operator has had this story's run tried again."""
        return self._world.retried

    def mark(self, name: str) -> None:
        """Say that the code is here. Marks belong to this process alone."""
        self._marks[name] += 1

    def marked(self, name: str, times: int = 1) -> bool:
        return self._marks[name] >= times

    async def reached(self, name: str) -> None:
        """Wait, in a step or tool, until the job's code has reached a mark."""
        while not self.marked(name) and self.alive:  # noqa: ASYNC110 - a mark may come from any thread or loop
            await asyncio.sleep(0.001)

    async def acted(self, *act: Any) -> None:
        """Wait, in a step or tool, until this act was made, by this process or one before it."""
        while act not in self._world.acts and self.alive:  # noqa: ASYNC110 - it may have been another process
            await asyncio.sleep(0.001)

    def has_acted(self, *act: Any) -> bool:
        """Whether this act was made, by this process or one before it."""
        return act in self._world.acts

    def need_act(self, *act: Any) -> None:
        """See that this act was made: by a machine that stood still it was not, and the run shows nothing.

        Raises:
            TooLate: it was not; the job fails, and `Story.judge` raises the same.
        """
        if not self.has_acted(*act):
            self._world.too_late = True
            raise TooLate

    def _key(self) -> str | None:
        try:
            return external_key()
        except NotInsideJob:
            return None


class DyingStore:
    """Passes everything on, and dies at the n-th commit with the whole process: before it is applied, or after."""

    def __init__(self, store: Store, at: int, kind: str, kill: Callable[[], None]) -> None:
        self._store = store
        self.left = at
        self._kind = kind
        self._kill = kill
        self.killed = asyncio.Event()

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        self.left -= 1
        if self.killed.is_set():
            raise StoreUnavailable("this process was killed")
        if self.left == 0:
            if self._kind == UNACKNOWLEDGED:
                await self._store.commit(batch)
            self._kill()
            self.killed.set()
            raise StoreUnavailable("this process was killed")
        return await self._store.commit(batch)

    def commit_blocking(self, batch: Sequence[Command]) -> list[Any]:
        if self.killed.is_set() and all(isinstance(command, (Renew, PutWorker)) for command in batch):
            raise StoreUnavailable("this process was killed")
        return self._store.commit_blocking(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Process:
    """One process with the scenario's code: an app on the store, and its view of the outside."""

    def __init__(
        self, story: Story, *, die_at: int | None = None, kind: str = LOST, dying: type[DyingStore] = DyingStore
    ) -> None:
        self.outside = Outside(story.world)
        self.app = App(story.name, config=CONFIG)
        self.dying = dying(story.store, die_at, kind, self._killed) if die_at is not None else None
        self.app._opened = cast(Store, self.dying) if self.dying is not None else story.store
        self.job = story.scenario.build(self.app, self.outside)

    def _killed(self) -> None:
        self.outside.alive = False


class Story:
    """One run of a scenario on one store."""

    def __init__(self, scenario: Scenario, store: Store, clock: ManualClock | None = None) -> None:
        self.scenario = scenario
        self.store = store
        self.clock = clock
        self.world = World()
        self.name = f"s{new_id()}"  # several may run on one store
        self.left = list(scenario.moves)
        self.commits = 0
        self.client = Process(self)  # starts and signals, and runs no worker
        self.run = ""

    async def start(self) -> None:
        job = self.client.job
        if self.scenario.deadline is not None:
            job = job.options(deadline=self.scenario.deadline)
        self.run = (await self.client.app.astart(job, *self.scenario.args)).id
        while self.left and self.left[0].at == START:
            await self.make(self.left.pop(0))

    async def make(self, move: Move) -> None:
        app = self.client.app
        acted = move.after is None or move.after in self.world.acts
        assert acted, f"every job rests before {move.after} has happened: {self.world.acts}"
        if isinstance(move, Advance):
            assert self.clock is not None
            self.clock.move(move.seconds)
            return
        if isinstance(move, Deploy):
            self.world.version += 1
            return
        if isinstance(move, Start):
            await app.astart(move.entry)
            return
        await self._operate(app, move)

    async def _operate(self, app: App, move: Move) -> None:
        """Make a move that concerns runs."""
        entry = move.to
        runs = [self.run] if entry is None else [one.run_id for one in await self.runs() if one.entry_id == entry]
        assert runs, f"{entry} has no run"
        for run in runs:
            if isinstance(move, Signal):
                await app.asignal(run, move.key, move.payload, move.id)
            elif isinstance(move, Cancel):
                await app.acancel(run, move.reason)
            elif isinstance(move, Pause):
                await app.apause(run)
            elif isinstance(move, Resume):
                await app.aresume(run)
            elif isinstance(move, Answer):
                record = await app.aanswer(run, move.answer, actor="ana")
                self.run = record.run_id if entry is None else self.run
            elif isinstance(move, Retry):
                self.world.retried += 1
                record = await app.aretry(run, actor="ana", reason="again")
                self.run = record.run_id if entry is None else self.run

    async def make_marked(self, process: Process) -> None:
        """Make the moves that wait for marks of a running process, as they are reached."""
        seen: Counter[str] = Counter()
        while self.left and (at := self.left[0].at) is not None:
            while not process.outside.marked(at, seen[at] + 1):  # noqa: ASYNC110 - marks come from threads, too
                await asyncio.sleep(0.001)
            seen[at] += 1
            await self.make(self.left.pop(0))

    async def next_move(self) -> bool:
        """Make the next move of a story in which every job rests; whether there was one."""
        if await self.ended():
            self.left = [move for move in self.left if move.to is not None]  # others may still need theirs
        if not self.left:
            return False
        await self.make(self.left.pop(0))
        return True

    async def ended(self) -> bool:
        return (await self.record()).finished_at is not None and not any(isinstance(m, Retry) for m in self.left)

    async def record(self) -> RunRecord:
        """Read the record of the run, or of the one that goes on for it."""
        return await self.client.app.aget(await self.client.app.acurrent(self.run))

    async def runs(self) -> list[RunRecord]:
        return [one for one in await self.client.app.alist(limit=1000) if one.plugin_id == self.name]

    async def rests(self) -> bool:
        """Whether no job of this story runs, can be claimed, or is due soon."""
        now = await self.store.now()
        rows = await self.store.jobs(plugin=self.name, limit=1000)
        for row in rows:
            claimable = row.state in {JobState.QUEUED, JobState.RETRYING} and row.due_at - now <= IDLE_SECONDS
            if claimable or row.state is JobState.RUNNING:
                return False
        due = await self.store.next_due(now)
        if due is not None and due - now <= IDLE_SECONDS:
            return False
        again = await self.store.jobs(plugin=self.name, limit=1000)  # a job may have moved between the two reads
        return [(row.id, row.version) for row in again] == [(row.id, row.version) for row in rows]

    async def judge(self, *, crashed: bool = False) -> None:
        """The run has ended as it must, every act happened once, and every history is legal.

        Raises:
            TooLate: the machine stood still; the run is to be made again.
        """
        if self.world.too_late:
            raise TooLate
        record = await self.record()
        if record.finished_at is None:
            last = (await self.client.app.aevents(self.run))[-1]
            said = (await self.client.app.aexplain(self.run)).explanation
            raise AssertionError(f"the run did not end: {said} Its last event: {last.type} {last.payload}")
        refused = await self._judge_end(record)
        assert not self.world.repeated, f"these acts were repeated: {self.world.repeated}"
        assert crashed or self.scenario.doubts or not self.world.doubtful, f"in doubt: {self.world.doubtful}"
        acts, wanted = list(self.world.acts), [] if refused else list(self.scenario.acts)
        if not self.scenario.in_order:
            acts, wanted = sorted(acts, key=repr), sorted(wanted, key=repr)
        assert acts == wanted, f"the acts were {acts}, not {wanted}"
        found: dict[str, list[str]] = {}
        for one in await self.runs():
            found.setdefault(one.entry_id, []).append(str(one.status))
            assert await self.client.app.averify(one.run_id) == {}
            if not crashed and one.finished_at is not None:
                open_tools = _without_end(await self.client.app.aevents(one.run_id))
                assert not open_tools, f"tools of {one.entry_id} that were started and have no end: {open_tools}"
        for entry, statuses in self.scenario.others.items():
            assert sorted(found.get(entry, [])) == sorted(statuses), f"the runs of {entry}: {found.get(entry, [])}"
        if self.scenario.check is not None:
            self.scenario.check(await self.client.app.aevents(self.run))

    async def _judge_end(self, record: RunRecord) -> bool:
        """The run has ended as it must; whether that is a refusal of what it asked for."""
        error = f"{record.error.code}: {record.error.message}" if record.error is not None else ""
        said = f"{record.status} {error}; acts: {self.world.acts}"
        match self.scenario.ends:
            case Gives(result):
                assert record.status == "succeeded", said
                gave = await self.client.app.aoutcome(self.run)
                if self.scenario.refusable and isinstance(gave, dict) and gave.get("refused"):
                    return True
                assert gave == result, f"it gave {gave!r}, not {result!r}; acts: {self.world.acts}"
            case Fails(texts):
                assert record.status == "failed", said
                for text in texts:
                    assert text in error, f"{text!r} is not in {error!r}"
            case Canceled():
                assert record.status == "canceled", said
            case TimedOut():
                assert record.status == "timeout", said
        return False


def _without_end(events: Sequence[Event]) -> set[str]:
    """Give the tools that were started and whose end was not recorded (E15)."""
    found: set[str] = set()
    for event in events:
        if event.type == HistoryEvent.TOOL_STARTED:
            found.add(event.payload["node"])
        elif event.type == HistoryEvent.TOOL_FINISHED:
            found.discard(event.payload["node"])
    return found


# The modes


async def live(story: Story) -> None:
    """One worker runs all the time."""
    await story.start()
    process = Process(story)
    worker = process.app.worker()
    working = asyncio.create_task(worker.arun())
    moving = asyncio.create_task(story.make_marked(process))
    try:
        while not working.done():
            await asyncio.sleep(0.002)
            settled = moving.done()  # before the look: a move may wake a job
            if settled:
                await moving
            if not await story.rests():
                continue
            if await story.ended():
                story.left = [move for move in story.left if move.to is not None]
                settled = True
            if not story.left and settled:
                break
            if not story.left or story.left[0].at is not None:
                continue
            move = story.left.pop(0)
            await story.make(move)
            if isinstance(move, (Deploy, Advance)):  # a running worker does not notice that its store's clock jumped
                worker.stop()
                await working
                process = Process(story)
                worker = process.app.worker()
                working = asyncio.create_task(worker.arun())
            if moving.done():
                moving = asyncio.create_task(story.make_marked(process))
        worker.stop()
        await working
    finally:
        moving.cancel()
        working.cancel()
        await asyncio.wait([moving, working])
    await story.judge()


async def replayed(story: Story) -> None:
    """Every wait is followed by another worker, with an app of its own, which replays the stream."""
    await story.start()
    await _work(story)
    await story.judge()


async def crash_at(story: Story, at: int, kind: str) -> bool:
    """Kill the worker at its n-th commit; others do the rest. False if there are fewer commits."""
    await story.start()
    crashed = await _work(story, die_at=at, kind=kind)
    await story.judge(crashed=crashed)
    return crashed


async def commits_of(story: Story) -> int:
    """How many commits the workers of an undisturbed run make."""
    await story.start()
    await _work(story, die_at=_NEVER)
    return story.commits


async def replay_checked(story: Story) -> None:
    """The whole history fits the code that made it."""
    await replayed(story)
    events = await story.client.app.aevents(story.run)
    found = await check_replay(Process(story).app, events)
    assert found.fits, found.reasons


async def _work(story: Story, *, die_at: int | None = None, kind: str = LOST) -> bool:
    """Have workers do everything, a new one after each move; the first may die at a commit. Whether it did."""
    crashed = False
    left = die_at
    while True:
        process = Process(story, die_at=left, kind=kind)
        died = await run_worker(story, process)
        if died:
            crashed, left = True, None
            continue
        if process.dying is not None:
            left = process.dying.left  # commits are counted over all processes of a run
            story.commits = _NEVER - left
        if not await story.next_move() and await story.rests():  # a move at a mark may come when the worker has left
            return crashed


async def run_worker(story: Story, process: Process) -> bool:
    """Run one worker until nothing is left to do, or it dies; whether it died."""
    worker = process.app.worker()
    working = asyncio.create_task(worker.arun(until_idle=True))
    moving = asyncio.create_task(story.make_marked(process))
    dead = process.dying.killed if process.dying is not None else asyncio.Event()
    dying = asyncio.create_task(dead.wait())
    try:
        while not working.done() and not dying.done():
            await asyncio.wait([working, dying, *([] if moving.done() else [moving])], return_when="FIRST_COMPLETED")
            if moving.done():
                moving.result()
        if not dying.done():
            await working
            return False
    finally:
        for task in (moving, dying, working):
            task.cancel()
        await asyncio.wait([moving, dying, working], timeout=2)
    if worker._worker is not None:
        await story.store.commit([ReleaseLeases(worker._worker.name)])
    return True


def play_scenario(told: Callable[[], Coroutine[Any, Any, Any]], seconds: float = SECONDS, *, quiet: bool = True) -> Any:
    """Run a story that must end, with nothing left on the loop that no code looked at.

    KeyboardInterrupt and SystemExit with a message come from a scenario, and must not reach the loop.
    """
    problems: list[str] = []

    async def limited() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(str(context)))
        async with asyncio.timeout(seconds):
            return await told()

    hook = sys.unraisablehook
    if not quiet:  # what a killed process leaves for the collector says nothing
        sys.unraisablehook = lambda _: None
    try:
        value = asyncio.run(limited())
    except (KeyboardInterrupt, SystemExit) as error:
        if not error.args:
            raise
        raise AssertionError(f"{error!r} reached the worker's loop") from error
    finally:
        if not quiet:
            gc.collect()
            sys.unraisablehook = hook
    assert not (quiet and problems), f"on the loop: {problems}"
    return value
