"""Many seeds in a row: the tally, and how to repeat what failed."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import msgspec

from support.simulation.scenario import Scenario, drawn
from support.simulation.scheduler import Spins
from support.simulation.world import Outcome, simulate

STUCK_SECONDS = 5.0  # of CPU time, after which a callback is taken to never end
COLLECTED_EVERY = 20  # simulations between two collections of garbage
SIMULATOR = "simulator"  # the rule that a seed breaks whose simulation itself fails
CHUNK = 50  # seeds that one process plays before it reports


class Failure(msgspec.Struct, frozen=True):
    """A seed that broke a rule."""

    seed: int
    rules: list[str]
    text: str


class Tally(msgspec.Struct):
    """What a number of seeds has done."""

    seeds: int = 0
    cpu_seconds: float = 0.0
    virtual_seconds: float = 0.0
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    failures: list[Failure] = []

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.seeds += other.seeds
        self.cpu_seconds += other.cpu_seconds
        self.virtual_seconds += other.virtual_seconds
        self.counts += other.counts
        self.failures += other.failures

    def __str__(self) -> str:
        jobs, cpu = self.counts["jobs"], self.cpu_seconds or 1e-9
        days = self.virtual_seconds / 86_400
        return (
            f"{self.seeds:,} seeds, {len(self.failures)} failed; {jobs:,} jobs and {self.counts['events']:,} events in"
            f" {days:,.1f} virtual days; {self.seeds / cpu:,.0f} seeds and {jobs / cpu:,.0f} jobs per second of CPU"
        )


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let simulations run without collections of garbage, and end a callback that never returns.

    The coroutines of crashed processes are closed when they are collected. What they say then is not of interest.
    """
    hook, enabled, in_main = sys.unraisablehook, gc.isenabled(), threading.current_thread() is threading.main_thread()
    gc.disable()
    handler = signal.signal(signal.SIGPROF, _stuck) if in_main else None
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook
        if in_main:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, handler)
        if enabled:
            gc.enable()


def _stuck(*_: Any) -> None:
    raise Spins(f"a callback has not returned after {STUCK_SECONDS:g} s of CPU time")


def checked(scenario: Scenario, *, tracing: bool = False) -> Outcome:
    """Play one scenario. Call it in `undisturbed`."""
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_PROF, STUCK_SECONDS, STUCK_SECONDS)
    return simulate(scenario, tracing=tracing)


def campaign(seeds: Iterable[int], *, stop_at_first: bool = False) -> Tally:
    """Play the scenarios of these seeds, and return the tally."""
    tally, begun = Tally(), time.process_time()
    with undisturbed():
        for number, seed in enumerate(seeds, start=1):
            _play(seed, tally)
            if tally.failures and stop_at_first:
                break
            if number % COLLECTED_EVERY == 0:
                gc.collect()
    tally.cpu_seconds = time.process_time() - begun
    return tally


def _play(seed: int, tally: Tally) -> None:
    """Play a seed. An error of the simulator itself is a failure of the seed: the seeds after it are played too."""
    tally.seeds += 1
    try:
        outcome = checked(drawn(seed))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with the seed
        at = traceback.extract_tb(error.__traceback__)[-1]
        tally.failures.append(Failure(seed, [SIMULATOR], f"{SIMULATOR}: {error!r} at {at.filename}:{at.lineno}"))
        return
    tally.virtual_seconds += outcome.seconds
    tally.counts += outcome.counts
    if outcome.violations:
        rules = [violation.rule for violation in outcome.violations]
        tally.failures.append(Failure(seed, rules, str(outcome.violations[0])))


def shared(seeds: range, cores: int, play: Callable[[range], Tally] = campaign) -> Iterator[Tally]:
    """Play seeds in processes, and return the tally of each `CHUNK` of them, in order.

    A process that dies fails the seed that it played. The others go on.
    """
    left = deque(range(at, min(at + CHUNK, seeds.stop)) for at in range(seeds.start, seeds.stop, CHUNK))
    while left:
        with ProcessPoolExecutor(cores) as pool, contextlib.suppress(BrokenProcessPool):
            for part in pool.map(play, list(left)):
                left.popleft()
                yield part
        if left:
            yield _one_by_one(left.popleft(), play)


def _one_by_one(seeds: range, play: Callable[[range], Tally]) -> Tally:
    tally = Tally(failures=[])
    for seed in seeds:
        with ProcessPoolExecutor(1) as pool:
            try:
                tally.add(pool.submit(play, range(seed, seed + 1)).result())
            except BrokenProcessPool:
                tally.add(Tally(seeds=1, failures=[Failure(seed, [SIMULATOR], f"{SIMULATOR}: its process died")]))
    return tally
