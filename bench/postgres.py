"""How fast jobs run on PostgreSQL, beside the database's own single-row commits, in the same run.

The server is started here, with `fsync` and `synchronous_commit` on. Sides alternate; the figures are medians of the
rounds, and only their ratios are judged. What must not grow is in `postgres_growth.py`; peers are
in `compare`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg

from holdfast import App, Config, RunHandle, wait_for
from holdfast.machines import JobState
from holdfast.store import Submit
from holdfast.store.decide import submit
from holdfast.store.postgres.schema import migrate
from holdfast.store.sql.columns import JOB_WRITTEN, job_row
from holdfast.store.sql.event_rows import event_row
from postgres_server import Commits, Measured, measured, percentile

STEPS = 10
ROUNDS = 5
FLOORS = {1: 0.2, 128: 3.0}  # steps, of single-row commits on one connection
TOGETHER_MIN = 1.5  # two processes, of one
BUSY_SHARE = 0.75  # of all cores: then they are the limit of two processes
SAMPLES = 150  # jobs and signals, one after the other
LATENCY_COMMITS_MAX = 25.0  # commits from a call to the code, p50

Round = dict[str, float]


class Schemas:
    """URLs with a schema of their own."""

    def __init__(self, server: Measured) -> None:
        self.server = server
        self._made = 0

    def name(self) -> str:
        """A name that nobody has."""
        self._made += 1
        return f"bench_{self._made}"

    def url(self) -> str:
        """A URL for an app of its own."""
        return f"{self.server.url}?schema={self.name()}"


def bench_app(url: str) -> App:
    """Declare the jobs that are measured."""
    app = App("b", config=Config(url=url))

    @app.step
    async def s(n: int) -> int:
        return n

    @app.tool
    async def t(n: int) -> int:
        return n

    @app.job
    async def steps() -> int:
        return sum([await s(number) for number in range(STEPS)])

    @app.job
    async def tools() -> int:
        return sum([await t(number) for number in range(STEPS)])

    @app.job
    async def noop() -> None:
        pass

    @app.job
    async def clock() -> float:
        return time.time()

    @app.job
    async def waiter(n: int) -> float:
        del n  # only tells the jobs apart
        await wait_for("go")
        return time.time()

    return app


def run_jobs(url: str, job: str, jobs: int, concurrency: int) -> tuple[float, float]:
    """Start jobs and run them; seconds of either."""

    async def run() -> tuple[float, float]:
        app = bench_app(url)
        began = time.perf_counter()
        await app.astart_many(job, [{} for _ in range(jobs)])
        started = time.perf_counter()
        await app.worker(concurrency=concurrency).arun(until_idle=True)
        ended = time.perf_counter()
        await app.aclose()
        return started - began, ended - started

    return asyncio.run(run())


def medians(sides: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> Round:
    """Give each side's median, rounds interleaved."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return {name: statistics.median(values) for name, values in found.items()}


def speed(schemas: Schemas) -> list[str]:
    """Compare jobs of ten steps, and of ten tools, with commits."""
    commits, missed = Commits(schemas.server.url), []
    for concurrency, jobs in ((1, 40), (128, 1280)):
        rate = medians({
            "commits": commits.rate,
            "steps": lambda n=jobs, c=concurrency: n * STEPS / run_jobs(schemas.url(), "steps", n, c)[1],  # type: ignore[misc]
            "tools": lambda n=jobs, c=concurrency: n * STEPS / run_jobs(schemas.url(), "tools", n, c)[1],  # type: ignore[misc]
        })  # fmt: skip
        share = rate["steps"] / rate["commits"]
        print(f"concurrency {concurrency:<4} commits {rate['commits']:7,.0f}/s   steps {rate['steps']:8,.0f}/s   share "
              f"{share:5.2f}   tools {rate['tools']:8,.0f}/s   share {rate['tools'] / rate['commits']:5.2f}",
              flush=True)  # fmt: skip
        if share < FLOORS[concurrency]:
            missed.append(f"concurrency {concurrency}: {share:.2f} steps a commit, {FLOORS[concurrency]} are due")
    commits.close()
    return missed


# Two processes


