"""The app that the killing tests run in processes of their own. Each tool call leaves a line outside the database."""

from __future__ import annotations

import os

from holdfast import App, export, gather, progress, sleep, spend, wait_for

app = App("shop")


def witness(line: str) -> None:
    """One line, whole or not at all, whoever else writes: O_APPEND."""
    descriptor = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@app.step
async def price(n: int) -> int:
    spend(tokens=1)
    export(n * 10, f"price of {n}")
    return n * 10


@app.tool
async def charge(order: int, cents: int) -> str:
    witness(f"charge {order}")
    spend(usd=0.5)
    return f"receipt {order} {cents}"


@app.tool
async def mail(order: int, text: str) -> str:
    witness(f"mail {order}")
    return f"sent {text}"


@app.job(max_attempts=1000)
async def notify(order: int) -> str:
    return await mail(order, "paid")


@app.job(max_attempts=1000)
async def checkout(order: int) -> list[str]:
    one, two = await gather(price(order), price(order + 1))
    progress(0.3, stage="charging")
    receipt = await charge(order, one + two)
    export(receipt.encode() * 100, "receipt")
    progress(0.6, stage="shipping")
    await sleep(0.01)
    shipped = await wait_for("shipped")
    return [receipt, shipped, await notify(order)]
