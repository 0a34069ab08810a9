"""``holdfast demo``: a checkout whose worker is killed with SIGKILL after it has charged the card.

Everything is real: a SQLite file in a temporary folder, worker processes, kill -9. The output comes from the history.
It has colours on a terminal and is plain text in a pipe.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from holdfast import App, Config, RunFailed
from holdfast.cli import demo_shop
from holdfast.client.run_handle import RunHandle
from holdfast.machines import Event
from holdfast.store import Reclaim, ReleaseLeases

COLOURS = {
    "job_running": "yellow",
    "job_requeued": "red",
    "job_waiting": "cyan",
    "wait_completed": "cyan",
    "tool_invocation_started": "magenta",
    "tool_invocation_finished": "magenta",
    "job_completed": "green",
}
PATIENCE_SECONDS = 60


def tell() -> int:
    """Run the demo. Return 0 if it succeeds, otherwise 1."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as path:
        folder = Path(path)
        app = App("shop", config=Config(url=f"sqlite:///{folder / 'jobs.db'}"))
        app.entries.update(demo_shop.app.entries)
        try:
            result = _act(app, folder)
        except (TimeoutError, RunFailed) as error:
            click.secho(f"  {str(error) or 'the job did not end in time'}", fg="red", bold=True)
            return 1
        else:
            return _look_back(app, folder, result)
        finally:
            app.close()


def judge(ledger: Sequence[str], wrong: Mapping[str, Any]) -> int:
    """Print whether the card was charged once and the history is valid. Return 0 if both are true, otherwise 1."""
    once = len(ledger) == 1
    click.secho(f"  charged {'once' if once else f'{len(ledger)} TIMES'}", fg="green" if once else "red", bold=True)
    click.secho("\nverify: rules, hash chain, projections", bold=True)
    click.secho(f"  {wrong or 'every history is valid'}", fg="red" if wrong else "green", bold=True)
    return 0 if once and not wrong else 1


def _act(app: App, folder: Path) -> Any:
    click.secho("A checkout: price, charge the card, wait for the parcel, notify the customer", bold=True)
    handle = app.start("checkout", sku="A1", card="4242")
    _say(f"run {handle.id} started")
    with _worker(folder, "ada") as ada:
        _until("the job waits", lambda: any(event.type == "job_waiting" for event in handle.events()))
        _say("the card is charged; the job waits for the parcel and costs a row, nothing else")
        handle.signal("shipped", {"by": "dhl"})
        _until("another job writes to the customer", lambda: _mail_is_written(app))
        _say("the parcel is on its way; another job writes to the customer, and in the middle of that …")
        ada.kill()
        ada.wait()
        click.secho(f"  kill -9 {ada.pid}", fg="red", bold=True)
    app.block(app.store().commit([ReleaseLeases("ada"), Reclaim()]))  # as a supervisor does when a worker dies
    with _worker(folder, "bob"):
        return handle.result(timeout=PATIENCE_SECONDS)


def _look_back(app: App, folder: Path, result: Any) -> int:
    for record in reversed(app.list()):
        click.secho(f"\nWhat happened to {record.entry_id}, as its history tells it", bold=True)
        _timeline(RunHandle(app, record.run_id).events())
    click.secho("\nThe result", bold=True)
    click.echo(f"  {result}")
    click.secho("\nThe bank's ledger, which Holdfast does not write", bold=True)
    ledger = (folder / demo_shop.LEDGER).read_text().splitlines()
    for line in ledger:
        click.echo(f"  {line}")
    return judge(ledger, app.verify())


@contextmanager
def _worker(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    settings = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    settings["HOLDFAST_URL"] = f"sqlite:///{folder / 'jobs.db'}"
    command = [sys.executable, "-m", "holdfast", "worker", demo_shop.__name__, "--name", name, "--log-level", "error"]
    process = subprocess.Popen(command, env=settings, cwd=folder)  # noqa: S603 - Holdfast itself, as a user starts it
    _say(f"worker {name} started, process {process.pid}")
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def _mail_is_written(app: App) -> bool:
    notes = [record for record in app.list() if record.entry_id == "notify"]
    return any(event.type == "node_started" for note in notes for event in RunHandle(app, note.run_id).events())


def _until(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"after {PATIENCE_SECONDS} seconds it is still not so that {what}")
        time.sleep(0.01)


def _timeline(events: list[Event]) -> None:
    for event in events:
        detail = event.payload.get("node") or event.payload.get("reason") or event.payload.get("worker") or ""
        if event.type == "wait_completed":
            detail = f"{event.payload['correlation_key']} {event.payload.get('payload') or ''}"
        who = f"attempt {event.attempt}" if event.attempt else ""
        name = click.style(event.type, fg=COLOURS.get(event.type))
        space = " " * (25 - len(event.type)) if detail else ""
        click.echo(f"  {event.at - events[0].at:7.3f} s  {who:<10} {name}{space} {str(detail)[:60]}".rstrip())


def _say(text: str) -> None:
    click.secho(f"  {text}", dim=True)
