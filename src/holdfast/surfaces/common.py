"""What the commands share: their options, the app behind them, ids as people type them, results on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast import errors

if TYPE_CHECKING:
    from holdfast import App

__all__ = ["client", "full_id", "json_option", "plain", "plugins_option", "show_result", "url_option", "value_of"]

url_option = click.option("--url", envvar="HOLDFAST_URL", help="Where jobs are kept.  [default: sqlite:///holdfast.db]")
plugins_option = click.option("--plugins", is_flag=True, help="Serve the apps of installed packages as well.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def client(url: str | None) -> App:
    """Give an app without jobs of its own, for commands that look at or steer those of others."""
    from holdfast import App  # noqa: PLC0415 - see the module's promise

    return App("holdfast-cli", url)


def full_id(app: App, run: str) -> str:
    """Complete a run's id from its beginning or its end, if only one fits."""
    job = run.partition(".")[0]
    if app.block(app.store().get(job)) is not None:
        return run
    found = [
        row.id for row in app.block(app.store().jobs(limit=10_000)) if row.id.startswith(job) or row.id.endswith(job)
    ]
    if len(found) > 1:
        raise click.UsageError(f"{run} fits {len(found)} runs, {found[0]} and {found[1]} among them: give more of it")
    if not found:
        raise errors.UnknownJob(run)
    return found[0] + run[len(job) :]


def plain(value: Any) -> Any:
    """Give a value as what JSON has; what is none, such as a secret, as it shows itself."""
    import msgspec  # noqa: PLC0415 - see the module's promise

    return msgspec.to_builtins(value, enc_hook=str)


def show_result(value: Any, *, as_json: bool, text: Callable[[], str]) -> None:
    """Print a result as JSON, or as text for people."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False) if as_json else text())


def value_of(text: str) -> Any:
    """Read a value as JSON if it is some, else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
