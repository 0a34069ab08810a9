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


class Bug(NamedTuple):
    """A mistake: one replacement in one file below src/holdfast."""

    name: str
    file: str
    old: str
    new: str


class Found(NamedTuple):
    """How a mistake was found: after how many seeds, and by which rule. No seeds if it was not."""

    seeds: int | None
    text: str


BUGS = [Bug(**entry) for entry in tomllib.loads(Path(__file__).with_name("bugs.toml").read_text())["bug"]]


def places_of(bug: Bug) -> int:
    """Return how often the text of a mistake stands in its file."""
    return (ROOT / "src" / "holdfast" / bug.file).read_text().count(bug.old)


def hunt(bug: Bug, folder: Path) -> Found:
    """Make a mistake in a copy of the package, and let the simulator look for it."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("static", "dashboard"))
    path = source / "holdfast" / bug.file
    path.write_text(path.read_text().replace(bug.old, bug.new))
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
