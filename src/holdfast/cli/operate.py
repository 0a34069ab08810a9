"""Commands that control runs: signal, cancel, pause, resume, retry, grant, and resolve for tools in doubt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import completion
from holdfast.cli.options import (
    Where,
    amounts_of,
    full_id,
    json_option,
    open_client,
    reader,
    run_argument,
    show_result,
    value_of,
    where_options,
)
from holdfast.cli.run_filters import filter_options
from holdfast.errors import QuestionClosed
from holdfast.ids import new_id

if TYPE_CHECKING:
    from holdfast.client.bulk import BulkResult
    from holdfast.client.interface import Client

PAGE = 1000  # runs of one request, as `holdfast.client.bulk` allows
ANSWERED_AT_ONCE = 100  # questions of one request
EXIT_REFUSED = 4  # as in `main.EXIT_CODES`
RETRIED = "retried by an operator"

_reason = click.option("--reason", help="Reason to record with the run.")
_node = click.option("--node", help="Node of the question that this answers, as holdfast inbox prints it.")
actor_option = click.option("--actor", help="Your name, to record with the run.  [default: cli, or the token's name]")


@click.command(name="signal", epilog="""Example: holdfast signal 3f2a shipped '{"by": "dhl"}'""")
@click.argument("words", metavar="[RUN] KEY [PAYLOAD]", nargs=-1, required=True, shell_complete=completion.run_ids)
@where_options
@filter_options
@click.option("--id", "name", help="Id of the signal: a repeat with the same id changes nothing.")
@_node
@click.option("--dry-run", is_flag=True, help="List the runs that match, and send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before many runs get the signal.")
@actor_option
@json_option
def send_signal(  # noqa: PLR0913 - one parameter for each option
    words: tuple[str, ...],
    *,
    where: Where,
    filters: dict[str, Any],
    name: str | None,
    node: str | None,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    as_json: bool,
) -> None:
    """Send the signal KEY to RUN, or to all runs that match the options.

    PAYLOAD is JSON or text. If RUN waits with a form, PAYLOAD must fit it. For one run, print delivered, kept, repeat
    or too_late. The exit code is 4 if RUN has ended. With options that select runs, leave RUN out.

    With --node, the signal answers that question only. If it is no longer open, nothing is stored, and the exit code
    is 4.
    """
    run, rest = (words[0], words[1:]) if not filters else (None, words)
    if not 1 <= len(rest) <= 2:  # noqa: PLR2004 - KEY, and PAYLOAD
        raise click.UsageError("give RUN KEY [PAYLOAD], or KEY [PAYLOAD] and options that select runs")
    key, payload = rest[0], value_of(rest[1]) if len(rest) > 1 else None
    _check_dry_run(run, dry_run=dry_run)
    if run is None and node is not None:
        raise click.UsageError("--node names a question of one run: give RUN")
    client = open_client(where)
    if run is not None:
        run_id = full_id(client, run)
        outcome = client.signal(run_id, key, payload, name, actor=actor_of(where, actor), node=node)
        _show_outcome(run_id, outcome, as_json)
        return
    act = partial(client.signal_runs, key, payload, name or new_id(), **filters)
    act_on_matching("signal", act, as_json=as_json, dry_run=dry_run, yes=yes)


def _show_outcome(run_id: str, outcome: str, as_json: bool) -> None:
    show_result({"outcome": outcome}, as_json=as_json, text=lambda: outcome)
    if outcome == "too_late":
        _refuse(f"run {run_id} has already ended, so it did not receive this")


def _check_dry_run(run: str | None, *, dry_run: bool) -> None:
    """Refuse a dry run of a command on one run, which would be executed."""
    if run is not None and dry_run:
        raise click.UsageError("--dry-run lists the runs that options select: leave it out with RUN")


def _refuse(message: str) -> None:
    click.echo(f"holdfast: {message}", err=True)
    click.get_current_context().exit(EXIT_REFUSED)


def _run_or_filter_command(
    name: str, text: str, act: Callable[..., Any], act_on_many: Callable[..., Any]
) -> click.Command:
    """Return a command that acts on one run, or on all runs that match the options of `holdfast runs`."""
    one: Any = _run_command(name, text, act, _reason, actor_option).callback

    def command(
        run: str | None, where: Where, as_json: bool, filters: dict[str, Any], dry_run: bool, yes: bool, **values: Any
    ) -> None:
        if (run is None) is not bool(filters):
            both = "not both: " if run is not None else ""
            raise click.UsageError(f"{both}give RUN, or at least one option that selects runs, such as --status")
        _check_dry_run(run, dry_run=dry_run)
        if run is not None:
            one(run=run, url=where.url, server=where.server, as_json=as_json, **values)
            return
        client = open_client(where)
        values["actor"] = actor_of(where, values["actor"])
        act_on_matching(
            name, partial(act_on_many, client, **values, **filters), as_json=as_json, dry_run=dry_run, yes=yes
        )

    decorated: Any = json_option(where_options(filter_options(command)))
    options = [
        click.option("--yes", is_flag=True, help="Do not ask before many runs are changed."),
        click.option("--dry-run", is_flag=True, help="List the runs that match, and change nothing."),
        actor_option,
        _reason,
        click.argument("run", required=False, shell_complete=completion.run_ids),
    ]
    for option in options:
        decorated = option(decorated)
    return click.command(name=name, help=text, epilog=f"Example: holdfast {name} --status failed --since 1h")(decorated)


def act_on_matching(
    name: str, act: Callable[..., BulkResult], *, as_json: bool, dry_run: bool, yes: bool, most: int | None = None
) -> None:
    """Show which runs match, ask, and act on them page by page, on `most` runs at most."""
    first = act(dry_run=True, limit=_page(most))
    if not first.run_ids and first.next is None:
        show_result(first, as_json=as_json, text=lambda: "no runs match")
        return
    if not (dry_run or yes):
        more = "more than " if first.next is not None else ""
        click.confirm(f"{name} {more}{len(first.run_ids):,} runs?", abort=True, err=True)
    pages = [first if dry_run else act(limit=_page(most))]
    while pages[-1].next is not None and (size := _page(most, pages)):
        pages.append(act(before=pages[-1].next, dry_run=dry_run, limit=size))
    run_ids = [run_id for page in pages for run_id in page.run_ids]
    refused = [run for page in pages for run in page.refused]
    lines = [*run_ids, *(f"{run.run_id} refused: {run.detail}" for run in refused)]
    report = {"run_ids": run_ids, "refused": refused, "dry_run": dry_run}
    show_result(report, as_json=as_json, text=lambda: "\n".join(lines))
    if refused:
        _refuse(f"{len(refused):,} runs refused it")


def _page(most: int | None, pages: list[BulkResult] | None = None) -> int:
    """Return the length of the next page; 0 if there have been enough runs."""
    done = sum(len(page.run_ids) + len(page.refused) for page in pages or ())
    return PAGE if most is None else min(PAGE, most - done)


def _run_command(name: str, text: str, act: Callable[..., Any], *options: Callable[[Any], Any]) -> click.Command:
    """Return a command that calls `act` on a run and prints the new status."""

    def command(run: str, where: Where, as_json: bool, **values: Any) -> None:
        client = open_client(where)
        if "actor" in values:
            values["actor"] = actor_of(where, values["actor"])
        before = client.get(full_id(client, run))
        record = act(client, before.run_id, **values)
        line = f"{record.run_id} {record.status} {record.stage or ''}".rstrip()
        show_result(record, as_json=as_json, text=lambda: line)
        if before.finished_at is not None and record.run_id == before.run_id:
            _refuse(f"run {record.run_id} has already ended: {record.status}")

    decorated: Any = json_option(where_options(command))
    for option in [*options, run_argument]:
        decorated = option(decorated)
    return click.command(name=name, help=text, epilog=f"Example: holdfast {name} 3f2a")(decorated)


def actor_of(where: Where, actor: str | None) -> str | None:
    """Return the actor to record. The default for a store is ``cli``; a server takes the name of the token."""
    return actor if actor is not None or where.server is not None else "cli"


cancel = _run_or_filter_command(
    "cancel",
    "Request the cancellation of RUN, or of all runs that match the options. A run that no worker holds is canceled at"
    " once.",
    lambda client, run, reason, actor: client.cancel(run, reason, actor=actor),
    lambda client, **options: client.cancel_runs(**options),
)
pause = _run_command(
    "pause",
    "Pause RUN at its next step. A queued run pauses at once.",
    lambda client, run, actor: client.pause(run, actor=actor),
    actor_option,
)
resume = _run_command(
    "resume", "Resume a paused RUN.", lambda client, run, actor: client.resume(run, actor=actor), actor_option
)
retry = _run_or_filter_command(
    "retry",
    "Retry a failed RUN, or all failed runs that match the options: start a new run of the same job.",
    lambda client, run, actor, reason: client.retry(run, actor=actor, reason=reason or RETRIED),
    lambda client, reason, **options: client.retry_runs(reason=reason or RETRIED, **options),
)


@click.command(epilog="Example: holdfast resolve 3f2a charge:9c1b --done '\"receipt-7\"'")
@run_argument
@click.argument("step")
@click.option("--done", "result", help="The tool acted. The value is its result, as JSON or text.")
@click.option("--not-done", is_flag=True, help="The tool did not act: call it.")
@click.option("--fail", is_flag=True, help="Give up: the call raises InDoubt in the job.")
@click.option("--started", type=int, help="Try of the call that this answers, as holdfast inbox prints it.")
@actor_option
@where_options
@json_option
def resolve(  # noqa: PLR0913 - one parameter for each option
    run: str,
    step: str,
    *,
    result: str | None,
    not_done: bool,
    fail: bool,
    started: int | None,
    actor: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Resolve the tool call STEP of RUN in doubt.

    The tool was started, and its end is unknown. Only an operator can find out whether it acted. With --started, an
    answer about an earlier try of the call is refused.
    """
    if (result is not None) + not_done + fail != 1:
        raise click.UsageError("give one of --done RESULT, --not-done, --fail")
    client = open_client(where)
    answer: dict[str, Any] = {"done": value_of(result)} if result is not None else {"not_done": not_done, "fail": fail}
    by = actor_of(where, actor)
    record = client.resolve(full_id(client, run), step, actor=by, started=started, **answer)
    show_result(record, as_json=as_json, text=lambda: f"{record.run_id} {record.status}")


