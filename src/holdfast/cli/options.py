"""What the commands share: their options, the client behind them, ids as people type them, results on standard output.

Runs are in a store that is opened here, ``--url``, or behind a server, ``--server``. A flag comes before the
environment, and of the two in the environment the server. The token is read from the environment only: a flag would be
seen by everybody who lists processes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast import errors
from holdfast.cli import completion

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.client.interface import Client

__all__ = [
    "Where",
    "amounts_of",
    "as_exit_code",
    "client",
    "full_id",
    "json_option",
    "local_app",
    "plain",
    "plugins_option",
    "run_argument",
    "show_result",
    "url_option",
    "value_of",
    "where_options",
]

SHOWN_MAX = 20  # runs of one beginning that are looked for
SCANNED_MAX = 10_000  # how many runs an end of an id is looked for among
PAGE = 1000
ID_LENGTH = 36  # characters of an id of ours

url_option = click.option("--url", envvar="HOLDFAST_URL", help="Where jobs are kept.  [default: sqlite:///holdfast.db]")
server_option = click.option(
    "--server", envvar="HOLDFAST_SERVER", help="Ask this server instead, http://…; the token is HOLDFAST_TOKEN."
)
plugins_option = click.option("--plugins", is_flag=True, help="Serve the apps of installed packages as well.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
run_argument = click.argument("run", shell_complete=completion.run_ids)


class Where(NamedTuple):
    """Where the runs are: in a store, or behind a server."""

    url: str | None
    server: str | None


def where_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say where its runs are; it is called with them as `where`."""

    @url_option
    @server_option
    @functools.wraps(command)
    def chosen(url: str | None, server: str | None, **others: Any) -> Any:
        typed = click.core.ParameterSource.COMMANDLINE
        ctx = click.get_current_context()
        by_hand = {name for name in ("url", "server") if ctx.get_parameter_source(name) is typed}
        if len(by_hand) > 1:
            raise click.UsageError("give --url or --server, not both")
        return command(where=Where(url, None if "url" in by_hand else server), **others)

    return chosen


def client(where: Where) -> Client:
    """Give a client of the runs there."""
    if where.server is not None:
        from holdfast.client.remote.client import connect

        return connect(where.server)
    return local_app(where.url)


def local_app(url: str | None) -> App:
    """Give an app without jobs of its own, for commands that look at or steer those of others."""
    from holdfast import App

    return App("holdfast-cli", url)


def full_id(asked: Client, run: str) -> str:
    """Complete a run's id from its beginning, else from its end, if only one fits.

    A beginning is found by one short listing: ids sort by time. An end means to read ids, the newest first.
    """
    job, dot, number = run.partition(".")
    if len(job) == ID_LENGTH:
        return run
    try:
        return asked.get(run).run_id
    except errors.UnknownJob:
        found = _beginning_with(asked, job) or _ending_with(asked, job)
    if len(found) > 1:
        many = f"{len(found)} runs" if len(found) < SHOWN_MAX else f"{SHOWN_MAX} runs or more"
        raise click.UsageError(f"{run} fits {many}, {found[0]} and {found[1]} among them: give more of it")
    if not found:
        raise errors.UnknownJob(run)
    return f"{found[0]}{dot}{number}"


def _beginning_with(asked: Client, job: str) -> list[str]:
    if not job or len(job) > ID_LENGTH:
        return []
    # Which sorts behind every id that begins so, also behind one that ends in f.
    listed = _jobs(asked, f"{job}~", SHOWN_MAX)
    return [one for one in listed if one.startswith(job)]


def _ending_with(asked: Client, job: str) -> list[str]:
    found: dict[str, None] = {}
    before: str | None = None
    for _ in range(SCANNED_MAX // PAGE):
        page = _jobs(asked, before, PAGE)
        found |= dict.fromkeys(one for one in page if one.endswith(job))
        if len(page) < PAGE or len(found) > 1:
            break
        before = page[-1]
    return list(found)


def _jobs(asked: Client, before: str | None, limit: int) -> list[str]:
    return list(dict.fromkeys(one.task_id or one.run_id for one in asked.list(limit=limit, before=before)))


def plain(value: Any) -> Any:
    """Give a value as what JSON has; what is none, such as a secret, as it shows itself."""
    import msgspec

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


def amounts_of(given: tuple[str, ...]) -> dict[str, float]:
    """Read amounts that are given as unit=number."""
    found: dict[str, float] = {}
    for one in given:
        unit, _, amount = one.partition("=")
        try:
            number = float(amount)
        except ValueError:
            raise click.UsageError(f"an amount is unit=number, as tokens=50000, got {one!r}") from None
        if unit in found:
            raise click.UsageError(f"{unit} is given more than once")
        found[unit] = number
    return found


def as_exit_code(status: str) -> int:
    """Give the exit code for how a run has ended."""
    return 0 if status == "succeeded" else 1
