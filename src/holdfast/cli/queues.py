"""Commands for the limits of queues: list, set, clear, pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import Where, json_option, open_client, show_result, where_options

if TYPE_CHECKING:
    from holdfast.store import QueueState

PERIODS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_actor = click.option("--actor", help="Your name, to record with the limits.  [default: cli, or the token's name]")


@click.group(name="limits", invoke_without_command=True, epilog="Example: holdfast limits set mail --rate 100/s")
@where_options
@json_option
@click.pass_context
def limits(ctx: click.Context, where: Where, as_json: bool) -> None:
    """List or change the limits of queues.

    Without a subcommand, list the state of each queue that has limits or jobs with groups.
    """
    if ctx.invoked_subcommand is not None:
        return
    states = open_client(where).limits()
    show_result(states, as_json=as_json, text=lambda: "\n".join(map(_line, states)) or "no queue has limits")


@limits.command(name="set", epilog="Example: holdfast limits set mail --concurrency 5 --rate 100/s --weight acme=3")
@click.argument("queue")
@click.option("--concurrency", type=click.IntRange(1), help="Maximum number of concurrent jobs, over all processes.")
@click.option("--group-concurrency", type=click.IntRange(1), help="Maximum number of concurrent jobs of each group.")
@click.option("--rate", help="Maximum number of starts per period: 100/s, 30/min, 500/h, 5000/d.")
@click.option(
    "--burst", type=click.IntRange(1), help="Maximum number of starts at once.  [default: that of one period]"
)
@click.option("--depth", type=click.IntRange(1), help="Maximum number of waiting jobs. More are refused.")
@click.option("--weight", "weights", multiple=True, help="Weight of a group, GROUP=NUMBER. Repeatable.  [default: 1]")
@_actor
@where_options
@json_option
def set_limits(
    queue: str,
    rate: str | None,
    weights: tuple[str, ...],
    actor: str | None,
    where: Where,
    as_json: bool,
    **numbers: Any,
) -> None:
    """Replace all limits of QUEUE. A limit without an option is removed. A paused queue stays paused."""
    from holdfast.store import Limits

    number, seconds = _rate(rate) if rate is not None else (None, 1.0)
    new = Limits(queue=queue, rate=number, rate_seconds=seconds, weights=dict(map(_weight, weights)), **numbers)
    _show(open_client(where).set_limits(new, actor=_actor_of(where, actor)), as_json=as_json)


def _verb(name: str, method: str, text: str) -> click.Command:
    def command(queue: str, where: Where, actor: str | None, as_json: bool) -> None:
        _show(getattr(open_client(where), method)(queue, actor=_actor_of(where, actor)), as_json=as_json)

    decorated: Any = click.argument("queue")(_actor(json_option(where_options(command))))
    return click.command(name=name, help=text, epilog=f"Example: holdfast limits {name} mail")(decorated)


for verb in (
    _verb("clear", "clear_limits", "Remove all limits of QUEUE. A paused queue stays paused."),
    _verb("pause", "pause_queue", "Stop workers from starting jobs of QUEUE. Running jobs continue."),
    _verb("resume", "resume_queue", "Resume a paused QUEUE."),
):
    limits.add_command(verb)


def _actor_of(where: Where, actor: str | None) -> str | None:
    return actor if actor is not None or where.server is not None else "cli"


def _rate(text: str) -> tuple[float, float]:
    number, _, period = text.partition("/")
    try:
        return float(number), PERIODS[period or "s"]
    except (KeyError, ValueError):
        raise click.BadParameter(f"{text!r} is not a rate: write 100/s, 30/min, 500/h or 5000/d") from None


def _weight(text: str) -> tuple[str, float]:
    group, _, number = text.rpartition("=")
    try:
        return group, float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a weight: write GROUP=NUMBER") from None


def _show(state: QueueState, *, as_json: bool) -> None:
    show_result(state, as_json=as_json, text=lambda: _line(state))


def _line(state: QueueState) -> str:
    """Return the state of a queue as one line."""
    limits, shown = state.limits, [f"{state.limits.queue}: {state.running} running"]
    shown[0] += f" of {limits.concurrency}" if limits.concurrency is not None else ""
    shown.append(f"{state.queued:,} waiting" + (f" of {limits.depth:,}" if limits.depth is not None else ""))
    if limits.group_concurrency is not None:
        shown.append(f"{limits.group_concurrency} of a group")
    if limits.rate is not None:
        period = next(
            (name for name, size in PERIODS.items() if size == limits.rate_seconds), f"{limits.rate_seconds:g} s"
        )
        shown.append(f"{limits.rate:g}/{period} ({max(0.0, state.tokens or 0.0):.3g} left)")
    shown += [f"{group} weighs {weight:g}" for group, weight in sorted(limits.weights.items())]
    shown += ["paused"] if limits.paused else []
    return ", ".join(shown)


COMMANDS = (limits,)
