"""The parts that commands share: common options, the client, completion of run ids, and output of results.

Runs are in a store that the command opens (``--url``) or on a server (``--server``). A flag has precedence over the
environment. In the environment the server has precedence. The token comes from the environment only, because every user
of the machine can read the flags of a process.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast import errors
from holdfast.cli import completion
from holdfast.cli.terminal_text import echo, echo_json

if TYPE_CHECKING:
    from holdfast import App
    from holdfast.client.interface import Client

C = TypeVar("C", bound="Client")
SHOWN_MAX = 20  # runs to list that start with a prefix
SCANNED_MAX = 10_000  # runs to search for an id with a suffix
PAGE = 1000
ID_LENGTH = 36  # characters of a complete id

url_option = click.option("--url", envvar="HOLDFAST_URL", help="URL of the store.  [default: sqlite:///holdfast.db]")
server_option = click.option(
    "--server", envvar="HOLDFAST_SERVER", help="Use this server, http://…, with the token in HOLDFAST_TOKEN."
)
plugins_option = click.option("--plugins", is_flag=True, help="Also serve the apps of installed packages.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_log_level = click.option(
    "--log-level",
    envvar="HOLDFAST_LOG_LEVEL",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    help="Lowest level of the log lines.  [default: info]",
)
_log_format = click.option(
    "--log-format",
    envvar="HOLDFAST_LOG_FORMAT",
    type=click.Choice(["text", "json"]),
    help="Format of the log lines.  [default: text]",
)
run_argument = click.argument("run", shell_complete=completion.run_ids)


class Where(NamedTuple):
    """The place of the runs: the URL of a store, or a server."""

    url: str | None
    server: str | None


def where_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options ``--url`` and ``--server`` to a command. It receives them as `where`."""

    @url_option
    @server_option
    @functools.wraps(command)
    def with_where(url: str | None, server: str | None, **others: Any) -> Any:
        typed = click.core.ParameterSource.COMMANDLINE
        ctx = click.get_current_context()
        by_hand = {name for name in ("url", "server") if ctx.get_parameter_source(name) is typed}
        if len(by_hand) > 1:
            raise click.UsageError("give --url or --server, not both")
        return command(where=Where(url, None if "url" in by_hand else server), **others)

    return with_where


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options ``--log-level`` and ``--log-format`` to a command."""
    return _log_level(_log_format(command))


def open_client(where: Where) -> Client:
    """Return a client of the store or server."""
    if where.server is not None:
        from holdfast.client.remote.client import connect

        return connect(where.server)
    return local_app(where.url)


def reader(where: Where) -> Client:
    """Return a client for a command that only reads. It does not create a SQLite file.

    Raises:
        StoreUnavailable: The file does not exist.
    """
    return existing(open_client(where))


def existing(client: C) -> C:
    """Return a client whose store exists.

    Raises:
        StoreUnavailable: It is a SQLite file that does not exist.
    """
    missing = missing_store(client)
    if missing is not None:
        raise errors.StoreUnavailable(f"{missing}: name the store with --url or HOLDFAST_URL")
    return client


def missing_store(client: Client) -> str | None:
    """Return a sentence if the client's store is a SQLite file that does not exist, otherwise None."""
    from pathlib import Path

    path = str(getattr(client, "url", "")).removeprefix("sqlite:///")
    if path == getattr(client, "url", "") or not path or Path(path).exists():
        return None
    return f"the store sqlite:///{path} does not exist"


def local_app(url: str | None) -> App:
    """Return an app without jobs, for commands that inspect or control the jobs of other apps."""
    from holdfast import App

    return App("holdfast-cli", url)


def full_id(client: Client, run: str) -> str:
    """Complete a run's id from a unique prefix, or else from a unique suffix.

    One short listing finds a prefix, because ids sort by time. For a suffix, read the ids from the newest on.
    """
    job, dot, number = run.partition(".")
    if len(job) == ID_LENGTH:
        return run
    try:
        return client.get(run).run_id
    except errors.UnknownJob:
        matches = _beginning_with(client, job) or _ending_with(client, job)
    if len(matches) > 1:
        many = f"{len(matches)} runs" if len(matches) < SHOWN_MAX else f"{SHOWN_MAX} runs or more"
        raise click.UsageError(f"{run} matches {many}, such as {matches[0]} and {matches[1]}: give more characters")
    if not matches:
        raise errors.UnknownJob(run)
    return f"{matches[0]}{dot}{number}"


def _beginning_with(client: Client, job: str) -> list[str]:
    if not job or len(job) > ID_LENGTH:
        return []
    # A tilde sorts after every hex digit, so this cursor is after every id with the prefix.
    listed = _jobs(client, f"{job}~", SHOWN_MAX)
    return [job_id for job_id in listed if job_id.startswith(job)]


def _ending_with(client: Client, job: str) -> list[str]:
    matches: dict[str, None] = {}
    before: str | None = None
    for _ in range(SCANNED_MAX // PAGE):
        page = _jobs(client, before, PAGE)
        matches |= dict.fromkeys(job_id for job_id in page if job_id.endswith(job))
        if len(page) < PAGE or len(matches) > 1:
            break
        before = page[-1]
    return list(matches)


def _jobs(client: Client, before: str | None, limit: int) -> list[str]:
    return list(dict.fromkeys(record.task_id or record.run_id for record in client.list(limit=limit, before=before)))


def json_value(value: Any) -> Any:
    """Return a value as JSON types. A value that is not JSON, such as a secret, becomes its `str`."""
    import msgspec

    return msgspec.to_builtins(value, enc_hook=str)


def show_result(value: Any, *, as_json: bool, text: Callable[[], str]) -> None:
    """Print a result as JSON, or as text for people."""
    if as_json:
        echo_json(json_value(value), indent=2)
    else:
        echo(text())


def value_of(text: str) -> Any:
    """Parse a value as JSON, or return it as text if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def amounts_of(texts: tuple[str, ...]) -> dict[str, float]:
    """Parse amounts of the form unit=number."""
    amounts: dict[str, float] = {}
    for text in texts:
        unit, _, amount = text.partition("=")
        try:
            number = float(amount)
        except ValueError:
            raise click.UsageError(f"an amount must be unit=number, such as tokens=50000, got {text!r}") from None
        if unit in amounts:
            raise click.UsageError(f"{unit} is given more than once")
        amounts[unit] = number
    return amounts


def as_exit_code(status: str) -> int:
    """Return the exit code for the final status of a run."""
    return 0 if status == "succeeded" else 1
