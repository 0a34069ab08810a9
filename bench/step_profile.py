"""Where the time of a step goes: microseconds by part, of the worker's loop and of the thread that writes.

The loop is sampled by a timer of its CPU time. The thread that writes is measured by Python's profiler, whose own cost
is spread by scaling to the CPU time of a run without it. It needs no other program.

    python bench/step_profile.py                  128 jobs at once on SQLite
    python bench/step_profile.py --tool           tools instead of steps
    python bench/step_profile.py --concurrency 1
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import holdfast
from holdfast import App, Config
from holdfast.store.sqlite.store import SqliteStore

STEPS = 10
LOOK_SECONDS = 0.001
SHOWN = 25  # functions
SOURCE = str(Path(holdfast.__file__).parent) + "/"
PARTS = {  # of a file, by the first text that its path begins with
    "authoring/": "arguments and results",
    "machines/": "seal and freeze events",
    "engine/job_loop": "the loop of the job's code",
    "engine/job_code": "turns and outcomes",
    "engine/replay": "names of calls",
    "engine/step_calls": "make the call",
    "engine/job_attempt": "the attempt",
    "engine/": "worker, leases and claims",
    "group_commit": "gather a batch",
    "store/decide": "decide",
    "store/stream_writer": "decide",
    "store/": "write rows, and SQLite itself",
    "": "asyncio and the rest",
}


def part_of(path: str) -> str:
    """Return the part that a source file belongs to."""
    inside = path.removeprefix(SOURCE) if path.startswith(SOURCE) else ""
    return next(part for start, part in PARTS.items() if inside.startswith(start))


class LoopSampler:
    """Counts which function of the main thread runs, each time that the process has used another millisecond of CPU."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()  # path and function

    def start(self) -> None:
        """Begin to look."""
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, LOOK_SECONDS, LOOK_SECONDS)

    def stop(self) -> None:
        """Look no more."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, number: int, frame: FrameType | None) -> None:
        del number
        if frame is not None and frame.f_code.co_name != "select":
            self.seen[frame.f_code.co_filename, frame.f_code.co_qualname] += 1


async def run(
    path: Path, jobs: int, concurrency: int, *, tool: bool, sampler: LoopSampler | None, writer: cProfile.Profile | None
) -> tuple[float, float]:
    """Run jobs of ten steps; return the CPU seconds of the loop, and those of the other threads."""
    app = App("profile", config=Config(url=f"sqlite:///{path}"))

    @(app.tool if tool else app.step)
    async def one(number: int) -> int:
        return number

    @app.job
    async def ten() -> int:
        return sum([await one(number) for number in range(STEPS)])

    await app.astart_many(ten, [{} for _ in range(jobs)])
    worker, store = app.worker(concurrency=concurrency), app.store()
    assert isinstance(store, SqliteStore)
    if writer is not None:
        store._writer.submit(writer.enable).result()  # noqa: SLF001 - it profiles the thread that enables it
    if sampler is not None:
        sampler.start()
    loop, whole = time.thread_time(), time.process_time()
    await worker.arun(until_idle=True)
    loop, whole = time.thread_time() - loop, time.process_time() - whole
    if sampler is not None:
        sampler.stop()
    if writer is not None:
        store._writer.submit(writer.disable).result()  # noqa: SLF001 - as above
    await app.aclose()
    return loop, whole - loop


def show(title: str, microseconds: float, shares: Counter[tuple[str, str]]) -> None:
    """Print the parts and the functions of one thread."""
    print(f"\n{microseconds:.1f} µs {title}")
    total = sum(shares.values())
    parts: Counter[str] = Counter()
    for (path, _), count in shares.items():
        parts[part_of(path)] += count
    for part, count in parts.most_common():
        print(f"{count / total * microseconds:7.1f}  {part}")
    print("  of which")
    for (path, function), count in shares.most_common(SHOWN):
        print(f"{count / total * microseconds:7.1f}  {path.removeprefix(SOURCE)} {function}")


def main() -> int:
    """Print the parts, then the functions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--tool", action="store_true")
    chosen = parser.parse_args()
    sampler, writer = LoopSampler(), cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:

        def go(name: str, sampler: LoopSampler | None, writer: cProfile.Profile | None) -> tuple[float, float]:
            path = Path(folder) / f"{name}.db"
            return asyncio.run(
                run(path, chosen.jobs, chosen.concurrency, tool=chosen.tool, sampler=sampler, writer=writer)
            )

        loop, others = go("plain", None, None)
        go("sampled", sampler, None)
        go("profiled", None, writer)
    each = 1e6 / chosen.jobs / STEPS
    what = "tool" if chosen.tool else "step"
    print(f"{(loop + others) * each:.1f} µs of CPU a {what}, {chosen.concurrency} jobs at once")
    show("on the loop", loop * each, sampler.seen)
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = pstats.Stats(writer).stats  # type: ignore[attr-defined]
    written: Counter[tuple[str, str]] = Counter()
    for (path, _, function), (_, _, seconds, _, _) in stats.items():
        if "lock" not in function and "SimpleQueue" not in function:
            inside = path if path != "~" else f"{SOURCE}store/"
            written[inside, function] += int(seconds * 1e9)
    show("in the thread that writes, and the other threads", others * each, written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
