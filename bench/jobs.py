"""How fast jobs run on SQLite, beside a bare program that writes the same rows, in the same run.

The bare program has no engine: it seals the same events, writes the same event rows and job rows, synchronous=FULL, and
commits once for all jobs that are at the same step (group commit). What is left is what the database and the hash chain
cost. Each comparison alternates between its sides and takes the best round of each.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from holdfast import App, Config
from holdfast.machines.event import GENESIS, freeze_plain, seal_frozen
from holdfast.store import Submit
from holdfast.store.decide import submit
from holdfast.store.rows import Job
from holdfast.store.sql.columns import JOB_WRITTEN, job_row
from holdfast.store.sql.event_rows import EVENT_COLUMNS, event_row
from holdfast.store.sql.migrate import migrate

STEPS = 10
ROUNDS = 3
FLOORS = {1: 0.5, 128: 0.4}  # of the bare program's steps a second
TOOL_RATIO_MAX = 1.3  # cost of a tool over that of a step, at 128

_INSERT_EVENT = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_JOB = f"INSERT INTO jobs ({', '.join(JOB_WRITTEN)}) VALUES ({', '.join('?' * len(JOB_WRITTEN))})"
_GROW_JOB = "UPDATE jobs SET version = ?, head = ?, updated_at = ? WHERE id = ?"


class Bare:
    """The bare program."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        migrate(self._connection, "sqlite")

    def run(self, jobs: int, concurrency: int) -> None:
        """Write what `jobs` jobs of ten steps write, so many at a time."""
        for first in range(0, jobs, concurrency):
            self._together([f"job-{number:08}" for number in range(first, min(first + concurrency, jobs))])

    def _together(self, names: list[str]) -> None:
        ends: dict[str, tuple[int, str]] = {}
        decided = [submit(Submit(job=name, plugin="b", entry="ten", args={}), time.time(), None) for name in names]
        with self._connection:
            self._connection.executemany(_INSERT_JOB, [job_row(one.job, time.time()) for one in decided])
            self._connection.executemany(
                _INSERT_EVENT,
                [event_row(*pair) for one in decided for pair in zip(one.events, one.payloads, strict=True)],
            )
        for one in decided:
            ends[one.job.id] = (one.job.version, one.job.head)
        self._write(ends, [("job_running", {"worker": "bare"})])
        for number in range(STEPS):
            node = f"s:{number}"
            self._write(ends, [("node_started", {"node": node, "name": "s", "try": 1, "args": {"n": number}}),
                               ("command_committed", {"node": node, "name": "s", "result": number}),
                               ("node_finished", {"node": node, "result_type": "success"})])  # fmt: skip
        self._write(ends, [("job_completed", {"result": 45})])

    def _write(self, ends: dict[str, tuple[int, str]], events: list[tuple[str, dict[str, Any]]]) -> None:
        rows, grown, now = [], [], time.time()
        for name, (version, head) in ends.items():
            for kind, payload in events:
                frozen = freeze_plain(payload)
                event = seal_frozen(name, version + 1, head, kind, frozen, at=now, attempt=1)
                version, head = event.seq, event.hash  # noqa: PLW2901 - the chain moves on
                rows.append(event_row(event, frozen.text))
            ends[name] = (version, head)
            grown.append((version, head, now, name))
        with self._connection:
            self._connection.executemany(_INSERT_EVENT, rows)
            self._connection.executemany(_GROW_JOB, grown)

    def insert_many(self, jobs: int) -> None:
        """Create jobs with nothing decided: rows and first events that are ready, in one transaction."""
        made: list[Job] = [
            submit(Submit(job=f"j{n:08}", plugin="b", entry="e", args={}), 1.0, None).job for n in range(1)
        ]
        row = job_row(made[0], 2.0)
        frozen = freeze_plain({"args": {}})
        event = event_row(seal_frozen("j", 1, GENESIS, "job_created", frozen, at=1.0, attempt=None), frozen.text)
        with self._connection:
            self._connection.executemany(_INSERT_JOB, ((f"m{n:08}", *row[1:]) for n in range(jobs)))
            self._connection.executemany(_INSERT_EVENT, ((f"m{n:08}", *event[1:]) for n in range(jobs)))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def engine(path: Path, jobs: int, concurrency: int, *, tool: bool) -> tuple[float, float]:
    """Run the same jobs on the engine; seconds to start them and to run them."""

    async def run() -> tuple[float, float]:
        app = App("b", config=Config(url=f"sqlite:///{path}"))
        declare: Callable[..., Any] = app.tool if tool else app.step

        @declare
        async def s(n: int) -> int:
            return n

        @app.job
        async def ten() -> int:
            return sum([await s(number) for number in range(STEPS)])

        started = time.perf_counter()
        await app.astart_many(ten, [{} for _ in range(jobs)])
        submitted = time.perf_counter()
        await app.worker(concurrency=concurrency).arun(until_idle=True)
        ended = time.perf_counter()
        await app.aclose()
        return submitted - started, ended - submitted

    return asyncio.run(run())


