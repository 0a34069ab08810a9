"""Kills processes that advance schedules, over virtual time on both stores, and prints its tally.

`make ticks DAYS=365` runs it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

PROCESSES = 8
STEPS = 120  # moves of the clock; after every second one a process is killed


def main(days: int) -> int:
    """Kill, look, print."""
    from support.killed_schedules import killed_year  # noqa: PLC0415 - of the folder that was added above

    for backend in ("sqlite", "postgres"):
        begun, seed = time.monotonic(), int(time.time())
        with tempfile.TemporaryDirectory() as folder:
            story = killed_year(backend, Path(folder), days=days, steps=STEPS, processes=PROCESSES, seed=seed)
            tally = asyncio.run(story)
        print(f"{backend}, {days} days: {tally}; {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
