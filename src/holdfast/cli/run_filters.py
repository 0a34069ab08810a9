"""The options that select runs: of `holdfast runs`, and of commands that act on all runs that match."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.options import value_of

STATUSES = ["queued", "running", "cancel_requested", "succeeded", "failed", "canceled", "timeout"]
_OPTIONS = [
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice(STATUSES),
        help="Only runs with this status. Repeatable.",
    ),
    click.option("--plugin", help="Only runs of this app."),
    click.option("--entry", help="Only runs of this job."),
    click.option("--queue", help="Only runs in this queue."),
    click.option("--group", help="Only runs of this group."),
    click.option("--key", help="Only the run with this idempotency key."),
    click.option("--attr", "attributes", multiple=True, help="Only runs with this attribute, name=value. Repeatable."),
    click.option("--since", help="Only runs created since then: 2h for 2 hours ago, or a time as 2026-01-31T12:00."),
    click.option("--until", help="Only runs created before then: as for --since."),
    click.option("--finished-after", help="Only runs that ended since then: as for --since."),
    click.option("--finished-before", help="Only runs that ended before then: as for --since."),
]
# The filter of each option.
_NAMES = {
    "statuses": "status", "plugin": "plugin_id", "entry": "entry_id", "queue": "queue", "group": "group",
    "key": "idempotency_key", "attributes": "attributes", "since": "created_after", "until": "created_before",
    "finished_after": "finished_after", "finished_before": "finished_before",
}  # fmt: skip


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select runs to a command. It receives them as `filters`, for `Client.list`."""

    @functools.wraps(command)
    def with_filters(**values: Any) -> Any:
        chosen = {name: values.pop(option) for option, name in _NAMES.items()}
        filters = {
            **chosen,
            "status": chosen["status"] or None,
            "attributes": {name: value_of(text) for name, text in pairs(chosen["attributes"], "attributes")} or None,
            "created_after": _time(chosen["created_after"], "--since"),
            "created_before": _time(chosen["created_before"], "--until"),
            "finished_after": _time(chosen["finished_after"], "--finished-after"),
            "finished_before": _time(chosen["finished_before"], "--finished-before"),
        }
        return command(filters={name: value for name, value in filters.items() if value is not None}, **values)

    decorated: Callable[..., Any] = with_filters
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def pairs(texts: tuple[str, ...], what: str) -> list[tuple[str, str]]:
    """Split texts of the form name=value. `what` names them in the error."""
    split = [text.partition("=") for text in texts]
    wrong = [name for name, equals, _ in split if not equals]
    if wrong:
        raise click.UsageError(f"{what} must be name=value, got {', '.join(wrong)}")
    return [(name, value) for name, _, value in split]


def _time(text: str | None, option: str) -> float | None:
    return moment(text, option) if text is not None else None


def moment(text: str, option: str) -> float:
    """Parse a time: a duration before now, or a date, which is UTC unless it has a time zone."""
    from datetime import UTC, datetime

    from holdfast.durations import seconds

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return time.time() - seconds(text)
        except ValueError as error:
            raise click.UsageError(f"{option}: {error}, or a time such as 2026-01-31T12:00") from error
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
