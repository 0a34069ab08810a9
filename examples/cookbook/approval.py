"""Approval: a refund over 20.00 waits up to three days for a person. While it waits, it is a row in the database.

Run it:  holdfast worker approval.py
         holdfast start approval.py refund order=A1 cents=5000
         holdfast signal <run> approval '{"approved": true, "by": "Ann"}'
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast import App, WaitTimeout, external_key, wait_for

app = App("refunds")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # stands for the outside world
SMALL_CENTS = 2000


@app.tool
def ask_for_approval(order: str, cents: int) -> None:
    """Notify the approver. In real life this is an e-mail."""
    with LEDGER.open("a") as file:
        file.write(f"asked about {cents} cents for {order}\n")


@app.tool(on_doubt="ask")  # money: if in doubt, a person decides
def pay_back(order: str, cents: int) -> str:
    """Pay the money back. The bank deduplicates by the key."""
    with LEDGER.open("a") as file:
        file.write(f"paid {cents} cents for {order}, key {external_key()}\n")
    return f"paid back {cents} cents"


@app.job
def refund(order: str, cents: int, patience: str = "3d") -> str:
    """Pay small sums back at once, and larger ones after an approval."""
    if cents > SMALL_CENTS:
        ask_for_approval(order, cents)
        try:
            answer = wait_for("approval", timeout=patience, type="human")
        except WaitTimeout:
            return "nobody has answered: not paid"
        if not answer["approved"]:
            return f"refused by {answer['by']}"
    return pay_back(order, cents)


if __name__ == "__main__":
    small, large, refused, late = (
        refund.start("A1", 900),
        refund.start("B2", 5000),
        refund.start("C3", 9000),
        refund.start("D4", 7000, patience="100ms"),
    )
    app.worker().run(until_idle=True)  # usually a separate process
    large.signal("approval", {"approved": True, "by": "Ann"})
    refused.signal("approval", {"approved": False, "by": "Bob"})
    app.worker().run(until_idle=True)
    for run in (small, large, refused, late):
        print(run.result())
