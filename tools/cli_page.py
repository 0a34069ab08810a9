"""Writes docs/cli.md from the commands themselves; `make docs` runs it."""

from __future__ import annotations

import re

import click

from holdfast.cli.main import EXIT_CODES, SECTIONS

CLI_HEAD = """\
# The command line

<!-- Made by `make docs` from the commands in src/holdfast/cli. Do not edit. -->

`holdfast`, or `python -m holdfast`. Results go to standard output and nothing else does; errors are one line that says
what to do. `--help` works everywhere. TARGET is a file or a module with an `App` in it. RUN is a run's id, or any
beginning or end of one that is only one run's.

On a terminal there are tables, colours (unless `NO_COLOR` is set) and live bars; anywhere else plain aligned text.
`--json` prints one JSON document, which is the form to read by program.

## Here or on a server

Commands that look at runs or steer them work on a store that they open themselves, or through a [server](remote.md):

| option | environment | says |
|---|---|---|
| `--url` | `HOLDFAST_URL` | where jobs are kept: `sqlite:///path`, `postgresql://…`; ./holdfast.db unless said |
| `--server` | `HOLDFAST_SERVER` | ask this server instead, `http://…` or `https://…` |
| | `HOLDFAST_TOKEN` | the token for the server; no option, since everybody can list the options of processes |

An option comes before the environment; of the two in the environment, the server.

## Exit codes

| exit code | means |
|---|---|
"""

CLI_EXTRA = {
    "machines": """\
```console
$ holdfast machines run
Run: 7 states, 9 legal cells of 49, all others refused

  (initial)         → queued
  queued            → running, canceled
  running           → succeeded, failed, timeout, cancel_requested
  cancel_requested  → canceled, succeeded, failed
  succeeded         is final
  failed            is final
  canceled          is final
  timeout           is final
$ holdfast machines ready --format mermaid
stateDiagram-v2
    [*] --> ready
...
$ holdfast machines job --format json
{
  "machine": "Job",
...
```

Other programs read the JSON: `machine`, `states`, `events`, `final`, `qualifiers`, and `rows` of `from`, `event`, `to`.
For a picture, pipe `holdfast machines job --format dot` into Graphviz.
""",
    "migrate": """\
With PostgreSQL it works under an advisory lock, and gives up after five seconds where others use a table. Workers do
the same when they open a store.
""",
    "purge": "What is removed, and what is kept back, is in [retention](retention.md).\n",
    "migrate-store": "[Moving up from SQLite](postgres.md#moving-up-from-sqlite) tells how it goes.\n",
    "workers": """\
What a worker runs is read from the leases and the streams, so it is true also of one that hangs.
""",
    "follow": "Ctrl-C leaves the run alone and exits with 130.\n",
}


def cli_page() -> str:
    """Write docs/cli.md: what stands above, and every command as it describes itself."""
    parts = [CLI_HEAD + "".join(f"| {code} | {means} |\n" for code, means in EXIT_CODES.items())]
    for title, commands in SECTIONS.items():
        listed = " · ".join(f"[{one.name}](#holdfast-{one.name})" for one in commands)
        parts.append(f"**{title}**: {listed}\n")
    parts += [_command(command) for commands in SECTIONS.values() for command in commands]
    return "\n".join(parts)


def _command(command: click.Command, within: str = "") -> str:
    name = f"{within} {command.name}".strip()
    if isinstance(command, click.Group):
        parts = [f"## holdfast {name}\n", _prose(command.help or "")]
        return "\n".join(
            [*parts, *(_command(one, name).replace("## ", "### ", 1) for one in command.commands.values())]
        )
    with click.Context(command, info_name=f"holdfast {name}") as ctx:
        usage = " ".join(command.collect_usage_pieces(ctx))
    said = [f"## holdfast {name}\n", f"```text\nholdfast {name} {usage}\n```\n", _prose(command.help or "")]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        rows = [f"| {' '.join(f'`{opt}`' for opt in one.opts)}{_takes(one)} | {_option(one)} |" for one in options]
        said.append("\n".join(["| option | is |", "|---|---|", *rows]) + "\n")
    if command.epilog:
        said.append(f"```sh\n{command.epilog.removeprefix('Example: ')}\n```\n")
    if name in CLI_EXTRA:
        said.append(CLI_EXTRA[name])
    return "\n".join(said)


def _prose(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n")) + "\n"


def _takes(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return " " + ", ".join(f"`{choice}`" for choice in option.type.choices)
    return f" {option.metavar or 'VALUE'}"


def _option(option: click.Option) -> str:
    text = re.sub(r"  \[default: (.*)\]$", r" Default: \1.", option.help or "")
    if option.show_default and option.default is not None:
        text += f" Default: {option.default}."
    if option.required:
        text += " Needed."
    return text.replace("|", "\\|")
