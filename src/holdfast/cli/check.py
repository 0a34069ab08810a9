"""Commands that check histories, print the state tables, and run the demonstration."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import completion
from holdfast.cli.options import (
    Where,
    full_id,
    json_option,
    open_client,
    run_argument,
    show_result,
    where_options,
)
from holdfast.cli.terminal_text import ProgressLine

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.machines import Event, Table


@click.command(epilog="Example: holdfast verify || echo tampered with")
@click.argument("run", required=False, shell_complete=completion.run_ids)
@where_options
@json_option
def verify(run: str | None, where: Where, as_json: bool) -> None:
    """Check RUN, or all jobs: rules, hash chain, projections. The exit code is 1 if anything is wrong.

    With --server and without RUN, the server checks all jobs in a run of its own, which you can cancel.
    """
    client = open_client(where)
    watched = {"on_progress": ProgressLine()} if run is None and where.server is not None else {}
    violations = client.verify(full_id(client, run) if run is not None else None, **watched)
    lines = [f"{job}: {violation}" for job, wrong in violations.items() for violation in wrong]
    checked = "the history" if run is not None else "every history"
    show_result(
        {job: [str(violation) for violation in wrong] for job, wrong in violations.items()},
        as_json=as_json,
        text=lambda: "\n".join(lines) if lines else f"{checked} is valid",
    )
    sys.exit(1 if violations else 0)


def _whole(client: Client, events: list[Event]) -> list[Event]:
    """Return events with their large results, which only the store has."""
    from holdfast.client.app import App
    from holdfast.errors import StoreUnavailable
    from holdfast.store.result_blobs import FIELD

    if not any(FIELD in event.payload for event in events):
        return events
    if not isinstance(client, App):
        raise StoreUnavailable("the history has results in blobs: name the store with --url in place of the server")
    return client.block(client.awith_results(events))


@click.command(epilog="Example: holdfast replay 3f2a shop.py")
@run_argument
@click.argument("target")
@where_options
@json_option
def replay(run: str, target: str, where: Where, as_json: bool) -> None:
    """Check the code in TARGET against the history of RUN.

    This calls no step and no tool. The history supplies the results of steps, tools, waits and children. The exit code
    is 1 if the engine would refuse this code, or if the run has ended and would now end differently.
    """
    from holdfast.cli.target import load
    from holdfast.client.verify import check_replay

    client, app = open_client(where), load(target)
    rehearsed = app.block(check_replay(app, _whole(client, client.events(full_id(client, run)))))
    lines = [f"the code does not fit: {reason}" for reason in rehearsed.reasons] or ["the code fits"]
    lines.append(f"{rehearsed.answered} recorded results were used")
    lines += [f"recorded but no longer called: {', '.join(rehearsed.unasked)}"] if rehearsed.unasked else []
    lines += (
        [f"the run would continue with {', '.join(rehearsed.beyond)}"] if rehearsed.beyond and rehearsed.fits else []
    )
    show_result(rehearsed, as_json=as_json, text=lambda: "\n".join(lines))
    sys.exit(0 if rehearsed.fits else 1)


@click.command(epilog="Example: holdfast demo")
def demo() -> None:
    """Run a job, kill its worker, and show the recovery.

    The demo kills the worker with SIGKILL and shows that nothing is lost and nothing is done twice. It uses only a
    temporary folder. The exit code is 0 if it succeeds, otherwise 1.
    """
    from holdfast.cli.demo import tell

    sys.exit(tell())


@click.command(epilog="Example: holdfast machines run --format mermaid")
@click.argument("machine", required=False, type=click.Choice(["job", "run", "ready"]))
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "mermaid", "dot", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
def machines(machine: str | None, form: str) -> None:
    """Print the state machines.

    Every legal transition comes from the tables that the engine enforces. MACHINE is job, run or ready. Without it,
    print all three.
    """
    from holdfast.machines import JOB, READY, RUN

    tables: dict[str, Table[Any, Any]] = {"job": JOB, "run": RUN, "ready": READY}
    selected = [tables[machine]] if machine else list(tables.values())
    if form == "json":
        documents = [table.as_dict() for table in selected]
        click.echo(json.dumps(documents[0] if machine else documents, indent=2))
        return
    draw = {"table": "text", "mermaid": "mermaid", "dot": "dot"}[form]
    click.echo("\n\n".join(getattr(table, draw)() for table in selected))


COMMANDS = (verify, replay, machines, demo)
