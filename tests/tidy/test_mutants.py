"""The suite is able to fail: one cell or one guard is changed on purpose, and the tests must notice (P1, P2, P7, P8).

Each mutant is a copy of the package with one replacement. The tests of the machines and of readiness run against the
copy, the exhaustive walk at a smaller depth, and must fail by an assertion. A copy without a change must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.scripts import ROOT


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str


JOB, RUN, READY = "machines/job.py", "machines/run.py", "machines/ready.py"
TABLE, FOLD, RULES = "machines/table.py", "machines/fold.py", "machines/rules.py"
CHAIN, EVENT, RUNS = "machines/chain.py", "machines/event.py", "machines/runs.py"
SNAPSHOT, MONITOR = "machines/snapshot.py", "ready/monitor.py"

_RETRY = "        (_S.FAILED,     _E.REQUEUED,        _S.QUEUED),"
_WAITS_CANCEL = "        (_S.WAITING,    _E.CANCELLED,       _S.CANCELLED),\n"
_PARKED_CANCEL = "        (_S.PARKED,     _E.CANCELLED,       _S.CANCELLED),\n"

MUTANTS = [
    # one cell
    Mutant("a failed job cannot be retried", JOB, _RETRY, "        # "),
    Mutant("a completed job can be requeued", JOB, _RETRY, f"        (_S.COMPLETED, _E.REQUEUED, _S.QUEUED),\n{_RETRY}"),
    Mutant("a waiting job can be claimed", JOB, _WAITS_CANCEL, f"{_WAITS_CANCEL}        (_S.WAITING, _E.RUNNING, _S.RUNNING),\n"
           "        (_S.PARKED, _E.RUNNING, _S.RUNNING),\n"),
    Mutant("a stream can begin with a claim", JOB, "        (None,          _E.QUEUED, ", "        (None, _E.RUNNING, _S.RUNNING),\n"
           "        (None,          _E.QUEUED, "),
    Mutant("a wait completed while running goes nowhere", JOB, "(_S.RUNNING,    _E.WAIT_COMPLETED,  _S.QUEUED)",
           "(_S.RUNNING,    _E.WAIT_COMPLETED,  _S.RUNNING)"),
    Mutant("a cancelled running job has failed", JOB, "(_S.RUNNING,    _E.CANCELLED,       _S.CANCELLED)",
           "(_S.RUNNING,    _E.CANCELLED,       _S.FAILED)"),
    Mutant("a parked job is a retrying one", JOB, "_S.PARKED: _S.WAITING", "_S.PARKED: _S.PARKED"),
    Mutant("a run times out while it is being cancelled", RUN, "(_S.CANCELED, _S.SUCCEEDED, _S.FAILED)",
           "(_S.CANCELED, _S.SUCCEEDED, _S.FAILED, _S.TIMEOUT)"),
    Mutant("a running run is canceled unasked", RUN, "_S.TIMEOUT, _S.CANCEL_REQUESTED)",
           "_S.TIMEOUT, _S.CANCEL_REQUESTED, _S.CANCELED)"),
    Mutant("a queued run cannot be canceled", RUN, "(_S.RUNNING, _S.CANCELED)", "(_S.RUNNING,)"),
    Mutant("pending follows pending", READY, "    _S.PENDING: (", "    _S.PENDING: (_S.PENDING, "),
    Mutant("a back-off is reported twice", READY, "    _S.RETRY_AFTER: (", "    _S.RETRY_AFTER: (_S.RETRY_AFTER, "),
    Mutant("busy cannot stay busy", READY, "    _S.BUSY: (_S.READY, _S.BUSY, ", "    _S.BUSY: (_S.READY, "),
    # one guard of the table
    Mutant("two rows for one cell pass", TABLE, "if cell in cells:", "if cell in ():"),
    Mutant("an unreachable state passes", TABLE, "        if lost:", "        if False:"),
    Mutant("a qualifier may differ", TABLE, "if self.allowed(qualifier) != self.allowed(base):", "if False:"),
    # one guard of the folds
    Mutant("the first state event wins", FOLD, "            state = TARGETS[name]\n    return state", "            return TARGETS[name]\n    return state"),
    Mutant("a retry keeps the old cancel", FOLD, "            self.cancel = None", "            pass"),
    Mutant("a retry opens no run", FOLD, "            self.run += 1", "            pass"),
    Mutant("the last reason to cancel wins", FOLD, "if reader.cancel is None:", "if True:"),
    Mutant("a wait counts as a failed attempt", FOLD, "self.attempts -= ran_user_code  # a wait", "pass  # a wait"),
    Mutant("a shutdown counts as a crash", FOLD, "self.attempts -= ran_user_code  # neither", "pass  # neither"),
    Mutant("a refused event is applied all the same", FOLD, "        broken = rules.broken(self, event)\n        if broken is not None:\n            name",
           "        broken = rules.broken(self, event)\n        self._apply(event) if broken is not None else None\n        if broken is not None:\n            name"),
    Mutant("a claim may repeat its token", RULES, "event.attempt <= reader.attempt", "event.attempt < reader.attempt"),
    Mutant("a stale attempt may write", RULES, "if not held or event.attempt != reader.attempt:", "if not held:"),
    Mutant("an attempt may write after it ended", RULES, "if not held or event.attempt", "if held and event.attempt"),
    Mutant("any signal completes a wait", RULES, "if key != reader.wait.correlation_key:", "if False:"),
    Mutant("a failed job is reopened by nobody", RULES, "if reader.state is JobState.FAILED and not", "if False and not"),
    Mutant("history goes on after the end", RULES, "elif name in _HISTORY_NAMES and reader.state in TERMINAL_JOB_STATES:", "elif False:"),
    Mutant("a step commits twice", RULES, "    if node in reader.committed:\n        return Broken(\"E7\"", "    if False:\n        return Broken(\"E7\""),
    Mutant("a timed-out try commits late", RULES, "    if node in reader.failed:", "    if False:"),
    Mutant("a tool finishes undeclared", RULES, "if step is None or not step.tool:", "if False:"),
    Mutant("a due job is still retrying", SNAPSHOT, "now < self.not_before", "now <= self.not_before"),
    # one guard of the chain and the codec
    Mutant("an edit is not seen", CHAIN, "if event.hash != digest(event):", "if False:"),
    Mutant("a gap is not seen", CHAIN, "    if event.seq != seq:", "    if False:"),
    Mutant("a replaced event is not seen", CHAIN, "    if event.prev != prev:", "    if False:"),
    Mutant("a cut tail is not seen", CHAIN, "if head is not None and", "if False and"),
    Mutant("the time is not under the hash", EVENT, "event.attempt, event.at, payload", "event.attempt, 0.0, payload"),
    Mutant("the hash depends on key order", EVENT, '_encoder = msgspec.json.Encoder(order="sorted")', "_encoder = msgspec.json.Encoder()"),
    Mutant("a number that is none becomes null", EVENT, 'if b"null" in raw:', "if False:"),
    # one guard of the runs
    Mutant("a late cancel times out", RUNS, "if late and self._job.cancel is not None:", "if False:"),
    Mutant("a job failed unstarted skips running", RUNS, "        if self.runs[-1].status is RunStatus.QUEUED:\n            self._pass_to(RunStatus.RUNNING)\n\n", "        pass\n\n"),
    Mutant("a terminal record is touched again", RUNS, "        if self.runs[-1].status in TERMINAL_RUN_STATUSES:\n            return\n", ""),
    Mutant("success is not full progress", RUNS, "progress=1.0, ", ""),
    Mutant("a deadline is a plain failure", RUNS, 'late = payload.get("reason") == DEADLINE', "late = False"),
    # one guard of the monitor
    Mutant("pending is left in silence", MONITOR, "if not self._interval.woken:", "if False:"),
    Mutant("a stranger wakes", MONITOR, "if not registered:", "if False:"),
    Mutant("a wake outside pending passes", MONITOR, "if not open_intervals:", "if False:"),
    Mutant("a wake during the poll is lost", MONITOR, "for source, count in draft.wakes.items():", "for source, count in ():"),
    Mutant("an old wake does not wake", MONITOR, "waits = self._interval is not None and not self._interval.woken", "waits = self._interval is not None"),
    Mutant("sources shrink", MONITOR, "interval.sources |= reading.sources | draft.sources", "interval.sources = reading.sources"),
    Mutant("a new interval hides in the old one", MONITOR, "if interval is None or began_after_wake:", "if interval is None:"),
    Mutant("an error keeps the waiters asleep", MONITOR, "            wakers = self._take_wakers()\n        fire(wakers)\n\n    # Waking", "            wakers = []\n        fire(wakers)\n\n    # Waking"),
]  # fmt: skip


# The quickest to notice first; all of it runs where nothing is noticed.
SUITE = [
    "ready/test_monitor.py",
    *(
        f"machines/test_{name}.py"
        for name in ("tables", "table_building", "fold", "runs", "chain", "event", "every_stream")
    ),
    "ready/test_interleavings.py",
]


def run_suite(source: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests that a mutant must not survive, against the package in `source`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    environment |= {"PYTHONPATH": str(source), "HOLDFAST_PROOF_DEPTH": "6", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    suite = [str(ROOT / "tests" / name) for name in SUITE]
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options, *suite]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_the_suite_run_on_mutants_is_all_of_the_machines_tests_but_the_drawings() -> None:
    """The pages in docs/ are made from the package; comparing them would kill table mutants by a picture alone."""
    there = {
        f"{room}/{path.name}" for room in ("machines", "ready") for path in (ROOT / "tests" / room).glob("test_*.py")
    }
    assert set(SUITE) == there - {"machines/test_drawing.py"}


def copy_of_the_package(folder: Path) -> Path:
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "src"


def test_an_unchanged_copy_passes(tmp_path: Path) -> None:
    ran = run_suite(copy_of_the_package(tmp_path), tmp_path)
    assert ran.returncode == 0, ran.stdout[-2000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    source = copy_of_the_package(tmp_path)
    path = source / "holdfast" / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} does not hold this text once: {mutant.old}"
    path.write_text(text.replace(mutant.old, mutant.new))
    ran = run_suite(source, tmp_path)
    assert ran.returncode == 1, f"the suite did not notice: {mutant.name}\n{ran.stdout[-1500:]}{ran.stderr[-500:]}"
