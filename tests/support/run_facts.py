"""Facts about a long run, for its page: the commit and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Collection

from support.scripts import ROOT


def commit(written: Collection[str] = ()) -> str:
    """Return the commit of the repository, and whether there are other changes than these files, by their names."""

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()

    changed = [line for line in git("status", "--porcelain").splitlines() if not line.endswith(tuple(written))]
    return git("rev-parse", "--short=12", "HEAD") + (" with local changes" if changed else "")


def machine() -> str:
    """Return the size and kind of this machine, and the version of Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = f"{os.cpu_count()} cores, {memory:.0f} GB of memory"
    return f"{cores}, {platform.system()} on {platform.machine()}, Python {platform.python_version()}"
