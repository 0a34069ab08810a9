"""One simulation: processes, clients, faults, the world outside, and what went wrong.

First faults and acts of clients happen as the scenario says. Then everything is healed: paused processes go on, crashed
ones are started again, the network works. An operator sends what jobs wait for, resumes what is paused and answers what
is asked. From then on every job must end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast import external_key, ids
from holdfast.authoring.conductor import external
from holdfast.errors import HoldfastError
from holdfast.machines import TERMINAL_JOB_STATES
from holdfast.supervisor import released
from support.simulation.clients import Clients
from support.simulation.network import Network
from support.simulation.processes import START, Process, Work
from support.simulation.programs import CLEAN_UP_SECONDS, STEP_TIMEOUT, Act, here
from support.simulation.scenario import CHAOS_SECONDS, FaultSpec, ProcessSpec, Scenario
from support.simulation.scheduler import Scheduler, Spins
from support.simulation.verdict import judge, verify
from support.simulation.watch import Watch
from support.simulation.watched_store import WatchedStore

END_SECONDS = 900.0  # of virtual time, after which a simulation that has not ended is wrong
SUPERVISOR_SECONDS = 0.05  # after which a supervisor notices that a process is gone
UNTOLD = {"entries", "pins", "card"}  # fields of commands that are the same in all of them, or name this machine
BEATS = 4  # heartbeats in a row that one fault hits, so that a lease may end
CLIENT = -1
SUPERVISOR = -2


class Violation(msgspec.Struct, frozen=True):
    """A rule of the specification that did not hold, and how."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class Outcome(msgspec.Struct):
    """What a simulation has done, and what went wrong."""

    violations: list[Violation]
    counts: Counter[str]
    trace: list[str]
    digest: str
    seconds: float  # of virtual time


class _SeededStamps(ids.Stamps):
    """Ids that are the same in every run of a scenario."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def next(self) -> int:
        self.last = max(self.last + 1, (round((START + self._scheduler.now) * 1e9) << 12) // 1_000_000)
        return self.last

    def random_bits(self) -> int:
        return self._scheduler.random.getrandbits(64)


class _StoreClock:
    """The store's clock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now(self) -> float:
        return START + self._scheduler.now


