"""Processes that advance schedules are killed at random: every tick has one outcome, every fired tick one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.killed_schedules import killed_year
from support.stories import play


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_processes_that_are_killed_give_every_tick_one_outcome(backend: str, tmp_path: Path) -> None:
    tally = play(killed_year(backend, tmp_path, days=20, steps=8, processes=3, seed=7))
    assert tally.kills == 6
    assert tally.schedules == 15
    assert {"fired", "missed none", "skipped overlap", "skipped excluded"} <= {*tally.outcomes}
    # Schedules went on after runs had ended. How often depends on the machine: a slow one skips more for overlap.
    assert tally.fired > tally.schedules
