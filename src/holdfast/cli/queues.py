"""Commands about the limits of queues: what they are, how the queues stand; setting, clearing, pausing, resuming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import Where, client, json_option, show_result, where_options

if TYPE_CHECKING:
    from holdfast.store import QueueState

__all__ = ["COMMANDS"]

PERIODS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_actor = click.option("--actor", help="Who does this; it is kept with the limits.  [default: cli, or the token's name]")


@click.group(name="limits", invoke_without_command=True, epilog="Example: holdfast limits set mail --rate 100/s")
@where_options
@json_option
@click.pass_context
def limits(ctx: click.Context, where: Where, as_json: bool) -> None:
    """List the queues that have limits, or jobs with groups, and how they stand; or change them."""
    if ctx.invoked_subcommand is not None:
        return
    found = client(where).limits()
    show_result(found, as_json=as_json, text=lambda: "\n".join(map(_line, found)) or "no queue has limits")


@limits.command(name="set", epilog="Example: holdfast limits set mail --concurrency 5 --rate 100/s --weight acme=3")
@click.argument("queue")
@click.option("--concurrency", type=click.IntRange(1), help="Jobs that run at once, over all processes.")
@click.option("--group-concurrency", type=click.IntRange(1), help="Jobs of each group that run at once.")
@click.option("--rate", help="Jobs that are started in a period: 100/s, 30/min, 500/h, 5000/d.")
@click.option("--burst", type=click.IntRange(1), help="How many may start at once.  [default: one period's worth]")
@click.option("--depth", type=click.IntRange(1), help="Jobs that may wait; more are refused.")
@click.option("--weight", "weights", multiple=True, help="GROUP=NUMBER; may be given again.  [default: 1 each]")
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
    """Set the limits of QUEUE, all of them: what is not given is no limit. A pause stays as it is."""
    from holdfast.store import Limits

    number, seconds = _rate(rate) if rate is not None else (None, 1.0)
    chosen = Limits(queue=queue, rate=number, rate_seconds=seconds, weights=dict(map(_weight, weights)), **numbers)
    _show(client(where).set_limits(chosen, actor=_who(where, actor)), as_json=as_json)


def _verb(name: str, method: str, text: str) -> click.Command:
    def command(queue: str, where: Where, actor: str | None, as_json: bool) -> None:
        _show(getattr(client(where), method)(queue, actor=_who(where, actor)), as_json=as_json)

    made: Any = click.argument("queue")(_actor(json_option(where_options(command))))
    return click.command(name=name, help=text, epilog=f"Example: holdfast limits {name} mail")(made)


for verb in (
    _verb("clear", "clear_limits", "Take all limits from QUEUE; a pause stays as it is."),
    _verb("pause", "pause_queue", "Have nothing more of QUEUE started; what runs goes on."),
    _verb("resume", "resume_queue", "Have a paused QUEUE go on."),
):
    limits.add_command(verb)


def _who(where: Where, actor: str | None) -> str | None:
    return actor if actor is not None or where.server is not None else "cli"


def _rate(text: str) -> tuple[float, float]:
    number, _, period = text.partition("/")
    try:
        return float(number), PERIODS[period or "s"]
    except (KeyError, ValueError):
        raise click.BadParameter(f"{text!r} is no rate: write 100/s, 30/min, 500/h or 5000/d") from None


def _weight(text: str) -> tuple[str, float]:
    group, _, number = text.rpartition("=")
    try:
        return group, float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no weight: write GROUP=NUMBER") from None


def _show(state: QueueState, *, as_json: bool) -> None:
    show_result(state, as_json=as_json, text=lambda: _line(state))


def _line(state: QueueState) -> str:
    """One queue in one line."""
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
