"""The app of the rolling deploys, in two builds. Each tool call leaves a line outside the database."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast import App, Done, NotDone, changed, sleep, wait_for

app = App("rolling")
NEW = os.environ.get("HOLDFAST_BUILD") == "2"


def act(line: str) -> str:
    """One line, whole or not at all, whoever else writes: O_APPEND."""
    descriptor = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
    return line


def has_acted(kind: str) -> Callable[..., Done | NotDone]:
    """Return the function that asks the outside world whether a tool has acted for an order."""

    def ask(external_key: str, order: int) -> Done | NotDone:
        del external_key
        file = Path(os.environ["WITNESS"])
        lines = file.read_text().splitlines() if file.exists() else []
        return Done(f"{kind} {order}") if f"{kind} {order}" in lines else NotDone()

    return ask


@app.step
async def price(order: int, currency: str) -> str:
    return f"{order} {currency}"


@app.tool(reconcile=has_acted("charge"))
async def charge(order: int) -> str:
    return act(f"charge {order}")


@app.tool(reconcile=has_acted("fee"))
async def fee(order: int) -> str:
    return act(f"fee {order}")


@app.tool(reconcile=has_acted("ship"))
async def ship(order: int) -> str:
    return act(f"ship {order}")


@app.job(max_attempts=1000)
async def marked(order: int) -> bool:
    """Has a new tool in build 2, for runs that have not passed its place."""
    await price(order, "eur")
    await charge(order)
    new = NEW and changed("2026-11-fee")
    if new:
        await fee(order)
    await sleep(0.05)
    await wait_for("go")
    await ship(order)
    return new


@app.job(max_attempts=1000, pin=True)
async def pinned(order: int) -> str:
    """Is another job in build 2, and runs on the build that began it."""
    if NEW:
        await charge(order)
        await wait_for("go")
        await fee(order)
    else:
        await price(order, "eur")
        await wait_for("go")
        await charge(order)
    await ship(order)
    return "new" if NEW else "old"


@app.job(max_attempts=1000)
async def misfitting(order: int) -> str:
    """Asks for another price in build 2, so that a run of build 1 does not fit."""
    cost = await price(order, "usd" if NEW else "eur")
    await charge(order)
    await wait_for("go")
    await ship(order)
    return cost