@click.command(epilog="Example: holdfast answer 3f2a accept, or holdfast answer all build --began 1.4.1")
@run_argument
@click.argument("answer", type=click.Choice(["accept", "build", "fork", "fail"]))
@_node
@click.option("--began", help="With all: only runs whose history this build has recorded.")
@actor_option
@where_options
@json_option
def answer(
    run: str, answer: str, node: str | None, began: str | None, actor: str | None, where: Where, as_json: bool
) -> None:
    """Say which code goes on with RUN, whose history does not fit the code.

    With accept, RUN goes on with the new call and leaves the recorded ones unused. With build, it goes on with workers
    of the build that recorded the history. With fork, RUN is cancelled, and a run starts that reuses its results up to
    this call. With fail, RUN fails.

    Print the run that goes on. If RUN does not ask this any more, nothing is stored, and the exit code is 4.

    With all in place of RUN, answer every run that asks this, such as after a roll-back. Print how many there were.
    """
    client = reader(where)
    if run == "all":
        answered, left = _answer_all(client, answer, began, actor_of(where, actor))
        show_result(answered, as_json=as_json, text=lambda: _all_answered(len(answered), left))
        return
    if began is not None:
        raise click.UsageError("--began selects among all runs: write all in place of RUN")
    record = client.answer(full_id(client, run), answer, node=node, actor=actor_of(where, actor))
    show_result(record, as_json=as_json, text=lambda: f"{record.run_id} {record.status}")


