"""Commands that check: histories, the installation, the tables the engine enforces; and the demonstration."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast import __version__
from holdfast.cli import completion
from holdfast.cli.options import (
    Where,
    client,
    full_id,
    json_option,
    local_app,
    run_argument,
    show_result,
    where_options,
)

if TYPE_CHECKING:
    from holdfast.machines import Table

__all__ = ["COMMANDS"]


@click.command(epilog="Example: holdfast verify || echo tampered with")
@click.argument("run", required=False, shell_complete=completion.run_ids)
@where_options
@json_option
def verify(run: str | None, where: Where, as_json: bool) -> None:
    """Check RUN, or everything: rules, hash chain, projections. Exit code 1 if anything is wrong."""
    asked = client(where)
    found = asked.verify(full_id(asked, run) if run is not None else None)
    lines = [f"{job}: {violation}" for job, wrong in found.items() for violation in wrong]
    checked = "it" if run is not None else "everything"
    show_result(
        {job: [str(violation) for violation in wrong] for job, wrong in found.items()},
        as_json=as_json,
        text=lambda: "\n".join(lines) if lines else f"{checked} is legal and unbroken",
    )
    sys.exit(1 if found else 0)


@click.command(epilog="Example: holdfast replay 3f2a shop.py")
@run_argument
@click.argument("target")
@where_options
@json_option
def replay(run: str, target: str, where: Where, as_json: bool) -> None:
    """Run the history of RUN through the code in TARGET as it is now, calling nothing: do the two still fit?

    Steps, tools, waits and children are answered from the history. Exit code 1 if the engine would refuse this code, or
    if the run has ended and would end otherwise now.
    """
    from holdfast.cli.target import load
    from holdfast.client.verify import check_replay

    asked, app = client(where), load(target)
    found = app.block(check_replay(app, asked.events(full_id(asked, run))))
    lines = [f"it does not fit: {reason}" for reason in found.reasons] or ["it fits"]
    lines.append(f"{found.answered} recorded answers were asked for")
    lines += [f"recorded and no longer asked for: {', '.join(found.unasked)}"] if found.unasked else []
    lines += [f"it would go on with {', '.join(found.beyond)}"] if found.beyond and found.fits else []
    show_result(found, as_json=as_json, text=lambda: "\n".join(lines))
    sys.exit(0 if found.fits else 1)


@click.command(epilog="Example: holdfast doctor --json")
@where_options
@json_option
def doctor(where: Where, as_json: bool) -> None:
    """Tell versions, where jobs are kept, and whether the store, or the server, works."""
    import platform

    found = {"holdfast": __version__, "python": platform.python_version()}
    found |= _store(where.url) if where.server is None else _server(where)
    show_result(found, as_json=as_json, text=lambda: "\n".join(f"{name:<12} {value}" for name, value in found.items()))


def _store(url: str | None) -> dict[str, Any]:
    import apsw

    from holdfast.store import Reclaim

    app = local_app(url)
    answers = app.store().commit_blocking([Reclaim(0)])  # a whole transaction, that touches nothing
    works = not any(isinstance(answer, Exception) for answer in answers)
    return {"sqlite": apsw.sqlite_lib_version(), "store": app.url, "store_works": works}


def _server(where: Where) -> dict[str, Any]:
    found = client(where).stats()
    return {"server": where.server, "server_works": True, "workers": found.workers}


@click.command(epilog="Example: holdfast demo")
def demo() -> None:
    """Run a job, kill its worker with SIGKILL in the middle, and show that nothing is lost and nothing done twice.

    It uses a temporary folder and nothing of yours. Exit code 0 if all of that is so, else 1.
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
    help="How to draw it.",
)
def machines(machine: str | None, form: str) -> None:
    """Show the three state machines: every legal move, drawn from the tables the engine enforces.

    MACHINE is job, run or ready; without it all three are shown.
    """
    from holdfast.machines import JOB, READY, RUN

    tables: dict[str, Table[Any, Any]] = {"job": JOB, "run": RUN, "ready": READY}
    chosen = [tables[machine]] if machine else list(tables.values())
    if form == "json":
        described = [table.as_dict() for table in chosen]
        click.echo(json.dumps(described[0] if machine else described, indent=2))
        return
    draw = {"table": "text", "mermaid": "mermaid", "dot": "dot"}[form]
    click.echo("\n\n".join(getattr(table, draw)() for table in chosen))


COMMANDS = (verify, replay, doctor, machines, demo)
