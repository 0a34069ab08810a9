"""Environments of peers: one virtual environment each, from pinned versions, kept in a cache folder.

An environment is built again when its requirements change. A peer that cannot be installed does not stop the others.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements"


class NotInstalled(Exception):
    """A peer cannot be installed on this machine."""


class Environment:
    """Where the processes of a peer run."""

    def __init__(self, peer: str, cache: Path) -> None:
        self._peer = peer
        self._folder = cache / peer
        self._pins = REQUIREMENTS / f"{peer}.txt"
        self._programs = REQUIREMENTS / peer / "package.json"

    @property
    def python(self) -> str:
        """The interpreter; our own for Holdfast."""
        return str(self._folder / "bin" / "python") if self._pins.exists() else sys.executable

    @property
    def programs(self) -> Path:
        """The folder of programs that come from npm."""
        return self._folder / "programs"

    def install(self) -> None:
        """Install what is not installed yet."""
        if not self._pins.exists():
            return
        stamp, wanted = self._folder / ".installed", self._fingerprint()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"Installing {self._peer} …", file=sys.stderr, flush=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._run(sys.executable, "-m", "venv", str(self._folder))
        pip = (self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
        self._run(*pip, "--requirement", str(self._pins))
        if self._programs.exists():
            self._install_programs()
        stamp.write_text(wanted)

    def version(self, package: str) -> str:
        """Return the installed version of a package, and those of programs that come with it."""
        code = f"from importlib.metadata import version; print(version({package!r}))"
        ran = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)
        programs = json.loads(self._programs.read_text())["dependencies"] if self._programs.exists() else {}
        others = [f"{name.rpartition('/')[2]} {pin}" for name, pin in programs.items()]
        return ", ".join([ran.stdout.strip() or "unknown", *others])

    def _install_programs(self) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstalled("needs npm")
        self.programs.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(self._programs.with_name(name), self.programs / name)
        self._run(npm, "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(self.programs))

    def _fingerprint(self) -> str:
        files = [self._pins, *sorted(self._programs.parent.glob("*.json"))]
        content = b"".join(path.read_bytes() for path in files) + sys.version.encode()
        return hashlib.sha256(content).hexdigest()

    def _run(self, *command: str) -> None:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            lines = (ran.stderr or ran.stdout).strip().splitlines() or ["no message"]
            raise NotInstalled(f"cannot be installed: {lines[-1]}")
