"""A real terminal, as a program sees one: a pty of some size, read and typed into by the test."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

# The child takes the terminal for its own, so that Ctrl-C typed there reaches it as it would a user's program.
# Whoever runs the tests in the background has it ignored, and so would the child.
_ATTACH = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
_OURS = frozenset({"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"})  # what the terminal of the tests says of itself
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program on a terminal of its own."""

    def __init__(
        self, *command: str, cwd: Path, environment: Mapping[str, str], columns: int = 100, rows: int = 40
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        usual = {name: text for name, text in os.environ.items() if name not in _OURS}
        chosen = {**usual, **{name: text for name, text in environment.items() if os.environ.get(name) != text}}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ATTACH, *command],
            cwd=cwd, env={"TERM": "xterm-256color", **chosen}, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.output = ""

    def until(self, *texts: str, seconds: float = 60) -> None:
        """Read until these were shown, each behind the one before."""
        wanted = re.compile(".*?".join(map(re.escape, texts)), re.DOTALL)
        end = time.monotonic() + seconds
        while not wanted.search(self.shown):
            assert self._read(end), f"never shown: {texts}\n{self.output}"

    def type(self, text: str) -> None:
        """Type this."""
        os.write(self._master, text.encode())

    def end(self, seconds: float = 60) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + seconds
        while self._read(end):
            pass
        os.close(self._master)
        if self._process.poll() is None and time.monotonic() >= end:
            self._process.send_signal(signal.SIGKILL)
        return self._process.wait(seconds)

    @property
    def shown(self) -> str:
        """What was printed, without colours and movements."""
        return _ESCAPES.sub("", self.output)

    def _read(self, end: float) -> bool:
        waiting = select.poll()  # unlike select, for any number of open files
        waiting.register(self._master, select.POLLIN)
        ready = waiting.poll(1000 * max(0.0, end - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.output += data.decode(errors="replace")
        return bool(data)
