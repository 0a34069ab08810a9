"""The command line. One function a command; each imports what it needs when it runs, so that start-up stays short.

Results go to standard output and nothing else does. With ``--json`` the result is one JSON document.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast import HoldfastError, __version__, errors
from holdfast.surfaces import keeping, watching
from holdfast.surfaces.common import (
    client,
    full_id,
    json_option,
    plain,
    plugins_option,
    show_result,
    url_option,
    value_of,
)

if TYPE_CHECKING:
    from holdfast.machines import Table

__all__ = ["main"]

EXIT_CODES = (
    "Exit codes: 0 done, 1 the run failed or the check found something, 2 wrong usage, 3 not found, "
    "4 refused by the state it is in, 5 the store is away, 6 not in time."
)

_CODES: list[tuple[type[Exception], int]] = [
    (errors.UnknownJob, 3),
    (errors.UnknownEntry, 3),
    (errors.StoreUnavailable, 5),
    (errors.InvalidArguments, 2),
    (errors.PayloadTooLarge, 2),
    (errors.InvalidSetting, 2),
    (TimeoutError, 6),
    (HoldfastError, 4),
]


class _Commands(click.Group):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (HoldfastError, TimeoutError) as error:
            click.echo(f"holdfast: {str(error) or 'it has not ended in time'}", err=True)
            ctx.exit(next(code for kind, code in _CODES if isinstance(error, kind)))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Durable jobs for Python."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow that the terminal cannot show is no reason to fail


@main.command(epilog="Example: holdfast worker shop.py --processes 4")
@click.argument("target", required=False)
@plugins_option
@url_option
@click.option("--concurrency", type=click.IntRange(1), help="Jobs at once.  [default: 100]")
@click.option("--queue", "queues", multiple=True, help="Serve only this queue; may be given again.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("--until-idle", is_flag=True, help="Stop when there is nothing left to do.")
@click.option("--name", hidden=True)
def worker(
    target: str | None,
    plugins: bool,  # noqa: FBT001 - a flag of the command line
    url: str | None,
    concurrency: int | None,
    queues: tuple[str, ...],
    processes: int,
    until_idle: bool,  # noqa: FBT001 - a flag of the command line
    name: str | None,
) -> None:
    """Run jobs of the App in TARGET, a file or a module, until stopped; with --plugins those of installed apps, too."""
    import signal  # noqa: PLC0415 - see the module's promise

    from holdfast.surfaces.targets import load  # noqa: PLC0415 - see the module's promise

    app = load(target, url, plugins=plugins)
    if processes > 1:
        from holdfast.surfaces.supervisor import supervise  # noqa: PLC0415 - see the module's promise

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
    running.run(until_idle=until_idle)


@main.command(epilog="Example: holdfast start shop.py checkout sku=A1 card=4242 --wait")
@click.argument("target")
@click.argument("entry")
@click.argument("arguments", nargs=-1)
@url_option
@click.option("--key", help="Idempotency key: the same key and arguments give the same run.")
@click.option("--wait", type=float, is_flag=False, flag_value=1e9, help="Wait for the result, so many seconds at most.")
@json_option
def start(
    target: str,
    entry: str,
    arguments: tuple[str, ...],
    url: str | None,
    key: str | None,
    wait: float | None,
    as_json: bool,  # noqa: FBT001 - a flag of the command line
) -> None:
    """Start a run of the job ENTRY of TARGET, with ARGUMENTS as name=value, read as the job's type hints say."""
    from holdfast.surfaces.targets import load  # noqa: PLC0415 - see the module's promise

    app = load(target, url)
    pairs = [argument.partition("=") for argument in arguments]
    wrong = [name for name, equals, _ in pairs if not equals]
    if wrong:
        raise click.UsageError(f"arguments are name=value, got {', '.join(wrong)}")
    job = app.entry(entry)
    handle = job.options(key=key).start(**{name: job.signature.from_text(name, text) for name, _, text in pairs})
    if wait is None:
        show_result({"run_id": handle.id}, as_json=as_json, text=lambda: handle.id)
        return
    try:
        result = handle.result(timeout=wait)
    except (errors.RunFailed, errors.RunCanceled, errors.RunTimedOut) as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(1)
    show_result({"run_id": handle.id, "result": result}, as_json=as_json, text=lambda: json.dumps(plain(result)))


@main.command(name="signal", epilog="""Example: holdfast signal 3f2a shipped '{"by": "dhl"}'""")
@click.argument("run")
@click.argument("key")
@click.argument("payload", required=False)
@url_option
@click.option("--id", "name", help="A repeat with the same id changes nothing.")
@json_option
def send_signal(
    run: str,
    key: str,
    payload: str | None,
    url: str | None,
    name: str | None,
    as_json: bool,  # noqa: FBT001 - a flag of the command line
) -> None:
    """Send the signal KEY to RUN, with PAYLOAD as JSON, or text."""
    app = client(url)
    outcome = app.signal(full_id(app, run), key, value_of(payload) if payload is not None else None, name)
    show_result({"outcome": outcome}, as_json=as_json, text=lambda: outcome)


