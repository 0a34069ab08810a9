"""Commands that look and change nothing: runs, their records and exports, why they stand still, and who works."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import (
    Where,
    client,
    full_id,
    json_option,
    plain,
    run_argument,
    show_result,
    value_of,
    where_options,
)
from holdfast.cli.text_table import ago, bar, lasted, on_terminal, show_table

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.client.worker_status import WorkerStatus
    from holdfast.machines import RunRecord
    from holdfast.store.rows import GateCard

__all__ = ["COMMANDS", "pairs"]

STATUSES = ["queued", "running", "cancel_requested", "succeeded", "failed", "canceled", "timeout"]


@click.command(epilog="Example: holdfast runs --status failed --since 2h --attr customer=42")
@where_options
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; may be given again."
)
@click.option("--plugin", help="Only runs of this app.")
@click.option("--entry", help="Only runs of this job.")
@click.option("--queue", help="Only runs in this queue.")
@click.option("--group", help="Only runs of this group.")
@click.option("--key", help="Only the run with this idempotency key.")
@click.option(
    "--attr", "attributes", multiple=True, help="Only runs with this attribute, name=value; may be given again."
)
@click.option("--since", help="Created since: 2h ago as 2h, or a time as 2026-01-31T12:00.")
@click.option("--until", help="Created before: as --since.")
@click.option("--before", help="Go on behind this run: the last of the page before.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@json_option
def runs(
    where: Where,
    statuses: tuple[str, ...],
    attributes: tuple[str, ...],
    since: str | None,
    until: str | None,
    before: str | None,
    limit: int,
    as_json: bool,
    **names: str | None,
) -> None:
    """List runs, newest first."""
    chosen: dict[str, Any] = {
        "status": statuses,
        "plugin_id": names["plugin"],
        "entry_id": names["entry"],
        "queue": names["queue"],
        "group": names["group"],
        "idempotency_key": names["key"],
        "attributes": {name: value_of(text) for name, text in pairs(attributes, "attributes")},
        "created_after": _time(since, "--since"),
        "created_before": _time(until, "--until"),
    }
    found = client(where).list(
        limit=limit, before=before, **{name: value for name, value in chosen.items() if value not in (None, {})}
    )
    if as_json:
        show_result(found, as_json=True, text=str)
        return
    heads = ["RUN", "JOB", "STATUS", "CREATED", "STAGE", "TOOK"]
    show_table(heads, [_row(one) for one in found], empty="no runs", spare=["STAGE", "TOOK"])
    if len(found) == limit and on_terminal():
        click.echo(f"there may be more: --before {found[-1].run_id}", err=True)


def _row(one: RunRecord) -> list[str]:
    stage = " ".join(filter(None, [one.stage, bar(one.progress) if one.finished_at is None else ""]))
    took = lasted(one.finished_at - one.started_at) if one.finished_at and one.started_at else ""
    return [one.run_id, f"{one.plugin_id}.{one.entry_id}", str(one.status), ago(one.created_at), stage, took]


def pairs(given: tuple[str, ...], what: str) -> list[tuple[str, str]]:
    """Split what is given as name=value."""
    split = [one.partition("=") for one in given]
    wrong = [name for name, equals, _ in split if not equals]
    if wrong:
        raise click.UsageError(f"{what} are name=value, got {', '.join(wrong)}")
    return [(name, value) for name, _, value in split]


def _time(text: str | None, option: str) -> float | None:
    """Read a time: so long ago, or a date, in UTC unless it says otherwise."""
    from datetime import UTC, datetime

    from holdfast.durations import seconds

    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return time.time() - seconds(text)
        except ValueError as error:
            raise click.UsageError(f"{option}: {error}, or a time such as 2026-01-31T12:00") from error
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


@click.command(epilog="Example: holdfast show 3f2a")
@run_argument
@where_options
@json_option
def show(run: str, where: Where, as_json: bool) -> None:
    """Show the record of RUN, what it returned, and what its calls reported when it was too late."""
    asked = client(where)
    record = asked.get(full_id(asked, run))
    current = _current(asked, record)
    result = None
    if current is not None and current.status == "succeeded":
        result = asked.outcome(current.run_id)
    late = plain(asked.evidence(record.run_id))
    if as_json:
        named = {} if current is record else {"current": _shown_current(current)}
        show_result({**plain(record), **named, "result": result, "evidence": late}, as_json=True, text=str)
        return
    for name, value in plain(record).items():
        if value in (None, {}, []):
            continue
        shown = f"{_stamp(value)}  {ago(value)}" if name.endswith("_at") else value
        click.echo(f"{name:<20} {_line(shown)}")
    if current is not record:
        click.echo(f"{'current run':<20} {'removed' if current is None else f'{current.run_id}  {current.status}'}")
    if current is not None and current.status == "succeeded":
        click.echo(f"{'result':<20} {json.dumps(result, ensure_ascii=False)}")
    for one in late:
        told = one["error"] if one["error"] is not None else json.dumps(one["result"], ensure_ascii=False)
        click.echo(f"{'evidence':<20} {one['node']}, attempt {one['attempt']}, {ago(one['at'])}: {told}")


def _current(asked: Client, record: RunRecord) -> RunRecord | None:
    """Give the run that goes on for one that was continued, else the run itself; None if it has been removed."""
    from holdfast.errors import UnknownJob

    if record.continued_as is None:
        return record
    try:
        return asked.get(asked.current(record.run_id))
    except UnknownJob:
        return None


def _shown_current(current: RunRecord | None) -> dict[str, Any] | None:
    return None if current is None else {"run_id": current.run_id, "status": str(current.status)}


def _stamp(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.command(name="explain", epilog="Example: holdfast explain 3f2a")
@run_argument
@click.option("--target", help="The file or module with the App, to know what it can run.")
@where_options
@json_option
def explain_run(run: str, target: str | None, where: Where, as_json: bool) -> None:
    """Say in plain words where RUN is, who holds it, what will wake it and when."""
    if target is not None and where.server is None:
        from holdfast.cli.target import load

        asked: Any = load(target, where.url)
    else:
        asked = client(where)
    found = asked.explain(full_id(asked, run))
    show_result(found, as_json=as_json, text=lambda: found.explanation)


@click.command(epilog="Example: holdfast exports 3f2a --save 1 report.pdf")
@run_argument
@where_options
@click.option(
    "--save", nargs=2, metavar="N FILE", help="Write the export with this number to a file; - is standard output."
)
@click.option("--after", type=click.IntRange(0), default=0, help="Go on behind this number.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many.")
@json_option
def exports(
    run: str,
    where: Where,
    save: tuple[str, str] | None,
    after: int,
    limit: int,
    as_json: bool,
) -> None:
    """List what RUN has produced, or save one of it."""
    asked = client(where)
    run_id = full_id(asked, run)
    if save is not None:
        number, file = save
        if not number.isdecimal():
            raise click.UsageError(f"--save takes the number of an export and a file, got {number!r}")
        _save(asked.content(run_id, int(number)), file)
        return
    found = asked.exports(run_id, after=after, limit=limit)
    if as_json:
        show_result(found, as_json=True, text=str)
        return
    rows = [
        [str(one.number), one.name, one.kind, one.media_type, f"{one.size:,}", ago(one.at), _value(one)]
        for one in found
    ]
    show_table(["N", "NAME", "KIND", "TYPE", "BYTES", "MADE", "VALUE"], rows, empty="no exports")


def _value(one: Any) -> str:
    shown = "" if one.value is None else _line(one.value)
    return (shown if len(shown) <= 60 else f"{shown[:59]}…") + (" (provisional)" if one.provisional else "")  # noqa: PLR2004 - fits a line


def _save(pieces: Any, file: str) -> None:
    """Write bytes to a file, whole or not at all."""
    from pathlib import Path

    if file == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    part = Path(f"{file}.part")
    try:
        with part.open("wb") as out:
            for piece in pieces:
                out.write(piece)
        part.replace(file)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@click.command(epilog="Example: holdfast workers --server https://jobs.example.com")
@where_options
@json_option
def workers(where: Where, as_json: bool) -> None:
    """List who works here, what each runs, and which step that is in since when."""
    asked = client(where)
    found = asked.workers()
    if as_json:
        show_result(found, as_json=True, text=str)
        return
    now = asked.stats().now
    click.echo("\n".join(line for one in found for line in _worker(one, now)) or "no workers")


def _worker(one: WorkerStatus, now: float) -> list[str]:
    card = one.card
    heard = f"heard of {now - card.seen_at:.0f} s ago"
    lost = "" if one.alive else click.style(", LOST", fg="red")
    lines = [f"{card.name}  {card.host} pid {card.pid}  {len(one.running)} of {card.slots} slots  {heard}{lost}"]
    for job in one.running:
        steps = ", ".join(f"{step.node} for {now - step.since:.1f} s" for step in job.steps)
        lines.append(f"    {job.job}  {job.entry}  attempt {job.attempt}  {steps}".rstrip())
    return lines


@click.command(epilog="Example: holdfast gates --json")
@where_options
@json_option
def gates(where: Where, as_json: bool) -> None:
    """List the gates of all workers: what each says, what holds it closed, and when it opens."""
    asked = client(where)
    found = asked.gates()
    if as_json:
        show_result(found, as_json=True, text=str)
        return
    now = asked.stats().now
    rows = [
        [
            one.gate.name,
            one.gate.state,
            "" if one.gate.opens_at is None else f"in {lasted(max(0.0, one.gate.opens_at - now))}",
            str(one.gate.waiting),
            one.worker,
            "; ".join(filter(None, [one.gate.why, _broken(one.gate)])),
        ]
        for one in found
    ]
    show_table(["GATE", "STATE", "OPENS", "LINE", "WORKER", "WHY"], rows, empty="no gates: no worker was heard of")


def _broken(gate: GateCard) -> str | None:
    """Tell of a gate's violations of its own contract, of which there are none unless there is a bug."""
    return f"BROKE ITS CONTRACT {gate.violations} TIMES: {gate.violation}" if gate.violations else None


