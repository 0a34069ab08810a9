"""Commands for schedules: list, show, next, pause, resume, fire, backfill and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.options import Where, json_option, open_client, reader, show_result, where_options
from holdfast.cli.terminal_text import echo, echo_json

if TYPE_CHECKING:
    from holdfast.client.schedules.schedules_interface import ScheduleInfo, TickTime
    from holdfast.machines import Event

PAGE = 100
_actor = click.option("--actor", help="Your name, to record with the change.  [default: cli, or the token's name]")
_name = click.argument("name")


@click.group(name="schedules", epilog="Example: holdfast schedules next nightly --around 2026-10-25")
def schedules() -> None:
    """List, inspect and control schedules."""


@schedules.command(name="list", epilog="Example: holdfast schedules list")
@where_options
@json_option
def list_schedules(where: Where, as_json: bool) -> None:
    """List all schedules with their next tick."""
    client, infos, after = reader(where), [], None
    while page := client.schedules.list(after=after, limit=PAGE):
        infos += page
        after = page[-1].id
    if as_json:
        show_result(infos, as_json=True, text=str)
        return
    from holdfast.cli.text_table import show_table

    rows = [(info.id, info.job, info.text, info.state, _next(info), _hint(info)) for info in infos]
    heads = ("SCHEDULE", "JOB", "TIMES", "STATE", "NEXT", "NOTE")
    show_table(heads, rows, empty="no schedules: declare one with @app.schedule", spare=("JOB",))


@schedules.command(epilog="Example: holdfast schedules show nightly --limit 50")
@_name
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of events.")
@where_options
@json_option
def show(name: str, limit: int, where: Where, as_json: bool) -> None:
    """Show a schedule, and what happened to its last ticks."""
    client = reader(where)
    info, events = client.schedules.get(name), client.schedules.history(name, limit=limit)
    if as_json:
        show_result({"schedule": info, "events": events}, as_json=True, text=str)
        return
    echo(client.schedules.explain(name))
    for option, value in info.options.items():
        echo(f"  {option}: {value}")
    for event in events:
        echo(f"{_time(info, event.at)}  {_line(info, event)}")


@schedules.command(name="next", epilog="Example: holdfast schedules next nightly --around 2026-10-25")
@_name
@click.option("--around", help="A day: show its ticks, and those of the day before and after it.")
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="Maximum number of ticks.")
@where_options
@json_option
def next_ticks(name: str, around: str | None, limit: int, where: Where, as_json: bool) -> None:
    """Show the next ticks of a schedule, or those around a day, in local time and in UTC."""
    ticks = reader(where).schedules.ticks(name, around=around, limit=limit)
    if as_json:
        show_result(ticks, as_json=True, text=str)
        return
    from holdfast.cli.text_table import show_table

    rows = [(tick.local, tick.utc, _mark(tick)) for tick in ticks]
    show_table(("LOCAL", "UTC", "NOTE"), rows, empty="no ticks")


@schedules.command(epilog="Example: holdfast schedules pause nightly --note 'the disk is full'")
@_name
@click.option("--note", help="Why, for others to read.")
@_actor
@where_options
@json_option
def pause(name: str, note: str | None, actor: str | None, where: Where, as_json: bool) -> None:
    """Pause a schedule. Its ticks are skipped until it is resumed."""
    _show(open_client(where).schedules.pause(name, note, actor=_actor_of(where, actor)), as_json=as_json)


@schedules.command(epilog="Example: holdfast schedules resume nightly")
@_name
@_actor
@where_options
@json_option
def resume(name: str, actor: str | None, where: Where, as_json: bool) -> None:
    """Resume a paused schedule with its next tick."""
    _show(open_client(where).schedules.resume(name, actor=_actor_of(where, actor)), as_json=as_json)


@schedules.command(epilog="Example: holdfast schedules fire nightly")
@_name
@click.option("--allow-overlap", is_flag=True, help="Start the run although another one is open.")
@_actor
@where_options
@json_option
def fire(name: str, allow_overlap: bool, actor: str | None, where: Where, as_json: bool) -> None:
    """Start a run of a schedule now, and print its id."""
    run = open_client(where).schedules.fire(name, allow_overlap=allow_overlap, actor=_actor_of(where, actor))
    show_result({"run_id": run}, as_json=as_json, text=lambda: run)


@schedules.command(epilog="Example: holdfast schedules backfill nightly 2026-11-01 2026-11-08 --dry-run")
@_name
@click.argument("start")
@click.argument("end")
@click.option("--dry-run", is_flag=True, help="Only print the ticks.")
@_actor
@where_options
@json_option
def backfill(name: str, start: str, end: str, dry_run: bool, actor: str | None, where: Where, as_json: bool) -> None:
    """Start a run for each tick from START to END, which are in the past. A tick that has a run keeps it."""
    actor = _actor_of(where, actor)
    done = open_client(where).schedules.backfill(name, start, end, dry_run=dry_run, actor=actor)
    if as_json:
        show_result(done, as_json=True, text=str)
    elif dry_run:
        for tick in done.ticks:
            echo(f"{tick.local}  {tick.utc}")
        echo(f"{len(done.ticks)} ticks; nothing was started")
    else:
        left = f", {done.left} ticks are left because the queue is full" if done.left else ""
        echo(f"{len(done.started)} runs started, {done.existing} ticks had a run{left}")


@schedules.command(epilog="Example: holdfast schedules delete nightly --yes")
@_name
@click.option("--yes", is_flag=True, help="Do not ask.")
@_actor
@where_options
@json_option
def delete(name: str, yes: bool, actor: str | None, where: Where, as_json: bool) -> None:
    """Delete a schedule with its history. Its runs stay."""
    client = open_client(where)
    info = client.schedules.get(name)
    if not yes and not as_json:
        click.confirm(f"Delete {info.id} with its history?", abort=True)
    client.schedules.delete(info.id, actor=_actor_of(where, actor))
    if as_json:
        echo_json({"deleted": info.id}, indent=2)
    else:
        again = " The next worker of its app declares it again." if info.source == "code" else ""
        echo(f"deleted {info.id}.{again}")


def _actor_of(where: Where, actor: str | None) -> str | None:
    return actor if actor is not None or where.server is not None else "cli"


def _show(info: ScheduleInfo, *, as_json: bool) -> None:
    shown = f"{info.id}: {info.state}" + (f", next {_next(info)}" if info.next is not None else "")
    show_result(info, as_json=as_json, text=lambda: shown)


def _next(info: ScheduleInfo) -> str:
    return _time(info, info.next) if info.next is not None else "-"


def _hint(info: ScheduleInfo) -> str:
    if info.pause is not None:
        return info.pause.note or info.pause.reason
    return "" if info.has_worker is not False else "no live worker has the job"


def _time(info: ScheduleInfo, at: float) -> str:
    from holdfast.schedules.zones import local_time

    return local_time(info.options.get("tz", "UTC"), at).isoformat(sep=" ", timespec="seconds")


def _mark(tick: TickTime) -> str:
    gap = f"for {', '.join(tick.gap)}, which does not exist" if tick.gap else ""
    notes = {"first": "the first of two", "last": "the second of two"}
    parts = [notes.get(tick.mark, tick.mark), gap, "excluded" if tick.excluded else ""]
    return " ".join(part for part in parts if part)


def _line(info: ScheduleInfo, event: Event) -> str:
    from holdfast.client.schedules.explain_schedule import event_text

    return event_text(info.options.get("tz", "UTC"), event)


COMMANDS = (schedules,)
