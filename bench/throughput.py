"""How much a store does with Holdfast, beside what it does without: ratios within one run, and what is due.

- Jobs of ten steps, 128 at once, beside a bare program that writes the same events (see `bare_programs.py`).
- Jobs of ten tools, one at a time, beside single commits. A tool is durable before it acts and after it has acted.
- A tool beside a step, a plain (sync) step beside an async one, two worker processes beside one.
- `start()` from plain code, one caller, beside single commits.

Two worker processes cannot be quicker than the cores allow. So the cores that one process keeps busy are printed, with
those of the database server.

Each comparison alternates between its sides and takes the median of the rounds.

    python bench/throughput.py             on SQLite
    python bench/throughput.py --postgres  on PostgreSQL
    python bench/throughput.py --only processes start
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

from bare_programs import STEPS, Bare, BarePostgres, BareSqlite
from holdfast import App, Config
from holdfast.gc_settings import tune_gc
from postgres_server import measured

ROUNDS = 5
MANY = 128
JOBS = 1280
# What is due. A cost is at most, all else at least.
DUE = {
    "sqlite": {"steps": 0.5, "tools, 1 at a time": 0.5, "a tool costs": 1.25, "sync steps": 0.8, "start()": 0.7,
               "start_many": 0.4, "two processes": 1.8},
    "postgres": {"steps": 0.5, "tools, 1 at a time": 0.4, "a tool costs": 1.3, "sync steps": 0.8, "start()": 0.6,
                 "start_many": 0.4, "two processes": 1.8},
}  # fmt: skip


class Stores:
    """New stores of one kind, and bare programs on them."""

    def __init__(self, kind: str, place: str, server_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.kind = kind
        self.server_seconds = server_seconds  # returns the CPU seconds that the database server has used
        self.cores_of_one: list[float] = []  # that one worker process and the server kept busy, once for each round
        self._place = place  # a folder, or the address of a server
        self._made = 0

    def _name(self) -> str:
        self._made += 1
        return f"bench_{self._made}"

    def url(self) -> str:
        """Return the URL of a new store."""
        if self.kind == "sqlite":
            return f"sqlite:///{self._place}/{self._name()}.db"
        return f"{self._place}?schema={self._name()}"

    def bare(self) -> Bare:
        """Return a bare program on a new store."""
        if self.kind == "sqlite":
            return BareSqlite(Path(self._place) / f"{self._name()}.db")
        return BarePostgres(self._place, self._name())


@contextlib.contextmanager
def stores(kind: str) -> Iterator[Stores]:
    """Make stores of a kind, and remove them at the end."""
    if kind == "postgres":
        with measured() as server:
            yield Stores(kind, server.url, server.cpu_seconds)
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Stores(kind, folder)


def bench_app(url: str) -> App:
    """Declare the jobs that are measured."""
    app = App("b", config=Config(url=url))

    @app.step
    async def s(n: int) -> int:
        return n

    @app.step
    def p(n: int) -> int:
        return n

    @app.tool
    async def t(n: int) -> int:
        return n

    @app.job
    async def steps() -> int:
        return sum([await s(number) for number in range(STEPS)])

    @app.job
    def plain_steps() -> int:
        return sum([p(number) for number in range(STEPS)])

    @app.job
    async def tools() -> int:
        return sum([await t(number) for number in range(STEPS)])

    @app.job
    async def noop() -> None:
        pass

    return app


def rate_of(made: Stores, job: str, jobs: int, concurrency: int) -> float:
    """Run jobs; steps a second."""

    async def run() -> float:
        app = bench_app(made.url())
        await app.astart_many(job, [{} for _ in range(jobs)])
        began = time.perf_counter()
        await app.worker(concurrency=concurrency).arun(until_idle=True)
        taken = time.perf_counter() - began
        await app.aclose()
        return jobs * STEPS / taken

    return asyncio.run(run())


def bare_rate(made: Stores, jobs: int, concurrency: int) -> float:
    """Run the bare program; steps a second."""
    with contextlib.closing(made.bare()) as program:
        began = time.perf_counter()
        program.run(jobs, concurrency)
        return jobs * STEPS / (time.perf_counter() - began)


def commit_rate(made: Stores) -> float:
    """Commits a second, one after the other."""
    with contextlib.closing(made.bare()) as program:
        program.commits_a_second(50)
        return program.commits_a_second()


def start_rate(made: Stores, count: int = 300) -> float:
    """Starts a second, from plain code, one after the other."""
    app = bench_app(made.url())
    for _ in range(50):
        app.start("noop")
    began = time.perf_counter()
    for _ in range(count):
        app.start("noop")
    taken = time.perf_counter() - began
    app.close()
    return count / taken


def start_many_rate(made: Stores, jobs: int = 20_000) -> float:
    """Jobs a second of `start_many`."""
    app = bench_app(made.url())
    app.start("noop")
    began = time.perf_counter()
    app.start_many("noop", [{} for _ in range(jobs)])
    taken = time.perf_counter() - began
    app.close()
    return jobs / taken


def insert_rate(made: Stores, jobs: int = 20_000) -> float:
    """Jobs a second of a bare program that inserts rows that are ready."""
    with contextlib.closing(made.bare()) as program:
        began = time.perf_counter()
        program.insert_many(jobs)
        return jobs / (time.perf_counter() - began)


def work(url: str, ready: Barrier, done: Barrier, told: Queue[float]) -> None:
    """Be a worker in a process of its own, from one barrier until no job is left; tell the CPU seconds it took."""
    tune_gc()

    async def run() -> None:
        warm = bench_app("memory:")  # so that every module is loaded: to compile them takes longer than many jobs
        await warm.astart("steps")
        await warm.worker().arun(until_idle=True)
        await warm.aclose()
        app = bench_app(url)
        await app.store().now()
        await asyncio.to_thread(ready.wait)
        used = time.process_time()
        await app.worker(concurrency=MANY).arun(until_idle=True)
        told.put(time.process_time() - used)
        await asyncio.to_thread(done.wait)
        await app.aclose()

    asyncio.run(run())


def processes_rate(made: Stores, count: int, jobs: int = 4 * JOBS) -> float:
    """Let so many worker processes run jobs; steps a second."""
    spawn = multiprocessing.get_context("spawn")
    told: Queue[float] = spawn.Queue()
    url = made.url()
    app = bench_app(url)
    app.start_many("steps", [{} for _ in range(jobs)])
    app.close()
    ready, done = spawn.Barrier(count + 1), spawn.Barrier(count + 1)
    workers = [spawn.Process(target=work, args=(url, ready, done, told)) for _ in range(count)]
    for worker in workers:
        worker.start()
    ready.wait()
    served, began = made.server_seconds(), time.perf_counter()
    done.wait()
    taken = time.perf_counter() - began
    busy = (sum(told.get() for _ in workers) + made.server_seconds() - served) / taken
    if count == 1:
        made.cores_of_one.append(busy)
    for worker in workers:
        worker.join()
    return jobs * STEPS / taken


def note_of_cores(made: Stores) -> str:
    """Say how many cores one process keeps busy, with its server, and what two can reach at most."""
    busy, cores = statistics.median(made.cores_of_one), os.cpu_count() or 1
    return f"one process keeps {busy:.2f} of {cores} cores busy, so two can reach {min(2.0, cores / busy):.2f}"


Sides = dict[str, Callable[[], float]]


def comparisons(made: Stores) -> dict[str, tuple[str, Sides]]:
    """Return what is compared: under the name that selects it, what the first side over the second is called."""
    return {
        "steps": ("steps", {
            "engine": lambda: rate_of(made, "steps", JOBS, MANY),
            "bare": lambda: bare_rate(made, JOBS, MANY),
        }),
        "tool": ("a tool costs", {
            "steps": lambda: rate_of(made, "steps", JOBS, MANY),
            "tools": lambda: rate_of(made, "tools", JOBS, MANY),
        }),
        "tools": ("tools, 1 at a time", {
            "tools": lambda: rate_of(made, "tools", 40, 1),
            "commits": lambda: commit_rate(made),
        }),
        "sync": ("sync steps", {
            "sync": lambda: rate_of(made, "plain_steps", JOBS, 64),
            "async": lambda: rate_of(made, "steps", JOBS, 64),
        }),
        "start": ("start()", {
            "start": lambda: start_rate(made),
            "commits": lambda: commit_rate(made),
        }),
        "start_many": ("start_many", {
            "start_many": lambda: start_many_rate(made),
            "inserts": lambda: insert_rate(made),
        }),
        "processes": ("two processes", {
            "two": lambda: processes_rate(made, 2),
            "one": lambda: processes_rate(made, 1),
        }),
    }  # fmt: skip


def compare(kind: str, what: str, sides: Sides, rounds: int) -> list[str]:
    """Measure two sides, print them, and return the floor if it is missed."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    (first, ours), (second, other) = [(name, statistics.median(rates)) for name, rates in found.items()]
    ratio, due, is_cost = ours / other, DUE[kind][what], what == "a tool costs"
    print(f"{kind:9} {what:20} {ratio:5.2f}   {first} {ours:8,.0f}/s   {second} {other:8,.0f}/s", flush=True)
    if ratio > due if is_cost else ratio < due:
        return [f"{kind}: {what}: {ratio:.2f}, {'at most' if is_cost else 'at least'} {due} is due"]
    return []


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="How much a store does with Holdfast, and without.")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="*", help="names of comparisons")
    chosen = parser.parse_args()
    tune_gc()
    kind = "postgres" if chosen.postgres else "sqlite"
    with stores(kind) as made:
        every = comparisons(made)
        selected = chosen.only or list(every)
        if unknown := set(selected) - set(every):
            parser.error(f"no comparison {', '.join(sorted(unknown))}; there are {', '.join(every)}")
        missed = [line for name in selected for line in compare(kind, *every[name], chosen.rounds)]
        if made.cores_of_one:
            print(note_of_cores(made))
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
