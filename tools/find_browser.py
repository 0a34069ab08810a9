"""Finds the browser for the tests of the dashboard, or installs Debian's. `make test` runs it first.

An installed Chromium or Chrome is used. Without one, Debian's package is installed if this process may do that. If
there is still none, the tests of the dashboard cannot run: an error with CI=true, and a loud notice elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


def find() -> str | None:
    """Return the path of a browser, or None. The variable HOLDFAST_BROWSER names one that is elsewhere."""
    chosen = os.environ.get("HOLDFAST_BROWSER")
    if chosen:
        return chosen
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or (MAC if os.path.exists(MAC) else None)  # noqa: PTH110 - a constant path


def install() -> None:
    """Install Debian's Chromium, if this process is root on a system with apt."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("Installing Debian's Chromium for the tests of the dashboard …", file=sys.stderr)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--no-install-recommends", "--quiet", "chromium", "fonts-dejavu-core"]
    for arguments in (command, ["apt-get", "update", "--quiet"], command):
        done = subprocess.run(arguments, env=quiet, check=False, capture_output=True)
        if done.returncode == 0 and arguments is command:
            return


if __name__ == "__main__":
    if find() is None:
        install()
    if find() is None:
        missing = "no Chromium or Chrome: the tests of the dashboard cannot run; install one or set HOLDFAST_BROWSER"
        if os.environ.get("CI") == "true":
            sys.exit(missing)
        print(f"\n*** NOTICE: {missing}. ***\n", file=sys.stderr)
