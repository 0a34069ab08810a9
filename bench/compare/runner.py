"""Runs all columns for all systems, in turn, so that a noisy moment does not hurt one system alone."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import apsw
import psycopg

from compare import columns
from compare.columns import Sizes
from compare.environments import Environment, NotInstalled
from compare.peer import STEPS, Unsupported
from compare.results import Cell, Figures, Machine, Results
from compare.session import Failed, Overdue, Session
from compare.systems import System
from postgres_server import Commits, Measured, measured

REASON_MAX = 90  # characters of a failure that a cell shows


@dataclass
class Bench:
    """What measurements of one run share."""

    sizes: Sizes
    cache: Path
    server: Measured | None
    rates: dict[tuple[str, str], float] = field(default_factory=dict)  # of earlier measurements, by row and column

    def environment(self, system: System) -> Environment:
        """Return where a system runs."""
        return Environment(system.peer, self.cache)

    def session(self, system: System) -> Session:
        """Return a fresh place for a system."""
        url = self.server.url if self.server is not None else None
        return Session(system, self.environment(system), url, self.sizes.seconds_max)


@dataclass(frozen=True)
class Task:
    """A cell that is to be measured."""

    bench: Bench
    system: System
    column: str
    job: str = ""  # of ten steps, where a column has them

    @property
    def row(self) -> str:
        """The row of the tables."""
        return f"{self.system.key}:{self.job}" if self.job == "tools" else self.system.key

    def session(self) -> Session:
        """Return a fresh place for the system."""
        return self.bench.session(self.system)

    def run(self) -> Figures:
        """Measure once."""
        return _RUNS[self.column](self)

    def rate(self, measured_rate: Callable[[float | None], float]) -> float:
        """Measure a rate, with what is known of it from before."""
        rate = measured_rate(self.bench.rates.get((self.row, self.column)))
        self.bench.rates[self.row, self.column] = rate
        return rate


def _steps(concurrency: int, processes: int, task: Task) -> Figures:
    sizes = task.bench.sizes
    jobs = task.rate(lambda known: columns.steps_rate(task.session, task.job, concurrency, processes, known, sizes))
    return {"rate": jobs * STEPS}


def _starts(how: Literal["start_singly", "start_in_bulk"], task: Task) -> Figures:
    return {"rate": task.rate(lambda known: columns.start_rate(task.session, how, known, task.bench.sizes))}


def _drain(processes: int, task: Task) -> Figures:
    return {"rate": task.rate(lambda known: columns.drain_rate(task.session, processes, known, task.bench.sizes))}


def _latency(what: Literal["start", "result", "signal"], task: Task) -> Figures:
    with task.session() as session:
        return columns.latency(session, what, task.bench.sizes)


def _bytes(task: Task) -> Figures:
    with task.session() as session:
        return columns.bytes_per_job(session, task.job, task.bench.sizes.size_jobs)


def _idle(task: Task) -> Figures:
    with task.session() as session:
        return columns.idle(session, task.bench.sizes, task.bench.server)


_RUNS: dict[str, Callable[[Task], Figures]] = {
    "c1": partial(_steps, 1, 1),
    "c8": partial(_steps, 8, 1),
    "c64": partial(_steps, 64, 1),
    "c128": partial(_steps, 128, 1),
    "p2": partial(_steps, 64, 2),
    "single": partial(_starts, "start_singly"),
    "bulk": partial(_starts, "start_in_bulk"),
    "drain": partial(_drain, 1),
    "drain2": partial(_drain, 2),
    "start": partial(_latency, "start"),
    "result": partial(_latency, "result"),
    "signal": partial(_latency, "signal"),
    "bytes": _bytes,
    "idle": _idle,
}
COLUMNS = tuple(_RUNS)
WITH_STEPS = ("c1", "c8", "c64", "c128", "p2")
RATES = (*WITH_STEPS, "single", "bulk", "drain", "drain2")  # a rate varies from one moment to the next


def rates_of(results: Results) -> dict[tuple[str, str], float]:
    """Return the rates of an earlier run by row and column: how many jobs a measurement begins with."""
    found = {}
    for row, cells in results.cells.items():
        for column in RATES:
            rate = cells[column].median("rate") if column in cells else None
            if rate:
                found[row, column] = rate / STEPS if column in WITH_STEPS else rate
    return found


def tasks(bench: Bench, systems: Sequence[System], only: Sequence[str] = ()) -> list[list[Task]]:
    """Return what is to be measured, column by column."""
    return [
        [Task(bench, system, column, job) for system in systems for job in _jobs(system, column)]
        for column in COLUMNS
        if not only or column in only
    ]


def _jobs(system: System, column: str) -> tuple[str, ...]:
    if column in WITH_STEPS:
        return system.jobs
    return system.jobs[:1] if column == "bytes" else ("",)


def measure(task: Task, cell: Cell) -> str:
    """Fill a cell; return a line about it."""
    began = time.monotonic()
    try:
        figures = task.run()
    except Unsupported as missing:
        cell.unsupported = str(missing)
        return cell.unsupported
    except Failed as failure:
        cell.failures.append(_short(str(failure)))
        cell.overdue = isinstance(failure, Overdue)
        return f"failed: {cell.failures[-1]}"
    cell.figures.append(figures)
    shown = ", ".join(f"{key} {value:,.1f}" for key, value in figures.items())
    return f"{shown}   ({time.monotonic() - began:.0f} s)"


def _short(reason: str) -> str:
    line = " ".join(reason.split()).replace("|", "/")
    return line if len(line) <= REASON_MAX else line[: REASON_MAX - 1] + "…"


def installed(systems: Sequence[System], cache: Path) -> tuple[list[System], dict[str, str]]:
    """Install the systems; return those that can run, and the reasons of the others."""
    ready, missing = [], {}
    for system in systems:
        try:
            Environment(system.peer, cache).install()
        except NotInstalled as error:
            missing[system.key] = _short(str(error))
        else:
            ready.append(system)
    return ready, missing


def compare(
    systems: Sequence[System],
    sizes: Sizes,
    cache: Path,
    path: Path,
    *,
    quick: bool,
    only: Sequence[str] = (),
    earlier: Results | None = None,
) -> Results:
    """Measure everything; the file at `path` always has what is known so far.

    The rates of an earlier run only say with how many jobs a measurement begins. If it ends too soon, it is repeated.
    """
    ready, missing = installed(systems, cache)
    with measured() as server:
        server.end_with_this_process()
        bench = Bench(sizes, cache, server, rates_of(earlier) if earlier is not None else {})
        results = Results(
            day=datetime.now(UTC).date().isoformat(), quick=quick,
            repetitions=sizes.repetitions, seconds=sizes.seconds, drain_jobs_max=sizes.drain_jobs_max,
            samples=sizes.samples, waiting=sizes.waiting, machine=machine(server),
            versions={system.key: bench.environment(system).version(system.package) for system in ready},
        )  # fmt: skip
        for key, reason in missing.items():
            results.cells[key] = {column: Cell(failures=[reason]) for column in COLUMNS}
            results.versions[key] = "not installed"
        for _ in run_all(results, tasks(bench, ready, only), sizes.repetitions):
            results.save(path)
    return results


def run_all(results: Results, planned: list[list[Task]], repetitions: int) -> Iterator[Task]:
    """Measure every rate so many times, and all others once. Each repetition begins with another system.

    Yields what has been measured.
    """
    for repetition in range(repetitions):
        for column in planned:
            if repetition and column and column[0].column not in RATES:
                continue
            turn = repetition % max(1, len(column))
            for task in column[turn:] + column[:turn]:
                cell = results.cells.setdefault(task.row, {}).setdefault(task.column, Cell())
                if cell.unsupported or cell.overdue:
                    continue
                told = measure(task, cell)
                line = f"{repetition + 1}/{repetitions}  {task.column:8} {task.row:24} {told}"
                print(line, file=sys.stderr, flush=True)
                yield task


def machine(server: Measured) -> Machine:
    """Describe this machine, without its name."""
    commits = Commits(server.url)
    postgres_rate = commits.rate()
    commits.close()
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None
    return Machine(
        cores=os.cpu_count() or 1, processor=_processor(), memory_gb=round(_memory_bytes() / 1e9, 1),
        system=f"{platform.system()} {platform.release().partition('-')[0]}", python=platform.python_version(),
        postgres=str(row[0]).split()[0], sqlite=apsw.sqlite_lib_version(),
        commits={"PostgreSQL": round(postgres_rate), "SQLite": round(_sqlite_commits())},
    )  # fmt: skip


def _sqlite_commits(count: int = 300) -> float:
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder) / "commits.db")) as file:
        file.isolation_level = None
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=FULL")
        file.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY)")
        began = time.perf_counter()
        for _ in range(count):
            file.execute("INSERT INTO bare DEFAULT VALUES")
        return count / (time.perf_counter() - began)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
