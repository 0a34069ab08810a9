"""Commands that serve the HTTP API, run the API and a worker for development, and manage API tokens."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import json_option, plugins_option, show_result, url_option
from holdfast.parent_death import stop_with_supervisor, supervised_option

if TYPE_CHECKING:
    from holdfast.http.request_limits import Limits
    from holdfast.http.tokens import TokenFile

PORT = 4653

_host = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
_port = click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port to listen on. 0 means any."
)
_no_page = click.option("--no-page", is_flag=True, help="Leave the dashboard out and serve the API only.")
_hosts = click.option("--allow-host", "hosts", multiple=True, help="Host name to accept in requests. Repeatable.")


@click.command(epilog="Example: holdfast serve shop.py --port 8080")
@click.argument("target", required=False)
@plugins_option
@url_option
@_host
@_port
@_hosts
@click.option("--open", "is_open", is_flag=True, help="Need no token if none exists. Only for loopback addresses.")
@_no_page
@click.option("--browser", is_flag=True, hidden=True)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Limit of requests, such as json_values=100000. Repeatable.",
)
@click.option("--worker", "workers", multiple=True, hidden=True)
@supervised_option
def serve(  # noqa: PLR0913, PLR0917 - click passes one argument per option
    target: str | None,
    plugins: bool,
    url: str | None,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    is_open: bool,
    no_page: bool,
    browser: bool,
    limits: tuple[str, ...],
    workers: tuple[str, ...],
) -> None:
    """Serve the HTTP API and the dashboard of the App in TARGET.

    TARGET is a file or a module. The server runs until SIGTERM or Ctrl-C stops it. If there is no token, the first
    start makes one with every right and prints it, with a link to the dashboard. See holdfast tokens for more.
    """
    from holdfast.cli.target import load
    from holdfast.client.logs import guard_process
    from holdfast.http import uvicorn_server
    from holdfast.http.application import Service
    from holdfast.http.auth import is_loopback
    from holdfast.http.tokens import TokenFile, keyring, token_path

    chosen = _limits(limits)
    app = load(target, url, plugins=plugins)
    file = token_path(app.config, app.url)
    keys = keyring(app.config, app.url)
    has_tokens = bool(keys)  # reads the token file, so that an error in it is reported now
    if is_open and not is_loopback(host) and not has_tokens:
        raise click.UsageError(
            f"{host} can be reached from other machines, and there is no token: leave --open out, or make a token with "
            f"`holdfast tokens create --name NAME`, or listen on 127.0.0.1"
        )
    guard_process()
    app.store()  # opens the store, so that an error is reported now
    stop_with_supervisor(lambda: signal.raise_signal(signal.SIGTERM))
    try:
        socket = uvicorn_server.listen(host, port)
    except OSError as error:
        raise click.UsageError(f"cannot listen on {host} port {port}: {error.strerror}; choose another") from error
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{socket.getsockname()[1]}"
    page = f"{address}/"
    click.echo(f"holdfast: {app.name} on {address}", err=True)
    if not has_tokens and not is_open:
        secret = TokenFile(file).create("first", "admin")
        click.echo(f"holdfast: token {secret} has every right. It is shown only now, and kept in {file}", err=True)
        keys = keyring(app.config, app.url)
        page += f"#t={secret}"  # a browser never sends this part to a server
    click.echo(f"holdfast: {_reach(len(keys), local=is_loopback(host))}", err=True)
    if not no_page:
        click.echo(f"holdfast: dashboard at {page}{' asks for a token' if has_tokens else ''}", err=True)
    if browser and not no_page:
        import threading
        import webbrowser

        # In a thread, because a browser in a terminal ends only when its user leaves it.
        threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
    uvicorn_server.serve(Service(app, keys, [*hosts, shown], chosen, workers, page=not no_page), socket)


def _limits(named: tuple[str, ...]) -> Limits:
    """Return the limits of requests: the usual ones, with those that the options name."""
    import msgspec

    from holdfast.http.request_limits import Limits

    fields = {field.name: field.type for field in msgspec.structs.fields(Limits)}
    chosen: dict[str, float] = {}
    for each in named:
        name, _, text = each.partition("=")
        if name not in fields:
            raise click.UsageError(f"--limit {each}: there is no limit {name!r}; the limits are {', '.join(fields)}")
        try:
            chosen[name] = msgspec.convert(text, fields[name], strict=False)
        except msgspec.ValidationError as error:
            usual = getattr(Limits(), name)
            raise click.UsageError(f"--limit {each}: {name} must be a number, such as {usual}") from error
        if not chosen[name] > 0:
            raise click.UsageError(f"--limit {each}: {name} must be greater than 0")
    return Limits(**chosen)  # type: ignore[arg-type]  # - each was converted to the type of its field


def _reach(tokens: int, *, local: bool) -> str:
    """Return who can use the server."""
    if not tokens:
        return "open: every process of this machine can use it without a token, and so can clients of a proxy or tunnel"
    where = "this machine" if local else "other machines"
    return f"{tokens} {'token' if tokens == 1 else 'tokens'}; reachable from {where}"


@click.command(epilog="Example: holdfast dev shop.py")
@click.argument("target")
@url_option
@_host
@_port
@_hosts
@_no_page
@click.option("--browser", is_flag=True, help="Open the dashboard in a browser.")
def dev(
    target: str,
    url: str | None,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    no_page: bool,
    browser: bool,
) -> None:
    """Serve the API and the dashboard of TARGET, and run its jobs. Restart when a .py file in its folder changes.

    On a loopback address the API needs no token, unless one exists.
    """
    from holdfast.cli.reloader import develop
    from holdfast.http.auth import is_loopback

    names = [part for name in hosts for part in ("--allow-host", name)]
    is_open = ["--open"] if is_loopback(host) else []
    left_out = ["--no-page"] if no_page else []
    first = ["--browser"] if browser else []
    develop(target, url, ["--host", host, "--port", str(port), *is_open, *names, *left_out], first)


def _token_file(url: str | None) -> TokenFile:
    """Return the token file of the store."""
    from holdfast.config import Config
    from holdfast.http.tokens import TokenFile, token_path

    config = Config.read()
    return TokenFile(token_path(config, url if url is not None else config.url))


@click.group(epilog="Example: holdfast tokens create --name ci --scope submit")
def tokens() -> None:
    """Create, list, rotate and revoke tokens of the HTTP API."""


@tokens.command(name="create", epilog="Example: holdfast tokens create --name acme --scope submit --group acme")
@click.option("--name", required=True, help="Owner of the token. Actions with it are recorded under this name.")
@click.option(
    "--scope",
    type=click.Choice(["read", "signal", "submit", "operate", "admin"]),
    default="read",
    show_default=True,
    help="Permission of the token. Each scope includes those before it.",
)
@click.option("--expires", help="Lifetime of the token, such as 90d.  [default: no limit]")
@click.option("--group", help="The only group whose runs it can reach, such as one tenant.  [default: all]")
@url_option
@json_option
def create_token(
    name: str,
    scope: str,
    expires: str | None,
    group: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Create a token and print it. It is shown only once, because only its hash is stored."""
    from holdfast.durations import seconds

    try:
        until = time.time() + seconds(expires) if expires is not None else None
    except ValueError as error:
        raise click.UsageError(f"--expires: {error}") from error
    token = _token_file(url).create(name, scope, until, group)
    created = {"token": token, "name": name, "scope": scope, "expires_at": until, "group": group}
    show_result(created, as_json=as_json, text=lambda: token)


