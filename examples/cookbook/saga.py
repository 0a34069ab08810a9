"""Saga: three bookings that belong together. If one fails, the others are cancelled, the last one first.

Bookings and cancellations are in the job's history. After a crash the next worker continues from there, forwards or
backwards. A booking that was interrupted by a crash is looked up first, and not repeated blindly.

Run it:  holdfast worker saga.py
         holdfast start saga.py trip who=Ann city=Oslo
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast import App, Done, NotDone, Permanent, StepFailed, external_key

app = App("travel")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # stands for the outside world
PACE_SECONDS = float(os.environ.get("PACE", "0"))  # makes the program slow, for tests


def look_up(external_key: str, what: str, who: str, city: str) -> Done | NotDone:
    """Ask the other side, after a crash during a booking, whether the booking exists."""
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    made = f"booked {what} in {city} for {who}, key {external_key}"
    return Done(f"{what}-{city}") if made in lines else NotDone()


@app.tool(reconcile=look_up)
def book(what: str, who: str, city: str) -> str:
    """Make a booking, at most once."""
    time.sleep(PACE_SECONDS)
    if what == "car" and city == "Oslo":
        raise Permanent("no car is left in Oslo")
    with LEDGER.open("a") as file:
        file.write(f"booked {what} in {city} for {who}, key {external_key()}\n")
    time.sleep(PACE_SECONDS)
    return f"{what}-{city}"


@app.tool(retries=10, on_doubt="retry")  # the other side accepts a repeated cancellation
def cancel(booking: str) -> str:
    """Cancel a booking, with many retries. If that fails, a person has to help."""
    time.sleep(PACE_SECONDS)
    with LEDGER.open("a") as file:
        file.write(f"cancelled {booking}, key {external_key()}\n")
    return booking


@app.job
def trip(who: str, city: str) -> str:
    """Book all parts of a trip, or none."""
    booked: list[str] = []
    try:
        for what in ("flight", "hotel", "car"):
            booked.append(book(what, who, city))  # noqa: PERF401 - if a booking fails, the earlier ones are cancelled
    except StepFailed as error:
        undone = [cancel(booking) for booking in reversed(booked)]
        return f"not booked: {error.reason}; cancelled {', '.join(undone)}"
    return f"booked {', '.join(booked)}"


if __name__ == "__main__":
    good, bad = trip.start("Ann", "Rome"), trip.start("Bob", "Oslo")
    app.worker().run(until_idle=True)
    print(good.result())
    print(bad.result())
