"""Shell completion: commands and options from click, run ids and job names from the store.

A failure offers no completions and prints nothing, because the user is in the middle of a command line.
"""

from __future__ import annotations

from typing import Any

import click

OFFERED = 50  # newest runs to offer
SECONDS = 2.0  # timeout of a server


def run_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Offer the newest runs, each with its job and status."""
    del parameter
    try:
        listed = _client(ctx).list(limit=OFFERED)
    except Exception:  # noqa: BLE001 - a failure offers nothing
        return []
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(record.run_id, help=f"{record.plugin_id}.{record.entry_id}, {record.status}")
        for record in listed
        if record.run_id.startswith(incomplete)
    ]


def entries(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Offer the jobs of the app that the command line names."""
    del parameter
    target = ctx.params.get("target")
    try:
        if target is not None and _server(ctx) is None:
            from holdfast.cli.target import load

            client: Any = load(target)
        else:
            client = _client(ctx)
        jobs = client.block(client.aentries())
    except Exception:  # noqa: BLE001 - a failure offers nothing
        return []
    from click.shell_completion import CompletionItem

    return [CompletionItem(job.entry_id, help=job.description) for job in jobs if job.entry_id.startswith(incomplete)]


def _server(ctx: click.Context) -> str | None:
    typed = click.core.ParameterSource.COMMANDLINE
    return None if ctx.get_parameter_source("url") is typed else ctx.params.get("server")


def _client(ctx: click.Context) -> Any:
    server = _server(ctx)
    if server is not None:
        from holdfast.client.remote.client import connect

        return connect(server, timeout=SECONDS)
    from holdfast import App

    return App("holdfast-cli", ctx.params.get("url"))


@click.command(epilog="Example: holdfast completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    It completes commands, options, run ids and job names. For bash and zsh, append it to ~/.bashrc or ~/.zshrc. For
    fish, write it to ~/.config/fish/completions/holdfast.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    group = click.get_current_context().find_root().command
    script = kind(group, {}, "holdfast", "_HOLDFAST_COMPLETE")
    click.echo(script.source_template % script.source_vars())  # `source()` would first run the shell for its version


COMMANDS = (completion,)