@tokens.command(name="list", epilog="Example: holdfast tokens list --json")
@url_option
@json_option
def list_tokens(url: str | None, as_json: bool) -> None:
    """List names, scopes, expiry dates and groups of the tokens. The tokens themselves are never shown."""
    listed = _token_file(url).all()
    now = time.time()

    def line(name: str, scope: str, expires_at: float | None, group: str | None) -> str:
        day = time.strftime("%Y-%m-%d", time.gmtime(expires_at)) if expires_at is not None else ""
        end = "no expiry" if expires_at is None else f"until {day}" if expires_at > now else f"EXPIRED {day}"
        return f"{name:<30} {scope:<8} {end}{f', group {group}' if group is not None else ''}"

    shown = [
        {
            "name": token.name,
            "scope": token.scope,
            "created_at": token.created_at,
            "expires_at": token.expires_at,
            "group": token.group,
        }
        for token in listed
    ]
    lines = [line(token.name, token.scope, token.expires_at, token.group) for token in listed]
    show_result(shown, as_json=as_json, text=lambda: "\n".join(lines) or "no tokens")


@tokens.command(name="rotate", epilog="Example: holdfast tokens rotate ci --grace 1h")
@click.argument("name")
@click.option("--grace", default="1d", show_default=True, help="How long the old secret stays valid.")
@url_option
@json_option
def rotate_token(name: str, grace: str, url: str | None, as_json: bool) -> None:
    """Create a new secret for the token NAME and print it. The old secret stays valid for a time."""
    from holdfast.durations import seconds

    try:
        grace_seconds = seconds(grace)
    except ValueError as error:
        raise click.UsageError(f"--grace: {error}") from error
    token = _token_file(url).rotate(name, grace_seconds)
    show_result({"token": token, "name": name}, as_json=as_json, text=lambda: token)


@tokens.command(name="revoke", epilog="Example: holdfast tokens revoke ci")
@click.argument("name")
@url_option
@json_option
def revoke_token(name: str, url: str | None, as_json: bool) -> None:
    """Revoke the token NAME. A running server refuses it after at most one second."""
    revoked = _token_file(url).revoke(name)
    show_result({"revoked": revoked}, as_json=as_json, text=lambda: "revoked" if revoked else f"no token {name}")
    sys.exit(0 if revoked else 3)


COMMANDS = (serve, dev, tokens)
