"""The same jobs on several Pythons: CPU time of a step, of a tool and of a job, and rates, beside the first Python.

Each Python gets an environment of its own with the packages of `requirements-run.lock`, in `build/pythons`. A Python
of a virtual environment keeps the packages that it has. The jobs run on SQLite, 128 at once, always in a new process.
The Pythons take turns, and each figure is the median of the rounds. CPU time counts all threads of the process.

A Python that cannot be installed or measured is listed with the reason, and the program ends with 1.

    python bench/pythons.py python3.11 python3.14 /opt/python3.14t/bin/python3
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "pythons"
ROUNDS = 5
JOBS = 640
CALLS = 10  # of steps or tools, in a job
CONCURRENCY = 128
UNITS = {"steps": CALLS, "tools": CALLS, "noop": 1}  # by job: the units that its cost is given for
TITLES = {"steps": "step", "tools": "tool", "noop": "empty job"}
MINUTE = 60.0


@dataclass(frozen=True)
class Cost:
    """What one unit costs: a step, a tool or a job."""

    cpu_microseconds: float
    per_second: float


class CannotMeasure(Exception):
    """A Python cannot be installed or measured; the text is the last line of what it printed."""


async def drain(path: Path, job: str, jobs: int) -> Cost:
    """Run so many jobs of a kind on a new store."""
    from holdfast import App, Config  # noqa: PLC0415 - only the Pythons that are measured have its packages

    app = App("pythons", config=Config(url=f"sqlite:///{path}"))

    @app.step
    async def step(number: int) -> int:
        return number

    @app.tool
    async def tool(number: int) -> int:
        return number

    @app.job
    async def steps() -> int:
        return sum([await step(number) for number in range(CALLS)])

    @app.job
    async def tools() -> int:
        return sum([await tool(number) for number in range(CALLS)])

    @app.job
    async def noop() -> None:
        pass

    await app.astart_many(job, [{} for _ in range(jobs)])
    began, cpu_began = time.perf_counter(), time.process_time()
    await app.worker(concurrency=CONCURRENCY).arun(until_idle=True)
    cpu, taken = time.process_time() - cpu_began, time.perf_counter() - began
    await app.aclose()
    units = jobs * UNITS[job]
    return Cost(1e6 * cpu / units, units / taken)


def measure(jobs: int) -> dict[str, object]:
    """Measure every kind of job in this process; return the costs and what this Python is."""
    from holdfast.gc_settings import tune_gc  # noqa: PLC0415 - as in `drain`

    tune_gc()
    costs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for job in UNITS:
            asyncio.run(drain(Path(folder) / f"warm-{job}.db", job, jobs // 10 + 1))
            cost = asyncio.run(drain(Path(folder) / f"{job}.db", job, jobs))
            costs[job] = [cost.cpu_microseconds, cost.per_second]
    return {"costs": costs, "version": platform.python_version(), "notes": notes()}


def notes() -> list[str]:
    """Return the compiler of this Python, and whether it runs without the global lock (GIL)."""
    found = [platform.python_compiler()]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
        found.append("free-threaded, but with the GIL on" if has_lock else "free-threaded")
    return found


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a process that failed said last."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def call(command: Sequence[object], timeout_seconds: float, **environment: str) -> str:
    """Run a program to its end and return its output; raise CannotMeasure if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command], env=os.environ | environment, capture_output=True, text=True, check=False,
            timeout=timeout_seconds,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMeasure(str(error)) from error
    if done.returncode != 0:
        raise CannotMeasure(last_line(done))
    return done.stdout


@functools.cache
def newest_pip() -> Path:
    """Return the folder of one pip for all: that of a Python may be missing, or too old for a newer Python."""
    folder = PLACE / "pip"
    call([sys.executable, "-m", "pip", "install", "--upgrade", "--target", folder, "pip"], 5 * MINUTE)
    return folder


def prepare(python: str, number: int) -> Path:
    """Return the Python of an environment with the locked packages; raise CannotMeasure if one does not install."""
    found = shutil.which(python)
    if found is None:
        raise CannotMeasure("not found")
    if call([found, "-c", "import sys; print(sys.prefix != sys.base_prefix)"], MINUTE).strip() == "True":
        return Path(found)
    environment = PLACE / str(number)
    shutil.rmtree(environment, ignore_errors=True)
    call([found, "-m", "venv", "--without-pip", environment], MINUTE)
    own = environment / "bin" / "python"
    install = [own, "-m", "pip", "install", "--no-deps", "--require-hashes", "-r", ROOT / "requirements-run.lock"]
    call(install, 15 * MINUTE, PYTHONPATH=str(newest_pip()))
    return own


def rounds(
    pythons: dict[str, Path], count: int, jobs: int
) -> tuple[dict[str, list[dict[str, object]]], dict[str, str]]:
    """Let the Pythons take turns; return what each round found, and the reasons of those that failed."""
    found: dict[str, list[dict[str, object]]] = {name: [] for name in pythons}
    failed: dict[str, str] = {}
    for _ in range(count):
        for name, path in pythons.items():
            if name in failed:
                continue
            command = [path, __file__, "--measure", "--jobs", str(jobs)]
            try:
                found[name].append(json.loads(call(command, 5 * MINUTE, PYTHONPATH=str(ROOT / "src"))))
            except CannotMeasure as error:
                failed[name] = str(error)
    return {name: results for name, results in found.items() if name not in failed}, failed


def table(found: dict[str, list[dict[str, object]]]) -> list[str]:
    """Return the rows of a Markdown table: for each kind of job the CPU time, the rate, and both beside the first."""
    head = [f"{TITLES[job]}: CPU µs | a second" for job in UNITS]
    rows = [f"| Python | {' | '.join(head)} | notes |", "|---" * (2 + 2 * len(UNITS)) + "|"]
    first: dict[str, Cost] = {}
    for results in found.values():
        cells = []
        for job in UNITS:
            pairs = [result["costs"][job] for result in results]  # type: ignore[index]
            cost = Cost(statistics.median(cpu for cpu, _ in pairs), statistics.median(rate for _, rate in pairs))
            beside = first.setdefault(job, cost)
            cells.append(f"{cost.cpu_microseconds:.1f} ({cost.cpu_microseconds / beside.cpu_microseconds:.2f})")
            cells.append(f"{cost.per_second:,.0f} ({cost.per_second / beside.per_second:.2f})")
        said = results[0]["notes"]
        assert isinstance(said, list)
        rows.append(f"| {results[0]['version']} | {' | '.join(cells)} | {', '.join(said)} |")
    return rows


def main() -> int:
    """Install, measure, print."""
    parser = argparse.ArgumentParser(description="The same jobs on several Pythons.")
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="commands or paths; the first is the base")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--measure", action="store_true", help="measure this Python, and print the costs as JSON")
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.jobs)))
        return 0
    ready: dict[str, Path] = {}
    failed: dict[str, str] = {}
    for number, python in enumerate(chosen.pythons):
        try:
            ready[python] = prepare(python, number)
        except CannotMeasure as error:
            failed[python] = str(error)
    found, also_failed = rounds(ready, chosen.rounds, chosen.jobs)
    if found:
        print("\n".join(table(found)))
    for name, reason in (failed | also_failed).items():
        print(f"FAILED {name}: {reason}", file=sys.stderr)
    return 1 if failed or also_failed else 0


if __name__ == "__main__":
    sys.exit(main())
