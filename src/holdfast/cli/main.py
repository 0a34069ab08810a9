"""The command line. One function a command; each imports what it needs when it runs, so that start-up stays short.

Results go to standard output and nothing else does. With ``--json`` the result is one JSON document. Errors are one
line that says what to do, and an exit code.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import click

from holdfast import HoldfastError, __version__, errors
from holdfast.cli import check, completion, follow, fork, maintain, operate, plans, queues, serve, show, start

__all__ = ["EXIT_CODES", "SECTIONS", "main"]

EXIT_CODES = {
    0: "done",
    1: "the run failed or the check found something",
    2: "wrong usage",
    3: "not found",
    4: "refused by the state it is in",
    5: "the store, or the server, is away",
    6: "not in time",
    7: "not allowed",
    8: "what it says could not be written",
    9: "the worker's event loop has died or hung; its jobs were given back",
    130: "interrupted",
}

_CODES: list[tuple[type[Exception], int]] = [
    (errors.UnknownJob, 3),
    (errors.UnknownEntry, 3),
    (errors.StoreUnavailable, 5),
    (errors.InvalidArguments, 2),
    (errors.InvalidPlan, 2),
    (errors.PayloadTooLarge, 2),
    (errors.InvalidSetting, 2),
    (errors.NotAllowed, 7),
    (errors.LoopDied, 9),
    (TimeoutError, 6),
    (HoldfastError, 4),
]

# The commands, in the order in which the help and the reference list them.
SECTIONS: dict[str, list[click.Command]] = {
    "Start and work": [*start.COMMANDS, *fork.COMMANDS, *serve.COMMANDS],
    "Look": [*show.COMMANDS, *follow.COMMANDS],
    "Steer": [*operate.COMMANDS, *queues.COMMANDS],
    "Check and keep": [*check.COMMANDS, *plans.COMMANDS, *maintain.COMMANDS, *completion.COMMANDS],
}


class _Commands(click.Group):
    """Turns our errors into one line and an exit code, and lists commands by what they are for."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (HoldfastError, TimeoutError) as error:
            said = " ".join((str(error) or "it has not ended in time").split())
            if isinstance(error, errors.InvalidPlan):  # what is wrong with it is a list
                said = str(error)
            click.echo(f"holdfast: {said}", err=True)
            ctx.exit(next(code for kind, code in _CODES if isinstance(error, kind)))
        except KeyboardInterrupt:
            ctx.exit(130)
        except BrokenPipeError:
            raise  # whoever read has enough: click sees to it
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to be written would fail again at the end
            click.echo(f"holdfast: {error.filename or 'output'}: {error.strerror or error}", err=True)
            ctx.exit(8)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        width = formatter.width - 6 - max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(one.name or "", one.get_short_help_str(width)) for one in commands])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: " + ", ".join(f"{code} {means}" for code, means in EXIT_CODES.items()) + ".",
)
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Durable jobs for Python."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow that the terminal cannot show is no reason to fail


for command in (one for section in SECTIONS.values() for one in section):
    main.add_command(command)
