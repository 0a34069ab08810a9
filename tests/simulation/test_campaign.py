"""Long campaigns of the simulator: no failure ends one, its record continues, and its page tells what happened."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.simulation import campaign as campaigns
from support.simulation import record as records
from support.simulation.campaign import CHUNK, Failure, Tally, campaign, checked, shared, undisturbed
from support.simulation.network import finished_with_threads
from support.simulation.record import Record, begun_or_continued, load
from support.simulation.scenario import JobSpec, ProcessSpec, Scenario
from support.simulation.tally_page import HEADING, campaign_of, part_of, with_campaign
from support.simulation.world import Outcome

DEADLY = CHUNK + 1  # a seed whose process dies


def test_a_simulation_that_raises_fails_its_seed_and_the_others_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(scenario: Scenario) -> Outcome:
        if scenario.seed == 1:
            raise RuntimeError("no running event loop")
        return checked(scenario)

    monkeypatch.setattr(campaigns, "checked", raising)
    tally = campaign(range(3))
    assert tally.seeds == 3
    assert [(failure.seed, failure.rules) for failure in tally.failures] == [(1, ["simulator"])]
    assert "no running event loop" in tally.failures[0].text


def deadly(seeds: range) -> Tally:
    """Play seeds in a process that dies at one of them."""
    if DEADLY in seeds:
        os._exit(1)
    return Tally(seeds=len(seeds))


def test_a_process_that_dies_fails_its_seed_and_the_others_are_played() -> None:
    parts = list(shared(range(2 * CHUNK + 1), 1, deadly))
    assert [part.seeds for part in parts] == [CHUNK, CHUNK, 1]
    assert [failure.seed for part in parts for failure in part.failures] == [DEADLY]


def test_what_the_simulator_runs_may_use_threads() -> None:
    """The rules of a long stream are checked in one."""

    async def work() -> int:
        return await asyncio.to_thread(sum, [1, 2])

    assert finished_with_threads(work()) == 3


def test_a_job_that_is_started_after_all_others_have_ended_is_waited_for() -> None:
    jobs = [JobSpec(at=at, entry="program", ops=[["double", 1]]) for at in (0.0, 20.0)]
    with undisturbed():
        outcome = checked(Scenario(seed=1, processes=[ProcessSpec()], jobs=jobs))
    assert outcome.violations == []
    assert outcome.counts["jobs succeeded"] == 2


def record_of(tally: Tally) -> Record:
    return Record(datetime(2027, 1, 1, tzinfo=UTC), "abc", "a machine", 100, 300, 60.0, tally)


def test_a_campaign_that_was_stopped_continues_from_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "commit", lambda: "abc")
    path = tmp_path / "record.json"
    assert begun_or_continued(path, 100, 300).tally == Tally()
    failure = Failure(102, ["E1"], "E1: it has acted twice")
    record = record_of(Tally(150, 3.0, 9.0, Counter(jobs=600), [failure]))
    record.save(path)
    assert begun_or_continued(path, 100, 300) == load(path) == record


@pytest.mark.parametrize(("commit", "first", "asked"), [("abd", 100, 300), ("abc", 101, 300), ("abc", 100, 301)])
def test_a_record_of_other_seeds_or_of_other_code_is_refused(
    commit: str, first: int, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "commit", lambda: commit)
    record_of(Tally()).save(tmp_path / "record.json")
    with pytest.raises(ValueError, match="name another file"):
        begun_or_continued(tmp_path / "record.json", first, asked)


def test_the_page_tells_what_a_campaign_has_done_and_what_has_failed() -> None:
    counts = Counter({"jobs": 1200, "faults: crash": 30, "ticks fired": 4, "ticks missed": 1})
    failures = [Failure(101, ["E1"], "E1: a|b"), Failure(102, ["log"], "log: c")]
    part = part_of(record_of(Tally(300, 6.0, 7200.0, counts, failures)), "def", {101: "a tool acted twice"})
    assert "- code: def\n- duration: 1 minutes, 200 jobs per second of CPU\n" in part
    assert "| seeds that broke a rule | 2 |" in part
    assert "| processes killed at a random time | 30 |" in part
    assert "| ticks of schedules | 5 |" in part
    assert "| 101 | `E1: a\\|b` | repaired: a tool acted twice |\n| 102 | `log: c` | open |\n" in part


def test_a_campaign_without_failures_says_so() -> None:
    assert "No seed has broken a rule." in part_of(record_of(Tally(300)), "def", {})


def test_a_new_nightly_run_keeps_the_campaign_and_a_new_campaign_keeps_the_nightly_run() -> None:
    old, new = f"{HEADING}\n\nold\n", f"{HEADING}\n\nnew\n"
    assert campaign_of("# Tally\n") == ""
    page = with_campaign("# Tally\n", old)
    assert page == f"# Tally\n\n{old}"
    assert campaign_of(page) == old
    assert with_campaign(page, new) == f"# Tally\n\n{new}"
    assert with_campaign(page, "") == "# Tally\n"
