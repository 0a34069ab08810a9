"""Commands that only read: runs, their records, exports and explanations, workers, gates, statistics, and entries."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import (
    Where,
    full_id,
    json_option,
    json_value,
    missing_store,
    open_client,
    reader,
    run_argument,
    show_result,
    where_options,
)
from holdfast.cli.run_filters import filter_options
from holdfast.cli.terminal_text import echo
from holdfast.cli.text_table import ago, bar, lasted, on_terminal, show_table

if TYPE_CHECKING:
    from holdfast.client.interface import Client
    from holdfast.client.overview.questions import Question
    from holdfast.machines import RunRecord

CHILDREN_SHOWN = 10  # of a run, the newest


@click.command(epilog="Example: holdfast runs --status failed --since 2h --attr customer=42")
@click.argument("target", required=False)
@where_options
@filter_options
@click.option("--asks", is_flag=True, help="Only runs with a tool call in doubt: answer with holdfast resolve.")
@click.option("--top", is_flag=True, help="Only runs that no other run has started.")
@click.option("--parent", help="Only children of this run.")
@click.option("--before", help="Only runs older than this run, the last one of the previous page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number of runs.")
@json_option
def runs(  # noqa: PLR0913 - one parameter per option
    target: str | None,
    *,
    where: Where,
    filters: dict[str, Any],
    parent: str | None,
    before: str | None,
    limit: int,
    as_json: bool,
    asks: bool,
    top: bool,
) -> None:
    """List runs, newest first.

    TARGET is a file or a module with an App: list the runs in the store of that App.
    """
    filters |= {name: True for name, wanted in (("asks", asks), ("top", top)) if wanted}
    client = _client_of(target, where)
    missing = missing_store(client)
    if parent is not None and missing is None:
        filters["parent"] = full_id(client, parent).partition(".")[0]
    records = [] if missing is not None else client.list(limit=limit, before=before, **filters)
    if as_json:
        show_result(records, as_json=True, text=str)
        return
    heads = ["RUN", "JOB", "STATUS", "CREATED", "STAGE", "TOOK"]
    show_table(
        heads, [_row(record) for record in records], empty=_no_runs(client, missing, filters), spare=["STAGE", "TOOK"]
    )
    if len(records) == limit and on_terminal():
        echo(f"there may be more: --before {records[-1].run_id}", err=True)


def _client_of(target: str | None, where: Where) -> Client:
    if target is None:
        return open_client(where)
    if where.server is not None:
        raise click.UsageError("give TARGET or --server, not both: a server has its own apps")
    from holdfast.cli.target import load

    return load(target, where.url)


def _no_runs(client: Client, missing: str | None, filters: dict[str, Any]) -> str:
    """Say that there are no runs, and where the command looked."""
    from holdfast.errors import shown_url

    if missing is not None:
        return f"no runs: {missing}"
    place = shown_url(str(getattr(client, "url", "")))
    return f"no runs {'match ' if filters else ''}in {place}"


def _row(run: RunRecord) -> list[str]:
    stage = " ".join(filter(None, [run.stage, bar(run.progress) if run.finished_at is None else ""]))
    took = lasted(run.finished_at - run.started_at) if run.finished_at and run.started_at else ""
    return [run.run_id, f"{run.plugin_id}.{run.entry_id}", str(run.status), ago(run.created_at), stage, took]


@click.command(epilog="Example: holdfast show 3f2a")
@run_argument
@where_options
@json_option
def show(run: str, where: Where, as_json: bool) -> None:
    """Show the record and the result of RUN.

    Also show results that its calls reported too late.
    """
    client = reader(where)
    record = client.get(full_id(client, run))
    current = _current(client, record)
    result = None
    if current is not None and current.status == "succeeded":
        result = client.outcome(current.run_id)
    late = json_value(client.evidence(record.run_id))
    family = _family(client, record)
    if as_json:
        named = {} if current is record else {"current": _shown_current(current)}
        document = {**json_value(record), **named, **family, "result": result, "evidence": late}
        show_result(document, as_json=True, text=str)
        return
    for name, value in json_value(record).items():
        if value in (None, {}, []):
            continue
        if name == "error":
            _show_error(value)
            continue
        shown = f"{_stamp(value)}  {ago(value)}" if name.endswith("_at") else value
        echo(f"{name:<20} {_line(shown)}")
    _show_family(family, record.run_id)
    if current is not record:
        echo(f"{'current run':<20} {'removed' if current is None else f'{current.run_id}  {current.status}'}")
    if current is not None and current.status == "succeeded":
        echo(f"{'result':<20} {json.dumps(result, ensure_ascii=False)}")
    for item in late:
        outcome = item["error"] if item["error"] is not None else json.dumps(item["result"], ensure_ascii=False)
        echo(f"{'evidence':<20} {item['node']}, attempt {item['attempt']}, {ago(item['at'])}: {outcome}")


def _show_error(error: dict[str, Any]) -> None:
    """Print why a run failed: code, message and details, and its traceback as Python prints it."""
    from holdfast.cli.terminal_text import folded

    details = dict(error["details"])
    trace = details.pop("traceback", None)
    echo(f"{'error':<20} {_line(error['code'])}: {_line(error['message'])}")
    if details:
        echo(f"{'error details':<20} {_line(details)}")
    if isinstance(trace, str):
        for line in folded(trace):
            echo(f"    {_line(line)}")


def _current(client: Client, record: RunRecord) -> RunRecord | None:
    """Return the run that continues this one, or the run itself. Return None if that run has been removed."""
    from holdfast.errors import UnknownJob

    if record.continued_as is None:
        return record
    try:
        return client.get(client.current(record.run_id))
    except UnknownJob:
        return None


def _family(client: Client, record: RunRecord) -> dict[str, Any]:
    """Return the parent of a run and its newest children."""
    created = client.events(record.run_id, limit=1)
    children = client.list(limit=CHILDREN_SHOWN + 1, parent=record.task_id)
    return {
        "parent": created[0].payload.get("parent") if created else None,
        "children": [
            {"run_id": child.run_id, "job": f"{child.plugin_id}.{child.entry_id}", "status": str(child.status)}
            for child in children[:CHILDREN_SHOWN]
        ],
        "more_children": len(children) > CHILDREN_SHOWN,
    }


def _show_family(family: dict[str, Any], run_id: str) -> None:
    if family["parent"] is not None:
        echo(f"{'parent':<20} {family['parent']}")
    for child in family["children"]:
        echo(f"{'child':<20} {child['run_id']}  {_line(child['job'])}  {child['status']}")
    if family["more_children"]:
        echo(f"{'':<20} and more: holdfast runs --parent {run_id}")


def _shown_current(current: RunRecord | None) -> dict[str, Any] | None:
    return None if current is None else {"run_id": current.run_id, "status": str(current.status)}


def _stamp(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.command(name="explain", epilog="Example: holdfast explain schedule nightly --at 2026-10-25T02:30")
@run_argument
@click.argument("name", required=False)
@click.option("--target", help="A file or module with the App, to check which jobs it can run.")
@click.option("--at", help="With a schedule: say what happened to its tick at this time, such as 2026-10-25T02:30.")
@where_options
@json_option
def explain_run(run: str, name: str | None, target: str | None, at: str | None, where: Where, as_json: bool) -> None:
    """Explain what RUN waits for, or with ``schedule NAME`` what a schedule does.

    Print where the run is, which worker holds it, what will wake it, and when. For a schedule, print its next tick and
    what happened to the last one, or to the tick at a time.
    """
    if run == "schedule" and name is not None:
        text = reader(where).schedules.explain(name, at)
        show_result({"schedule": name, "explanation": text}, as_json=as_json, text=lambda: text)
        return
    if name is not None or at is not None:
        raise click.UsageError("give one RUN, or: holdfast explain schedule NAME [--at TIME]")
    if target is not None and where.server is None:
        from holdfast.cli.target import load

        client: Any = load(target, where.url)
    else:
        client = reader(where)
    answer = client.explain(full_id(client, run))
    show_result(answer, as_json=as_json, text=lambda: answer.explanation)


@click.command(epilog="Example: holdfast exports 3f2a --save 1 report.pdf")
@run_argument
@where_options
@click.option("--save", nargs=2, metavar="N FILE", help="Write export number N to FILE. - means standard output.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only exports after this number.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")
@json_option
def exports(
    run: str,
    where: Where,
    save: tuple[str, str] | None,
    after: int,
    limit: int,
    as_json: bool,
) -> None:
    """List the exports of RUN, or save one of them."""
    client = reader(where)
    run_id = full_id(client, run)
    if save is not None:
        number, file = save
        if not number.isdecimal():
            raise click.UsageError(f"--save takes the number of an export and a file, got {number!r}")
        _save(client.content(run_id, int(number)), file)
        return
    listed = client.exports(run_id, after=after, limit=limit)
    if as_json:
        show_result(listed, as_json=True, text=str)
        return
    rows = [
        [str(item.number), item.name, item.kind, item.media_type, f"{item.size:,}", ago(item.at), _value(item)]
        for item in listed
    ]
    show_table(["N", "NAME", "KIND", "TYPE", "BYTES", "MADE", "VALUE"], rows, empty="no exports")


def _value(item: Any) -> str:
    text = "" if item.value is None else _line(item.value)
    return (text if len(text) <= 60 else f"{text[:59]}…") + (" (provisional)" if item.provisional else "")  # noqa: PLR2004 - fits a line


def _save(pieces: Any, file: str) -> None:
    """Write bytes to a file atomically."""
    from pathlib import Path

    if file == "-":
        if sys.stdout.isatty():  # a terminal obeys escape sequences
            echo(b"".join(pieces).decode(errors="replace"))
            return
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
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@click.command(epilog="Example: holdfast inbox --kind doubt")
@click.option("--kind", type=click.Choice(["doubt", "answer", "budget", "deploy"]), help="Only questions of this kind.")
@click.option("--group", help="Only runs of this group.")
@click.option("--run", "run_id", help="Only questions of this run.")
@click.option("--after", help="Only questions after this one, the last id of the previous page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")
@where_options
@json_option
def inbox(
    kind: str | None,
    group: str | None,
    run_id: str | None,
    after: str | None,
    limit: int,
    where: Where,
    as_json: bool,
) -> None:
    """List everything that waits for a person, oldest run first.

    Print each question, and the commands that answer it. Replace the words in capitals, such as RESULT.
    """
    client = reader(where)
    run_id = full_id(client, run_id) if run_id is not None else None
    asked = client.inbox(kind=kind, group=group, run_id=run_id, after=after, limit=limit)
    if as_json:
        show_result(asked, as_json=True, text=str)
        return
    for one in asked:
        echo(f"{one.run_id}  {one.plugin_id}.{one.entry_id}  {one.kind}  {ago(one.since)}")
        echo(f"    {one.question}")
        if one.misfit is not None:
            echo(f"    The last answer could not be used: {one.misfit}")
        for command in _commands(one):
            echo(f"    {command}")
    if not asked:
        echo("nothing waits for a person", err=True)


def _commands(question: Question) -> list[str]:
    """Return the commands that answer a question, one for each answer."""
    import shlex

    run, key = question.run_id, shlex.quote(question.key)
    node = f" --node {shlex.quote(question.node)}" if question.node else ""
    if question.kind == "doubt":
        started = f" --started {question.started}" if question.started is not None else ""
        return [f"holdfast resolve {run} {key}{started} {way}" for way in ("--done RESULT", "--not-done", "--fail")]
    if question.kind == "budget":
        units = " ".join(f"{shlex.quote(unit)}=N" for unit in question.amounts or {}) or "UNIT=N"
        return [f"holdfast grant {run} {units}{node}"]
    if question.kind == "deploy":
        misfit = question.deploy
        is_known = misfit is not None and misfit.began not in {None, misfit.build}
        ways = ("accept", *(["build"] if is_known else []), "fork", "fail")
        return [f"holdfast answer {run} {way}{node}" for way in ways]
    return [f"holdfast signal {run} {key} JSON{node}"]


COMMANDS = (runs, show, explain_run, exports, inbox)