def best(folder: Path, sides: dict[str, Callable[[Path], float]]) -> dict[str, float]:
    """Best seconds of each side, rounds interleaved."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name, side in sides.items():
            times[name].append(side(folder / f"{name}-{number}-{time.monotonic_ns()}.db"))
    return {name: min(taken) for name, taken in times.items()}


def bare(jobs: int, concurrency: int) -> Callable[[Path], float]:
    """Time the bare program."""

    def run(path: Path) -> float:
        program = Bare(path)
        started = time.perf_counter()
        program.run(jobs, concurrency)
        taken = time.perf_counter() - started
        program.close()
        return taken

    return run


def bare_insert(jobs: int) -> Callable[[Path], float]:
    """Time a bare executemany."""

    def run(path: Path) -> float:
        program = Bare(path)
        started = time.perf_counter()
        program.insert_many(jobs)
        taken = time.perf_counter() - started
        program.close()
        return taken

    return run


def main() -> int:
    """Measure, print, judge."""
    missed = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for concurrency, jobs in ((1, 150), (128, 1280)):
            taken = best(folder, {
                "bare": bare(jobs, concurrency),
                "steps": lambda path, n=jobs, c=concurrency: engine(path, n, c, tool=False)[1],  # type: ignore[misc]
                "tools": lambda path, n=jobs, c=concurrency: engine(path, n, c, tool=True)[1],  # type: ignore[misc]
            })  # fmt: skip
            rate = {name: jobs * STEPS / seconds for name, seconds in taken.items()}
            share, cost = rate["steps"] / rate["bare"], rate["steps"] / rate["tools"]
            print(f"concurrency {concurrency:<4} bare {rate['bare']:8,.0f} steps/s   engine {rate['steps']:8,.0f}   "
                  f"share {share:4.2f}   tools {rate['tools']:8,.0f}   a tool costs {cost:4.2f} steps")  # fmt: skip
            if share < FLOORS[concurrency]:
                missed.append(
                    f"concurrency {concurrency}: {share:.2f} of the bare program, {FLOORS[concurrency]} is due"
                )
            if concurrency > 1 and cost > TOOL_RATIO_MAX:
                missed.append(f"a tool costs {cost:.2f} times a step, at most {TOOL_RATIO_MAX} is due")
        jobs = 20_000
        taken = best(folder, {"bare": bare_insert(jobs), "engine": lambda path: started_only(path, jobs)})
        rate = {name: jobs / seconds for name, seconds in taken.items()}
        print(f"start_many       bare {rate['bare']:8,.0f} jobs/s    engine {rate['engine']:8,.0f}   "
              f"share {rate['engine'] / rate['bare']:4.2f}")  # fmt: skip
        if rate["engine"] < 30_000 and rate["engine"] / rate["bare"] < 0.4:  # noqa: PLR2004 - the floors of the design
            missed.append(f"start_many: {rate['engine']:,.0f} a second, 30,000 or 0.4 of a bare executemany is due")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


def started_only(path: Path, jobs: int) -> float:
    """Time `start_many` alone."""

    async def run() -> float:
        app = App("b", config=Config(url=f"sqlite:///{path}"))

        @app.job
        async def ten() -> int:
            return 0

        started = time.perf_counter()
        await app.astart_many(ten, [{} for _ in range(jobs)])
        taken = time.perf_counter() - started
        await app.aclose()
        return taken

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
