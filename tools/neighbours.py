"""Runs four workers on a SQLite file next to programs that read, vacuum, back up and copy it; prints its tally.

`make neighbours SECONDS=600` runs it for ten minutes, in rounds of one.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.scripts import load  # noqa: E402 - found through the line above

ROUND_SECONDS = 60.0  # on one database before a new one is begun


def main(seconds: float) -> int:
    """Work, look, print; until the time is over or something is wrong."""
    tested = load(ROOT / "tests" / "processes" / "test_neighbours.py")
    started, left, runs = time.monotonic(), seconds, 0
    done: Counter[str] = Counter()
    while left > 0:
        with tempfile.TemporaryDirectory() as folder:
            tally = asyncio.run(tested.neighbours(Path(folder), min(left, ROUND_SECONDS)))
        left -= ROUND_SECONDS
        runs += tally.runs
        done.update(tally.done)
        others = ", ".join(f"{count:,} times {kind}" for kind, count in done.items())
        print(f"{runs:>8,} runs, 0 lost, 0 tools twice, integrity ok; next to them {others}; "
              f"{time.monotonic() - started:.0f} s")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else ROUND_SECONDS))