def _all_answered(answered: int, left: int) -> str:
    many = "1 run was answered" if answered == 1 else f"{answered} runs were answered"
    if not left:
        return many
    known = "no other build is known that has recorded"
    return f"{many}\n" + (f"1 still asks: {known} its history" if left == 1 else f"{left} still ask: {known} theirs")


def _answer_all(client: Client, answer: str, began: str | None, actor: str | None) -> tuple[list[str], int]:
    """Answer every run whose history does not fit the code.

    Return the runs that go on, and the number of those that cannot go back to another build.
    """
    answered: list[str] = []
    left = 0
    after: str | None = None
    while page := client.inbox(kind="deploy", after=after, limit=ANSWERED_AT_ONCE):
        after = page[-1].id
        for question in page:
            if began is not None and (question.deploy is None or question.deploy.began != began):
                continue
            if answer == "build" and question.deploy is not None and not question.deploy.has_other_build:
                left += 1
                continue
            with contextlib.suppress(QuestionClosed):  # another person was quicker
                answered.append(client.answer(question.run_id, answer, node=question.node, actor=actor).run_id)
    return answered, left


@click.command(epilog="Example: holdfast grant 3f2a tokens=50000 usd=1.5")
@run_argument
@click.argument("amounts", nargs=-1, required=True)
@actor_option
@click.option("--id", "name", help="Id of the signal: a repeat with the same id changes nothing.")
@_node
@where_options
@json_option
def grant(
    run: str,
    amounts: tuple[str, ...],
    actor: str | None,
    name: str | None,
    node: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Grant RUN more budget.

    AMOUNTS have the form unit=number, such as tokens=50000. Print delivered, kept, repeat or too_late. The exit
    code is 4 if RUN has ended.
    """
    client = open_client(where)
    run_id = full_id(client, run)
    outcome = client.grant(run_id, amounts_of(amounts), actor=actor_of(where, actor), id=name, node=node)
    _show_outcome(run_id, outcome, as_json)


COMMANDS = (send_signal, cancel, pause, resume, retry, resolve, answer, grant)
