"""Cron by an outside trigger: one report per day for any number of triggers.

The idempotency key contains the day. The first trigger of a day starts the run, and every other trigger finds it. So
cron may fire twice, on two hosts, or again after an outage. The trigger only starts the run. A worker does the work,
with retries.

A line for cron:     5 6 * * *  cd /srv/shop && holdfast start daily.py report day=$(date -I) --key report-$(date -I)
Or, for systemd:     daily.service   [Service]  ExecStart=/usr/bin/python3 /srv/shop/daily.py
                     daily.timer     [Timer]    OnCalendar=*-*-* 06:05   Persistent=true
The worker:          holdfast worker daily.py
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from holdfast import App, RunHandle

app = App("daily")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # stands for the outside world


@app.step(retries=5)
def gather_figures(day: date) -> dict[str, int]:
    """Read the sales of the day."""
    return {"orders": day.day, "cents": 100 * day.day}


@app.tool(on_doubt="ask")
def send(day: date, figures: dict[str, int]) -> str:
    """Send the report. In real life this is an e-mail."""
    with LEDGER.open("a") as file:
        file.write(f"report of {day}: {figures['orders']} orders\n")
    return f"sent {day}"


@app.job(retries=3, deadline="12h")
def report(day: date) -> str:
    """Report one day. The day is an argument, because `today()` would change at midnight."""
    return send(day, gather_figures(day))


def trigger(day: date) -> RunHandle:
    """Start the report of a day, or return the existing run."""
    handle: RunHandle = report.options(key=f"report-{day}").start(day)
    return handle


if __name__ == "__main__":
    today = date.fromisoformat(sys.argv[1]) if len(sys.argv) > 1 else datetime.now(UTC).date()
    print(trigger(today).id)
