"""The app that worker processes run whose host is gone, or whose clock is wrong. See `test_many_hosts`."""

from __future__ import annotations

import asyncio
import os
import time

from holdfast import App, Backoff, WaitTimeout, now, sleep, wait_for

app = App("far")


def witness(line: str) -> None:
    """One line, whole or not at all, whoever else writes: O_APPEND."""
    descriptor = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@app.step
async def begin() -> str:
    """Says who began, and, where it is told to, never ends."""
    witness(f"begun by {os.environ['WHO']}")
    if "STAY" in os.environ:
        await asyncio.Event().wait()
    return os.environ["WHO"]


@app.job
async def stay() -> str:
    return await begin()


@app.step
async def clock() -> float:
    return time.time()


@app.job
async def moments() -> list[float]:
    """The host's time, the store's, and the store's after a while."""
    host, before = await clock(), now()
    await sleep(1)
    try:
        await wait_for("never", timeout=1)
    except WaitTimeout:
        return [host, before, now()]
    return []


@app.step(backoff=Backoff(retries=1, first_seconds=1.0, jitter=0))
async def stumble() -> None:
    witness("stumbled")
    raise ValueError("as it must")


@app.job
async def fall() -> None:
    await stumble()


@app.step
async def long() -> None:
    await asyncio.sleep(1)  # its lease is renewed many times


@app.job
async def work() -> None:
    await long()


@app.job
async def hang() -> None:
    await asyncio.get_running_loop().create_future()
