"""Child processes that end with their supervisor (SPEC L10).

The supervisor holds the write end of a pipe open and never writes. When it ends, for any reason, the kernel closes that
end. The child reads end of file and stops in an orderly way. The pipe is the child's standard input, which works on
every system. The child moves it away, so that code that reads standard input finds it empty.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import click

_KEY = "holdfast.supervised"  # in the context of a click command


def _store_flag(context: click.Context, parameter: click.Parameter, value: object) -> None:
    del parameter
    context.meta[_KEY] = value


supervised_option = click.option("--supervised", is_flag=True, hidden=True, expose_value=False, callback=_store_flag)


def start_child(arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start this program with a command that has `supervised_option`."""
    command = [sys.executable, "-m", "holdfast", *arguments, "--supervised"]
    return subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - this program itself


def is_supervised() -> bool:
    """Return whether a supervisor started this process."""
    return bool(click.get_current_context().meta.get(_KEY))


def stop_with_supervisor(stop: Callable[[], object]) -> None:
    """Call `stop` from a thread when this process's supervisor has ended. Does nothing without a supervisor."""
    if not is_supervised():
        return
    pipe = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)

    def watch() -> None:
        while os.read(pipe, 100):
            pass
        stop()
        with contextlib.suppress(OSError):  # standard error may be closed as well
            click.echo("holdfast: the supervisor has ended: stopping", err=True)

    threading.Thread(target=watch, name="holdfast-supervisor", daemon=True).start()
