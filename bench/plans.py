"""What a node of a plan costs over a step of code, in the same run: 1,000 nodes side by side, and 1,000 in a chain.

Both sides run on SQLite, synchronous=FULL, with the same step, the same number of jobs and the same limit of calls at
once; rounds alternate, and the best of each counts. The limit holds for the time on the wall and for that of the
processor, which tells the same on a machine that others use, too. Memory is what the engine allocates for one run, at
its peak, by the number of nodes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import App, Config, map
from holdfast.authoring.functions import JobFunction
from holdfast.plans import Draft

NODES = 1000
LIMIT = 100
JOBS = 4
ROUNDS = 9
RATIO_MAX = 1.5
GROWTH_MAX = 1.3  # of the memory for a node, from 1,000 to 4,000 of them

Job = JobFunction[..., object]


def app_at(path: Path) -> App:
    """An app with the step that both sides call, jobs in code for both shapes, and an entry for plans."""
    app = App("bench", config=Config(url=f"sqlite:///{path}"))

    @app.step
    async def step(n: int, before: int = 0) -> int:
        return n + before

    @app.job
    async def wide(nodes: int) -> int:
        return len(await map(step, range(nodes), limit=LIMIT))

    @app.job
    async def deep(nodes: int) -> int:
        last = 0
        for number in range(nodes):
            last = await step(number, last)
        return last

    app.plan("planned")
    return app


def drawn(nodes: int, *, chained: bool) -> Draft:
    """A plan of so many nodes, side by side or in a chain."""
    draft = Draft(limit=LIMIT)
    last: Any = None
    for number in range(nodes):
        before: dict[str, Any] = {"before": last} if chained and last is not None else {}
        last = draft.call("step", n=number, **before)
    draft.returns(None)
    return draft


def timed(jobs: int, choose: Callable[[App], Job], arguments: dict[str, int]) -> Callable[[Path], tuple[float, float]]:
    """Seconds to run so many jobs, started before: on the wall, and of the processor."""

    def run(path: Path) -> tuple[float, float]:
        async def work() -> tuple[float, float]:
            app = app_at(path)
            await app.astart_many(choose(app), [arguments] * jobs)
            began = time.perf_counter(), time.process_time()
            await app.worker(concurrency=jobs).arun(until_idle=True)
            taken = time.perf_counter() - began[0], time.process_time() - began[1]
            ended = await app.alist(limit=jobs)
            assert [one.status for one in ended] == ["succeeded"] * jobs
            await app.aclose()
            return taken

        return asyncio.run(work())

    return run


def planned(nodes: int, *, chained: bool) -> Callable[[App], Job]:
    """Give the entry for plans with one of this shape."""

    def choose(app: App) -> Job:
        entry = app.entries["bench", "planned"]
        return entry.given(drawn(nodes, chained=chained))  # type: ignore[attr-defined,no-any-return]

    return choose


def peak(path: Path, nodes: int, *, chained: bool) -> float:
    """Bytes at the peak of one run, a node."""
    tracemalloc.start()
    timed(1, planned(nodes, chained=chained), {})(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / nodes


def compared(folder: Path, shape: str, jobs: int) -> bool:
    """Compare code and plan of a shape; whether the ratio is within its limit."""
    chained = shape == "deep"
    sides = {
        "code": timed(jobs, lambda app: app.entries["bench", shape], {"nodes": NODES}),
        "plan": timed(jobs, planned(NODES, chained=chained), {}),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name, side in sides.items():
            times[name].append(side(folder / f"{shape}-{jobs}-{name}-{number}.db"))
    kept = True
    for place, clock in enumerate(("wall", "processor")):
        best = {name: min(one[place] for one in taken) / (jobs * NODES) * 1e6 for name, taken in times.items()}
        ratio = best["plan"] / best["code"]
        print(
            f"{shape}, {jobs} at once, {clock}: a step of code {best['code']:6.1f} µs, a node {best['plan']:6.1f} µs: "
            f"{ratio:.2f} (at most {RATIO_MAX})"
        )
        kept = kept and ratio <= RATIO_MAX
    return kept


def main() -> int:
    """Measure, print, and say by the exit code whether every limit is kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = [compared(folder, shape, jobs) for shape in ("wide", "deep") for jobs in (1, JOBS)]
        for shape in ("wide", "deep"):
            few, many = (
                peak(folder / f"{shape}-memory-{nodes}.db", nodes, chained=shape == "deep") for nodes in (1000, 4000)
            )
            told = f"{few / 1024:.1f} KiB a node at 1,000 nodes, {many / 1024:.1f} at 4,000"
            print(f"{shape}: {told}: {many / few:.2f} (at most {GROWTH_MAX})")
            kept.append(many / few <= GROWTH_MAX)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
