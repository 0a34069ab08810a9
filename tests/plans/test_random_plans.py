"""Random plans of up to 60 nodes of all kinds return what a sequential evaluation returns, despite crashes (E11)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import strategies as st

from holdfast import Plan
from holdfast.store import Store
from holdfast.store.memory import MemoryStore
from support.faults import closing, store_of
from support.planned import NODES_MAX, Witness, calculator, evaluated, random_plan, signals_of
from support.planned_crashes import MODES, as_evaluated, at_every_commit
from support.stories import drain, play, quick
from support.timeless import given, settings

SEEDS = st.integers(0, 2**32 - 1)
FEWEST = 4  # commits of any run: it is asked for, claimed, ended, and the worker leaves


async def story(store: Store, data: dict[str, Any]) -> None:
    witness = Witness()
    app = calculator(store, quick("memory:"), witness)
    run = await app.plan("random", Plan.from_dict(data)).astart()
    for key, payload in signals_of(data).items():
        await run.asignal(key, payload)
    await drain(app)
    meant = await as_evaluated(run, data)
    assert Counter(witness.called) == Counter(meant.calls), "every node is called once, and no other is"
    assert await app.averify() == {}


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(seed=SEEDS)
def test_a_random_plan_gives_what_a_sequential_evaluation_gives(seed: int) -> None:
    play(story(MemoryStore(), random_plan(seed)))


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_random_plans_mean_the_same_on_every_store(backend: str, tmp_path: Path) -> None:
    for seed in range(6):
        store = store_of(backend, tmp_path / f"{seed}.db")
        play(closing(store, story(store, random_plan(seed, 25))))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(seed=SEEDS)
def test_a_fault_at_every_commit_of_a_random_plan_changes_nothing_of_what_it_gives(mode: str, seed: int) -> None:
    assert play(at_every_commit(None, random_plan(seed, 20), mode)) >= FEWEST


@pytest.mark.parametrize(("backend", "seed"), [("sqlite", 6), ("postgres", 11)])
def test_a_crash_at_every_commit_of_a_random_plan_changes_nothing_on_any_store(
    backend: str, seed: int, tmp_path: Path
) -> None:
    play(everywhere(store_of(backend, tmp_path / "jobs.db"), random_plan(seed, 8), "crash"))


async def everywhere(store: Store, data: dict[str, Any], mode: str) -> None:
    async def told() -> None:
        assert await at_every_commit(store, data, mode) >= FEWEST
        assert await calculator(store, quick("memory:"), Witness()).averify() == {}

    await closing(store, told())


MIXED = {
    "name": "mixed",
    "limit": 2,
    "nodes": [
        {"id": "a", "kind": "call", "call": "add", "args": {"name": "a", "numbers": [20]}},
        {"id": "b", "kind": "call", "call": "act", "args": {"name": "b", "numbers": [{"$ref": "a"}]}},
        {"id": "c", "kind": "call", "call": "spread", "args": {"name": "c", "number": {"$ref": "b"}}},
        {"id": "m", "kind": "map", "over": {"$ref": "c"}, "call": "add",
         "args": {"name": "m", "numbers": [{"$ref": "item"}, {"$ref": "index"}]}},
        {"id": "w", "kind": "wait", "key": "key5", "after": ["a"]},
        {"id": "s", "kind": "sleep", "duration": 0, "after": ["a"]},
        {"id": "j", "kind": "job", "job": "half", "args": {"name": "j", "number": {"$ref": "w"}}},
        {"id": "o", "kind": "choice", "value": {"$ref": "b"}, "cases": [{"above": 100, "then": ["x"]}], "else": ["y"]},
        {"id": "x", "kind": "call", "call": "act", "args": {"name": "x", "numbers": []}},
        {"id": "y", "kind": "call", "call": "act", "args": {"name": "y", "numbers": [{"$ref": "j"}]}},
    ],
}  # fmt: skip
GIVES = {"m": [1, 3, 5], "s": None, "y": 4}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_fault_at_any_commit_changes_nothing_of_what_a_plan_gives(backend: str, mode: str, tmp_path: Path) -> None:
    assert evaluated(MIXED).gives == GIVES
    play(everywhere(store_of(backend, tmp_path / "jobs.db"), MIXED, mode))


def growing(name: str, **how: Any) -> dict[str, Any]:
    return {"id": name, "kind": "call", "call": "grow", "args": {"name": name, "number": 7, "how": how}}


FIRST = growing("first", says=True, shared="s0", rings=True)
SECOND = growing("second", says=True, behind="first_bell", rings=True)
REFERRING = growing("second", says=True, behind="first_bell", refers="s0", rings=True)
THIRD = growing("third", says=True, behind="second_bell", shared="s0")
RACES = {  # later ones are listed before earlier ones: a replay, which waits for none, returns them in this order
    "returns": {"name": "returns", "nodes": [SECOND, FIRST]},
    "collides": {"name": "collides", "nodes": [THIRD, REFERRING, FIRST]},
}


@pytest.mark.parametrize(
    ("backend", "mode"), [*(("memory", mode) for mode in MODES), ("sqlite", "crash"), ("postgres", "crash")]
)
@pytest.mark.parametrize("race", RACES)
def test_a_fault_at_any_commit_changes_nothing_of_which_extension_counts(
    race: str, backend: str, mode: str, tmp_path: Path
) -> None:
    """Of two extensions that set the output, the later wins; of two with the same id, the earlier. Permanently."""
    meant = evaluated(RACES[race], ["first", "second", "third"][: len(RACES[race]["nodes"])])
    gives, fails = {"returns": (10, set()), "collides": (69, {"third"})}[race]
    assert (meant.gives, meant.fails) == ({"by": "second", "two": gives}, fails)
    play(everywhere(store_of(backend, tmp_path / "jobs.db"), RACES[race], mode))


def test_the_plans_that_are_tried_have_every_kind_of_node_and_every_end() -> None:
    plans = [random_plan(seed) for seed in range(80)]
    assert {node["kind"] for data in plans for node in data["nodes"]} == {
        "call", "wait", "sleep", "job", "map", "choice",
    }  # fmt: skip
    ends = Counter(state for data in plans for state in evaluated(data).states.values())
    assert set(ends) == {"done", "failed", "stopped", "skipped"}
    assert ends["done"] > sum(ends.values()) / 2, "most of what is tried is done"
    assert max(len(data["nodes"]) for data in plans) == NODES_MAX
    meant = [evaluated(data) for data in plans]
    assert sum(len(one.said) > 1 for one in meant) > len(plans) / 5, "several extensions say what the plan returns"
    refused = [one for one in meant for node in one.nodes if node.get("call") == "grow" and node["id"] in one.fails]
    assert len(refused) > len(plans) / 5, "extensions are refused for others"