class Simulation:
    """Plays one scenario. Use `simulate`.

    Args:
        scenario: the scenario.
        tracing: whether to write down every commit.
    """

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler(scenario.seed, scenario.burst)
        self.network = Network(self, scenario.latency, scenario.notice_loss, scenario.notice_delay)
        self.watch = Watch(self.violated, self.still_works)
        self.store = WatchedStore(_StoreClock(self.scheduler), self._committed, self.network.notify)
        self.watch.store = self.store
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.acts: list[Act] = []
        self.overran: Counter[str] = Counter()  # tries of steps that took longer than they may, by external key
        self.workers: dict[str, Process] = {}  # by the names of their workers, also those that are gone
        self.processes: dict[int, Process] = {}  # that live, by place
        delays = [fault.seconds for fault in scenario.faults if fault.kind in {"slow", "pause"}]
        skewed = any(spec.skew for spec in scenario.processes)
        # By how much the clock of a host may be wrong: an answer of the store tells its time as exactly as it is quick.
        self.clock_slack = 0.01 + (2 * scenario.latency + sum(delays) if skewed else 0.0)
        self.healing = False
        self.healed_at = 0.0
        self._tracing = tracing
        self._seen: Counter[str] = Counter()
        self._fates = {
            (fault.process, fault.beats, fault.call + more): fault
            for fault in scenario.faults
            if fault.call is not None
            for more in range(BEATS if fault.beats else 1)
        }
        self._calls: Counter[tuple[int, bool]] = Counter()
        self._silent_until: dict[tuple[int, bool], float] = {}  # whose calls, or whose heartbeats, do not get through
        self._graveyard: list[Process] = []
        self._specs: dict[int, ProcessSpec] = dict(enumerate(scenario.processes))

    def play(self) -> Outcome:
        """Play the scenario, and judge it."""
        here.world = self
        self.clients = Clients(self, Process(self, CLIENT, None))
        for index in self._specs:
            self._start(index)
        for fault in self.scenario.faults:
            if fault.call is None and fault.process in self._specs:
                self.scheduler.after(fault.at, partial(self._go_wrong, fault))
        self.scheduler.after(CHAOS_SECONDS, self._heal)
        try:
            self.scheduler.run(END_SECONDS)
            if not self.scheduler.over:
                self.violated("liveness", f"the simulation has not ended after {END_SECONDS:g} s")
        except Spins as error:
            self.violated("liveness", str(error))
        self.scheduler.over = True
        if not self.violations:
            judge(self)
        for process in [*self.processes.values(), self.clients.process]:
            process.loop.alive = False
        self.counts["jobs"] = len(self.store.rows())
        self.counts["events"] = sum(row.version for row in self.store.rows().values())
        self.counts["commits"] = self.watch.commits
        self.counts["acts of tools"] = len(self.acts)
        self.counts["callbacks"] = self.scheduler.steps
        return Outcome(self.violations, self.counts, self.trace, self._digest(), self.scheduler.now)

    def _digest(self) -> str:
        heads = [(row.id, row.head, row.version) for row in self.store.rows().values()]
        seen = (heads, self.acts, self.scheduler.steps, self.scheduler.now, [str(each) for each in self.violations])
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]

    # What goes wrong

    def _start(self, index: int) -> None:
        self.processes[index] = Process(self, index, self._specs[index])

    def next_fate(self, index: int, *, beats: bool) -> tuple[str | None, float]:
        """Return what happens to the next call, or the next heartbeat, of a process."""
        if self.scheduler.now < self._silent_until.get((index, beats), 0.0) and not self.healing:
            return "refused", 0.0
        self._calls[index, beats] += 1
        fault = self._fates.get((index, beats, self._calls[index, beats])) if not self.healing else None
        return (None, 0.0) if fault is None else (fault.kind, fault.seconds)

    def _go_wrong(self, fault: FaultSpec) -> None:
        if self.healing:
            return
        self.count(f"faults: {fault.kind}")
        process = self.processes.get(fault.process)
        if fault.kind in {"mute", "partition"}:
            self._silent_until[fault.process, False] = self.scheduler.now + fault.seconds
            if fault.kind == "partition":
                self._silent_until[fault.process, True] = self.scheduler.now + fault.seconds
        elif fault.kind == "outage":
            self.network.outage_until = max(self.network.outage_until, self.scheduler.now + fault.seconds)
        elif process is None:
            return
        elif fault.kind == "crash":
            self.crash(process, fault.seconds)
        elif fault.kind == "pause":
            process.loop.paused = True
            self.scheduler.after(fault.seconds, process.resume)
        elif fault.kind == "deploy":
            spec = self._specs[fault.process]
            self._specs[fault.process] = msgspec.structs.replace(spec, build=fault.build or spec.build)
            process.stop()

    def crash(self, process: Process, restart_seconds: float = 1.0) -> None:
        """End a process at once. Another one takes its place later."""
        if not process.loop.alive or process.index == CLIENT:
            return
        process.loop.kill()
        self._graveyard.append(process)  # its coroutines must not be closed while the others run
        del self.processes[process.index]
        if self.scenario.supervised and process.worker is not None:
            self.scheduler.after(SUPERVISOR_SECONDS, partial(self._release, process.worker.name))
        self.scheduler.after(restart_seconds, partial(self._restart, process.index))

    def _release(self, worker: str) -> None:
        """Do what a supervisor does when a worker is gone."""
        if self.scheduler.now < self.network.outage_until:
            self.scheduler.after(SUPERVISOR_SECONDS, partial(self._release, worker))
        else:
            self.guarded(partial(self.store.commit_of, SUPERVISOR, released([worker])))

    def ended(self, process: Process) -> None:
        """Start the next process in the place of one that has stopped in order."""
        if process.loop.alive:
            process.loop.kill()
            self._graveyard.append(process)
            del self.processes[process.index]
            self.scheduler.after(0.1, partial(self._restart, process.index))

    def _restart(self, index: int) -> None:
        if index not in self.processes and not self.scheduler.over:
            self._start(index)

    def _heal(self) -> None:
        """End all faults. There is a worker of each build that some job may need."""
        self.healing, self.healed_at = True, self.scheduler.now
        verify(self, {name: row for name, row in self.store.rows().items() if row.state not in TERMINAL_JOB_STATES})
        self.network.heal()
        for process in self.processes.values():
            process.resume()
        builds = {spec.build for spec in [*self.scenario.processes, *self._specs.values()]}
        builds |= {fault.build for fault in self.scenario.faults if fault.build is not None}
        for build in sorted(builds - {spec.build for spec in self._specs.values()}) or ([] if self._specs else ["1"]):
            self._specs[len(self._specs)] = ProcessSpec(build=build)
        for index in self._specs:
            self._restart(index)
        self.clients.heal()

    # What the parts report

    def count(self, what: str) -> None:
        """Count something that has happened."""
        self.counts[what] += 1

    def violated(self, rule: str, text: str) -> None:
        """Note that a rule did not hold. The simulation ends."""
        self.violations.append(Violation(rule, f"{text} (at {self.scheduler.now:.3f} s)"))
        self.scheduler.over = True

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Carry out an action of the store. An error that it should not raise is a violation."""
        try:
            return action()
        except HoldfastError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
            self.violated("store", f"the store raised {error!r}")
            return error

    def _committed(self, sender: int, batch: Sequence[Any], answers: Sequence[Any], now: float) -> None:
        if self._tracing:
            for command, answer in zip(batch, answers, strict=True):
                self.trace.append(f"{now - START:.6f} {_name(sender)}: {_told(command)} -> {_answered(answer)}")
        self.watch.committed(sender, batch, answers, now)

    # The world outside, as tools see it

    def running_process(self) -> Process:
        """Return the process that runs at this moment."""
        loop = self.scheduler.running
        return next(process for process in self.processes.values() if process.loop is loop)

    def act(self, tool: str, number: int, key: str) -> str:
        """Act on the world."""
        job, attempt = _caller()
        self.runs(job, attempt, tool)
        self.acts.append(Act(self.scheduler.now, tool, key, number, self.running_process().index))
        return f"acted {number}"

    def runs(self, job: str, attempt: int, what: str) -> None:
        """Note that code of an attempt runs. It must not once its lease is over (L4, L11).

        A process that goes on after a pause cannot know at first. It knows before time moves on.
        """
        process, now = self.running_process(), self.scheduler.now
        if process.resumed_at != now and not self.watch.holds(job, attempt, START + now):
            self.violated("L4", f"{what} of attempt {attempt} of {job} runs; the lease is {self.watch.leases.get(job)}")

    async def at_work(self, seconds: float) -> None:
        """Let a function take some time. When it is cancelled, it cleans up for a moment."""
        process, begun = self.running_process(), self.scheduler.now
        work = Work(*_caller(), self.scheduler.number())
        process.at_work[work] = None
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            now = process.at_work[work] = self.scheduler.now
            if now - begun >= STEP_TIMEOUT and (seconds >= STEP_TIMEOUT or process.has_paused_since(begun)):
                self.overran[external_key()] += 1
            await asyncio.sleep(CLEAN_UP_SECONDS)
            raise
        finally:
            del process.at_work[work]

    def still_works(self, job: str, attempt: int) -> bool:
        """Return whether a function of an attempt runs that no longer should: its process has had time to end it."""
        return any(
            work[:2] == (job, attempt) and (since is None or not process.has_paused_since(since))
            for process in self.processes.values()
            for work, since in process.at_work.items()
        )

    def has_acted(self, key: str) -> bool:
        """Return whether a call has acted."""
        return any(act.key == key for act in self.acts)

    def seen(self, what: str) -> int:
        """Count how often something was seen, with this time."""
        self._seen[what] += 1
        return self._seen[what]


def _caller() -> tuple[str, int]:
    """Return the job and the attempt of the call that runs."""
    call = external.get()
    assert call is not None, "only the functions of calls act and work"
    return call[0].split(":")[1], call[1]


def _name(sender: int) -> str:
    return {CLIENT: "client", SUPERVISOR: "supervisor"}.get(sender, f"process {sender}")


def _told(command: Any) -> str:
    """Return a command as one line, the same in every run."""
    fields = {name: getattr(command, name) for name in command.__struct_fields__ if name not in UNTOLD}
    events = [f"{kind} {getattr(payload, 'text', payload)!r}" for kind, payload in fields.pop("events", ())]
    told = [f"{name}={value!r}" for name, value in fields.items() if value not in (None, (), "")]
    return f"{type(command).__name__}({', '.join([*told, *events])})"


def _answered(answer: Any) -> str:
    """Return an answer as one line, the same in every run."""
    if isinstance(answer, Exception):
        return f"{type(answer).__name__}: {answer}"
    claimed = getattr(answer, "claimed", None)
    if claimed is not None:
        return f"{[(each.job.id, each.job.attempt) for each in claimed]} {answer.held}"
    if hasattr(answer, "lost"):
        return f"lost {sorted(answer.lost)}, cancel {sorted(answer.cancel)}, pause {sorted(answer.pause)}"
    if hasattr(answer, "course"):
        return f"{answer.state.value}, version {answer.version}"
    return repr(answer)


class _ErrorLog(logging.Handler):
    """Takes errors in the log for violations: the engine logs what it cannot handle."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "event"):
            return  # how a job ended
        trace = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self.lines.append(f"{record.getMessage()}{trace}")


@contextlib.contextmanager
def _seeded(simulation: Simulation) -> Iterator[_ErrorLog]:
    """Let ids, random numbers and the log belong to a simulation."""
    log, logger = _ErrorLog(), logging.getLogger("holdfast")
    stamps, state, level, passes = ids._stamps, random.getstate(), logger.level, logger.propagate
    random.seed(simulation.scenario.seed)
    ids._stamps = _SeededStamps(simulation.scheduler)
    logger.addHandler(log)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield log
    finally:
        logger.propagate = passes
        logger.setLevel(level)
        logger.removeHandler(log)
        ids._stamps = stamps
        random.setstate(state)


def simulate(scenario: Scenario, *, tracing: bool = False) -> Outcome:
    """Play a scenario, and return what went wrong."""
    simulation = Simulation(scenario, tracing=tracing)
    with _seeded(simulation) as log:
        outcome = simulation.play()
    outcome.violations += [Violation("log", line) for line in log.lines]
    return outcome
