"""Runs random job programs, ended after every event and at every commit, for as many seeds as asked; prints its tally.

A difference is printed with the seed that names its program, and how and where it was ended.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.programs import CUT, tried
from support.scenarios import AT_ONCE, KINDS, SECONDS, play_scenario


def main(seeds: int, first: int) -> int:
    """Try the programs; 1 if one of them saw something else."""
    started, tally = time.monotonic(), Counter[str]()
    for done, seed in enumerate(range(first, first + seeds), start=1):
        try:
            tally += each_way(seed)
        except Exception as error:  # noqa: BLE001 - what went wrong is the tally
            tally["differences"] += 1
            notes = " ".join(getattr(error, "__notes__", []))
            print(f"seed {seed}: {type(error).__name__}: {error} {notes}"[:400], flush=True)
        if not done % 10 or done == seeds:
            told = "  ".join(f"{kind} {tally[kind]:,}" for kind in (*KINDS, CUT))
            seconds = time.monotonic() - started
            print(f"{done:>6,} programs, {tally['differences']} differ  {told}  {seconds:.0f} s", flush=True)
    return 1 if tally["differences"] else 0


def each_way(seed: int) -> Counter[str]:
    """Run one program, ended everywhere in each way. Return how often, by the way."""
    tally = Counter[str]()
    play_scenario(lambda: tried(seed))
    for kind in (*KINDS, CUT):
        tally[kind] = play_scenario(lambda: _everywhere(seed, kind), 100 * SECONDS, quiet=False)  # noqa: B023 - called at once
    return tally


async def _everywhere(seed: int, kind: str) -> int:
    async def one(at: int) -> bool:
        try:
            return await tried(seed, at, kind)
        except BaseException as error:
            error.add_note(f"({kind} at {at})")
            raise

    count, at = 0, 1
    while True:
        ended = await asyncio.gather(*(one(at + more) for more in range(AT_ONCE)))
        count += sum(ended)
        at += AT_ONCE
        if not all(ended):
            return count


if __name__ == "__main__":
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**31)  # noqa: PLR2004
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, chosen))
