"""Completion in the user's shell: commands and options by click, and the ids of runs and names of jobs from the store.

Whatever goes wrong, nothing is offered and nothing is printed: a shell that asks for completions is in the middle of a
line.
"""

from __future__ import annotations

from typing import Any

import click

__all__ = ["COMMANDS", "entries", "run_ids"]

OFFERED = 50  # the newest runs
SECONDS = 2.0  # a server that takes longer is not waited for


def run_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Offer the newest runs, each with its job and status."""
    del parameter
    try:
        listed = _client(ctx).list(limit=OFFERED)
    except Exception:  # noqa: BLE001 - see the module's promise
        return []
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(one.run_id, help=f"{one.plugin_id}.{one.entry_id}, {one.status}")
        for one in listed
        if one.run_id.startswith(incomplete)
    ]


def entries(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Offer the jobs of the app that was named before."""
    del parameter
    target = ctx.params.get("target")
    try:
        if target is not None and _server(ctx) is None:
            from holdfast.cli.target import load

            asked: Any = load(target)
        else:
            asked = _client(ctx)
        found = asked.block(asked.aentries())
    except Exception:  # noqa: BLE001 - see the module's promise
        return []
    from click.shell_completion import CompletionItem

    return [CompletionItem(one.entry_id, help=one.description) for one in found if one.entry_id.startswith(incomplete)]


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
    """Print what makes SHELL complete commands, options, the ids of runs and the names of jobs.

    For bash and zsh, append it to ~/.bashrc or ~/.zshrc; for fish, write it to
    ~/.config/fish/completions/holdfast.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    group = click.get_current_context().find_root().command
    made = kind(group, {}, "holdfast", "_HOLDFAST_COMPLETE")
    click.echo(made.source_template % made.source_vars())  # `source` would ask the shell for its version first


COMMANDS = (completion,)
