"""The app that the browser tests look at: jobs of every kind that the dashboard shows."""

import asyncio
import os
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from holdfast import App, Backoff, changed, export, progress, spend, wait_for

app = App("shop", build="1.4.1")
TRIES: Counter[str] = Counter()


@app.step(retries=3, timeout=10)
async def price(sku: str) -> int:
    """Look up a price."""
    await asyncio.sleep(0.03)
    return 100 * len(sku)


@app.step(retries=3, backoff=Backoff(first_seconds=0.05))
async def reserve(sku: str) -> str:
    """Reserve the goods; the warehouse answers at the third try."""
    TRIES[sku] += 1
    if TRIES[sku] % 3:
        raise ConnectionError(f"the warehouse does not answer for {sku}")
    return f"reserved {sku}"


@app.tool(on_doubt="ask")
async def charge(card: str, cents: int) -> dict[str, Any]:
    """Charge a card."""
    await asyncio.sleep(0.02)
    return {"receipt": f"ch_{card}", "cents": cents, "ledger": 12345678901234567890}


@app.tool(on_doubt="ask", timeout=0.05)
async def transfer(iban: str, cents: int) -> str:
    """Send money; the bank is slower than the time limit, so the outcome is in doubt."""
    await asyncio.sleep(0.2)
    return f"sent {cents} to {iban}"


@app.step
async def write_mail(text: str) -> str:
    """Write to the customer."""
    return f"Dear customer: {text}."


@app.job
async def notify(text: str) -> str:
    """Notify the customer, in a separate job."""
    return await write_mail(text)


@app.job
async def checkout(sku: str, card: str, amount: int = 1) -> dict[str, Any]:
    """Price, reserve, charge, wait for the parcel, notify."""
    progress(0.1, stage="pricing")
    cents = await price(sku)
    await reserve(sku)
    progress(0.5, stage="charging", message=f"{amount} × {cents} cents")
    receipt = await charge(card, cents * amount)
    progress(0.8, stage="waiting for the parcel")
    await wait_for("shipped", timeout="3d")
    await price(sku + " again")
    mail = await notify(f"your {sku} is on its way")
    await export({"receipt": receipt, "mail": mail}, "invoice")
    return {"receipt": receipt, "mail": mail}


@app.job
async def payout(iban: str, cents: int) -> str:
    """Send money to a supplier."""
    return await transfer(iban, cents)


class Approval(msgspec.Struct):
    """The answer of the person who approves a refund."""

    approved: bool
    amount: Annotated[int, msgspec.Meta(ge=0, le=500, description="In cents, at most 500.")]
    reason: Literal["damaged", "late", "other"]
    note: str = ""
    copies_to: list[str] = []


@app.job
async def refund(order: str, cents: int) -> str:
    """Ask a person to approve a refund."""
    answer = await wait_for("approval", form=Approval, timeout="7d")
    return (
        f"{order}: {answer.amount} of {cents} cents back, {answer.reason}" if answer.approved else f"{order}: refused"
    )


class Cat(msgspec.Struct, frozen=True):
    lives: int = 9


class Node(msgspec.Struct):
    value: int
    next: "Node | None" = None


class Survey(msgspec.Struct):
    due: datetime
    price: Decimal
    initials: Annotated[str, msgspec.Meta(max_length=2, title="Your initials")]
    side: int | Cat
    tree: Node | None = None
    cat: Cat = Cat(lives=3)
    note: str = "hello"
    maybe: int | None = 5
    grade: Literal["a"] | None = "a"
    limits: dict[str, int] = {}


@app.job
async def survey(sheet: Survey, copies: int = 1, **more: Any) -> dict[str, Any]:
    """Return what a person has entered."""
    return {"sheet": sheet, "copies": copies, "more": more}


@app.job
async def twice() -> list[bool]:
    """Ask the same twice."""
    return [(await wait_for("approval", form=Consent)).approved for _ in range(2)]


class Consent(msgspec.Struct):
    """Is it allowed?"""

    approved: bool
    until: date | None = None


@app.step
async def ask_model(question: str) -> str:
    """Ask a model, which costs."""
    spend(tokens=1200)
    return f"an answer to {question}"


@app.job
async def research(question: str) -> list[str]:
    """Ask a model several times, within a budget."""
    return [await ask_model(f"{question} {number}") for number in range(3)]


@app.job
async def reconcile(day: str) -> None:
    """Compare the books; they do not agree."""
    await price(day)
    raise ValueError(f"the books of {day} differ by 3 cents")


@app.job
async def quick(number: int) -> int:
    """Return at once."""
    return number


@app.job
async def echo(text: str) -> str:
    """Return a text, which may be anything."""
    progress(0.5, stage=text[:100], message=text[:500])
    await export(text, text[:200] or "empty")
    return text


@app.step
async def extract(day: str) -> dict[str, list[int]]:
    """Read the rows of a day."""
    assert day
    return {"rows": [3, 1, 2]}


@app.step
async def double(row: int) -> int:
    """Double a row."""
    return row * 2


@app.tool
async def load(rows: list[int], approved_by: str) -> str:
    """Load the rows."""
    return f"{sum(rows)} loaded for {approved_by}"


etl = app.plan("etl")
raw = etl.call(extract, day=etl.input.day)
rows = etl.map(double, raw["rows"], row=etl.item)
approval = etl.wait("approve", after=rows, type="human", timeout="3d")
etl.call(load, rows=rows, approved_by=approval.by)

wide = app.plan("wide")
for column in range(10):
    last = wide.call(extract, day=wide.input.day, id=f"read_{column}_0")
    for place in range(1, 100):
        last = wide.call(extract, day=wide.input.day, id=f"read_{column}_{place}", after=last)

odd = app.plan("odd")  # names that every JavaScript object has
first = odd.call(extract, day=odd.input.day, id="__proto__")
odd.call(extract, day=odd.input.day, id="constructor", after=first)


@app.job(pin=True)
async def ship(order: str) -> str:
    """Ship an order; an older build asked for another price."""
    await price(f"{order}{os.environ.get('SHOP_SUFFIX', '')}")
    if changed("2026-11-fee"):
        progress(0.5, stage="with a fee")
    await wait_for("collected")
    return order


@app.job
async def long(count: int) -> int:
    """Run many steps, one after the other."""
    for number in range(count):
        await double(number)
    return count
