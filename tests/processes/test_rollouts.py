"""A rolling deploy under load on PostgreSQL, forward and back, with workers killed: every run ends, no tool twice.

`make deploys` does the same for as many rounds as asked.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.postgres import fresh_url
from support.rollout import roll_out


def test_a_rolling_deploy_forward_and_back_loses_no_run_and_repeats_no_tool(tmp_path: Path) -> None:
    tally = asyncio.run(roll_out(tmp_path, fresh_url(), rounds=2, count=4, seed=7))
    assert (tally.runs, tally.rounds) == (28, 2)
    assert tally.handed_over + tally.asked > 0, "some runs did not fit"
    assert tally.new_side > 0
