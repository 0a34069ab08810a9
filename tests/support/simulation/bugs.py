"""Mistakes that are made on purpose in a copy of the package, and that the simulator must find."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from support.scripts import ROOT

SEEDS_MAX = 400  # within which each mistake is found
FIRST_SEED = 0


class Change(NamedTuple):
    """A replacement in a file below src/holdfast."""

    file: str
    old: str
    new: str


class Bug(NamedTuple):
    """A mistake: one change, or two where one hides the other."""

    name: str
    changes: tuple[Change, ...]


class Found(NamedTuple):
    """How a mistake was found: after how many seeds, and by which rule. No seeds if it was not."""

    seeds: int | None
    text: str


def _bug(name: str, also: dict[str, str] | None = None, **change: str) -> Bug:
    return Bug(name, tuple(Change(**each) for each in (change, also) if each is not None))


BUGS = [_bug(**entry) for entry in tomllib.loads(Path(__file__).with_name("bugs.toml").read_text())["bug"]]


def places_of(bug: Bug) -> list[int]:
    """Return how often the text of each change stands in its file."""
    return [(ROOT / "src" / "holdfast" / change.file).read_text().count(change.old) for change in bug.changes]


def hunt(bug: Bug, folder: Path) -> Found:
    """Make a mistake in a copy of the package, and let the simulator look for it."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("static", "dashboard"))
    for change in bug.changes:
        path = source / "holdfast" / change.file
        path.write_text(path.read_text().replace(change.old, change.new))
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    command = [sys.executable, str(ROOT / "tools" / "simulate.py"), str(SEEDS_MAX), str(FIRST_SEED), "--first"]
    environment |= {"PYTHONPATH": str(source)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    seen = re.search(r"^found after (\d+) seeds: (.*)$", ran.stdout, re.MULTILINE)
    if seen is None:
        return Found(None, f"{ran.stdout[-1000:]}{ran.stderr[-1000:]}")
    return Found(int(seen[1]), seen[2])
