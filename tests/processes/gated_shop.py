"""The app whose workers are killed at gates and around what they spend. Calls leave lines outside the database."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast import App, spend
from holdfast.ready import BudgetGate, ConcurrencyGate, all_of

app = App("shop")
folder = Path(os.environ["FOLDER"])
single = ConcurrencyGate(1, name="single")
shared = BudgetGate(100, per=1e9, name="shared", ledger=app.ledger(), now=time.time)
model = all_of(single, shared, name="model")


def witness(line: str) -> None:
    """One line, whole or not at all: O_APPEND."""
    descriptor = os.open(folder / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@app.tool(gate=model)
async def charge(order: int) -> str:
    witness(f"charge {order}")
    spend(tokens=10)
    while not (folder / "go").exists():  # noqa: ASYNC110 - it comes from another process
        await asyncio.sleep(0.01)
    spend(tokens=1)
    return f"receipt {order}"


@app.step
async def read(order: int) -> int:
    spend(tokens=100)
    return order


@app.job
async def pay(order: int) -> str:
    await read(order)
    return await charge(order)
