"""Commands that check histories, print the state tables, and run the demonstration."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import completion
from holdfast.cli.options import (
    Where,
    full_id,
    json_option,
    open_client,
    plugins_option,
    reader,
    run_argument,
    show_result,
    url_option,
    where_options,
)
from holdfast.cli.terminal_text import ProgressLine, echo

if TYPE_CHECKING:
    from holdfast.client.app import App
    from holdfast.client.interface import Client
    from holdfast.deploys.store_check import Findings
    from holdfast.machines import Event, Table


@click.command(epilog="Example: holdfast verify || echo tampered with")
@click.argument("run", required=False, shell_complete=completion.run_ids)
@where_options
@json_option
def verify(run: str | None, where: Where, as_json: bool) -> None:
    """Check RUN, or all jobs: rules, hash chain, projections. The exit code is 1 if anything is wrong.

    With --server and without RUN, the server checks all jobs in a run of its own, which you can cancel.
    """
    client = open_client(where)
    watched = {"on_progress": ProgressLine()} if run is None and where.server is not None else {}
    violations = client.verify(full_id(client, run) if run is not None else None, **watched)
    lines = [f"{job}: {violation}" for job, wrong in violations.items() for violation in wrong]
    checked = "the history" if run is not None else "every history"
    show_result(
        {job: [str(violation) for violation in wrong] for job, wrong in violations.items()},
        as_json=as_json,
        text=lambda: "\n".join(lines) if lines else f"{checked} is valid",
    )
    sys.exit(1 if violations else 0)


def _whole(client: Client, events: list[Event]) -> list[Event]:
    """Return events with their large results, which only the store has."""
    from holdfast.client.app import App
    from holdfast.errors import StoreUnavailable
    from holdfast.store.result_blobs import FIELD

    if not any(FIELD in event.payload for event in events):
        return events
    if not isinstance(client, App):
        raise StoreUnavailable("the history has results in blobs: name the store with --url in place of the server")
    return client.block(client.awith_results(events))


@click.command(epilog="Example: holdfast replay 3f2a shop.py")
@run_argument
@click.argument("target")
@where_options
@json_option
def replay(run: str, target: str, where: Where, as_json: bool) -> None:
    """Check the code in TARGET against the history of RUN.

    This calls no step and no tool. The history supplies the results of steps, tools, waits and children. The exit code
    is 1 if the engine would refuse this code, or if the run has ended and would now end differently.
    """
    from holdfast.cli.target import load
    from holdfast.client.verify import check_replay
    from holdfast.deploys.check_report import shown_line

    client, app = open_client(where), load(target)
    rehearsed = app.block(check_replay(app, _whole(client, client.events(full_id(client, run)))))
    at = f" (at {shown_line(rehearsed.line)})" if rehearsed.line is not None else ""
    lines = [f"the code does not fit: {reason}{at}" for reason in rehearsed.reasons] or ["the code fits"]
    lines.append(f"{rehearsed.answered} recorded results were used")
    lines += [f"recorded but no longer called: {', '.join(rehearsed.unasked)}"] if rehearsed.unasked else []
    lines += (
        [f"the run would continue with {', '.join(rehearsed.beyond)}"] if rehearsed.beyond and rehearsed.fits else []
    )
    show_result(rehearsed, as_json=as_json, text=lambda: "\n".join(lines))
    sys.exit(0 if rehearsed.fits else 1)


@click.command(epilog="Example: holdfast check shop.py --junit report.xml")
@click.argument("target", required=False)
@url_option
@plugins_option
@click.option("--since-last", is_flag=True, help="Skip runs that fitted this code before and have not changed since.")
@click.option(
    "--sample", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Ended runs to check per job."
)
@click.option("--processes", type=click.IntRange(1, 256), help="Number of processes.  [default: the number of cores]")
@click.option("--histories", metavar="DIR", help="Check the histories in DIR in place of a store.")
@click.option("--junit", "junit_file", metavar="FILE", help="Also write the report as JUnit XML.")
@json_option
def check(  # noqa: PLR0913 - one parameter per option
    target: str | None,
    *,
    url: str | None,
    plugins: bool,
    since_last: bool,
    sample: int,
    processes: int | None,
    histories: str | None,
    junit_file: str | None,
    as_json: bool,
) -> None:
    """Check the code in TARGET against the runs of its store, before a deploy.

    Replay every run that has not ended, and a sample of ended runs of each job, through the code as it is now. This
    calls no step and no tool, and only reads the store. Runs of other apps, and those that are kept for another
    build, are counted. The exit code is 1 if a run would not go on: the engine would stop it, its arguments or results
    no longer decode, a secret cannot be revealed in this process, or its job is gone. With --since-last, a file in
    ./.holdfast remembers the last check. With --histories, check the files that holdfast export has written. It is an
    error if there are none.
    """
    from holdfast.deploys.check_mark import code_digest, modules_since

    before = set(sys.modules)
    app = _loaded(target, url, plugins=plugins)
    if histories is not None:
        if since_last:
            raise click.UsageError("give --histories or --since-last, not both")
        _show_findings(_checked_files(app, histories), junit_file, as_json=as_json)
    mark = f"{code_digest(modules_since(before))} {app.build}" if since_last else None  # other builds take other runs
    findings = checked_runs(app, target, plugins=plugins, sample=sample, processes=processes, code=mark)
    _show_findings(findings, junit_file, as_json=as_json)


def _loaded(target: str | None, url: str | None, *, plugins: bool) -> App:
    from holdfast.cli.target import load

    return load(target, url, plugins=plugins)


def checked_runs(
    app: App, target: str | None, *, plugins: bool, sample: int, processes: int | None = None, code: str | None = None
) -> Findings:
    """Check the runs of a store. `code` is a digest of the code if the check uses the mark of the last one."""
    import functools
    import os

    from holdfast.cli.target import load
    from holdfast.deploys.check_mark import MARK, read_mark, write_mark
    from holdfast.deploys.store_check import check_store

    since = read_mark(MARK, target or "", app.url, code) if code is not None else None
    findings = check_store(
        functools.partial(load, target, app.url, plugins=plugins),
        app,
        processes=processes or os.cpu_count() or 1,
        sample=sample,
        since=since,
        on_progress=_progress_line,
    )
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    if code is not None:
        write_mark(MARK, target or "", app.url, code, findings)
    return findings


def _checked_files(app: App, folder: str) -> Findings:
    """Check the histories in a folder."""
    from pathlib import Path

    from holdfast.deploys.history_files import histories_in
    from holdfast.deploys.store_check import check_histories

    findings = check_histories(app, histories_in(Path(folder)))
    if not findings.checked:
        raise click.ClickException(f"{folder} has no histories: write some with holdfast export RUN --to {folder}")
    return findings


def _progress_line(checked: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{checked:,} runs checked", err=True, nl=False)


def _show_findings(findings: Findings, junit_file: str | None, *, as_json: bool) -> None:
    """Print the report of a check, and exit with 1 if a run would not go on."""
    from pathlib import Path

    from holdfast.deploys.check_report import junit, report_lines

    if junit_file is not None:
        try:
            Path(junit_file).write_text(junit(findings), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"cannot write {junit_file}: {error.strerror}") from error
    document = {"fits": not findings.failures, "failures": findings.failures}
    if as_json:
        import msgspec

        show_result({**document, **msgspec.to_builtins(findings)}, as_json=True, text=str)
    else:
        for line in report_lines(findings):
            echo(line)
    sys.exit(1 if findings.failures else 0)


@click.command(epilog="Example: holdfast export 3f2a 9b1c --to histories --redact --target shop.py")
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", shell_complete=completion.run_ids)
@click.option("--to", "folder", required=True, metavar="DIR", help="The folder for the files.")
@click.option("--redact", is_flag=True, help="Replace all texts by others of the same form.")
@click.option("--target", help="The code of the runs: say if it takes another way with the replaced texts.")
@where_options
def export(runs: tuple[str, ...], folder: str, redact: bool, target: str | None, where: Where) -> None:
    """Write the history of each RUN to a file, for checks of later code.

    holdfast check --histories replays the files. A file has one event per line, and the same history gives the same
    file. With --redact, structure, names, keys and numbers stay, and texts are replaced. Code that depends on a text
    takes another way then. Name the code with --target to learn whether it does.
    """
    from pathlib import Path

    from holdfast.deploys.history_files import file_name, history_text
    from holdfast.deploys.history_redaction import redact_history

    client = reader(where)
    app = _loaded(target, None, plugins=False) if target is not None else None
    for run in runs:
        events = _whole(client, client.events(full_id(client, run).partition(".")[0]))
        written = redact_history(events, lambda job: _arguments_of(client, job)) if redact else events
        path = Path(folder) / file_name(events)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(history_text(written, redacted=redact), encoding="utf-8")
        echo(str(path))
        if redact:
            echo(_redaction_note(app, events, written), err=True)


def _arguments_of(client: Client, job: str) -> dict[str, Any] | None:
    """Return the arguments of another run; None if it was removed."""
    from holdfast.errors import UnknownJob

    try:
        created = client.events(job, limit=1)
    except UnknownJob:
        return None
    return created[0].payload.get("args") if created else None


def _redaction_note(app: App | None, events: list[Event], redacted: list[Event]) -> str:
    """Say whether the code takes another way with the replaced texts."""
    if app is None:
        return "the control flow may depend on a replaced text: name the code with --target to learn whether it does"
    from holdfast.deploys.run_check import check_run

    before, after = app.block(check_run(app, events, keys=False)), app.block(check_run(app, redacted, keys=False))
    if (before.verdict, len(before.unused), len(before.next)) == (after.verdict, len(after.unused), len(after.next)):
        return "the code takes the same way with the replaced texts"
    why = "; ".join(after.reasons) or f"it makes other calls ({after.verdict})"
    return f"the control flow depends on a replaced text: {why}. The file does not show what the run did"


@click.command(epilog="Example: holdfast demo")
def demo() -> None:
    """Run a job, kill its worker, and show the recovery.

    The demo kills the worker with SIGKILL and shows that nothing is lost and nothing is done twice. It uses only a
    temporary folder. The exit code is 0 if it succeeds, otherwise 1.
    """
    from holdfast.cli.demo import tell

    sys.exit(tell())


@click.command(epilog="Example: holdfast machines run --format mermaid")
@click.argument("machine", required=False, type=click.Choice(["job", "run", "ready"]))
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "mermaid", "dot", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
def machines(machine: str | None, form: str) -> None:
    """Print the state machines.

    Every legal transition comes from the tables that the engine enforces. MACHINE is job, run or ready. Without it,
    print all three.
    """
    from holdfast.machines import JOB, READY, RUN

    tables: dict[str, Table[Any, Any]] = {"job": JOB, "run": RUN, "ready": READY}
    selected = [tables[machine]] if machine else list(tables.values())
    if form == "json":
        documents = [table.as_dict() for table in selected]
        click.echo(json.dumps(documents[0] if machine else documents, indent=2))
        return
    draw = {"table": "text", "mermaid": "mermaid", "dot": "dot"}[form]
    click.echo("\n\n".join(getattr(table, draw)() for table in selected))


COMMANDS = (check, export, verify, replay, machines, demo)
