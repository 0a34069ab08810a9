"""Commands that serve: the HTTP API, the API and a worker while one develops, and the tokens that open the door."""

from __future__ import annotations

import signal
import sys
import time

import click

from holdfast.cli.options import json_option, plugins_option, show_result, url_option
from holdfast.parent_death import stop_with_supervisor, supervised_option

__all__ = ["COMMANDS"]

PORT = 4653

_host = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
_port = click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 is any.")
_hosts = click.option("--allow-host", "hosts", multiple=True, help="A name it is reached by; may be given again.")


@click.command(epilog="Example: holdfast serve shop.py --port 8080")
@click.argument("target", required=False)
@plugins_option
@url_option
@_host
@_port
@_hosts
@click.option("--worker", "workers", multiple=True, hidden=True)
@supervised_option
def serve(
    target: str | None,
    plugins: bool,
    url: str | None,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    workers: tuple[str, ...],
) -> None:
    """Serve the HTTP API for the App in TARGET, a file or a module, until stopped.

    Any address but loopback needs a token: see holdfast tokens create.
    """
    from holdfast.cli.target import load
    from holdfast.client.logs import guard_process
    from holdfast.http import uvicorn_server
    from holdfast.http.application import Service
    from holdfast.http.auth import is_loopback
    from holdfast.http.tokens import keyring

    app = load(target, url, plugins=plugins)
    keys = keyring(app.config)
    closed = bool(keys)  # what is wrong with their file is said now
    if not is_loopback(host) and not closed:
        raise click.UsageError(
            f"{host} can be reached from other machines, and no token is set up: make one with `holdfast tokens create "
            f"--name NAME` (kept in {app.config.tokens}), or set HOLDFAST_TOKEN, or listen on 127.0.0.1"
        )
    guard_process()
    app.store()  # what is wrong with it is said now
    stop_with_supervisor(lambda: signal.raise_signal(signal.SIGTERM))
    try:
        socket = uvicorn_server.listen(host, port)
    except OSError as error:
        raise click.UsageError(f"cannot listen on {host} port {port}: {error.strerror}; choose another") from error
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"holdfast: {app.name} on http://{shown}:{socket.getsockname()[1]}", err=True)
    uvicorn_server.serve(Service(app, keys, [*hosts, shown], workers=workers), socket)


@click.command(epilog="Example: holdfast dev shop.py")
@click.argument("target")
@url_option
@_host
@_port
@_hosts
def dev(target: str, url: str | None, host: str, port: int, hosts: tuple[str, ...]) -> None:
    """Serve the HTTP API of TARGET and work on its jobs; start both again when a .py file near it changes."""
    from holdfast.cli.reloader import develop

    names = [part for name in hosts for part in ("--allow-host", name)]
    develop(target, url, ["--host", host, "--port", str(port), *names])


@click.group(epilog="Example: holdfast tokens create --name ci --scope submit")
def tokens() -> None:
    """Make, list and revoke the tokens that open the HTTP API."""


@tokens.command(name="create", epilog="Example: holdfast tokens create --name acme --scope submit --group acme")
@click.option("--name", required=True, help="Who it is for; what is done with it is recorded under this name.")
@click.option(
    "--scope",
    type=click.Choice(["read", "submit", "operate", "admin"]),
    default="read",
    show_default=True,
    help="What it may do; each includes those before it.",
)
@click.option("--expires", help="How long it is good, as in 90d.  [default: for ever]")
@click.option("--group", help="Whose runs it opens, as those of one tenant.  [default: everybody's]")
@json_option
def create_token(
    name: str,
    scope: str,
    expires: str | None,
    group: str | None,
    as_json: bool,
) -> None:
    """Make a token and print it: this once, for only its hash is kept."""
    from holdfast.config import Config
    from holdfast.durations import seconds
    from holdfast.http.tokens import TokenFile

    try:
        until = time.time() + seconds(expires) if expires is not None else None
    except ValueError as error:
        raise click.UsageError(f"--expires: {error}") from error
    token = TokenFile(Config.read().tokens).create(name, scope, until, group)
    made = {"token": token, "name": name, "scope": scope, "expires_at": until, "group": group}
    show_result(made, as_json=as_json, text=lambda: token)


@tokens.command(name="list", epilog="Example: holdfast tokens list --json")
@json_option
def list_tokens(as_json: bool) -> None:
    """List the tokens: names, scopes, ends and groups, never the tokens themselves."""
    from holdfast.config import Config
    from holdfast.http.tokens import TokenFile

    found = TokenFile(Config.read().tokens).all()
    now = time.time()

    def line(name: str, scope: str, expires_at: float | None, group: str | None) -> str:
        day = time.strftime("%Y-%m-%d", time.gmtime(expires_at)) if expires_at is not None else ""
        end = "for ever" if expires_at is None else f"until {day}" if expires_at > now else f"EXPIRED {day}"
        return f"{name:<30} {scope:<8} {end}{f', group {group}' if group is not None else ''}"

    shown = [
        {
            "name": one.name,
            "scope": one.scope,
            "created_at": one.created_at,
            "expires_at": one.expires_at,
            "group": one.group,
        }
        for one in found
    ]
    lines = [line(one.name, one.scope, one.expires_at, one.group) for one in found]
    show_result(shown, as_json=as_json, text=lambda: "\n".join(lines) or "no tokens")


@tokens.command(name="revoke", epilog="Example: holdfast tokens revoke ci")
@click.argument("name")
@json_option
def revoke_token(name: str, as_json: bool) -> None:
    """Forget the token NAME; a server that runs refuses it a second later at the latest."""
    from holdfast.config import Config
    from holdfast.http.tokens import TokenFile

    revoked = TokenFile(Config.read().tokens).revoke(name)
    show_result({"revoked": revoked}, as_json=as_json, text=lambda: "revoked" if revoked else f"no token {name}")
    sys.exit(0 if revoked else 3)


COMMANDS = (serve, dev, tokens)
