"""How quick the test kit is: jobs of thirty days in virtual time, and a crash at every commit of the README's job.

All run in memory, from the start of a lab to its end. Each figure is the best of a few runs, because other programs of
the machine only add to it. The program fails if one is not below its ceiling.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import App, WaitTimeout, sleep, wait_for
from holdfast.testing import Lab
from holdfast.testing.lab import START_AT

ROOT = Path(__file__).parents[1]
THIRTY_DAYS_MS = 100.0
DAILY_MS = 300.0
CRASHES_SECONDS = 5.0
ROUNDS = 15
DAYS = 30
START = START_AT.timestamp()

app = App("bench", "memory:")


@app.step
async def note(day: int) -> int:
    """Note a day."""
    return day


@app.job
async def thirty_days() -> int:
    """Wait for ten days in vain, and sleep for twenty."""
    await note(0)
    try:
        await wait_for("news", timeout="10d")
    except WaitTimeout:
        await note(10)
    await sleep("20d")
    return await note(30)


@app.job
async def daily() -> int:
    """Do something every day for thirty days. Each day replays those before."""
    for day in range(30):
        await note(day)
        await sleep("1d")
    return 30


def days_of(job: Any) -> str:
    """Run a job to its end. Return the virtual time that has passed."""
    with Lab() as lab:
        assert lab.result(lab.start(job)) == DAYS
        return f"{(lab.now.timestamp() - START) / 86400:.0f} days"


def readme_job() -> Any:
    """Return the job of the README."""
    code = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"__name__": "readme"}
    exec(code[1], names)  # noqa: S102 - our own page
    return names["checkout"]


def crashes() -> str:
    """Let the job of the README crash everywhere."""
    with Lab() as lab:
        report = lab.crash_everywhere(readme_job(), "A1", card="4242", signals={"shipped": None})
    return f"{len(report.commits)} commits, {len(report.cases)} cases"


def best(act: Callable[[], str]) -> tuple[float, float, str]:
    """Return the shortest time and the shortest time of this process, in seconds, and what was done."""
    times, told = [], ""
    for _ in range(ROUNDS):
        begun, used = time.perf_counter(), time.process_time()
        told = act()
        times.append((time.perf_counter() - begun, time.process_time() - used))
    return min(wall for wall, _ in times), min(cpu for _, cpu in times), told


def main() -> int:
    """Measure, print, and compare with the ceilings."""
    logging.disable(logging.CRITICAL)
    figures = (
        ("one job that waits and sleeps", lambda: days_of(thirty_days), THIRTY_DAYS_MS, False),
        ("one job that does something each day", lambda: days_of(daily), DAILY_MS, True),
        ("crash_everywhere on the README's job", crashes, 1000 * CRASHES_SECONDS, False),
    )
    fine = True
    for name, act, ceiling, of_cpu in figures:
        wall, cpu, told = best(act)
        times = f"{1000 * wall:.0f} ms, {1000 * cpu:.0f} ms of CPU"
        print(f"{name}: {told} in {times} (ceiling {ceiling:g} ms)", flush=True)
        fine = fine and 1000 * (cpu if of_cpu else wall) < ceiling
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
