"""Commands that read workers, gates, statistics, the jobs of an app, and builds and changes of their code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.operate import actor_of, actor_option
from holdfast.cli.options import Where, existing, json_option, open_client, reader, show_result, where_options
from holdfast.cli.terminal_text import echo
from holdfast.cli.text_table import lasted, show_table

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.client.overview.mark_uses import MarkUse
    from holdfast.client.overview.marked_changes import Change
    from holdfast.client.worker_status import WorkerStatus
    from holdfast.store.rows import GateCard

RUNS = 10_000  # runs that a listing of changes looks at


@click.command(epilog="Example: holdfast workers --server https://jobs.example.com")
@where_options
@json_option
def workers(where: Where, as_json: bool) -> None:
    """List the workers and their jobs.

    Each job has its current step and how long the step has run.
    """
    client = reader(where)
    listed = client.workers()
    if as_json:
        show_result(listed, as_json=True, text=str)
        return
    now = client.stats().now
    echo("\n".join(line for worker in listed for line in _worker(worker, now)) or "no workers")


def _worker(worker: WorkerStatus, now: float) -> list[str]:
    card = worker.card
    heard = f"last heartbeat {now - card.seen_at:.0f} s ago"
    gone = "LOST" if card.blocked is None or card.slots else "NOT READY"
    lost = "" if worker.alive else f", {gone}"
    build = f"  build {card.build}" if card.build is not None else ""
    slots = f"{len(worker.running)} of {card.slots} slots"
    lines = [f"{card.name}  {card.host} pid {card.pid}{build}  {slots}  {heard}{lost}"]
    if card.blocked is not None:
        lines.append(f"    takes no jobs: {card.blocked}")
    for job in worker.running:
        steps = ", ".join(f"{step.node} for {now - step.since:.1f} s" for step in job.steps)
        lines.append(f"    {job.job}  {job.entry}  attempt {job.attempt}  {steps}".rstrip())
    return lines


@click.command(epilog="Example: holdfast gates --json")
@where_options
@json_option
def gates(where: Where, as_json: bool) -> None:
    """List the gates of all workers.

    Each gate has its state, what holds it closed, and when it opens.
    """
    client = reader(where)
    views = client.gates()
    if as_json:
        show_result(views, as_json=True, text=str)
        return
    now = client.stats().now
    rows = [
        [
            view.gate.name,
            view.gate.state,
            "" if view.gate.opens_at is None else f"in {lasted(max(0.0, view.gate.opens_at - now))}",
            str(view.gate.waiting),
            view.worker,
            "; ".join(filter(None, [view.gate.why, _broken(view.gate)])),
        ]
        for view in views
    ]
    show_table(["GATE", "STATE", "OPENS", "LINE", "WORKER", "WHY"], rows, empty="no gates: no worker is alive")


def _broken(gate: GateCard) -> str | None:
    """Return a gate's violations of its own contract. They exist only if there is a bug."""
    return f"BROKE ITS CONTRACT {gate.violations} TIMES: {gate.violation}" if gate.violations else None


@click.command(epilog="Example: holdfast stats --json")
@where_options
@json_option
def stats(where: Where, as_json: bool) -> None:
    """Count runs by status, jobs by queue, and workers."""
    counts = reader(where).stats()
    if as_json:
        show_result(counts, as_json=True, text=str)
        return
    echo(f"workers   {counts.workers}")
    oldest = "no job waits for a worker" if counts.oldest_due_seconds is None else lasted(counts.oldest_due_seconds)
    echo(f"longest   {oldest}")
    if counts.asks:
        echo(f"in doubt  {counts.asks}: see holdfast runs --asks")
    show_table(["RUNS", "NUMBER"], [[status, f"{number:,}"] for status, number in counts.runs.items()], empty="no runs")
    kinds = list(dict.fromkeys(kind for counted in counts.queues.values() for kind in counted))
    if counts.queues:
        rows = [[queue, *(f"{counted.get(kind, 0):,}" for kind in kinds)] for queue, counted in counts.queues.items()]
        show_table(["QUEUE", *(kind.upper() for kind in kinds)], rows, empty="")


@click.command(epilog="Example: holdfast entries shop.py")
@click.argument("target", required=False)
@where_options
@json_option
def entries(target: str | None, where: Where, as_json: bool) -> None:
    """List the jobs of an App and their arguments.

    TARGET is a file or a module with the App. With --server, list the jobs of that server.
    """
    if where.server is not None:
        client: Any = open_client(where)
    elif target is not None:
        from holdfast.cli.target import load

        client = load(target, where.url)
    else:
        raise click.UsageError("give a file or module, such as holdfast entries shop.py, or --server http://…")
    jobs = client.block(client.aentries())
    if as_json:
        show_result(jobs, as_json=True, text=str)
        return
    rows = [[f"{job.plugin_id}.{job.entry_id}", _arguments(job.parameters), job.queue, job.description] for job in jobs]
    show_table(["JOB", "ARGUMENTS", "QUEUE", "DOES"], rows, empty="no jobs")


def _arguments(schema: dict[str, Any]) -> str:
    needed = schema.get("required") or []
    return " ".join(name if name in needed else f"[{name}]" for name in schema.get("properties") or {})


