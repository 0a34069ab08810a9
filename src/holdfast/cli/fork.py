"""Commands that start a run of a plan in a file, or a fork of another run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.follow import follow_run
from holdfast.cli.options import (
    Where,
    full_id,
    json_option,
    open_client,
    run_argument,
    show_result,
    value_of,
    where_options,
)
from holdfast.cli.run_filters import pairs

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.client.run_handle import RunHandle
    from holdfast.plans.model import Plan

target_option = click.option("--target", help="A file or module with the App whose steps and tools the plan calls.")
key_option = click.option("--key", help="Idempotency key: the same key and the same inputs return the same run.")
follow_option = click.option(
    "-f", "--follow", is_flag=True, help="Show the run live until it has ended, then its result."
)


@click.command(epilog="Example: holdfast plan start etl.yaml --target shop.py --input day=monday --follow")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@where_options
@target_option
@click.option("--as", "entry", help="The entry that the run belongs to.  [default: the name of the plan]")
@click.option("--input", "inputs", multiple=True, help="An input of the plan, name=value. Repeatable.")
@key_option
@follow_option
@json_option
def start(
    file: str,
    where: Where,
    target: str | None,
    entry: str | None,
    inputs: tuple[str, ...],
    key: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Start a run of the plan in FILE, YAML or JSON, and print its id.

    A run belongs to an entry. With --target, the App must declare the entry as a plan. With --server, the app on the
    server must declare it with open=True. The entry has the name of the plan unless --as names another one.
    """
    from holdfast.plans.model import Plan

    plan, values = Plan.read(file), pairs(inputs, "inputs")
    begin = _on_server if where.server is not None else _here
    client, handle = begin(where, target, entry or plan.name, plan, values, key)
    _show(client, handle, follow=follow, as_json=as_json)


def _here(
    where: Where, target: str | None, entry: str, plan: Plan, inputs: list[tuple[str, str]], key: str | None
) -> tuple[Client, RunHandle]:
    from holdfast.cli.target import load
    from holdfast.plans.plan_job import PlanJob

    if target is None:
        raise click.UsageError("name the app whose steps the plan calls: --target shop.py, or use --server")
    app = load(target, where.url)
    plans = {
        name: job for (plugin, name), job in app.entries.items() if isinstance(job, PlanJob) and plugin == app.name
    }
    if entry not in plans:
        raise click.UsageError(_which(entry, list(plans), f"{target} declares"))
    job = plans[entry].given(plan)
    values = {name: job.signature.from_text(name, text) for name, text in inputs}
    started: RunHandle = (job.options(key=key) if key is not None else job).start(**values)
    return app, started


def _on_server(
    where: Where, target: str | None, entry: str, plan: Plan, inputs: list[tuple[str, str]], key: str | None
) -> tuple[Client, RunHandle]:
    from holdfast.client.remote.client import connect

    if target is not None:
        raise click.UsageError("give --target or --server, not both: a server has its own apps")
    client = connect(where.server or "")
    jobs = client.block(client.aentries())
    known = [f"{job.plugin_id}.{job.entry_id}" for job in jobs if job.open]
    matches = [name for name in known if entry in {name, name.partition(".")[2]}]
    if len(matches) != 1:
        raise click.UsageError(_which(entry, matches or known, f"{where.server} has open to plans"))
    job = client.entry(matches[0]).given(plan)
    values = {name: value_of(text) for name, text in inputs}
    return client, (job.options(key=key) if key is not None else job).start(**values)


def _which(entry: str, known: list[str], whose: str) -> str:
    there = ", ".join(known) if known else "none"
    return f"{entry!r} is not one of the entries that {whose}: {there}; choose one with --as"


@click.command(epilog="Example: holdfast fork 3f2a --from-node clean")
@run_argument
@where_options
@click.option("--from-node", help="Repeat this node of the plan and all nodes that depend on it.")
@click.option("--from-step", help="For a run without a plan: repeat everything from this step or tool on.")
@click.option(
    "--plan", "file", type=click.Path(exists=True, dir_okay=False), help="Use the plan in this file, YAML or JSON."
)
@target_option
@key_option
@follow_option
@json_option
def fork(  # noqa: PLR0913 - one parameter per option
    run: str,
    where: Where,
    *,
    from_node: str | None,
    from_step: str | None,
    file: str | None,
    target: str | None,
    key: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Start a new run that reuses results of RUN.

    The command prints the id of the new run. That run does not call reused steps and tools again. It calls all others,
    including tools. With --plan it uses another plan and reuses the nodes that are equal in both plans.
    """
    from holdfast.plans.model import Plan

    plan = Plan.read(Path(file)) if file is not None else None
    client = _client(where, target, needs_app=plan is not None)
    handle = client.fork(full_id(client, run), from_node=from_node, from_step=from_step, plan=plan, key=key)
    _show(client, handle, follow=follow, as_json=as_json)


def _client(where: Where, target: str | None, *, needs_app: bool) -> Client:
    if where.server is not None:
        return open_client(where)
    if target is not None:
        from holdfast.cli.target import load

        return load(target, where.url)
    if needs_app:
        raise click.UsageError("name the app whose steps the plan calls: --target shop.py, or use --server")
    return open_client(where)


def _show(client: Client, handle: RunHandle, *, follow: bool, as_json: bool) -> None:
    if follow:
        click.get_current_context().exit(follow_run(client, handle.id, as_json=as_json))
    show_result({"run_id": handle.id}, as_json=as_json, text=lambda: handle.id)


COMMANDS: tuple[Any, ...] = (fork,)