def work(url: str, ready: Barrier, told: Queue[float]) -> None:
    """Be a worker in a process of its own, from the barrier until nothing is left; tell its CPU."""

    async def run() -> float:
        app = bench_app(url)
        await app.store().now()
        await asyncio.get_running_loop().run_in_executor(None, ready.wait)
        before = time.process_time()
        await app.worker(concurrency=128).arun(until_idle=True)
        used = time.process_time() - before
        await app.aclose()
        return used

    told.put(asyncio.run(run()))


def together(schemas: Schemas, processes: int, jobs: int) -> Round:
    """Let so many worker processes run jobs: steps a second, and cores that were busy."""
    spawn = multiprocessing.get_context("spawn")
    url = schemas.url()

    async def start() -> None:
        app = bench_app(url)
        await app.astart_many("steps", [{} for _ in range(jobs)])
        await app.aclose()

    asyncio.run(start())
    ready, told = spawn.Barrier(processes + 1), spawn.Queue()
    workers = [spawn.Process(target=work, args=(url, ready, told)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    ready.wait()
    server, machine, began = schemas.server.cpu_seconds(), machine_seconds(), time.perf_counter()
    clients = sum(told.get() for _ in workers)
    seconds = time.perf_counter() - began
    server, machine = schemas.server.cpu_seconds() - server, machine_seconds() - machine
    for worker in workers:
        worker.join()
    return {"rate": jobs * STEPS / seconds, "server": server / seconds, "clients": clients / seconds,
            "machine": machine / seconds}  # fmt: skip


def machine_seconds() -> float:
    """CPU that everybody on this machine has used, from init's point of view; 0 where there is no /proc."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:  # noqa: PTH123 - as everywhere else it is read
            fields = [int(field) for field in stat.readline().split()[1:]]
    except OSError:
        return 0.0
    return (sum(fields[:8]) - fields[3] - fields[4]) / 100


def processes(schemas: Schemas, jobs: int) -> list[str]:
    """Compare two worker processes with one."""
    found: dict[int, list[Round]] = {1: [], 2: []}
    for _ in range(3):
        for count, rounds in found.items():
            rounds.append(together(schemas, count, jobs))
    one, two = [{key: statistics.median(r[key] for r in rounds) for key in rounds[0]} for rounds in found.values()]
    cores, gain = multiprocessing.cpu_count(), two["rate"] / one["rate"]
    for name, side in (("one", one), ("two", two)):
        print(f"workers: {name:<6} {side['rate']:8,.0f} steps/s   cores busy: server {side['server']:.2f}, "
              f"workers {side['clients']:.2f}, everybody {side['machine']:.2f} of {cores}; CPU a step "
              f"{(side['server'] + side['clients']) / side['rate'] * 1e6:.0f} µs", flush=True)  # fmt: skip
    busy = max(two["machine"], two["server"] + two["clients"])
    limited = busy >= BUSY_SHARE * cores
    print(f"  together {gain:.2f} times one{'; the cores are the limit' if limited else ''}", flush=True)
    if gain < TOGETHER_MIN and not limited:
        return [f"two processes do {gain:.2f} times one, {TOGETHER_MIN} is due, and the cores are not busy"]
    return []


# Latency


def stay(url: str) -> None:
    """Be a worker until the end of the process."""
    bench_app(url).worker().run()


async def latencies(app: App, commits: Commits) -> dict[str, list[float]]:
    """Start jobs, and signal others, one after the other on an idle system: seconds from the call to the code."""
    found: dict[str, list[float]] = {"start": [], "signal": [], "commit": []}
    names = await app.astart_many("waiter", [{"n": n} for n in range(SAMPLES)])
    while len(await app.store().jobs(state=JobState.WAITING, limit=SAMPLES)) < SAMPLES:  # noqa: ASYNC110 - in another process
        await asyncio.sleep(0.05)
    for number, name in enumerate(names):
        pause = 0.02 + number % 20 / 1000  # in step with nobody's clock
        await asyncio.sleep(pause)
        found["commit"].append(commits.seconds())
        await asyncio.sleep(pause)
        sent = time.time()
        run = await app.astart("clock")
        await asyncio.sleep(pause)  # nobody watches meanwhile
        found["start"].append(await run.aresult() - sent)
        await asyncio.sleep(pause)
        sent = time.time()
        await app.asignal(name, "go")
        await asyncio.sleep(pause)
        found["signal"].append(await RunHandle(app, name).aresult() - sent)
    return found


async def latency(schemas: Schemas) -> list[str]:
    """Measure with the worker in this process, and in another."""
    commits, missed = Commits(schemas.server.url), []
    for place in ("this", "another"):
        url = schemas.url()
        app = bench_app(url)
        if place == "this":
            worker = app.worker()
            working = asyncio.create_task(worker.arun())
            found = await latencies(app, commits)
            worker.stop()
            await working
        else:
            process = multiprocessing.get_context("spawn").Process(target=stay, args=(url,), daemon=True)
            process.start()
            found = await latencies(app, commits)
            process.terminate()
            process.join()
        await app.aclose()
        commit, longest = statistics.median(found["commit"]), percentile(found["commit"], 0.99)
        for name in ("start", "signal"):
            half, most = percentile(found[name], 0.5), percentile(found[name], 0.99)
            print(f"{name + ' to code':<14} in {place + ' process':<15} p50 {half * 1e3:6.2f} ms   "
                  f"p99 {most * 1e3:6.2f} ms   in commits {half / commit:4.1f} and {most / longest:4.1f}: "
                  f"{commit * 1e3:.2f}, {longest * 1e3:.2f} ms", flush=True)  # fmt: skip
            if half / commit > LATENCY_COMMITS_MAX:
                due = f"{LATENCY_COMMITS_MAX:.0f} are due"
                missed.append(f"{name} in {place} process takes {half / commit:.0f} commits, {due}")
    commits.close()
    return missed


# start_many


def bare_rows(url: str, schema: str, jobs: int) -> float:
    """Copy the rows that so many jobs are, ready made, into the same tables in one transaction; jobs a second."""
    lines: dict[str, list[tuple[Any, ...]]] = {"jobs": [], "events": []}
    for number in range(jobs):
        made = submit(Submit(job=f"job-{number:032}", plugin="b", entry="noop", args={}), 1.0, None)
        lines["jobs"].append(job_row(made.job, 2.0))
        lines["events"].append(event_row(made.events[0], made.payloads[0]))
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, schema)
        started = time.perf_counter()
        with connection.transaction(), connection.cursor() as cursor:
            for table, columns in (("jobs", f"({', '.join(JOB_WRITTEN)})"), ("events", "")):
                with cursor.copy(f"COPY {schema}.{table} {columns} FROM STDIN".encode()) as copy:
                    for line in lines[table]:
                        copy.write_row(line)
        return jobs / (time.perf_counter() - started)


def start_many(schemas: Schemas, jobs: int = 20_000) -> list[str]:
    """Compare `start_many` with a COPY of the same rows."""

    def ours() -> float:
        async def run() -> float:
            app = bench_app(schemas.url())
            await app.store().now()
            began = time.perf_counter()
            await app.astart_many("noop", [{} for _ in range(jobs)])
            taken = time.perf_counter() - began
            await app.aclose()
            return jobs / taken

        return asyncio.run(run())

    rate = medians({"copy": lambda: bare_rows(schemas.server.url, schemas.name(), jobs), "ours": ours}, rounds=3)
    share = rate["ours"] / rate["copy"]
    print(f"start_many {rate['ours']:8,.0f} jobs/s   bare COPY of the same rows {rate['copy']:8,.0f}   "
          f"share {share:4.2f}", flush=True)  # fmt: skip
    return []  # a figure to know, not a floor


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="How fast jobs run on PostgreSQL.")
    parser.add_argument("--only", nargs="*", choices=["speed", "processes", "latency", "start_many"])
    chosen = parser.parse_args()
    with measured() as server:
        schemas = Schemas(server)
        parts: dict[str, Callable[[], list[str]]] = {
            "latency": lambda: asyncio.run(latency(schemas)),
            "speed": lambda: speed(schemas),
            "processes": lambda: processes(schemas, 2560),
            "start_many": lambda: start_many(schemas),
        }
        missed = [line for name, part in parts.items() if not chosen.only or name in chosen.only for line in part()]
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
