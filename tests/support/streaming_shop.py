"""A target whose job changes its record many times, for streams that many watch."""

from __future__ import annotations

import asyncio
import os

from holdfast import App, Config, progress, wait_for

app = App("busy", config=Config.read({"poll_seconds": 0.01, "idle_seconds": 5.0, "progress_seconds": 0.001}))


@app.step
async def tick(number: int) -> int:
    """Change the record."""
    return number


@app.job
async def steps(count: int) -> int:
    """Change the record by many steps, once somebody says to go."""
    await wait_for("go")
    return sum([await tick(number) for number in range(count)])


@app.job
async def updates(count: int) -> int:
    """Change the record by many reports, each of which is written, once somebody says to go."""
    await wait_for("go")
    for number in range(count):
        progress(number / count, step=number, step_total=count)
        await asyncio.sleep(0.002)
    return count


@app.job
async def large(size: int) -> str:
    """Return much."""
    return "x" * size


@app.job
async def name() -> str:
    """Tell who ran it."""
    return os.environ.get("WHO", "")
