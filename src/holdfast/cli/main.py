"""The command line. Each command is one function, and it imports what it needs when it runs, for a fast start-up.

Only results go to standard output. With ``--json`` a result is one JSON document. An error is one line that says what
to do, plus an exit code.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import click

from holdfast import HoldfastError, __version__, errors
from holdfast.cli import (
    audit,
    check,
    completion,
    doctor,
    follow,
    fork,
    maintain,
    operate,
    plans,
    queues,
    schedules,
    serve,
    show,
    start,
    workers,
)
from holdfast.cli.terminal_text import echo

EXIT_CODES = {
    0: "done",
    1: "the run failed or the check found something",
    2: "wrong usage",
    3: "not found",
    4: "refused in the current state",
    5: "the store or the server is unavailable",
    6: "timed out",
    7: "not allowed",
    8: "cannot write output",
    9: "the worker's event loop died or hung; its jobs were released",
    10: "the code does not fit the runs of its store; the worker has claimed none",
    130: "interrupted",
}

HELP_CHARACTERS = 1000  # more than any first sentence, so that none is cut

_CODES: list[tuple[type[Exception], int]] = [
    (errors.UnknownJob, 3),
    (errors.UnknownBuild, 3),
    (errors.UnknownEntry, 3),
    (errors.UnknownSchedule, 3),
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
    "Start and run": [*start.COMMANDS, *fork.COMMANDS, *serve.COMMANDS],
    "Inspect": [*show.COMMANDS, *workers.COMMANDS, *follow.COMMANDS, *audit.COMMANDS],
    "Control": [*operate.COMMANDS, *schedules.COMMANDS, *queues.COMMANDS],
    "Check and maintain": [
        *check.COMMANDS,
        *doctor.COMMANDS,
        *plans.COMMANDS,
        *maintain.COMMANDS,
        *completion.COMMANDS,
    ],
}


def _exit_code(error: Exception) -> int:
    """Return the exit code of an error. A store that refuses the user is not an unavailable one."""
    if type(error.__cause__).__name__ == "InsufficientPrivilege":  # of psycopg, which may not be installed
        return 7
    return next(code for kind, code in _CODES if isinstance(error, kind))


class _Commands(click.Group):
    """A group that turns Holdfast's errors into one line and an exit code, and lists commands by section."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (HoldfastError, TimeoutError) as error:
            message = " ".join((str(error) or "the run has not ended in time").split())
            if isinstance(error, errors.InvalidPlan):  # its message is a list of problems, one per line
                message = str(error)
            echo(f"holdfast: {message}", err=True)
            ctx.exit(_exit_code(error))
        except KeyboardInterrupt:
            ctx.exit(130)
        except BrokenPipeError:
            raise  # the reader has closed the pipe: click handles it
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush of buffered output at exit would fail again
            click.echo(f"holdfast: {error.filename or 'output'}: {error.strerror or error}", err=True)
            ctx.exit(8)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(HELP_CHARACTERS)) for command in commands]
                )


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
            stream.reconfigure(errors="replace")  # a character that the terminal cannot show must not be an error


for section in SECTIONS.values():
    for command in section:
        main.add_command(command)
