"""The suite is able to fail: one cell or one guard is changed on purpose, and the tests must notice (P1, P2, P7, P8).

Each mutant, in mutants.toml, is a copy of the package with one replacement. The tests of the machines and of readiness
run against the copy, the exhaustive walk at a smaller depth, and must fail; of plans, those of their rules; of values,
those of signatures. A copy without a change must pass. `make test` runs every sixth mutant, `make mutants` all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from support.scripts import ROOT


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str


MUTANTS = [Mutant(**entry) for entry in tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]]

ALL = bool(os.environ.get("HOLDFAST_ALL_MUTANTS"))
CHOSEN = MUTANTS if ALL else MUTANTS[::6]

# The quickest to notice first; all of it runs where nothing is noticed.
SUITE = [
    "ready/test_monitor.py",
    *(f"ready/test_{name}.py" for name in ("next_reading", "gate_edges", "gate_kinds", "gates")),
    *(
        f"machines/test_{name}.py"
        for name in ("tables", "table_building", "fold", "run_projection", "chain", "event", "keys", "every_stream")
    ),
    "ready/test_gate_properties.py",
    "ready/test_gate_interleavings.py",
    "ready/test_interleavings.py",
    "machines/test_errors.py",
]

# `make test` walks these on the package itself, at full depth, so only `make mutants` does so on an unchanged copy.
WALKS = {"machines/test_every_stream.py", "ready/test_gate_interleavings.py", "ready/test_interleavings.py"}

PLANS = ["plans/test_plan_rules.py"]
VALUES = ["authoring/test_signature.py"]
DEPLOYS = ["engine/test_changes.py", "engine/test_misfit.py", "client/test_builds.py"]


def run_suite(source: Path, where: Path, names: list[str] = SUITE) -> subprocess.CompletedProcess[str]:
    """Run the tests that a mutant must not survive, against the package in `source`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    environment |= {"PYTHONPATH": str(source), "HOLDFAST_PROOF_DEPTH": "6"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they are not needed here, and take longer than the tests
    options = ["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    suite = [str(ROOT / "tests" / name) for name in names]
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options, *suite]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_the_suite_run_on_mutants_is_all_of_the_machines_tests_but_the_drawings() -> None:
    """The pages in docs/ are made from the package; comparing them would kill table mutants by a picture alone."""
    there = {
        f"{room}/{path.name}" for room in ("machines", "ready") for path in (ROOT / "tests" / room).glob("test_*.py")
    }
    assert set(SUITE) == there - {"machines/test_diagram.py"}


def copy_of_the_package(folder: Path) -> Path:
    """Copy the package with its compiled modules, which stay valid because a copy keeps the times of its files."""
    shutil.copytree(ROOT / "src", folder / "src")
    return folder / "src"


def change(source: Path, mutant: Mutant) -> None:
    """Make the mutant's replacement in a copy, and remove what was compiled of the file."""
    path = source / "holdfast" / mutant.file
    path.write_text(path.read_text().replace(mutant.old, mutant.new))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def test_an_unchanged_copy_passes(tmp_path: Path) -> None:
    names = [name for name in SUITE if ALL or name not in WALKS]
    ran = run_suite(copy_of_the_package(tmp_path), tmp_path, [*PLANS, *VALUES, *names])
    assert ran.returncode == 0, ran.stdout[-2000:]


def test_every_mutant_changes_one_place() -> None:
    for mutant in MUTANTS:
        text = (ROOT / "src" / "holdfast" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, f"{mutant.file} does not hold this text once: {mutant.old}"


@pytest.mark.parametrize("mutant", CHOSEN, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    source = copy_of_the_package(tmp_path)
    change(source, mutant)
    others = {"plans/": PLANS, "client/fork": PLANS, "authoring/": VALUES, "engine/": DEPLOYS, "store/": DEPLOYS}
    suite = next((suite for room, suite in others.items() if mutant.file.startswith(room)), SUITE)
    near = [name for name in SUITE if name.startswith(mutant.file.partition("/")[0])]  # those of its own room first
    ran = run_suite(source, tmp_path, near if suite is SUITE else suite)
    if ran.returncode == 0 and suite is SUITE:
        ran = run_suite(source, tmp_path, [name for name in SUITE if name not in near])
    assert ran.returncode == 1, f"the suite did not notice: {mutant.name}\n{ran.stdout[-1500:]}{ran.stderr[-500:]}"
