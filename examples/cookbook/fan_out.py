"""Fan-out: one step per item, a limited number at once, and one result. It continues after a kill.

The result of each item is recorded at once. After a crash, only items without a recorded result run again.

Run it:  holdfast worker fan_out.py
         holdfast start fan_out.py census 'cities=["Rome", "Oslo", "Bern"]'
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast import App, export, gather, map, progress

app = App("census")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # stands for the outside world
PACE_SECONDS = float(os.environ.get("PACE", "0"))  # makes the program slow, for tests


@app.step(retries=3, timeout=10)  # it only reads, so it may run again
async def count(city: str) -> int:
    """Return the population of a city."""
    with LEDGER.open("a") as file:  # noqa: ASYNC230 - one line
        file.write(f"asked {city}\n")
    await asyncio.sleep(PACE_SECONDS)
    return 1000 * len(city)


@app.job
async def region(cities: list[str]) -> int:
    """Count the cities of a region, four at once."""
    counts: list[int] = await map(count, cities, limit=4)
    return sum(counts)


@app.job
async def census(cities: list[str]) -> int:
    """Count all cities, with one child per region. Each child has its own history."""
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
