"""Commands that start runs from plans: that in a file, or from where another run was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.follow import follow_run
from holdfast.cli.options import (
    Where,
    client,
    full_id,
    json_option,
    run_argument,
    show_result,
    value_of,
    where_options,
)
from holdfast.cli.show import pairs

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.client.run_handle import RunHandle
    from holdfast.plans.model import Plan

__all__ = ["COMMANDS", "start"]

target_option = click.option("--target", help="A file or module with an App: the one whose names the plan uses.")
key_option = click.option("--key", help="Idempotency key: the same key and all else the same give the same run.")
follow_option = click.option("-f", "--follow", is_flag=True, help="Show it live until it has ended, then its result.")


@click.command(epilog="Example: holdfast plan start etl.yaml --target shop.py --input day=monday --follow")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@where_options
@target_option
@click.option("--as", "entry", help="The entry whose run it is to be.  [default: the one that is called as the plan]")
@click.option("--input", "inputs", multiple=True, help="An input of the plan, name=value; may be given again.")
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

    A run belongs to an entry: one that the app of --target has declared as a plan, or, with --server, one that it has
    declared with open=True. It is called as the plan unless --as says otherwise.
    """
    from holdfast.plans.model import Plan

    plan, given = Plan.read(file), pairs(inputs, "inputs")
    begin = _on_server if where.server is not None else _here
    asked, handle = begin(where, target, entry or plan.name, plan, given, key)
    _show(asked, handle, follow=follow, as_json=as_json)


def _here(
    where: Where, target: str | None, entry: str, plan: Plan, given: list[tuple[str, str]], key: str | None
) -> tuple[Client, RunHandle]:
    from holdfast.cli.target import load
    from holdfast.plans.plan_job import PlanJob

    if target is None:
        raise click.UsageError("name the app whose steps the plan calls: --target shop.py, or a --server")
    app = load(target, where.url)
    plans = {
        name: job for (plugin, name), job in app.entries.items() if isinstance(job, PlanJob) and plugin == app.name
    }
    if entry not in plans:
        raise click.UsageError(_which(entry, list(plans), f"{target} declares"))
    job = plans[entry].given(plan)
    values = {name: job.signature.from_text(name, text) for name, text in given}
    started: RunHandle = (job.options(key=key) if key is not None else job).start(**values)
    return app, started


def _on_server(
    where: Where, target: str | None, entry: str, plan: Plan, given: list[tuple[str, str]], key: str | None
) -> tuple[Client, RunHandle]:
    from holdfast.client.remote.client import connect

    if target is not None:
        raise click.UsageError("give --target or --server, not both: a server has apps of its own")
    asked = connect(where.server or "")
    open_ones = [one for one in asked.block(asked.aentries()) if one.open]
    fits = [f"{one.plugin_id}.{one.entry_id}" for one in open_ones]
    found = [name for name in fits if entry in {name, name.partition(".")[2]}]
    if len(found) != 1:
        raise click.UsageError(_which(entry, found or fits, f"{where.server} has open to plans"))
    job = asked.entry(found[0]).given(plan)
    values = {name: value_of(text) for name, text in given}
    return asked, (job.options(key=key) if key is not None else job).start(**values)


def _which(entry: str, known: list[str], whose: str) -> str:
    there = ", ".join(known) if known else "none"
    return f"whose run is it to be? {entry!r} is not one of the entries that {whose}: {there}; choose one with --as"


@click.command(epilog="Example: holdfast fork 3f2a --from-node clean")
@run_argument
@where_options
@click.option("--from-node", help="Do this node of its plan again, and all that depends on it.")
@click.option("--from-step", help="Of a run without a plan: do everything again from this step or tool of its code on.")
@click.option(
    "--plan", "file", type=click.Path(exists=True, dir_okay=False), help="Follow the plan in this file, YAML or JSON."
)
@target_option
@key_option
@follow_option
@json_option
def fork(  # noqa: PLR0913 - one parameter an option
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
    """Start a new run that reuses what RUN has done, and print its id.

    What is reused is not called again; what comes behind it is, tools included. With --plan the new run follows
    another plan, and reuses what is the same in both.
    """
    from holdfast.plans.model import Plan

    plan = Plan.read(Path(file)) if file is not None else None
    asked = _whom(where, target, needed=plan is not None)
    handle = asked.fork(full_id(asked, run), from_node=from_node, from_step=from_step, plan=plan, key=key)
    _show(asked, handle, follow=follow, as_json=as_json)


def _whom(where: Where, target: str | None, *, needed: bool) -> Client:
    if where.server is not None:
        return client(where)
    if target is not None:
        from holdfast.cli.target import load

        return load(target, where.url)
    if needed:
        raise click.UsageError("name the app whose steps the plan calls: --target shop.py, or a --server")
    return client(where)


def _show(asked: Client, handle: RunHandle, *, follow: bool, as_json: bool) -> None:
    if follow:
        click.get_current_context().exit(follow_run(asked, handle.id, as_json=as_json))
    show_result({"run_id": handle.id}, as_json=as_json, text=lambda: handle.id)


COMMANDS: tuple[Any, ...] = (fork,)
