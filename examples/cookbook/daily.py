"""Cron by an outside trigger: a report once a day, whoever triggers it, and however often.

The day is in the idempotency key: the first trigger of a day starts the run, every other one finds it. So cron may fire
twice, on two hosts, or again after an outage. The trigger only starts; a worker does the work, with its retries.

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
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # the outside world, in one file


@app.step(retries=5)
def gather_figures(day: date) -> dict[str, int]:
    """Read what was sold on that day."""
    return {"orders": day.day, "cents": 100 * day.day}


@app.tool(on_doubt="ask")
def send(day: date, figures: dict[str, int]) -> str:
    """Send the report; a mail in real life."""
    with LEDGER.open("a") as file:
        file.write(f"report of {day}: {figures['orders']} orders\n")
    return f"sent {day}"


@app.job(retries=3, deadline="12h")
def report(day: date) -> str:
    """Report one day. It is an argument: `today()` inside would be another day after midnight."""
    return send(day, gather_figures(day))


def trigger(day: date) -> RunHandle:
    """Start the report of a day, or find the run that was started."""
    handle: RunHandle = report.options(key=f"report-{day}").start(day)
    return handle


if __name__ == "__main__":
    today = date.fromisoformat(sys.argv[1]) if len(sys.argv) > 1 else datetime.now(UTC).date()
    print(trigger(today).id)
