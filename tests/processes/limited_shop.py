"""The app whose queues have limits, for worker processes of their own."""

from __future__ import annotations

import asyncio

from holdfast import App

app = App("shop")


@app.job(queue="few", max_attempts=1000)
async def few(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.job(queue="slow", max_attempts=1000)
async def slow() -> None:
    pass


@app.job(queue="shared")
async def shared(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.job(queue="deep")
async def deep(seconds: float) -> None:
    await asyncio.sleep(seconds)
