"""The columns: what is measured, and how.

A measurement has a database of its own. Rates are measured over about as many seconds for a slow system as for a fast
one: first short runs, which also warm up the machine, say how many jobs that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compare.session import PeerProcess, Session
from postgres_server import Measured, children, cpu_seconds, percentile

Values = dict[str, float]
JOBS_FIRST, RUNS_MAX, GROWTH_MAX = 40, 5, 10  # jobs of the first run, runs, and how much longer each may be


@dataclass(frozen=True)
class Sizes:
    """How long and how often things are measured."""

    repetitions: int = 3  # of rates; other figures are measured once, of many samples or jobs
    seconds: float = 2.0  # of one measurement of a rate
    drain_jobs_max: int = 100_000
    drain_seconds: float = 4.0
    samples: int = 150  # of a latency
    size_jobs: int = 1_000  # at most, whose bytes on disk are measured
    waiting: int = 2_000  # jobs that wait while a worker is idle
    window_seconds: float = 8.0  # over which idle processes are watched
    settle_seconds: float = 2.0  # until a worker that has started is idle
    seconds_max: float = 240.0  # then a measurement is given up


QUICK = Sizes(
    repetitions=1, seconds=2.0, drain_jobs_max=5_000, drain_seconds=2.0, samples=30, size_jobs=300, waiting=500,
    window_seconds=3.0, seconds_max=60.0,
)  # fmt: skip

Open = Callable[[], Session]


def ten_steps(session: Session, job: str, count: int, concurrency: int, processes: int = 1) -> float:
    """Return the seconds in which worker processes run jobs of ten steps, so many at once in each process."""
    caller = session.caller()
    how = session.about["steps_by"]
    if how == "queue":
        return from_queue(session, caller, job, count, concurrency, processes)
    workers = session.workers(processes)
    if how == "worker":
        for worker in workers:
            worker.ask("ready_for_steps")
        began = time.perf_counter()
        for number, worker in enumerate(workers):
            share = count // processes + (number < count % processes)
            worker.send("run_jobs", job=job, count=share, concurrency=concurrency)
        for worker in workers:
            worker.answer()
        return time.perf_counter() - began
    begin_work(caller, workers, concurrency)
    began = time.perf_counter()
    caller.ask("run_jobs", job=job, count=count, concurrency=concurrency * processes)
    return time.perf_counter() - began


def drain(session: Session, count: int, processes: int = 1) -> float:
    """Return the seconds in which worker processes run queued jobs that do nothing."""
    caller = session.caller()
    slots = session.about["drain_slots"]
    if session.about["queued"]:
        return from_queue(session, caller, "noop", count, slots, processes)
    begin_work(caller, session.workers(processes), slots)
    began = time.perf_counter()
    caller.ask("start_many", job="noop", count=count)
    session.until_ended(count, caller)
    return time.perf_counter() - began


def from_queue(session: Session, caller: PeerProcess, job: str, count: int, concurrency: int, processes: int) -> float:
    """Queue jobs, then let workers run them; return the seconds that all would take without the start of the workers.

    The clock begins when the first jobs have ended. A worker that starts counts only if it ends most jobs at once.
    """
    caller.ask("start_many", job=job, count=count)
    workers = session.workers(processes)
    began = time.perf_counter()
    for worker in workers:
        worker.send("work", concurrency=concurrency)
    for worker in workers:
        worker.answer()
    first = session.until_some_ended()
    if first < count / 2:
        began = time.perf_counter()
    else:
        first = 0
    session.until_ended(count, caller)
    return (time.perf_counter() - began) * count / (count - first)


def begin_work(caller: PeerProcess, workers: list[PeerProcess], concurrency: int) -> None:
    """Let workers run, and let the caller know."""
    for worker in workers:
        worker.ask("work", concurrency=concurrency)
    caller.ask("workers_started")


def starts(session: Session, how: Literal["start_singly", "start_in_bulk"], count: int) -> float:
    """Return the seconds in which one caller starts jobs; no worker runs, unless a peer needs one for a start."""
    caller = session.caller()
    if not session.about["queued"]:
        begin_work(caller, session.workers(1), session.about["drain_slots"])
    return float(caller.ask(how, job="noop", count=count))


def latency(session: Session, what: Literal["start", "result", "signal"], sizes: Sizes) -> Values:
    """Return percentiles in ms: from a call in one process to the code in another, or to the result."""
    caller = session.caller()
    begin_work(caller, session.workers(1), sizes.samples if session.about["waits_hold_slots"] else 10)
    time.sleep(sizes.settle_seconds)
    seconds: list[float] = caller.ask(f"{what}_latencies", samples=sizes.samples)
    return {"p50": percentile(seconds, 0.5) * 1e3, "p99": percentile(seconds, 0.99) * 1e3}


def bytes_per_job(session: Session, job: str, count: int) -> Values:
    """Return what a job of ten steps that has ended takes on disk, when other jobs have ended before."""
    caller = session.caller()
    (worker,) = session.workers(1)
    how, ended = session.about["steps_by"], 0
    if how == "worker":
        worker.ask("ready_for_steps")
    else:
        begin_work(caller, [worker], 16)

    def run(jobs: int) -> int:
        nonlocal ended
        ended += jobs
        if how == "queue":
            caller.ask("start_many", job=job, count=jobs)
            session.until_ended(ended, caller)
        else:
            (worker if how == "worker" else caller).ask("run_jobs", job=job, count=jobs, concurrency=16)
        return size()

    def size() -> int:
        if session.system.database != "own":
            return session.bytes_on_disk()
        caller.ask("close")  # its files say something only while it does not run
        found = session.bytes_on_disk()
        caller.ask("set_up")
        return found

    before = run(max(1, count // 4))
    return {"bytes": (run(count) - before) / count}


def idle(session: Session, sizes: Sizes, server: Measured | None) -> Values:
    """Return what a worker process and the server take while jobs wait and none runs."""
    waiting = sizes.waiting
    caller = session.caller()
    (worker,) = session.workers(1)
    begin_work(caller, [worker], waiting + 10 if session.about["waits_hold_slots"] else 100)
    if caller.ask("park", count=waiting):
        while session.tally.waiting < waiting:
            session.check()
            time.sleep(0.05)
    own = caller.ask("server_processes")
    time.sleep(sizes.settle_seconds)

    def used() -> tuple[float, float]:
        return cpu_seconds(worker.pid, *children(worker.pid)), cpu_seconds(*own)

    def used_by_server() -> float:
        return server.cpu_seconds() if server is not None and session.system.database == "postgres" else 0.0

    (work, served), database = used(), used_by_server()
    began = time.monotonic()
    time.sleep(sizes.window_seconds)
    taken = time.monotonic() - began
    (work_after, served_after), database_after = used(), used_by_server()
    memory = sum(resident_bytes(pid) for pid in (worker.pid, *children(worker.pid), *own))
    return {
        "worker": (work_after - work) / taken * 100,
        "server": (served_after - served + database_after - database) / taken * 100,
        "memory": memory / 1e6,
    }


def resident_bytes(pid: int) -> int:
    """Return the memory of a process; 0 where there is no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def measured_rate(
    run: Callable[[int], float], expected: float | None, seconds: float, least: int = 1, most: int = 1_000_000
) -> float:
    """Return how many a second `run` does, which takes a number and returns seconds.

    It is asked for more until it takes at least half of so many seconds, because a short run tells more of how a worker
    starts than of how fast it is.
    """
    count = max(least, min(most, int(expected * seconds) if expected else JOBS_FIRST))
    taken = run(count)
    for _ in range(RUNS_MAX - 1):
        if taken >= seconds / 2 or count >= most:
            break
        count = max(least, min(most, int(count * min(GROWTH_MAX, seconds / taken))))
        taken = run(count)
    return count / taken


def steps_rate(
    open_session: Open, job: str, concurrency: int, processes: int, expected: float | None, sizes: Sizes
) -> float:
    """Return jobs of ten steps a second."""

    def run(count: int) -> float:
        with open_session() as session:
            return ten_steps(session, job, count, concurrency, processes)

    return measured_rate(run, expected, sizes.seconds, least=2 * concurrency * processes)


def drain_rate(open_session: Open, processes: int, expected: float | None, sizes: Sizes) -> float:
    """Return no-op jobs a second."""

    def run(count: int) -> float:
        with open_session() as session:
            return drain(session, count, processes)

    return measured_rate(run, expected, sizes.drain_seconds, least=200, most=sizes.drain_jobs_max)


def start_rate(
    open_session: Open, how: Literal["start_singly", "start_in_bulk"], expected: float | None, sizes: Sizes
) -> float:
    """Return starts a second."""

    def run(count: int) -> float:
        with open_session() as session:
            return starts(session, how, count)

    return measured_rate(run, expected, sizes.seconds, least=50, most=100_000)
