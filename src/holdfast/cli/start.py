"""Commands that start runs and workers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from holdfast import __version__, errors
from holdfast.cli import completion
from holdfast.cli.follow import follow_run
from holdfast.cli.options import (
    Where,
    amounts_of,
    json_option,
    json_value,
    log_options,
    open_client,
    plugins_option,
    show_result,
    url_option,
    value_of,
    where_options,
)
from holdfast.cli.run_filters import pairs
from holdfast.cli.terminal_text import echo
from holdfast.gc_settings import tune_gc
from holdfast.parent_death import is_supervised, stop_with_supervisor, supervised_option

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.client.interface import Client

NO_LIMIT_SECONDS = 1e9
EXIT_LOOP_DIED, EXIT_DOES_NOT_FIT = 9, 10  # as in `main.EXIT_CODES`
NOT_ALIVE_SECONDS = 1e-6  # the lease of a worker that has only reported why it does not start


@click.command(epilog="Example: holdfast worker shop.py --processes 4")
@click.argument("target", required=False)
@plugins_option
@url_option
@click.option("--concurrency", type=click.IntRange(1), help="Maximum number of concurrent jobs.  [default: 100]")
@click.option("--queue", "queues", multiple=True, help="Serve only this queue. Repeatable.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Number of worker processes.")
@click.option("--until-idle", is_flag=True, help="Stop when there is no job left to run.")
@click.option("--retention", help="Remove runs that ended longer ago, such as 30d, or succeeded=7d,failed=90d.")
@click.option("--check", "checks", is_flag=True, help="Check the runs of the store first, and end if one would stop.")
@click.option("--until-drained", is_flag=True, help="Run only what is kept for this build, and stop when it is done.")
@log_options
@click.option("--name", hidden=True)
@supervised_option
def worker(  # noqa: PLR0913 - one parameter per option
    target: str | None,
    *,
    plugins: bool,
    url: str | None,
    concurrency: int | None,
    queues: tuple[str, ...],
    processes: int,
    until_idle: bool,
    retention: str | None,
    checks: bool,
    until_drained: bool,
    log_level: str | None,
    log_format: str | None,
    name: str | None,
) -> None:
    """Run the jobs of the App in TARGET.

    TARGET is a file or a module. With --plugins, also run the jobs of installed apps. The worker runs until SIGTERM or
    Ctrl-C stops it in order. A second Ctrl-C ends it at once. With several processes, a supervisor replaces processes
    that die. Log lines go to standard error.

    With --check, the worker first checks the runs that have not ended, as holdfast check does. If one would not go on
    with this code, the worker claims nothing and ends with exit code 10. holdfast workers says why.
    """
    from holdfast.cli.target import load
    from holdfast.client.logs import guard_process

    ends = [flag for flag, given in (("--until-idle", until_idle), ("--until-drained", until_drained)) if given]
    if len(ends) > 1:
        raise click.UsageError("give --until-idle or --until-drained, not both")
    app = load(target, url, plugins=plugins)
    guard_process(level=log_level, form=log_format)
    if retention is not None:
        import msgspec

        app.config = msgspec.structs.replace(app.config, retention=retention)
    slots = concurrency or app.config.concurrency
    if not is_supervised() and log_level in {None, "debug", "info"}:
        _banner(app, slots, queues, processes, as_json=log_format == "json")
    if checks:
        _check_first(app, target, plugins=plugins)
    if processes > 1:
        from holdfast.supervisor import supervise

        options = [*([target] if target else []), *(["--plugins"] if plugins else []), "--url", app.url]
        options += [part for queue in queues for part in ("--queue", queue)]
        flags = {
            "--concurrency": concurrency,
            "--retention": retention,
            "--log-level": log_level,
            "--log-format": log_format,
        }
        options += [part for flag, value in flags.items() if value is not None for part in (flag, str(value))]
        supervise(app, options, processes, until=ends[0] if ends else None)
        return
    running = app.worker(concurrency=concurrency, queues=queues, name=name)
    stop_with_supervisor(running.stop)
    running.on_death = _end_process
    tune_gc()
    running.run_until_signal(until_idle=until_idle, until_drained=until_drained)


def _banner(app: App, slots: int, queues: tuple[str, ...], processes: int, *, as_json: bool) -> None:
    """Print what this worker runs, from which store, and how many jobs at once."""
    import logging

    from holdfast.errors import shown_url

    jobs = sorted(
        name if plugin == app.name else f"{plugin}.{name}"
        for (plugin, name), job in app.entries.items()
        if name == job.name
    )
    facts = {
        "app": app.name,
        "build": app.build or "not known",
        "jobs": ", ".join(jobs) or "none",
        "store": shown_url(app.url),
        "slots": f"{slots}{f' in each of {processes} processes' if processes > 1 else ''}",
        "queues": ", ".join(queues) or "all",
    }
    if as_json:
        text = ", ".join(f"{name} {value}" for name, value in facts.items())
        logging.getLogger("holdfast.worker").info("worker starts: %s", text)
        return
    lines = [f"holdfast worker {__version__}, process {os.getpid()}"]
    click.echo("\n".join([*lines, *(f"  {name:<7} {value}" for name, value in facts.items())]), err=True)


def _check_first(app: App, target: str | None, *, plugins: bool) -> None:
    """Check the runs of the store. If one would not go on, report that and end this process before it claims a job."""
    import platform

    from holdfast.cli.check import checked_runs
    from holdfast.deploys.check_report import report_lines, summary
    from holdfast.store import PutWorker, RemoveWorker, WorkerCard

    store = app.store()  # opened, and migrated if need be, as every worker does
    findings = checked_runs(app, target, plugins=plugins, sample=0)
    name = f"not-ready-{platform.node()}"  # one row for a host whose worker is started again and again
    if not findings.failures:
        app.block(store.commit([RemoveWorker(name)]))
        echo(summary(findings), err=True)
        return
    for line in report_lines(findings):
        echo(line, err=True)
    entries = tuple(sorted(".".join(entry) for entry in app.entries))
    first = "; ".join(findings.runs[0].reasons)
    card = WorkerCard(
        name=name,
        host=platform.node(),
        pid=os.getpid(),
        slots=0,
        queues=None,
        entries=entries,
        lease_seconds=NOT_ALIVE_SECONDS,
        blocked=f"{summary(findings)}. {findings.runs[0].run}: {first}",
        build=app.build,
    )
    app.block(store.commit([PutWorker(card)]))
    app.close()
    raise SystemExit(EXIT_DOES_NOT_FIT)


def _end_process(error: errors.LoopDied) -> None:
    """End this process at once. The dead loop cannot do it, and the worker has released its jobs."""
    echo(f"holdfast: {error}", err=True)
    os._exit(EXIT_LOOP_DIED)


@click.command(epilog="Example: holdfast start shop.py checkout sku=A1 card=4242 --follow")
@click.argument("target")
@click.argument("entry", shell_complete=completion.entries)
@click.argument("arguments", nargs=-1)
@where_options
@click.option("--key", "idempotency_key", help="Idempotency key: the same key and arguments return the same run.")
@click.option("--deadline", help="Maximum duration of the run: 90s, 2h. 0 means no limit.")
@click.option("--priority", type=int, default=0, help="Higher runs first.")
@click.option("--delay", help="Time to wait before the run may start: 10m.")
@click.option("--queue", help="Queue of the run.  [default: the queue of the job]")
@click.option("--group", help="Tenant or customer of the run. The groups of a queue take turns.")
@click.option("--attr", "attributes", multiple=True, help="Attribute to find the run by, name=value. Repeatable.")
@click.option(
    "--budget", "budget", multiple=True, help="Maximum spending before the run is parked, unit=amount. Repeatable."
)
@click.option(
    "--wait",
    type=float,
    is_flag=False,
    flag_value=NO_LIMIT_SECONDS,
    help="Wait for the result, at most this many seconds.",
)
@click.option("-f", "--follow", is_flag=True, help="Show the run live until it has ended, then its result.")
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
    """Start a run of a job and print its id.

    ENTRY is the name of the job. TARGET is a file or a module with an App. With --server, TARGET is the name of an app
    on that server. ARGUMENTS have the form name=value. The type hints of the job decide how values are parsed.
    """
    from holdfast.client.run_handle import RunHandle
    from holdfast.client.views import Creation

    client, (plugin, name), values = _prepared(target, entry, pairs(arguments, "arguments"), where)
    creation = Creation(
        plugin_id=plugin,
        entry_id=name,
        args=values,
        **{
            **options,
            "deadline": _duration(options["deadline"], "--deadline"),
            "delay": _duration(options["delay"], "--delay"),
            "attributes": {name: value_of(text) for name, text in pairs(options["attributes"], "attributes")},
            "budget": amounts_of(options["budget"]) or None,
        },
    )
    run_id = client.create(creation).record.run_id
    if follow:
        click.get_current_context().exit(follow_run(client, run_id, as_json=as_json))
    if wait is None:
        show_result({"run_id": run_id}, as_json=as_json, text=lambda: run_id)
        return
    try:
        result = RunHandle(client, run_id).result(timeout=wait)
    except TimeoutError:
        raise TimeoutError(f"run {run_id} has not ended in time and continues: see holdfast follow {run_id}") from None
    except (errors.RunFailed, errors.RunCanceled, errors.RunTimedOut) as error:
        echo(f"holdfast: {' '.join(str(error).split())}", err=True)
        click.get_current_context().exit(1)
    show_result({"run_id": run_id, "result": result}, as_json=as_json, text=lambda: json.dumps(json_value(result)))


def _prepared(
    target: str, entry: str, arguments: list[tuple[str, str]], where: Where
) -> tuple[Client, tuple[str, str], dict[str, Any]]:
    """Return the client, the names of the app and its job, and the parsed arguments."""
    if where.server is None:
        from holdfast.cli.target import load

        app = load(target, where.url)
        job = app.entry(entry)
        return app, (job.plugin, job.name), {name: job.signature.from_text(name, text) for name, text in arguments}
    client = open_client(where)
    entries = client.block(client.aentries())
    schemas = [known.parameters for known in entries if (known.plugin_id, known.entry_id) == (target, entry)]
    hints = schemas[0].get("properties", {}) if schemas else {}
    return client, (target, entry), {name: _parsed(name, text, hints.get(name, {})) for name, text in arguments}


def _parsed(name: str, text: str, hint: dict[str, Any]) -> Any:
    """Parse an argument by its JSON Schema: text, a secret from an environment variable, or else JSON if possible."""
    if any(schema.get("writeOnly") for schema in [hint, *hint.get("anyOf", [])]):
        from holdfast import Secret

        if not text.startswith("env:") or text == "env:":
            advice = f"{name} is a secret: name an environment variable, such as {name}=env:STRIPE_KEY"
            raise click.UsageError(f"{advice}; other users can read the arguments of a command")
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
