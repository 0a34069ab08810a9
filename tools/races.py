"""Tries as many random orders as asked of completion, cancel, deadline, retry, pause and signals; prints its tally.

`make races RACES=10000` runs it on SQLite, `make races STORE=postgres` on a PostgreSQL of its own.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

ROUND = 500  # orders on one database before a new one is begun


def main(count: int, backend: str) -> int:
    """Race, look, print; until so many orders were tried or something is wrong."""
    spec = importlib.util.spec_from_file_location("racing", ROOT / "tests" / "crashes" / "test_run_races.py")
    assert spec is not None
    assert spec.loader is not None
    racing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(racing)
    started = time.monotonic()
    done = 0
    ends = racing.Counter()
    while done < count:
        size = min(ROUND, count - done)
        with tempfile.TemporaryDirectory() as folder:
            ends += racing.races(backend, Path(folder), size, done)
        done += size
        told = "  ".join(f"{status} {number:,}" for status, number in sorted(ends.items()))
        print(f"{done:>8,} orders, 0 records changed after their end  {told}  {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    given = [*sys.argv[1:], *("2000", "sqlite")[len(sys.argv) - 1 :]]
    sys.exit(main(int(given[0]), given[1]))
