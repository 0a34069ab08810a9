"""The measurement of several Pythons: each is measured, and one that cannot be used has its reason."""

from __future__ import annotations

import subprocess
import sys

from support.scripts import ROOT


def test_each_python_is_measured_beside_the_first_and_one_that_is_missing_is_named() -> None:
    script = ROOT / "bench" / "pythons.py"
    done = subprocess.run(
        [sys.executable, script, "--rounds", "1", "--jobs", "2", sys.executable, "no-such-python"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "FAILED no-such-python: not found\n"
    head, _, row = done.stdout.splitlines()
    assert head.count("|") == row.count("|")
    assert row.count("(1.00)") == 6, "the first beside itself"