def _steer(name: str, text: str, *options: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], None]:
    """Declare a command that does something to a run and shows its record's new status."""

    def declare(act: Callable[..., Any]) -> None:
        def command(run: str, url: str | None, as_json: bool, **chosen: Any) -> None:  # noqa: FBT001 - as above
            app = client(url)
            record = act(app, full_id(app, run), **chosen)
            line = f"{record.run_id} {record.status} {record.stage or ''}".rstrip()
            show_result(record, as_json=as_json, text=lambda: line)

        made: Any = command
        for option in [json_option, url_option, *options, click.argument("run")]:
            made = option(made)
        main.command(name=name, help=text)(made)

    return declare


_reason = click.option("--reason", help="Why; it is kept with the run.")
_actor = click.option("--actor", default="cli", show_default=True, help="Who does this; it is kept with the run.")

_steer("cancel", "Ask RUN to cancel; at once if nobody runs it.", _reason)(
    lambda app, run, reason: app.cancel(run, reason)
)
_steer("pause", "Pause RUN at its next step; at once if it is queued.")(lambda app, run: app.pause(run))
_steer("resume", "Let a paused RUN go on.")(lambda app, run: app.resume(run))
_steer("retry", "Reopen a failed RUN: a new run on the same job.", _actor, _reason)(
    lambda app, run, actor, reason: app.retry(run, actor=actor, reason=reason or "retried by an operator")
)


@main.command(epilog="Example: holdfast resolve 3f2a charge:9c1b --done '\"receipt-7\"'")
@click.argument("run")
@click.argument("step")
@click.option("--done", "result", help="It has acted; its result as JSON, or text.")
@click.option("--not-done", is_flag=True, help="It has not acted: call it.")
@click.option("--fail", is_flag=True, help="Give up.")
@_actor
@url_option
@json_option
def resolve(
    run: str,
    step: str,
    result: str | None,
    not_done: bool,  # noqa: FBT001 - a flag of the command line
    fail: bool,  # noqa: FBT001 - a flag of the command line
    actor: str,
    url: str | None,
    as_json: bool,  # noqa: FBT001 - a flag of the command line
) -> None:
    """Answer for the tool call STEP of RUN, which was started by a worker that died: did it act?"""
    if (result is not None) + not_done + fail != 1:
        raise click.UsageError("give one of --done RESULT, --not-done, --fail")
    app = client(url)
    answer: dict[str, Any] = {"done": value_of(result)} if result is not None else {"not_done": not_done, "fail": fail}
    record = app.resolve(full_id(app, run), step, actor=actor, **answer)
    show_result(record, as_json=as_json, text=lambda: f"{record.run_id} {record.status}")


@main.command()
@click.argument("run", required=False)
@url_option
@json_option
def verify(run: str | None, url: str | None, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Check RUN, or everything: rules, hash chain, projections. Exit code 1 if anything is wrong."""
    app = client(url)
    found = app.verify(full_id(app, run) if run is not None else None)
    lines = [f"{job}: {violation}" for job, wrong in found.items() for violation in wrong]
    checked = "it" if run is not None else "everything"
    show_result(
        {job: [str(violation) for violation in wrong] for job, wrong in found.items()},
        as_json=as_json,
        text=lambda: "\n".join(lines) if lines else f"{checked} is legal and unbroken",
    )
    sys.exit(1 if found else 0)


@main.command()
@url_option
@json_option
def doctor(url: str | None, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Tell versions, where jobs are kept, and whether the store works."""
    import platform  # noqa: PLC0415 - see the module's promise

    import apsw  # noqa: PLC0415 - see the module's promise

    from holdfast.store import Reclaim  # noqa: PLC0415 - see the module's promise

    app = client(url)
    answers = app.store().commit_blocking([Reclaim(0)])  # a whole transaction, that touches nothing
    found = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "store": app.url,
        "store_works": not any(isinstance(answer, Exception) for answer in answers),
    }
    show_result(found, as_json=as_json, text=lambda: "\n".join(f"{name:<12} {value}" for name, value in found.items()))


@main.command()
def demo() -> None:
    """Run a job, kill its worker with SIGKILL in the middle, and show that nothing is lost and nothing done twice."""
    from holdfast.surfaces.demo import tell  # noqa: PLC0415 - see the module's promise

    sys.exit(tell())


@main.command(epilog="Example: holdfast machines run --format mermaid")
@click.argument("machine", required=False, type=click.Choice(["job", "run", "ready"]))
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "mermaid", "dot", "json"]),
    default="table",
    show_default=True,
    help="How to draw it.",
)
def machines(machine: str | None, form: str) -> None:
    """Show the three state machines: every legal move, drawn from the tables the engine enforces.

    MACHINE is job, run or ready; without it all three are shown.
    """
    from holdfast.machines import JOB, READY, RUN  # noqa: PLC0415 - see the module's promise

    tables: dict[str, Table[Any, Any]] = {"job": JOB, "run": RUN, "ready": READY}
    chosen = [tables[machine]] if machine else list(tables.values())
    if form == "json":
        described = [table.as_dict() for table in chosen]
        click.echo(json.dumps(described[0] if machine else described, indent=2))
        return
    draw = {"table": "text", "mermaid": "mermaid", "dot": "dot"}[form]
    click.echo("\n\n".join(getattr(table, draw)() for table in chosen))


for command in (*watching.COMMANDS, *keeping.COMMANDS):
    main.add_command(command)
