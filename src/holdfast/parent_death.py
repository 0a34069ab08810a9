"""Processes that end with the process that started them (SPEC L10).

The supervisor keeps the writing end of a pipe open and never writes. When it ends, however it ends, the kernel closes
that end, and the child reads an end of file: it stops in the orderly way. The pipe is the child's standard input, which
works on every system; the child moves it away, so that code that reads standard input finds it empty.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import click

__all__ = ["start_child", "stop_with_supervisor", "supervised_option"]

_KEY = "holdfast.supervised"  # in the context of a command


def _noted(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    del parameter
    context.meta[_KEY] = value


supervised_option = click.option("--supervised", is_flag=True, hidden=True, expose_value=False, callback=_noted)


def start_child(words: list[str]) -> subprocess.Popen[bytes]:
    """Start this program with a command that has `supervised_option`."""
    command = [sys.executable, "-m", "holdfast", *words, "--supervised"]
    return subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - this program itself


def stop_with_supervisor(stop: Callable[[], object]) -> None:
    """Call `stop`, from a thread, when the supervisor of this command's process is gone, if it has one."""
    if not click.get_current_context().meta.get(_KEY):
        return
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(pipe, 100):
            pass
        stop()
        with contextlib.suppress(OSError):  # where that goes may be gone, too
            click.echo("holdfast: the supervisor is gone: stopping", err=True)

    threading.Thread(target=watch, name="holdfast-supervisor", daemon=True).start()
