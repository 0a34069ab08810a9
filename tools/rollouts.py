"""Rolls builds out and back under load on PostgreSQL, kills workers, and prints its tally.

`make deploys ROUNDS=20` runs it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

ROUNDS_AT_ONCE = 10  # on one database before a new one is begun
COUNT = 10  # runs of each job that a round starts


def main(rounds: int) -> int:
    """Deploy, look, print; until so many rounds are done or something is wrong."""
    from support.postgres import fresh_url  # noqa: PLC0415 - of the folder that was added above
    from support.rollout import roll_out  # noqa: PLC0415

    begun, done, seed = time.monotonic(), 0, int(time.time())
    while done < rounds:
        seed += 1
        with tempfile.TemporaryDirectory() as folder:
            tally = asyncio.run(roll_out(Path(folder), fresh_url(), min(ROUNDS_AT_ONCE, rounds - done), COUNT, seed))
        done += tally.rounds
        print(
            f"{done:>4} deploys  {tally.kills:>4} kills  {tally.runs:>5,} runs, 0 lost"
            f"  {tally.tools:>6,} tools, 0 twice  {tally.handed_over:>4} handed over  {tally.asked:>4} asked"
            f"  {tally.old_side} old and {tally.new_side} new side  {time.monotonic() - begun:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
