"""Has every commit of random plans go wrong, in each of three ways, for as many seeds as asked; prints its tally.

`make plans SEEDS=1000` runs it in memory, `make plans STORE=sqlite` or `STORE=postgres` on a database for each plan. A
miss is printed with the seed that names its plan.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.faults import closing, store_of  # noqa: E402 - found through the path above
from support.planned import NODES_MAX, random_plan  # noqa: E402 - as above
from support.planned_crashes import MODES, at_every_commit  # noqa: E402 - as above

ROUND = 10  # seeds between two lines


def main(seeds: int, backend: str) -> int:
    """Try the plans, print, and stop at the first that gives something else than it means."""
    started = time.monotonic()
    tally: Counter[str] = Counter()
    first = random.SystemRandom().randrange(2**31)
    for done, seed in enumerate(range(first, first + seeds), start=1):
        data = random_plan(seed, NODES_MAX)
        for mode in MODES:
            with tempfile.TemporaryDirectory() as folder:
                tally[mode] += asyncio.run(_tried(backend, Path(folder) / "jobs.db", data, mode))
        tally["nodes"] += len(data["nodes"])
        if not done % ROUND or done == seeds:
            told = "  ".join(f"{mode} {tally[mode]:,}" for mode in MODES)
            seconds = time.monotonic() - started
            print(
                f"{done:>6,} plans, {tally['nodes']:,} nodes, 0 gave anything else  {told}  {seconds:.0f} s", flush=True
            )
    return 0


async def _tried(backend: str, path: Path, data: dict[str, object], mode: str) -> int:
    if backend == "memory":
        return await at_every_commit(None, data, mode)
    store = store_of(backend, path)
    tried: list[int] = []

    async def told() -> None:
        tried.append(await at_every_commit(store, data, mode))

    await closing(store, told())
    return tried[0]


if __name__ == "__main__":
    given = [*sys.argv[1:], *("200", "memory")[len(sys.argv) - 1 :]]
    sys.exit(main(int(given[0]), given[1]))
