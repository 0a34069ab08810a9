"""The command line. One function a command; each imports what it needs when it runs, so that start-up stays short.

Results go to standard output and nothing else does. Exit codes: 0 done, 2 wrong usage.
"""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast import __version__

if TYPE_CHECKING:
    from holdfast.machines import Table

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Durable jobs for Python.

    Exit codes: 0 done, 2 wrong usage.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow that the terminal cannot show is no reason to fail


@main.command(epilog="Example: holdfast machines run --format mermaid")
@click.argument("machine", required=False, type=click.Choice(["job", "run", "ready"]))
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "mermaid", "dot", "json"]),
    default="table",
    show_default=True,
    help="How to draw it.",
)
def machines(machine: str | None, form: str) -> None:
    """Show the three state machines: every legal move, drawn from the tables the engine enforces.

    MACHINE is job, run or ready; without it all three are shown.
    """
    from holdfast.machines import JOB, READY, RUN  # noqa: PLC0415 - see the module's promise

    tables: dict[str, Table[Any, Any]] = {"job": JOB, "run": RUN, "ready": READY}
    chosen = [tables[machine]] if machine else list(tables.values())
    if form == "json":
        described = [table.as_dict() for table in chosen]
        click.echo(json.dumps(described[0] if machine else described, indent=2))
        return
    draw = {"table": "text", "mermaid": "mermaid", "dot": "dot"}[form]
    click.echo("\n\n".join(getattr(table, draw)() for table in chosen))
