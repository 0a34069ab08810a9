"""Records the pictures in the README from the real thing: real commands, on a real terminal, drawn as SVG.

`python tools/record_terminal.py` writes docs/images. A worker is killed with SIGKILL in the middle of a step; what the
terminal shows meanwhile, and after it, is what is drawn.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.terminal import Terminal  # noqa: E402 - found by the line above

IMAGES = ROOT / "docs" / "images"
COLUMNS = 96
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SHOP = """\
import asyncio
from holdfast import App, attempt

app = App("shop")

@app.step
async def price(sku: str) -> int:
    return 100 * len(sku)

@app.tool
async def charge(card: str, cents: int) -> str:
    return f"receipt for {cents} cents"

@app.step
async def pack(sku: str) -> str:
    await asyncio.sleep(600 if attempt() == 1 else 3)  # long enough to be killed in the middle of
    return f"parcel with {sku}"

@app.job
async def checkout(sku: str, card: str) -> str:
    receipt = await charge(card, await price(sku))
    await pack(sku)
    return receipt
"""
_CODE = re.compile(r"\x1b\[(?P<given>[0-9;?]*)(?P<letter>[A-Za-z])|(?P<text>[^\x1b])", re.DOTALL)


class Screen:
    """What a terminal shows of some output: enough of one for what rich prints."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[str, str]]] = [[]]
        self._row = self._column = 0
        self._style = ""

    def feed(self, output: str) -> Screen:
        """Show output."""
        for part in _CODE.finditer(output):
            if part["text"] is not None:
                self._put(part["text"])
            else:
                self._move(part["given"], part["letter"])
        return self

    def _put(self, character: str) -> None:
        if character == "\n":
            self._row, self._column = self._row + 1, 0
            self.rows += [[] for _ in range(self._row + 1 - len(self.rows))]
        elif character == "\r":
            self._column = 0
        else:
            row = self.rows[self._row]
            row += [(" ", "")] * (self._column + 1 - len(row))
            row[self._column] = (character, self._style)
            self._column += 1

    def _move(self, given: str, letter: str) -> None:
        if letter == "A":
            self._row = max(0, self._row - int(given or 1))
        elif letter == "K":
            del self.rows[self._row][0 if given == "2" else self._column :]
        elif letter == "m":
            self._style = "" if given in {"", "0"} else f"{self._style}\x1b[{given}m"

    def ansi(self) -> str:
        """Give the rows as text with colours."""
        rows = [
            "".join(f"\x1b[0m{style}{''.join(one for one, _ in cells)}" for style, cells in groupby(row, itemgetter(1)))
            for row in self.rows
        ]
        return "\n".join(rows).rstrip()


def draw(parts: list[tuple[str, str]], title: str) -> str:
    """Draw commands and what the terminal showed of each."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for number, (command, output) in enumerate(parts):
        console.print(Text.assemble("" if number == 0 else "\n", ("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(Screen().feed(output).ansi()))
    made = console.export_svg(title=title, unique_id="holdfast")
    return re.sub(r"\s*@font-face \{.*?\n    \}\n", "\n", made, flags=re.DOTALL)  # nothing is fetched to show it


class Session:
    """A folder with a shop, its workers, and a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(SHOP)
        self.environment = {"HOLDFAST_URL": f"sqlite:///{folder / 'holdfast.db'}", "HOLDFAST_LEASE_SECONDS": "60"}

    @contextlib.contextmanager
    def workers(self) -> Iterator[None]:
        """Two workers under a supervisor."""
        started = subprocess.Popen(
            [HOLDFAST, "worker", "shop.py", "--processes", "2"],
            cwd=self.folder, env={**os.environ, **self.environment}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        finally:
            started.terminate()
            started.wait(30)

    def on_terminal(self, *words: str) -> Terminal:
        """Run a command on a terminal."""
        return Terminal(HOLDFAST, *words, cwd=self.folder, environment=self.environment, columns=COLUMNS)

    def shown(self, *words: str) -> tuple[str, str]:
        """Run a command on a terminal to its end: what was typed and what was shown."""
        screen = self.on_terminal(*words)
        screen.end()
        return " ".join(["holdfast", *words]), screen.output

    def asked(self, *words: str) -> Any:
        """Run a command and read what it says."""
        ran = subprocess.run(
            [HOLDFAST, *words, "--json"],
            cwd=self.folder, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(ran.stdout)


def record(images: Path) -> list[Path]:
    """Play the story and write its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        words = ("start", "shop.py", "checkout", "sku=A1", "card=4242", "--follow")
        with session.workers():
            follow = session.on_terminal(*words)
            follow.until("pack(")
            holder = next(one for one in session.asked("workers") if one["running"])
            os.kill(holder["card"]["pid"], signal.SIGKILL)
            follow.until("attempt 2", "pack(", "running")
            middle = follow.output
            follow.end()
            run = session.asked("runs")[0]["run_id"]
            listing = [session.shown("runs"), session.shown("explain", run[:18]), session.shown("verify", run[:18])]
    typed = " ".join(["holdfast", *words])
    images.mkdir(parents=True, exist_ok=True)
    made = {
        "follow.svg": draw([(typed, middle)], "the worker was killed with kill -9"),
        "end.svg": draw([(typed, follow.output), *listing], "another goes on; the card is charged once"),
    }
    for name, picture in made.items():
        (images / name).write_text(picture)
    return [images / name for name in made]


if __name__ == "__main__":
    for path in record(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES):
        print(f"wrote {path.name}")
