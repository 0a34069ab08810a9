"""Writes docs/reference/cli.md from the commands themselves; `make docs` runs it."""

from __future__ import annotations

import re

import click

from holdfast.cli.main import EXIT_CODES, SECTIONS

CLI_HEAD = """\
# The command line

<!-- Made by `make docs` from the commands in src/holdfast/cli. Do not edit. -->

Run it as `holdfast` or as `python -m holdfast`. Results go to standard output. An error is one line on standard error
that says what to do. Every command has `--help`.

TARGET is a file or a module that contains an `App`. RUN is the id of a run, or any beginning or end of an id that
matches only one run.

On a terminal, commands print tables, colours and live progress bars. `NO_COLOR` turns the colours off. Elsewhere they
print plain aligned text. `--json` prints one JSON document for programs.

## Here or on a server

Commands that read or control runs open the store themselves, or use a [server](../how-to/remote.md):

| option | environment | meaning |
|---|---|---|
| `--url` | `HOLDFAST_URL` | the store: `sqlite:///path` or `postgresql://…`; by default ./holdfast.db |
| `--server` | `HOLDFAST_SERVER` | the server to use instead, `http://…` or `https://…` |
| | `HOLDFAST_TOKEN` | the token for the server; not an option, because other users can list process options |

An option overrides the environment. If the environment names both, the server is used.

## Exit codes

| exit code | meaning |
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

The JSON has the fields `machine`, `states`, `events`, `final`, `qualifiers`, and `rows` of `from`, `event`, `to`. For a
picture, pipe `holdfast machines job --format dot` into Graphviz.
""",
    "migrate": """\
On PostgreSQL the migration holds an advisory lock. It gives up after five seconds if other sessions use a table.
Workers migrate in the same way when they open a store.
""",
    "doctor": """\
| check | warns or fails if |
|---|---|
| `schema`, `store` | there is no store, it is older or newer than this release, or it does not commit |
| `sqlite`, `locks` | SQLite is too old, or other code of a process can drop the locks of a store |
| `clock` | this machine and the store differ by more than two seconds |
| `workers`, `blocked`, `queue` | no worker is alive, an event loop is blocked, or a due job has waited a minute |
| `token`, `tokens`, `tokens file` | there is no valid token, one is short, or other users can read the file |
| `store file`, `folder`, `effects`, `blobs` | other users can open them, or this user cannot write there |
| `disk`, `inodes`, `log`, `file system` | < 1 GiB or 10,000 inodes are free, the log is large, or the disk remote |
| `postgres`, `fsync`, `synchronous_commit` … | the server is older than 14, or its settings can lose events |
| `connections`, `tls`, `pooler` | few connections are left, one is not encrypted, or a pooler is in between |

With `--json`, `ok` says whether no check failed, and `checks` has `name`, `status` (`ok`, `warn` or `fail`), `found`
and `do` for each check. Passwords and tokens are never printed.
""",
    "purge": "[Retention](../how-to/retention.md) explains what is removed and what stays.\n",
    "migrate-store": "[Moving up from SQLite](../how-to/postgres.md#moving-up-from-sqlite) explains the steps.\n",
    "workers": """\
The list is read from leases and events, so it is also correct for a worker that hangs.
""",
    "follow": "Ctrl-C does not affect the run. The command exits with 130.\n",
}


def cli_page() -> str:
    """Return docs/reference/cli.md: the introduction, then every command with its own help."""
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
        said.append("\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n")
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
        text += " Required."
    return text.replace("|", "\\|")
