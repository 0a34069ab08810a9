"""A user's shell: the real command line, in processes of its own, on a file of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Shell:
    """A user's shell in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "HOLDFAST_URL": f"sqlite:///{folder / 'jobs.db'}"}
        self.environment["SHOP_LEDGER"] = str(folder / "ledger")
        # A file that is changed within a second, and is as long as before, would be taken for what was compiled before.
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def ran(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def run(self, *words: str, code: int = 0) -> str:
        ran = self.ran(*words)
        assert ran.returncode == code, f"{words}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return (ran.stdout if code in {0, 1} else ran.stderr).strip()

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))
