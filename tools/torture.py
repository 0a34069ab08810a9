"""Kills worker processes for as long as asked and prints its tally.

`make torture KILLS=10000` runs it on SQLite, `make torture STORE=postgres` on a PostgreSQL of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

ROUND = 150  # kills on one database before a new one is begun


def main(kills: int, backend: str) -> int:
    """Kill, look, print; until so many were killed or something is wrong."""
    spec = importlib.util.spec_from_file_location("killing", ROOT / "tests" / "processes" / "test_killed_processes.py")
    assert spec is not None
    assert spec.loader is not None
    killing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(killing)
    started = time.monotonic()
    done = runs = asked = tools = 0
    seed = int(time.time())
    while done < kills:
        seed += 1
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/jobs.db" if backend == "sqlite" else killing.fresh_url()
            tally = asyncio.run(killing.torture(Path(folder), url, min(ROUND, kills - done), ROUND, seed))
        done, runs, asked, tools = done + tally.kills, runs + tally.runs, asked + tally.asked, tools + tally.tools
        took = time.monotonic() - started
        print(f"{done:>8,} kills  {runs:>8,} runs, 0 lost  {tools:>8,} tools, 0 twice  {asked:>6,} asked  {took:.0f} s")
    return 0


if __name__ == "__main__":
    given = [*sys.argv[1:], *("1000", "sqlite")[len(sys.argv) - 1 :]]
    sys.exit(main(int(given[0]), given[1]))
