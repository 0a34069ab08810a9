"""Every scenario ends the same and acts the same: live, replayed after every wait, and with a crash at any commit.

By default everything runs in memory, with a few crash points of each scenario, and a part of it on the other stores.
``make scenarios`` tries every crash point, on the store that is named.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

import scenarios  # noqa: F401 - its modules register them
from support.scenario_runs import crashes, once
from support.scenarios import SECONDS, live, play_scenario, registered, replay_checked, replayed

EVERYTHING = bool(os.environ.get("HOLDFAST_SCENARIOS"))
ALL = registered()
Cases = list[tuple[str, str]]
CASES: Cases = [(name, backend) for name, one in ALL.items() for backend in one.stores]
CRASH_POINTS = None if EVERYTHING else 3


def part(cases: Cases, **one_of: int) -> Cases:
    """Leave out, on the stores named, all but one of so many scenarios; the same ones each time."""
    return [
        (name, backend)
        for name, backend in cases
        if EVERYTHING or zlib.crc32(f"{name} {backend}".encode()) % one_of.get(backend, 1) == 0
    ]


@pytest.mark.parametrize(("name", "backend"), part(CASES, postgres=2))
def test_live(name: str, backend: str, tmp_path: Path) -> None:
    play_scenario(lambda: once(ALL[name], backend, tmp_path, live))


@pytest.mark.parametrize(("name", "backend"), part(CASES, sqlite=2, postgres=4))
def test_replayed_after_every_wait(name: str, backend: str, tmp_path: Path) -> None:
    play_scenario(lambda: once(ALL[name], backend, tmp_path, replayed))


@pytest.mark.parametrize(("name", "backend"), part([c for c in CASES if ALL[c[0]].crashes], sqlite=4, postgres=8))
def test_a_crash_at_any_commit_changes_nothing(name: str, backend: str, tmp_path: Path) -> None:
    play_scenario(lambda: crashes(ALL[name], backend, tmp_path, CRASH_POINTS), 10 * SECONDS, quiet=False)


@pytest.mark.parametrize("name", [one.name for one in ALL.values() if one.can_be_replay_checked])
def test_the_whole_history_fits_the_code_that_made_it(name: str, tmp_path: Path) -> None:
    play_scenario(lambda: once(ALL[name], "memory", tmp_path, replay_checked))
