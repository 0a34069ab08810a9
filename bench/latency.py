"""How long an idle system takes: from a start to the job's code, to its result, and from a signal to the code.

The worker is in another process. Calls come one at a time, with a pause between them, and one after the other without
a pause. Bare commits of one row are measured in the same run, with the same pause and without. A core that has slept,
and its disk, take longer: on some machines a commit takes three times as long after a pause. A start takes two commits
to the code, and three to the result.

    python bench/latency.py             on SQLite
    python bench/latency.py --postgres  on PostgreSQL
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast import App, Config, wait_for
from holdfast.client.run_handle import RunHandle
from postgres_server import Commits, measured, percentile

SAMPLES = 150
WARM = 10
PAUSES = {"idle": 0.03, "in a row": 0.0}  # seconds between two calls
# Milliseconds that are due at the median. The 99th percentile may be twice that.
DUE = {
    "sqlite": {"start to code": 2.0, "start to result": 3.5, "signal to code": 2.5},
    "postgres": {"start to code": 4.0, "start to result": 6.0, "signal to code": 5.0},
}


def bench_app(url: str) -> App:
    """Make the app of both processes."""
    app = App("latency", config=Config(url=url))

    @app.job
    async def clock() -> float:
        return time.time()

    @app.job
    async def waiter() -> float:
        await wait_for("go")
        return time.time()

    return app


def work(url: str) -> None:
    """Be a worker until the end of the process."""
    bench_app(url).worker().run()


async def starts(app: App, count: int, pause: float) -> dict[str, list[float]]:
    """Start jobs one by one, and wait for each result."""
    found: dict[str, list[float]] = {"start to code": [], "start to result": []}
    for number in range(count):
        await asyncio.sleep(pause * (1 + number % 20 / 20))  # in step with nobody's clock
        sent = time.time()
        run = await app.astart("clock")
        began = await run.aresult()
        found["start to result"].append(time.time() - sent)
        found["start to code"].append(began - sent)
    return found


async def signals(app: App, count: int, pause: float) -> list[float]:
    """Signal jobs that wait, one by one."""
    names = await app.astart_many("waiter", [{} for _ in range(count)])
    while (await app.astats()).runs.get("running", 0) < count:  # noqa: ASYNC110 - in another process
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    found = []
    for number, name in enumerate(names):
        await asyncio.sleep(pause * (1 + number % 20 / 20))
        sent = time.time()
        await app.asignal(name, "go")
        found.append(await RunHandle(app, name).aresult() - sent)
    return found


async def measure(url: str) -> dict[str, dict[str, list[float]]]:
    """Measure with and without pauses."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=(url,), daemon=True)
    app = bench_app(url)
    await app.astats()  # the tables are there when the worker comes
    process.start()
    try:
        await starts(app, WARM, 0)
        found = {}
        for name, pause in PAUSES.items():
            found[name] = await starts(app, SAMPLES, pause)
            found[name]["signal to code"] = await signals(app, SAMPLES, pause)
    finally:
        process.terminate()
        process.join()
        await app.aclose()
    return found


def report(store: str, found: dict[str, dict[str, list[float]]], commits: dict[str, float]) -> list[str]:
    """Print what was found; return what was missed."""
    print(f"{store}: a bare commit takes", ", ".join(f"{took * 1e3:.2f} ms {case}" for case, took in commits.items()))
    missed = []
    for case, kinds in found.items():
        for kind, seconds in kinds.items():
            half, most = (percentile(seconds, share) * 1e3 for share in (0.5, 0.99))
            print(f"{store:9} {case:9} {kind:16} p50 {half:6.2f} ms   p99 {most:6.2f} ms", flush=True)
            due = DUE[store][kind]
            if case == "idle" and half > due:
                missed.append(f"{store}: {kind} takes {half:.1f} ms, {due} are due")
            if case == "idle" and most > 2 * due:
                missed.append(f"{store}: {kind} takes {most:.1f} ms at the 99th percentile, {2 * due} are due")
    return missed


def commit_seconds(commit: Callable[[], object]) -> dict[str, float]:
    """Time bare commits, with and without pauses: the medians."""
    medians = {}
    for case, pause in PAUSES.items():
        taken = []
        for _ in range(SAMPLES):
            time.sleep(pause)
            started = time.perf_counter()
            commit()
            taken.append(time.perf_counter() - started)
        medians[case] = percentile(taken, 0.5)
    return medians


def sqlite_commit_seconds(folder: Path) -> dict[str, float]:
    """Time bare commits on SQLite."""
    connection = apsw.Connection(str(folder / "bare.db"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    connection.execute("CREATE TABLE bare (n INTEGER PRIMARY KEY)")
    medians = commit_seconds(lambda: connection.execute("INSERT INTO bare DEFAULT VALUES"))
    connection.close()
    return medians


def main() -> int:
    """Measure one store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", action="store_true")
    if parser.parse_args().postgres:
        with measured() as server:
            commits = Commits(server.url)
            medians = commit_seconds(commits.seconds)
            commits.close()
            missed = report("postgres", asyncio.run(measure(f"{server.url}?schema=latency")), medians)
    else:
        with tempfile.TemporaryDirectory() as folder:
            medians = sqlite_commit_seconds(Path(folder))
            missed = report("sqlite", asyncio.run(measure(f"sqlite:///{folder}/jobs.db")), medians)
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
