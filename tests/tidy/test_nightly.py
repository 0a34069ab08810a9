"""The nightly run: its parts, and the page that it writes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

from support.scripts import ROOT, load

nightly = load(ROOT / "tools" / "nightly.py")
FACTS = {"date": "2027-01-01", "commit": "abc"}


def test_the_page_has_a_row_for_each_part_and_the_totals() -> None:
    outcomes = {
        "torture-sqlite": nightly.Outcome(Counter(seeds=2, kills=1500, restarts=1500, runs=90, tools=180), 60.0, ""),
        "plans": nightly.Outcome(Counter(seeds=3, faults=40, runs=40), 30.0, ""),
    }
    page = nightly.page_of(outcomes, seed=7, facts=FACTS)
    assert "| torture-sqlite | 2 | 1,500 | 1,500 | – | 90 | 180 | 0 | 0 | 1.0 |" in page
    assert "| **all** | 5 | 1,500 | 1,500 | 40 | 130 | 180 | 0 | 0 | 1.5 |" in page
    assert "- commit: abc\n- first seed: 7\n" in page
    assert "## Failures" not in page


def test_a_part_that_fails_is_on_the_page_with_its_reason() -> None:
    outcomes = {"plans": nightly.Outcome(Counter(seeds=1), 30.0, "AssertionError: lost 3 seed 9")}
    page = nightly.page_of(outcomes, seed=7, facts=FACTS)
    assert "| plans | 1 | – | – | – | – | – | FAILED | FAILED | 0.5 |" in page
    assert "## Failures\n\n- plans: `AssertionError: lost 3 seed 9`" in page
    assert "| see below | see below |" in page


def test_a_process_that_fails_is_a_failure_with_its_last_lines() -> None:
    code = "print('{\"seeds\": 1, \"kills\": 2}'); print('noise'); raise AssertionError('lost 3')"
    outcome = nightly.run_command([sys.executable, "-c", code], 0)
    assert outcome.counts == Counter(seeds=1, kills=2)
    assert "AssertionError: lost 3" in outcome.failure


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "OVERTIME_SECONDS", 0.2)
    code = "import threading; threading.Event().wait()"
    outcome = nightly.run_command([sys.executable, "-c", code], 0)
    assert "it did not end" in outcome.failure


def test_a_run_of_no_time_is_refused() -> None:
    ran = subprocess.run(
        [sys.executable, "tools/nightly.py", "all"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (ran.returncode, ran.stderr) == (1, "HOURS or MINUTES must be more than 0\n")


def test_the_committed_page_is_of_a_real_run_in_which_nothing_was_lost() -> None:
    page = (ROOT / "docs" / "tally.md").read_text()
    rows = set(re.findall(r"^\| ([\w-]+) \| [\d–]", page, re.MULTILINE))
    assert {row.partition("-")[0] for row in rows} >= {"torture", "races", "plans", "programs", "limits", "ticks"}
    assert re.search(r"^- commit: [0-9a-f]{12}$", page, re.MULTILINE)
    assert re.search(r"^- duration: \d+ minutes", page, re.MULTILINE)
    assert re.search(r"^\| \*\*all\*\* \|.*\| 0 \| 0 \| [\d.]+ \|$", page, re.MULTILINE)
