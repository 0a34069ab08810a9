"""Breaks the network between workers and PostgreSQL as often as asked and prints its tally: `make silence`."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

ROUND = 10  # faults on one schema before a new one is begun


def main(faults: int) -> int:
    """Break, look, print; until so many faults were made or something is wrong."""
    spec = importlib.util.spec_from_file_location("silent", ROOT / "tests" / "processes" / "test_silent_networks.py")
    assert spec is not None
    assert spec.loader is not None
    silent = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(silent)
    started = time.monotonic()
    done = runs = calls = stopped = 0
    seed = int(time.time())
    while done < faults:
        seed += 1
        with tempfile.TemporaryDirectory() as folder:
            tally = asyncio.run(silent.endure(Path(folder), min(ROUND, faults - done), seed))
        done, runs, calls, stopped = (
            done + tally.faults,
            runs + tally.runs,
            calls + tally.calls,
            stopped + tally.stopped,
        )
        took = time.monotonic() - started
        print(
            f"{done:>6,} faults  {runs:>7,} runs  {calls:>7,} calls, {stopped:,} of them stopped  {took:.0f} s",
            flush=True,
        )
        for kind in ("together", "twice", "not_succeeded", "illegal"):
            for line in getattr(tally, kind):
                print(f"  seed {seed}, {kind}: {line}")
        if tally.wrong():
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
