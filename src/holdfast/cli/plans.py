"""Commands about plans: check a file before anything runs, and draw a file or a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.fork import start
from holdfast.cli.options import Where, client, full_id, json_option, plain, show_result, where_options

if TYPE_CHECKING:
    from holdfast.plans.model import Plan

__all__ = ["COMMANDS"]


@click.group(epilog="Example: holdfast plan check etl.yaml --target shop.py")
def plan() -> None:
    """Check, draw and start plans: jobs that are graphs. See the page on plans."""


@plan.command(epilog="Example: holdfast plan check etl.yaml --target shop.py")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--target", help="A file or module with an App: its names, arguments and types are checked, too.")
@json_option
def check(file: str, target: str | None, as_json: bool) -> None:
    """List everything that is wrong with the plan in FILE, YAML or JSON, each with its place. Nothing is run.

    Without --target only what the file itself can say is checked. Exit code 1 if anything is wrong.
    """
    from holdfast.cli.target import load
    from holdfast.errors import InvalidPlan
    from holdfast.plans.checker import problems
    from holdfast.plans.model import Plan

    names = load(target).names() if target is not None else None
    try:
        read = Plan.read(file)
        found = problems(read, names)
        good = f"{read.name}: {len(read.nodes)} nodes, and nothing is wrong"
    except InvalidPlan as error:
        found, good = error.problems, ""
    show_result({"problems": found}, as_json=as_json, text=lambda: "\n".join(found) if found else good)
    sys.exit(1 if found else 0)


@plan.command(epilog="Example: holdfast plan show 3f2a --format mermaid")
@click.argument("subject", metavar="FILE|RUN")
@where_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["tree", "mermaid", "dot", "json"]),
    default="tree",
    show_default=True,
    help="How to draw it.",
)
def show(subject: str, where: Where, form: str) -> None:
    """Draw the plan in a FILE, or that of a RUN with the state of each node.

    A run's plan is the recorded one, with everything that has extended it since.
    """
    from holdfast.plans import plan_diagram

    found, states = _found(subject, where)
    match form:
        case "tree":
            for line, state in plan_diagram.tree(found, states):
                click.secho(line, fg=plan_diagram.COLOURS.get(state or ""))
        case "mermaid":
            click.echo(plan_diagram.mermaid(found, states))
        case "dot":
            click.echo(plan_diagram.dot(found, states))
        case _:
            told = {"plan": plain(found), **({"states": states} if states is not None else {})}
            click.echo(json.dumps(told, indent=2, ensure_ascii=False))


@plan.command(epilog="Example: holdfast plan schema > plan.schema.json")
def schema() -> None:
    """Print the JSON Schema of plans, for editors and for whoever makes plans by program."""
    from holdfast.plans.model import Plan

    click.echo(json.dumps(Plan.schema(), indent=2))


def _found(subject: str, where: Where) -> tuple[Plan, dict[str, str] | None]:
    from holdfast.plans.model import Plan
    from holdfast.plans.node_history import NodeHistory, NodeStates

    if Path(subject).is_file():
        return Plan.read(subject), None
    suffix = Path(subject).suffix[1:]  # the run that a retry has opened is called `<job>.2`
    if (suffix and not suffix.isdecimal()) or Path(subject).name != subject:  # no run is called so
        raise click.UsageError(f"there is no file {subject}")
    asked = client(where)
    past = NodeHistory(asked.events(full_id(asked, subject)))
    if past.plan is None:
        raise click.UsageError(f"{subject} has no plan: it is code, or its planner has not answered yet")
    course = NodeStates(Plan.from_dict(past.plan), past)
    return course.plan, course.states


plan.add_command(start)
COMMANDS = (plan,)
