"""The reloader of ``holdfast dev``: a server and a worker process that are restarted when the code changes.

The reloader stops the worker, and kills it if it does not stop. In both cases its jobs are released at once (SPEC L10)
and continue with the new code. Code that cannot be imported is not started again until it changes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType

import click

from holdfast import App
from holdfast.errors import StoreUnavailable
from holdfast.ids import new_id
from holdfast.parent_death import start_child
from holdfast.store import Reclaim, ReleaseLeases

LOOK_SECONDS = 0.2
STOP_SECONDS = 2.0  # until a process that does not stop is killed
FILES_MAX = 5000
_SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})


def develop(target: str, url: str | None, options: list[str], first: list[str] | None = None) -> None:
    """Run the server and the worker until this process receives SIGTERM or SIGINT.

    `options` are those of the server. `first` are more options for its first start only.
    """
    app = App("holdfast-dev", url)
    if app.url.startswith("memory:"):
        raise click.UsageError(
            "a store in memory belongs to one process, and dev starts two: use sqlite:///holdfast.db"
        )
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    folder = _folder(target)
    children = _Children(app, target, options, first or [])
    seen = sources(folder)
    children.start()
    while not stopping:
        time.sleep(LOOK_SECONDS)
        if stopping:  # a signal to the process group has ended the children as well: do not report that
            break
        files = sources(folder)
        if files != seen:
            changed = sorted(path for path in files.keys() | seen.keys() if files.get(path) != seen.get(path))
            click.echo(f"holdfast: {Path(changed[0]).name} changed: restarting", err=True)
            seen = files
            children.stop()
            children.start()
        children.look()
    children.stop()
    app.close()


def sources(folder: Path) -> dict[str, int]:
    """Return the .py files below a folder with their modification times, without hidden and installed ones."""
    times: dict[str, int] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(".py") and len(times) < FILES_MAX:
                with contextlib.suppress(FileNotFoundError):
                    path = os.path.join(place, name)  # noqa: PTH118 - faster than pathlib, for thousands of files
                    times[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - as above
    return times


def _folder(target: str) -> Path:
    path = Path(target.partition(":")[0])
    return path.parent if path.suffix == ".py" else Path.cwd()


class _Children:
    """The server process and the worker process."""

    def __init__(self, app: App, target: str, options: list[str], first: list[str]) -> None:
        self._app = app
        self._target = [target, "--url", app.url]
        self._options = options
        self._first = first
        self._worker = ""
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._worker = new_id()
        self._running = {
            "server": self._process("serve", *self._target, *self._options, *self._first, "--worker", self._worker),
            "worker": self._process("worker", *self._target, "--name", self._worker),
        }
        self._first = []

    def look(self) -> None:
        """Report a process that has ended by itself, once."""
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                click.echo(f"holdfast: the {name} has ended ({process.returncode}): waiting for a change", err=True)
                if name == "worker":
                    self._free()

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in self._running.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running = {}
        self._free()

    def _free(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            self._app.store().commit_blocking([ReleaseLeases(self._worker), Reclaim()])

    @staticmethod
    def _process(*words: str) -> subprocess.Popen[bytes]:
        return start_child(list(words))
