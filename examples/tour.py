"""A tour of the three machines: what is allowed, what is refused, what is found. `make demo` runs it."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.errors import InvalidTransition, MissingWake
from holdfast.machines import JOB, READY, RUN, Event, RunProjection, check, fold, seal
from holdfast.ready import Pending, Ready, ReadyMonitor, WakeSource

COLOURS = {"queued": "blue", "running": "yellow", "waiting": "cyan", "completed": "green", "succeeded": "green"}

# A checkout whose worker is killed while it waits for the parcel service to answer.
STORY: list[tuple[str, dict[str, Any], int | None]] = [
    ("job_created", {"plugin": "shop", "entry": "checkout"}, None),
    ("job_running", {"worker": "ada"}, 1),
    ("tool_invocation_started", {"node": "charge"}, 1),
    ("tool_invocation_finished", {"node": "charge", "result": "receipt-77"}, 1),
    ("node_finished", {"node": "charge", "result_type": "success"}, 1),
    ("job_requeued", {"reason": "lease_expired"}, None),
    ("job_running", {"worker": "bob"}, 2),
    ("job_waiting", {"node": "shipped", "correlation_key": "parcel-77", "wait_type": "signal", "park": True}, 2),
    ("wait_completed", {"correlation_key": "parcel-77", "by": "dhl"}, None),
    ("job_running", {"worker": "bob"}, 3),
    ("job_completed", {"result_refs": ["receipt-77"]}, 3),
]


def title(text: str) -> None:
    """Begin a part of the tour."""
    click.echo()
    click.secho(text, bold=True)
    click.echo()


def shown(state: str) -> str:
    """Colour a state's name, on a terminal."""
    return click.style(f"{state:<10}", fg=COLOURS.get(state))


def tables() -> None:
    """Show the three tables."""
    for table in (JOB, RUN, READY):
        headline, _, *rows = table.text().splitlines()
        title(headline)
        click.echo("\n".join(rows))


def life_of_a_job() -> list[Event]:
    """Write the story event by event, and show what the machines make of it."""
    title("A checkout: its worker dies after the card was charged, another goes on")
    click.secho("  #  event                     attempt  job         run         committed", dim=True)
    events: list[Event] = []
    projection = RunProjection()
    for number, (kind, payload, attempt) in enumerate(STORY):
        after = events[-1] if events else None
        events.append(seal(after, kind, payload, at=1_800_000_000.0 + number, attempt=attempt, job="checkout-1"))
        projection.push(events[-1])
        snapshot = fold(events)
        who = "" if attempt is None else str(attempt)
        state, status = shown(snapshot.state), shown(projection.runs[-1].status)
        done = ", ".join(sorted(snapshot.committed))
        click.echo(f"  {number:<2} {kind:<25} {who:<8} {state}  {status}  {done}")
        if kind == "job_requeued":
            click.secho("     ↑ kill -9: the lease ran out, the charge stays charged", fg="red")
    return events


def refusals(events: list[Event]) -> None:
    """Try what must not be possible."""
    title("What is refused, and changes nothing")
    stale = seal(events[6], "command_committed", {"node": "late"}, at=1_800_000_007.5, attempt=1)
    again = seal(events[6], "tool_invocation_started", {"node": "charge"}, at=1_800_000_007.5, attempt=2)
    attempts: list[tuple[str, list[Event | str]]] = [
        ("the dead worker comes back and writes", [*events[:7], stale]),
        ("the card would be charged again", [*events[:7], again]),
        ("a finished job is started again", [*(event.type for event in events), "job_running"]),
    ]
    for what, stream in attempts:
        try:
            fold(stream)
        except InvalidTransition as refusal:
            click.echo(f"  {what}\n    {click.style('refused', fg='red')}  {refusal}")


def tampering(events: list[Event]) -> None:
    """Edit history, and find it."""
    title("What is found: every event carries the hash of the one before it")
    edited = list(events)
    edited[3] = msgspec.structs.replace(edited[3], payload={"node": "charge", "result": "receipt-78"})
    missing = [*events[:3], *events[4:]]
    for what, stream in [("as it was written", events), ("a receipt edited", edited), ("an event removed", missing)]:
        found = check(stream, head=events[-1].hash)
        verdict = click.style("legal, unbroken", fg="green") if not found else click.style(str(found[0]), fg="red")
        click.echo(f"  {what:<18} {verdict}")


def readiness() -> None:
    """Go Pending, and leave it the right way only."""
    title("Pending is a contract: it names what may wake it, and cannot be left in silence")
    monitor = ReadyMonitor()
    with monitor.begin() as poll:
        click.echo(f"  poll     {poll.finish(Pending(frozenset({WakeSource.IO_READY, WakeSource.TIMER})))}")
    try:
        with monitor.begin() as poll:
            poll.finish(Ready())
    except MissingWake as refusal:
        click.echo(f"  poll     {click.style('refused', fg='red')}  {refusal}")
    monitor.wake(WakeSource.IO_READY)
    click.echo("  wake     io_ready")
    with monitor.begin() as poll:
        click.echo(f"  poll     {poll.finish(Ready())}")
    click.echo(f"  counted  {monitor.counts()['wake.source']}")
    click.echo()


if __name__ == "__main__":
    tables()
    story = life_of_a_job()
    refusals(story)
    tampering(story)
    readiness()