@click.command(epilog="Example: holdfast stats --json")
@where_options
@json_option
def stats(where: Where, as_json: bool) -> None:
    """Count runs by status, jobs by queue, and workers."""
    found = client(where).stats()
    if as_json:
        show_result(found, as_json=True, text=str)
        return
    click.echo(f"workers   {found.workers}")
    oldest = "no job waits for a worker" if found.oldest_due_seconds is None else lasted(found.oldest_due_seconds)
    click.echo(f"longest   {oldest}")
    show_table(["RUNS", "NUMBER"], [[status, f"{number:,}"] for status, number in found.runs.items()], empty="no runs")
    kinds = list(dict.fromkeys(kind for counted in found.queues.values() for kind in counted))
    if found.queues:
        rows = [[queue, *(f"{counted.get(kind, 0):,}" for kind in kinds)] for queue, counted in found.queues.items()]
        show_table(["QUEUE", *(kind.upper() for kind in kinds)], rows, empty="")


@click.command(epilog="Example: holdfast entries shop.py")
@click.argument("target", required=False)
@where_options
@json_option
def entries(target: str | None, where: Where, as_json: bool) -> None:
    """List the jobs that can be started, of the App in TARGET or of a server, with their arguments."""
    if where.server is not None:
        asked: Any = client(where)
    elif target is not None:
        from holdfast.cli.target import load

        asked = load(target, where.url)
    else:
        raise click.UsageError("say whose: holdfast entries shop.py, or --server http://…")
    found = asked.block(asked.aentries())
    if as_json:
        show_result(found, as_json=True, text=str)
        return
    rows = [
        [f"{one.plugin_id}.{one.entry_id}", _arguments(one.parameters), one.queue, one.description] for one in found
    ]
    show_table(["JOB", "ARGUMENTS", "QUEUE", "DOES"], rows, empty="no jobs")


def _arguments(schema: dict[str, Any]) -> str:
    needed = schema.get("required") or []
    return " ".join(name if name in needed else f"[{name}]" for name in schema.get("properties") or {})


COMMANDS = (runs, show, explain_run, exports, workers, gates, stats, entries)
