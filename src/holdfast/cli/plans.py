"""Commands for plans: check a file, draw a file or a run, print the schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.fork import start
from holdfast.cli.options import Where, full_id, json_option, json_value, open_client, show_result, where_options
from holdfast.cli.terminal_text import echo, echo_json

if TYPE_CHECKING:
    from holdfast.plans.model import Plan


@click.group(epilog="Example: holdfast plan check etl.yaml --target shop.py")
def plan() -> None:
    """Check, draw and start plans: jobs that are graphs of steps. See the page on plans."""


@plan.command(epilog="Example: holdfast plan check etl.yaml --target shop.py")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--target", help="A file or module with an App: also check names, arguments and types against it.")
@json_option
def check(file: str, target: str | None, as_json: bool) -> None:
    """List all problems of the plan in FILE, YAML or JSON, each with its place. This runs nothing.

    Without --target, check only the file itself. The exit code is 1 if there is a problem.
    """
    from holdfast.cli.target import load
    from holdfast.errors import InvalidPlan
    from holdfast.plans.checker import problems
    from holdfast.plans.model import Plan

    names = load(target).names() if target is not None else None
    try:
        plan = Plan.read(file)
        wrong = problems(plan, names)
        good = f"{plan.name}: {len(plan.nodes)} nodes, no problems"
    except InvalidPlan as error:
        wrong, good = error.problems, ""
    show_result({"problems": wrong}, as_json=as_json, text=lambda: "\n".join(wrong) if wrong else good)
    sys.exit(1 if wrong else 0)


@plan.command(epilog="Example: holdfast plan show 3f2a --format mermaid")
@click.argument("subject", metavar="FILE|RUN")
@where_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["tree", "mermaid", "dot", "json"]),
    default="tree",
    show_default=True,
    help="Output format.",
)
def show(subject: str, where: Where, form: str) -> None:
    """Draw the plan in a FILE, or the plan of a RUN with the state of each node.

    The plan of a run is the recorded one with all its extensions.
    """
    from holdfast.plans import plan_diagram

    plan, states = _plan_of(subject, where)
    match form:
        case "tree":
            for line, state in plan_diagram.tree(plan, states):
                click.secho(line, fg=plan_diagram.COLOURS.get(state or ""))
        case "mermaid":
            echo(plan_diagram.mermaid(plan, states))
        case "dot":
            echo(plan_diagram.dot(plan, states))
        case _:
            document = {"plan": json_value(plan), **({"states": states} if states is not None else {})}
            echo_json(document, indent=2)


@plan.command(epilog="Example: holdfast plan schema > plan.schema.json")
def schema() -> None:
    """Print the JSON Schema of plans, for editors and for programs that generate plans."""
    from holdfast.plans.model import Plan

    click.echo(json.dumps(Plan.schema(), indent=2))


def _plan_of(subject: str, where: Where) -> tuple[Plan, dict[str, str] | None]:
    """Return the plan of a file or a run, and for a run the states of its nodes."""
    from holdfast.plans.model import Plan
    from holdfast.plans.node_history import NodeHistory
    from holdfast.plans.node_states import NodeStates

    if Path(subject).is_file():
        return Plan.read(subject), None
    suffix = Path(subject).suffix[1:]  # a retry opens the run `<job>.2`
    if (suffix and not suffix.isdecimal()) or Path(subject).name != subject:  # not a possible id of a run
        raise click.UsageError(f"no file is named {subject}")
    client = open_client(where)
    past = NodeHistory(client.events(full_id(client, subject)))
    if past.plan is None:
        raise click.UsageError(f"{subject} has no plan: its job is code, or its planner has not returned a plan yet")
    course = NodeStates(Plan.from_dict(past.plan), past)
    return course.plan, course.states


plan.add_command(start)
COMMANDS = (plan,)
