"""Walks every legal job stream up to a depth, on all cores, and prints its tally. `make prove DEPTH=11` runs it."""

from __future__ import annotations

import multiprocessing
import sys
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import exhaustive


def walk(beginning: tuple[str, str, int]) -> tuple[str, int, list[str]]:
    """Examine all streams with one beginning; return how many, and those that are wrong, the first ten of them."""
    first, second, depth = beginning
    seen = 0
    wrong: list[str] = []
    for stream in exhaustive.legal_streams(first, second, depth):
        seen += 1
        try:
            exhaustive.examine(stream)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the finding
            wrong.append(f"{[name for name, _ in stream.letters]}: {error!r}")
            if len(wrong) == 10:  # noqa: PLR2004
                break
    return f"{first}, {second}, …", seen, wrong


def main(depth: int) -> int:
    """Walk, print, judge."""
    started = time.monotonic()
    total = 0
    failures: list[str] = []
    beginnings = [(first, second, depth) for first, second in product(exhaustive.FIRST, exhaustive.SECOND)]
    with multiprocessing.Pool() as pool:
        for name, seen, wrong in pool.imap_unordered(walk, beginnings):
            total += seen
            failures += wrong
            print(f"  {name:<34} {seen:>12,} streams   {len(wrong)} wrong", flush=True)
    missing = exhaustive.count(depth) - 4 - total  # the empty stream and the three of one event are not walked
    took = time.monotonic() - started
    print(f"depth {depth}: {total:,} streams, {len(failures)} wrong, {missing} missing, {took:.0f} s")
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures or missing else 0


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else "11"
    if not (asked.isdecimal() and int(asked) > 1):
        sys.exit(f"DEPTH is a number of events from 2 on, got {asked!r}")
    sys.exit(main(int(asked)))
