"""Seeds of the simulator: no rule is broken, a seed repeats exactly, and a failure is shrunk (SPEC section 6)."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from support.scripts import ROOT
from support.simulation.bugs import BUGS, Bug, hunt, places_of
from support.simulation.campaign import campaign, checked, undisturbed
from support.simulation.scenario import FaultSpec, JobSpec, ProcessSpec, Scenario, drawn
from support.simulation.shrink import shrink

SEEDS = 2000
PART = 125  # seeds of one test, so that the processes of pytest share them
COMPARED = range(12)  # seeds whose traces are compared

FOUND = tomllib.loads(Path(__file__).with_name("found.toml").read_text())["scenario"]


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_no_seed_breaks_a_rule(first: int) -> None:
    failures = campaign(range(first, first + PART)).failures
    repeat = [f"python tools/simulate.py --seed {failure.seed}  # {failure.text}" for failure in failures]
    assert not failures, "\n".join(repeat)


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found["name"])
def test_a_scenario_that_once_failed_passes(found: dict[str, str]) -> None:
    with undisturbed():
        assert checked(msgspec.json.decode(found["json"], type=Scenario)).violations == []


def traces(seeds: range) -> list[str]:
    with undisturbed():
        return ["\n".join([*(outcome := checked(drawn(seed), tracing=True)).trace, outcome.digest]) for seed in seeds]


def test_a_seed_gives_the_same_trace_each_time() -> None:
    first, second = traces(COMPARED), traces(COMPARED)
    assert first == second
    assert len(set(first)) == len(COMPARED), "each seed is another story"


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    """Text has other hashes there, so that sets have another order."""
    code = "from simulation.test_seeds import COMPARED, traces; print('\\n'.join(traces(COMPARED)))"
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert ran.stdout.rstrip("\n") == "\n".join(traces(COMPARED))


def test_a_scenario_is_data_and_can_be_written_down() -> None:
    for seed in range(50):
        scenario = drawn(seed)
        assert msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario) == scenario


def test_a_failure_is_shrunk_to_the_parts_that_it_needs() -> None:
    """The rule here is one of the test: a job acts, and its process crashes."""
    scenario = Scenario(
        seed=1,
        latency=0.05,
        notice_loss=0.3,
        processes=[ProcessSpec(skew=12.0), ProcessSpec()],
        jobs=[
            JobSpec(at=0.0, entry="program", ops=[["double", 1], ["wait", "k0", 2.0]]),
            JobSpec(at=0.0, entry="program", ops=[["sleep", 1.0], ["act", 2], ["value"]], priority=1),
        ],
        faults=[FaultSpec(kind="pause", at=1.0, seconds=2.0), FaultSpec(kind="crash", at=2.0, seconds=1.0)],
    )

    def rules(tried: Scenario) -> set[str]:
        crashes = any(fault.kind == "crash" for fault in tried.faults)
        acts = any(op[0] == "act" for job in tried.jobs for op in job.ops)
        return {"E1"} if crashes and acts else set()

    small = shrink(scenario, rules)
    assert [fault.kind for fault in small.faults] == ["crash"]
    assert [op[0] for op in small.jobs[-1].ops] == ["act"]
    assert (small.latency, small.notice_loss, len(small.processes)) == (0.0, 0.0, 1)
    assert rules(small) == {"E1"}


def test_every_change_of_a_bug_has_one_place() -> None:
    assert {bug.name: set(places_of(bug)) for bug in BUGS} == {bug.name: {1} for bug in BUGS}


ALL_BUGS = bool(os.environ.get("HOLDFAST_ALL_BUGS"))


@pytest.mark.parametrize("bug", BUGS if ALL_BUGS else BUGS[::8], ids=lambda bug: bug.name)
def test_the_simulator_finds_a_bug(bug: Bug, tmp_path: Path) -> None:
    found = hunt(bug, tmp_path)
    assert found.seeds is not None, f"the simulator did not notice: {bug.name}\n{found.text}"
