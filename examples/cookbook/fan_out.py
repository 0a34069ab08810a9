"""Fan-out: one step for each of many items, so many at once, and one result. Killed in the middle, it goes on.

Each item's result is recorded when it is there. After a crash only those are done again that were not on disk yet.

Run it:  holdfast worker fan_out.py
         holdfast start fan_out.py census 'cities=["Rome", "Oslo", "Bern"]'
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast import App, export, gather, map, progress

app = App("census")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # the outside world, in one file
PACE_SECONDS = float(os.environ.get("PACE", "0"))  # how slow it is


@app.step(retries=3, timeout=10)  # it only reads: it may run again
async def count(city: str) -> int:
    """Ask a city how many live there."""
    with LEDGER.open("a") as file:  # noqa: ASYNC230 - one line
        file.write(f"asked {city}\n")
    await asyncio.sleep(PACE_SECONDS)
    return 1000 * len(city)


@app.job
async def region(cities: list[str]) -> int:
    """Count a few, four at once."""
    counts: list[int] = await map(count, cities, limit=4)
    return sum(counts)


@app.job
async def census(cities: list[str]) -> int:
    """Count all: a child for each region, all at the same time, each with a history of its own."""
    progress(0, stage="counting", step_total=len(cities))
    half = len(cities) // 2
    totals = await gather(region(cities[:half]), region(cities[half:]))
    progress(1, stage="counted", step=len(cities))
    export({"cities": cities, "people": sum(totals)}, "census")
    return sum(totals)


if __name__ == "__main__":
    run = census.start([f"City {number:02}" for number in range(20)])
    app.worker().run(until_idle=True)
    print(run.result())
    print(run.record().stage, run.record().progress)
    print([one.name for one in app.exports(run.id)])
