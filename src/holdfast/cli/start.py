"""Commands that make things happen: start runs, and work on them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from holdfast import errors
from holdfast.cli import completion
from holdfast.cli.follow import follow_run
from holdfast.cli.options import (
    Where,
    amounts_of,
    client,
    json_option,
    plain,
    plugins_option,
    show_result,
    url_option,
    value_of,
    where_options,
)
from holdfast.cli.show import pairs
from holdfast.gc_tuning import tune_gc
from holdfast.parent_death import stop_with_supervisor, supervised_option

if TYPE_CHECKING:
    from holdfast.client.interface import Client

__all__ = ["COMMANDS"]

FOR_EVER = 1e9
EXIT_LOOP_DIED = 9  # as `cli.EXIT_CODES` has it


@click.command(epilog="Example: holdfast worker shop.py --processes 4")
@click.argument("target", required=False)
@plugins_option
@url_option
@click.option("--concurrency", type=click.IntRange(1), help="Jobs at once.  [default: 100]")
@click.option("--queue", "queues", multiple=True, help="Serve only this queue; may be given again.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("--until-idle", is_flag=True, help="Stop when there is nothing left to do.")
@click.option("--name", hidden=True)
@supervised_option
def worker(
    target: str | None,
    plugins: bool,
    url: str | None,
    concurrency: int | None,
    queues: tuple[str, ...],
    processes: int,
    until_idle: bool,
    name: str | None,
) -> None:
    """Run jobs of the App in TARGET, a file or a module, until stopped; with --plugins those of installed apps, too.

    SIGTERM and Ctrl-C stop it in order. Several processes have a supervisor that replaces the dead.
    """
    import signal

    from holdfast.cli.target import load
    from holdfast.client.logs import guard_process

    app = load(target, url, plugins=plugins)
    guard_process()
    if processes > 1:
        from holdfast.supervisor import supervise

        chosen = [*([target] if target else []), *(["--plugins"] if plugins else []), "--url", app.url]
        chosen += [part for queue in queues for part in ("--queue", queue)]
        supervise(
            app,
            [*chosen, *(["--concurrency", str(concurrency)] if concurrency else [])],
            processes,
            until_idle=until_idle,
        )
        return
    running = app.worker(concurrency=concurrency, queues=queues, name=name)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    stop_with_supervisor(running.stop)
    running.on_death = _end_process
    tune_gc()
    running.run(until_idle=until_idle)


def _end_process(error: errors.LoopDied) -> None:
    """End this process at once: its loop cannot, and its jobs have been given back."""
    click.echo(f"holdfast: {error}", err=True)
    os._exit(EXIT_LOOP_DIED)


@click.command(epilog="Example: holdfast start shop.py checkout sku=A1 card=4242 --follow")
@click.argument("target")
@click.argument("entry", shell_complete=completion.entries)
@click.argument("arguments", nargs=-1)
@where_options
@click.option("--key", help="Idempotency key: the same key and arguments give the same run.")
@click.option("--deadline", help="How long the run may take: 90s, 2h; 0 is no limit.")
@click.option("--priority", type=int, default=0, help="Higher first.")
@click.option("--delay", help="How long to wait before it may start: 10m.")
@click.option("--queue", help="The queue, if not the job's own.")
@click.option("--group", help="Whose it is among those that share the queue; groups take turns.")
@click.option("--attr", "attributes", multiple=True, help="What to find it by, name=value; may be given again.")
@click.option(
    "--budget", "budget", multiple=True, help="What it may spend before it is parked, unit=amount; may be given again."
)
@click.option(
    "--wait", type=float, is_flag=False, flag_value=FOR_EVER, help="Wait for the result, so many seconds at most."
)
@click.option("-f", "--follow", is_flag=True, help="Show it live until it has ended, then its result.")
@json_option
def start(
    target: str,
    entry: str,
    arguments: tuple[str, ...],
    where: Where,
    wait: float | None,
    follow: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Start a run of the job ENTRY of TARGET, with ARGUMENTS as name=value, and print its id.

    TARGET is a file or a module with an App in it; with --server, the name of an app there. Values are read as the
    job's type hints say.
    """
    from holdfast.client.run_handle import RunHandle
    from holdfast.client.views import Creation

    asked, (plugin, name), values = _prepared(target, entry, pairs(arguments, "arguments"), where)
    creation = Creation(
        plugin_id=plugin,
        entry_id=name,
        args=values,
        idempotency_key=options["key"],
        deadline=_duration(options["deadline"], "--deadline"),
        priority=options["priority"],
        delay=_duration(options["delay"], "--delay"),
        queue=options["queue"],
        group=options["group"],
        attributes={name: value_of(text) for name, text in pairs(options["attributes"], "attributes")},
        budget=amounts_of(options["budget"]) or None,
    )
    run_id = asked.create(creation).record.run_id
    if follow:
        click.get_current_context().exit(follow_run(asked, run_id, as_json=as_json))
    if wait is None:
        show_result({"run_id": run_id}, as_json=as_json, text=lambda: run_id)
        return
    try:
        result = RunHandle(asked, run_id).result(timeout=wait)
    except TimeoutError:
        raise TimeoutError(f"run {run_id} has not ended in time; it goes on: see holdfast follow {run_id}") from None
    except (errors.RunFailed, errors.RunCanceled, errors.RunTimedOut) as error:
        click.echo(f"holdfast: {' '.join(str(error).split())}", err=True)
        click.get_current_context().exit(1)
    show_result({"run_id": run_id, "result": result}, as_json=as_json, text=lambda: json.dumps(plain(result)))


def _prepared(
    target: str, entry: str, given: list[tuple[str, str]], where: Where
) -> tuple[Client, tuple[str, str], dict[str, Any]]:
    """Give whom to ask, the names of the app and its job, and the arguments read as that wants them."""
    if where.server is None:
        from holdfast.cli.target import load

        app = load(target, where.url)
        job = app.entry(entry)
        return app, (job.plugin, job.name), {name: job.signature.from_text(name, text) for name, text in given}
    asked = client(where)
    found = [one for one in asked.block(asked.aentries()) if (one.plugin_id, one.entry_id) == (target, entry)]
    hints = found[0].parameters.get("properties", {}) if found else {}
    return asked, (target, entry), {name: _read(name, text, hints.get(name, {})) for name, text in given}


def _read(name: str, text: str, hint: dict[str, Any]) -> Any:
    """Read an argument: text where text is wanted, else JSON if it is some; a secret by the name of its variable."""
    if any(one.get("writeOnly") for one in [hint, *hint.get("anyOf", [])]):
        from holdfast import Secret

        if not text.startswith("env:") or text == "env:":
            said = f"{name} is a secret: name the variable that has it, as in {name}=env:STRIPE_KEY"
            raise click.UsageError(f"{said}: what is typed here, others can read")
        return Secret.env(text.removeprefix("env:"))
    return text if hint.get("type") == "string" else value_of(text)


def _duration(text: str | None, option: str) -> float | None:
    from holdfast.durations import seconds

    if text is None:
        return None
    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else seconds(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


COMMANDS = (worker, start)
