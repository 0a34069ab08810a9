"""Saga: three bookings that belong together. If one fails, those that were made are cancelled, last first.

What is done and undone is in the job's history, so a crash between any two steps changes nothing: the next worker goes
on from there, forwards or backwards. A booking that was cut off by a crash is looked up, not made again blindly.

Run it:  holdfast worker saga.py
         holdfast start saga.py trip who=Ann city=Oslo
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast import App, Done, NotDone, Permanent, StepFailed, external_key

app = App("travel")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # the outside world, in one file
PACE_SECONDS = float(os.environ.get("PACE", "0"))  # how slow it is


def look_up(external_key: str, what: str, who: str, city: str) -> Done | NotDone:
    """After a crash in the middle of a booking: ask the other side whether it has it."""
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    made = f"booked {what} in {city} for {who}, key {external_key}"
    return Done(f"{what}-{city}") if made in lines else NotDone()


@app.tool(reconcile=look_up)
def book(what: str, who: str, city: str) -> str:
    """Book it, at most once."""
    time.sleep(PACE_SECONDS)
    if what == "car" and city == "Oslo":
        raise Permanent("no car is left in Oslo")
    with LEDGER.open("a") as file:
        file.write(f"booked {what} in {city} for {who}, key {external_key()}\n")
    time.sleep(PACE_SECONDS)
    return f"{what}-{city}"


@app.tool(retries=10, on_doubt="retry")  # to cancel twice is to cancel once: the other side knows the booking
def cancel(booking: str) -> str:
    """Undo a booking, with patience: a saga that cannot be undone needs a person."""
    time.sleep(PACE_SECONDS)
    with LEDGER.open("a") as file:
        file.write(f"cancelled {booking}, key {external_key()}\n")
    return booking


@app.job
def trip(who: str, city: str) -> str:
    """Book all or nothing."""
    booked: list[str] = []
    try:
        for what in ("flight", "hotel", "car"):
            booked.append(book(what, who, city))  # noqa: PERF401 - what was booked before one failed is undone
    except StepFailed as error:
        undone = [cancel(booking) for booking in reversed(booked)]
        return f"not booked: {error.reason}; cancelled {', '.join(undone)}"
    return f"booked {', '.join(booked)}"


if __name__ == "__main__":
    good, bad = trip.start("Ann", "Rome"), trip.start("Bob", "Oslo")
    app.worker().run(until_idle=True)
    print(good.result())
    print(bad.result())
