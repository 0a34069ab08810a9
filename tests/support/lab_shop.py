"""A shop whose jobs are tested with the lab."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from holdfast import App, now, sleep, wait_for

app = App("shop", "sqlite:////nowhere/jobs.db")  # a test must not open it


@app.step(retries=2)
async def price(order: str) -> int:
    """Ask a slow server."""
    await asyncio.sleep(3600)
    return 200 if order else 0


@app.tool
async def charge(card: str, cents: int) -> str:
    """Charge for real: a test must not get here."""
    raise AssertionError(f"{card} was charged {cents} for real")


def receipt(card: str, cents: int) -> str:
    """Stand in for `charge`."""
    assert (card, cents) == ("4242", 200)
    return "receipt"


@app.job
async def checkout(order: str, card: str) -> str:
    """Charge, wait for the shipment, and wait for thirty days."""
    cents = await price(order)
    receipt = await charge(card, cents)
    await wait_for("shipped", timeout="10d")
    await sleep("30d")
    return f"{receipt} for {cents} cents"


@app.step
def add(number: int) -> int:
    """Add one, in a thread."""
    time.sleep(0.001)
    return number + 1


@app.job
def plain(number: int) -> int:
    """A job without async."""
    number = add(number)
    sleep("10d")
    return add(number)


@app.job
async def family(count: int) -> list[int]:
    """Run children at once."""
    children: list[Any] = [plain(number) for number in range(count)]
    return list(await asyncio.gather(*children))


@app.job
async def dated() -> str:
    """Return the day after tomorrow."""
    await sleep("2d")
    return datetime.fromtimestamp(now(), UTC).date().isoformat()


@app.job(deadline="1h")
async def endless() -> None:
    """Wait longer than the deadline."""
    await wait_for("never")
