"""Several worker processes under one: a child that dies is replaced, and its jobs are free at once (SPEC L10).

If the supervisor itself dies, however it does, its workers stop in the orderly way; see `supervised`. A signal that
stops the whole process group stops the workers as well, which is no death.
"""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType

import click

from holdfast import App
from holdfast.errors import StoreReplaced, StoreUnavailable
from holdfast.ids import new_id
from holdfast.parent_death import start_child
from holdfast.store import Bury, Reclaim

__all__ = ["supervise"]

LOOK_SECONDS = 0.05  # how soon a death is noticed
RESTART_SECONDS = 0.5  # a child that dies at once is not started more often than this


def supervise(app: App, arguments: list[str], processes: int, *, until_idle: bool = False) -> None:
    """Keep so many workers running until this process is asked to stop; then stop them in order.

    With `until_idle`, until each of them has found nothing left to do.
    """
    arguments = [*arguments, *(["--until-idle"] if until_idle else [])]
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with contextlib.suppress(StoreUnavailable):
        app.store()  # opened now: it notices if its files are replaced later
    children = dict(_start(arguments) for _ in range(processes))
    try:
        _keep_running(app, children, arguments, stopping, until_idle=until_idle)
    finally:
        for child in children.values():
            child.process.terminate()
        for child in children.values():
            child.process.wait()


def _keep_running(
    app: App, children: dict[str, _Child], arguments: list[str], stopping: list[int], *, until_idle: bool
) -> None:
    """Replace children that die.

    Raises:
        StoreReplaced: the files of the database are not those that the children had opened.
    """
    dead: list[str] = []  # who is still to be buried: the store may be away
    while children and not stopping:
        time.sleep(LOOK_SECONDS)
        _bury(app, dead)
        for name, child in list(children.items()):
            if child.process.poll() is not None and not stopping:
                del children[name]
                if until_idle and child.process.returncode == 0:
                    continue  # it has found nothing left to do
                dead.append(name)
                _bury(app, dead)
                code = child.process.returncode
                click.echo(f"worker {name} died (exit code {code}): replaced, its jobs are free", err=True)
                children.update([_start(arguments, RESTART_SECONDS - (time.monotonic() - child.started))])


def _bury(app: App, dead: list[str]) -> None:
    """End the leases of dead workers; if the store is away, the next call does."""
    try:
        if dead:
            app.store().commit_blocking([*map(Bury, dead), Reclaim()])
            dead.clear()
    except StoreReplaced:
        raise
    except StoreUnavailable:
        pass


class _Child:
    """A worker process, and when it was started."""

    def __init__(self, arguments: list[str], name: str) -> None:
        self.started = time.monotonic()
        self.process = start_child(["worker", *arguments, "--name", name])


def _start(arguments: list[str], pause: float = 0.0) -> tuple[str, _Child]:
    time.sleep(max(0.0, pause))
    name = new_id()
    return name, _Child(arguments, name)
