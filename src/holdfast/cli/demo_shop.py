"""The app of ``holdfast demo``: a checkout with a step, a tool, a wait and a child.

Its workers run in a temporary folder. The bank's ledger is a file there with one line per charge. Holdfast itself
neither writes nor reads it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from holdfast import App, external_key, wait_for

LEDGER = "ledger"
MAIL_SECONDS = 0.5  # long enough to kill the worker during this step

app = App("shop")


@app.step(retries=3, timeout=10)  # may run again after a crash
async def price(sku: str) -> int:
    """Look up a price."""
    return 100 * len(sku)


@app.tool(on_doubt="ask")  # acts on the outside world: at most once
def charge(card: str, cents: int) -> str:
    """Charge a card."""
    with Path(LEDGER).open("a") as ledger:
        ledger.write(f"{card} charged {cents} cents, key {external_key()}\n")
    return f"receipt for {cents} cents"


@app.step
async def write_mail(text: str) -> str:
    """Write to the customer, slowly."""
    await asyncio.sleep(MAIL_SECONDS)
    return f"Dear customer: {text}."


@app.job
async def notify(text: str) -> str:
    """Notify the customer, in a separate job."""
    return await write_mail(text)


@app.job
async def checkout(sku: str, card: str) -> dict[str, Any]:
    """Price, charge, wait for the parcel, notify."""
    cents = await price(sku)
    receipt = await charge(card, cents)  # type: ignore[misc]  # - a plain function is awaited in an async job
    shipped = await wait_for("shipped", timeout="3d")
    mail = await notify(f"your {sku} is on its way with {shipped['by']}")
    return {"receipt": receipt, "mail": mail}
