"""A checkout whose worker is killed with SIGKILL after the card was charged. `make demo` runs it.

Everything is real: a SQLite file, worker processes, kill -9. What you see is read back from the history.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from holdfast import App, Config
from holdfast.client.handle import RunHandle
from holdfast.machines import Event
from holdfast.store import Bury, Reclaim

SHOP = Path(__file__).with_name("shop.py")
COLOURS = {"job_running": "yellow", "job_requeued": "red", "job_waiting": "cyan", "job_completed": "green"}


def say(text: str, **style: object) -> None:
    """Print a line of the story."""
    click.secho(text, **style)  # type: ignore[arg-type]


@contextmanager
def worker(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process."""
    environment = {
        **os.environ,
        "HOLDFAST_URL": f"sqlite:///{folder / 'jobs.db'}",
        "SHOP_LEDGER": str(folder / "ledger"),
    }
    command = [sys.executable, "-m", "holdfast", "worker", str(SHOP), "--name", name]
    process = subprocess.Popen(command, env=environment)
    say(f"  worker {name} started (process {process.pid})", dim=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def until(what: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            sys.exit("the demo did not get there in time")
        time.sleep(0.01)


def timeline(events: list[Event]) -> None:
    """Draw what happened, with who did it."""
    for event in events:
        told = event.payload.get("node") or event.payload.get("reason") or event.payload.get("worker") or ""
        if event.type == "wait_completed":
            told = f"{event.payload['correlation_key']} {event.payload.get('payload') or ''}"
        who = f"attempt {event.attempt}" if event.attempt else ""
        name = click.style(f"{event.type:<25}", fg=COLOURS.get(event.type))
        click.echo(f"  {event.at - events[0].at:7.3f} s  {who:<10} {name} {str(told)[:60]}")


def has(handle: RunHandle, kind: str) -> bool:
    """Whether something has happened to a run."""
    return any(event.type == kind for event in handle.events())


def child_runs(app: App) -> bool:
    """Whether the job that writes to the customer is at work."""
    return any(record.entry_id == "notify" and record.status == "running" for record in app.list())


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sys.path.insert(0, str(SHOP.parent))
        app = App("shop", config=Config(url=f"sqlite:///{folder / 'jobs.db'}"))
        import shop  # noqa: PLC0415 - the example beside this one

        app.entries.update(shop.app.entries)
        say("A checkout: price, charge the card, wait for the parcel, notify the customer.", bold=True)
        handle = app.start("checkout", sku="A1", card="4242")
        say(f"  run {handle.id} started", dim=True)
        with worker(folder, "ada") as ada:
            until(lambda: has(handle, "job_waiting"))
            say("  the card is charged, the job waits for the parcel and costs a row, nothing else", dim=True)
            handle.signal("shipped", {"by": "dhl"})
            until(lambda: child_runs(app))
            say("  it goes on, and another job writes to the customer …", dim=True)
            ada.send_signal(signal.SIGKILL)
            ada.wait()
        say(f"  kill -9 {ada.pid}", fg="red", bold=True)
        app.block(
            app.store().commit([Bury("ada"), Reclaim()])
        )  # what a supervisor does when a worker's process is gone
        with worker(folder, "bob"):
            result = handle.result(timeout=30)
        for record in reversed(app.list()):
            say(f"\nWhat happened to {record.entry_id}, as the history tells it", bold=True)
            timeline(RunHandle(app, record.run_id).events())
        say("\nThe result", bold=True)
        click.echo(f"  {result}")
        say("\nThe bank's ledger, which Holdfast does not write", bold=True)
        lines = (folder / "ledger").read_text().splitlines()
        for line in lines:
            click.echo(f"  {line}")
        verdict = "charged once" if len(lines) == 1 else f"CHARGED {len(lines)} TIMES"
        say(f"  {verdict}", fg="green" if len(lines) == 1 else "red")
        wrong = app.verify()
        say("\nverify: rules, hash chain, projections", bold=True)
        say("  everything is legal and unbroken" if not wrong else f"  {wrong}", fg="red" if wrong else "green")
        app.close()
        sys.exit(1 if wrong or len(lines) != 1 else 0)


if __name__ == "__main__":
    main()