@click.group(invoke_without_command=True, epilog="Example: holdfast builds move 1.4.1 1.4.2 shop.py")
@where_options
@json_option
@click.pass_context
def builds(ctx: click.Context, where: Where, as_json: bool) -> None:
    """List the builds of the code, or move runs to another one.

    Without a subcommand, list each build that a live worker has, that runs are kept for, or that has run a run which
    waits, with what still needs it. The workers of a drained build can be stopped: any build goes on with runs that
    wait, unless they are kept for one.
    """
    if ctx.invoked_subcommand is not None:
        return
    client = reader(where)
    listed = client.builds()
    if as_json:
        show_result(listed, as_json=True, text=str)
        return
    now = client.stats().now
    rows = [
        [
            one.build, str(one.workers), str(one.running), str(one.waiting), str(one.kept),
            f"{one.oldest}, {lasted(now - one.oldest_at)}" if one.oldest and one.oldest_at is not None else "-",
            "drained" if one.drained else one.reason or "",
        ]
        for one in listed
    ]  # fmt: skip
    show_table(("BUILD", "WORKERS", "RUNNING", "WAITING", "KEPT", "OLDEST KEPT RUN", "STATE"), rows, empty="no builds")


@builds.command(name="move", epilog="Example: holdfast builds move 1.4.1 1.4.2 shop.py")
@click.argument("old")
@click.argument("new")
@click.argument("target", required=False)
@click.option("--unchecked", is_flag=True, help="Move the runs without a check. A run that does not fit asks later.")
@actor_option
@where_options
@json_option
def move_runs(
    old: str, new: str, target: str | None, *, unchecked: bool, actor: str | None, where: Where, as_json: bool
) -> None:
    """Move the runs that are kept for the build OLD to the build NEW.

    TARGET is the file or module with the code of NEW. Each run is replayed through it first, which calls nothing. If a
    run does not fit, none is moved, and the exit code is 1. An unknown OLD has the exit code 3. With --server, the
    server replays the runs through its own code, which must be that of NEW.
    """
    import sys

    if where.server is None and target is None and not unchecked:
        raise click.UsageError("name the code of the new build as TARGET, or give --unchecked")
    client = _mover(where, target, new)
    done = client.move_build(old, new, actor=actor_of(where, actor), check=not unchecked)
    lines = [
        f"{one.run_id} does not fit: {'; '.join(one.reasons)}{f' ({one.line})' if one.line else ''}"
        for one in done.misfits
    ]
    show_result(
        done,
        as_json=as_json,
        text=lambda: "\n".join(lines or [_moved(done.moved, old, new)]),
    )
    sys.exit(1 if done.misfits else 0)


def _mover(where: Where, target: str | None, new: str) -> Client:
    """Return the client that moves runs: the app with the code of the new build, or a server."""
    from holdfast.cli.target import load

    if target is None:
        return reader(where)
    if where.server is not None:
        raise click.UsageError("leave TARGET out with --server: the server uses its own code")
    app = existing(load(target, where.url))
    if app.build not in {None, new}:
        raise click.UsageError(
            f"{target} is build {app.build}, not {new}: set HOLDFAST_BUILD, or name the code of {new}"
        )
    return app


def _moved(number: int, old: str, new: str) -> str:
    if number:
        return f"moved {number} run{'' if number == 1 else 's'} to {new}"
    return f"moved no run: none is kept for {old}"


@click.command(epilog="Example: holdfast changes shop.py")
@click.argument("target", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=RUNS,
    show_default=True,
    help="Maximum number of runs to read.",
)
@where_options
@json_option
def changes(target: str | None, limit: int, where: Where, as_json: bool) -> None:
    """List the changes that job code marks with changed(), and the runs on each side.

    A run that had passed the place before the change is on the old side. When no run is, the old side can be removed
    from the code. TARGET is the file or module with the code: its files are parsed for uses of each mark, and runs
    that have recorded no side are replayed through it, which calls nothing. Without TARGET, only recorded sides are
    listed. With --server, the server parses its own code, and replays nothing.
    """
    from holdfast.cli.target import load

    if target is not None and where.server is not None:
        raise click.UsageError("leave TARGET out with --server: the server uses its own code")
    client = reader(where) if target is None else existing(load(target, where.url))
    listed = client.changes(limit=limit)
    if as_json:
        show_result(listed, as_json=True, text=str)
        return
    heads = ("MARK", "OLD", "NEW", "UNKNOWN", "USED AT", "OLD SIDE")
    unread = [_place(use) for use in listed.unread]
    show_table(heads, [_change_cells(one, unread) for one in listed.changes], empty="no marked changes")
    for place in unread:
        click.echo(f"{place} asks for a mark that cannot be read from the code: it is listed once a run records it")
    if not listed.complete:
        click.echo(f"{listed.runs} runs were looked at, and there are more: raise --limit before you remove a side")


def _place(use: MarkUse) -> str:
    from holdfast.deploys.check_report import shown_line

    return shown_line(f"{use.file}:{use.line}")


def _change_cells(change: Change, unread: list[str]) -> list[str]:
    places = ", ".join(map(_place, change.uses)) or "-"
    numbers = [str(number) for number in (change.old, change.new, change.unknown)]
    return [change.mark, *numbers, places, _advice(change, unread)]


def _advice(change: Change, unread: list[str]) -> str:
    if change.removable:
        return "can be removed"
    if change.old:
        return f"needed by {change.oldest}" + (f" and {change.old - 1} more" if change.old > 1 else "")
    if not change.uses:
        return f"perhaps used at {', '.join(unread)}" if unread else "not in this code"
    return "may be needed"


COMMANDS = (workers, gates, stats, entries, builds, changes)
