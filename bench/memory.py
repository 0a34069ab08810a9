"""The memory of a worker whose jobs have large results: 128 jobs at once, ten steps each, 100 KB from every step.

python bench/memory.py
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from holdfast import App, Config
from postgres_server import measured

JOBS, SLOTS, STEPS, RESULT_BYTES = 256, 128, 10, 100_000
BYTES_MAX = 150 * 1024 * 1024


def most_memory() -> int:
    """Return the most memory that this process has held."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def work(url: str, told: Any) -> None:
    """Run the jobs, and tell the most memory that it took."""

    async def run() -> None:
        app = App("memory", config=Config(url=url))

        @app.step
        async def make(number: int) -> str:
            return f"{number}" * RESULT_BYTES

        @app.job
        async def ten() -> int:
            return sum([len(await make(number)) for number in range(STEPS)])

        await app.astart_many(ten, [{} for _ in range(JOBS)])
        await app.worker(concurrency=SLOTS).arun(until_idle=True)
        assert (await app.astats()).runs == {"succeeded": JOBS}
        await app.aclose()

    asyncio.run(run())
    told.put(most_memory())


def measure(store: str, url: str) -> list[str]:
    """Measure one store; return what was missed."""
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    process = spawn.Process(target=work, args=(url, told))
    process.start()
    most = told.get()
    process.join()
    print(f"{store:9} {SLOTS} jobs at once with results of {RESULT_BYTES:,} bytes: {most / 2**20:.0f} MB", flush=True)
    return [f"{store}: {most / 2**20:.0f} MB, at most {BYTES_MAX / 2**20:.0f} are due"] if most > BYTES_MAX else []


def main() -> int:
    """Measure both stores."""
    with tempfile.TemporaryDirectory() as folder:
        missed = measure("sqlite", f"sqlite:///{folder}/jobs.db")
    with measured() as server:
        missed += measure("postgres", f"{server.url}?schema=memory")
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
