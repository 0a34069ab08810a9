"""A supervisor of several worker processes. It replaces a child that dies, and frees its jobs at once (SPEC L10).

If the supervisor itself dies, its workers stop in an orderly way; see `holdfast.parent_death`. A signal that stops the
whole process group stops the workers as well, which does not count as a death.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from types import FrameType

import click

from holdfast import App
from holdfast.errors import StoreReplaced, StoreUnavailable
from holdfast.ids import new_id
from holdfast.job_log import log_reclaimed
from holdfast.parent_death import start_child
from holdfast.store import Command, Reclaim, ReleaseLeases

LOOK_SECONDS = 0.05  # how often children are checked
RESTART_SECONDS = 0.5  # the shortest time between two starts of a child


def supervise(app: App, arguments: list[str], processes: int, *, until: str | None = None) -> None:
    """Keep this many workers running until this process is asked to stop, then stop them in order.

    `until` is the option with which each worker ends by itself: ``--until-idle`` or ``--until-drained``.
    """
    arguments = [*arguments, *([until] if until is not None else [])]
    stopping: list[int] = []

    children: dict[str, _Child] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopping.append(number)
        if stopping.count(signal.SIGINT) > 1:
            for child in children.values():
                child.process.kill()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with contextlib.suppress(StoreUnavailable):
        app.store()  # opened now, so that it notices if its files are replaced later
    try:
        children.update(_start(arguments) for _ in range(processes))
        _keep_running(app, children, arguments, stopping, ends=until is not None)
    finally:
        for child in children.values():
            child.process.terminate()
        for child in children.values():
            child.process.wait()


def _keep_running(
    app: App, children: dict[str, _Child], arguments: list[str], stopping: list[int], *, ends: bool
) -> None:
    """Replace children that die.

    Raises:
        StoreReplaced: the database files are not those that the children have opened.
    """
    dead: list[str] = []  # workers whose leases must still end, if the store was unavailable
    while children and not stopping:
        time.sleep(LOOK_SECONDS)
        _release_leases(app, dead)
        for name, child in list(children.items()):
            if child.process.poll() is not None and not stopping:
                del children[name]
                if ends and child.process.returncode == 0:
                    continue  # nothing was left to do
                dead.append(name)
                _release_leases(app, dead)
                code = child.process.returncode
                how = f"died (exit code {code})" if code else "was stopped"
                click.echo(f"holdfast: worker {name} {how}; it is replaced and its jobs are released", err=True)
                children.update([_start(arguments, RESTART_SECONDS - (time.monotonic() - child.started))])


def _release_leases(app: App, dead: list[str]) -> None:
    """End the leases of dead workers. If the store is unavailable, the next call does it."""
    try:
        if dead:
            *_, reclaimed = app.store().commit_blocking(released(dead))
            dead.clear()
            app.block(log_reclaimed(app.store(), reclaimed.jobs))
    except StoreReplaced:
        raise
    except StoreUnavailable:
        pass


def released(dead: Sequence[str]) -> list[Command]:
    """Return the commands that end the leases of dead workers, and requeue their jobs in the same transaction."""
    return [*map(ReleaseLeases, dead), Reclaim()]


class _Child:
    """A worker process and its start time."""

    def __init__(self, arguments: list[str], name: str) -> None:
        self.started = time.monotonic()
        self.process = start_child(["worker", *arguments, "--name", name])


def _start(arguments: list[str], pause: float = 0.0) -> tuple[str, _Child]:
    time.sleep(max(0.0, pause))
    name = new_id()
    return name, _Child(arguments, name)
