"""Commands that steer runs: signals, cancel, pause, resume, retry, and answers for tools in doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.options import (
    Where,
    amounts_of,
    client,
    full_id,
    json_option,
    run_argument,
    show_result,
    value_of,
    where_options,
)

__all__ = ["COMMANDS"]

_reason = click.option("--reason", help="Why; it is kept with the run.")
_actor = click.option("--actor", help="Who does this; it is kept with the run.  [default: cli, or the token's name]")


@click.command(name="signal", epilog="""Example: holdfast signal 3f2a shipped '{"by": "dhl"}'""")
@run_argument
@click.argument("key")
@click.argument("payload", required=False)
@where_options
@click.option("--id", "name", help="A repeat with the same id changes nothing.")
@json_option
def send_signal(
    run: str,
    key: str,
    payload: str | None,
    where: Where,
    name: str | None,
    as_json: bool,
) -> None:
    """Send the signal KEY to RUN, with PAYLOAD as JSON, or text; prints delivered, kept, repeat or too_late."""
    asked = client(where)
    outcome = asked.signal(full_id(asked, run), key, value_of(payload) if payload is not None else None, name)
    show_result({"outcome": outcome}, as_json=as_json, text=lambda: outcome)


def _steer(name: str, text: str, act: Callable[..., Any], *options: Callable[[Any], Any]) -> click.Command:
    """Make a command that does something to a run and shows its record's new status."""

    def command(run: str, where: Where, as_json: bool, **chosen: Any) -> None:
        asked = client(where)
        if "actor" in chosen:
            chosen["actor"] = _who(where, chosen["actor"])
        record = act(asked, full_id(asked, run), **chosen)
        line = f"{record.run_id} {record.status} {record.stage or ''}".rstrip()
        show_result(record, as_json=as_json, text=lambda: line)

    made: Any = json_option(where_options(command))
    for option in [*options, run_argument]:
        made = option(made)
    return click.command(name=name, help=text, epilog=f"Example: holdfast {name} 3f2a")(made)


def _who(where: Where, actor: str | None) -> str | None:
    """Say who acts: on a store, the command line; on a server it knows better, by the token."""
    return actor if actor is not None or where.server is not None else "cli"


cancel = _steer(
    "cancel",
    "Ask RUN to cancel; at once if nobody runs it.",
    lambda asked, run, reason, actor: asked.cancel(run, reason, actor=actor),
    _reason,
    _actor,
)
pause = _steer(
    "pause",
    "Pause RUN at its next step; at once if it is queued.",
    lambda asked, run, actor: asked.pause(run, actor=actor),
    _actor,
)
resume = _steer("resume", "Let a paused RUN go on.", lambda asked, run, actor: asked.resume(run, actor=actor), _actor)
retry = _steer(
    "retry",
    "Reopen a failed RUN: a new run on the same job.",
    lambda asked, run, actor, reason: asked.retry(run, actor=actor, reason=reason or "retried by an operator"),
    _actor,
    _reason,
)


@click.command(epilog="Example: holdfast resolve 3f2a charge:9c1b --done '\"receipt-7\"'")
@run_argument
@click.argument("step")
@click.option("--done", "result", help="It has acted; its result as JSON, or text.")
@click.option("--not-done", is_flag=True, help="It has not acted: call it.")
@click.option("--fail", is_flag=True, help="Give up.")
@_actor
@where_options
@json_option
def resolve(
    run: str,
    step: str,
    result: str | None,
    not_done: bool,
    fail: bool,
    actor: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Answer for the tool call STEP of RUN, which was started by a worker that died: did it act?"""
    if (result is not None) + not_done + fail != 1:
        raise click.UsageError("give one of --done RESULT, --not-done, --fail")
    asked = client(where)
    answer: dict[str, Any] = {"done": value_of(result)} if result is not None else {"not_done": not_done, "fail": fail}
    record = asked.resolve(full_id(asked, run), step, actor=_who(where, actor), **answer)
    show_result(record, as_json=as_json, text=lambda: f"{record.run_id} {record.status}")


@click.command(epilog="Example: holdfast grant 3f2a tokens=50000 usd=1.5")
@run_argument
@click.argument("amounts", nargs=-1, required=True)
@_actor
@click.option("--id", "name", help="A repeat with the same id changes nothing.")
@where_options
@json_option
def grant(
    run: str,
    amounts: tuple[str, ...],
    actor: str | None,
    name: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Let RUN spend more than its budget: AMOUNTS such as tokens=50000; prints delivered, kept, repeat or too_late."""
    asked = client(where)
    outcome = asked.grant(full_id(asked, run), amounts_of(amounts), actor=_who(where, actor), id=name)
    show_result({"outcome": outcome}, as_json=as_json, text=lambda: outcome)


COMMANDS = (send_signal, cancel, pause, resume, retry, resolve, grant)
