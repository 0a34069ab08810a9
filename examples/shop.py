"""A shop: a checkout that prices, charges a card, waits for the parcel, and tells the customer through another job.

Run it:  holdfast worker examples/shop.py
         holdfast start examples/shop.py checkout sku=A1 card=4242
         holdfast signal <run> shipped '{"by": "dhl"}'
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from holdfast import App, external_key, wait_for

app = App("shop")


@app.step(retries=3, timeout=10)  # may run again after a crash
async def price(sku: str) -> int:
    """Look a price up."""
    await asyncio.sleep(0.05)
    return 100 * len(sku)


@app.tool(on_doubt="ask")  # acts on the outside world: at most once
async def charge(card: str, cents: int) -> str:
    """Charge a card; the bank's ledger is a file here, with a line for each charge."""
    ledger = os.environ.get("SHOP_LEDGER", "ledger.txt")
    with open(ledger, "a") as file:  # noqa: ASYNC230, PTH123 - a bank in one line
        file.write(f"{card} charged {cents} cents, key {external_key()}\n")
    return f"receipt for {cents} cents"


@app.step
async def write_mail(text: str) -> str:
    """Write to the customer, with care."""
    await asyncio.sleep(0.5)
    return f"Dear customer: {text}."


@app.job
async def notify(text: str) -> str:
    """Tell the customer: a job of its own."""
    return await write_mail(text)


@app.job
async def checkout(sku: str, card: str) -> dict[str, Any]:
    """Price, charge, wait for the parcel, notify."""
    cents = await price(sku)
    receipt = await charge(card, cents)
    shipped = await wait_for("shipped", timeout="3d")
    mail = await notify(f"your {sku} is on its way with {shipped['by']}")
    return {"receipt": receipt, "mail": mail}
