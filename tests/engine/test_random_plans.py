"""Random plans of all kinds of nodes, up to 60, give what a sequential evaluation gives, whatever crashes (E11)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast import App, Plan, StoreUnavailable
from holdfast.machines import Event
from holdfast.plans.graph import Graph
from holdfast.plans.past import Past
from holdfast.plans.states import Course
from holdfast.store import Bury, Store
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SqliteStore
from support.faults import FaultyStore
from support.planned import calculator, evaluated, needs_of, plans
from support.postgres import fresh_schema, server
from support.stories import drain, play, quick

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def store_of(backend: str, path: Path) -> Store:
    match backend:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(path)
        case _:
            return PostgresStore(server().url, fresh_schema())


def usable(data: dict[str, Any]) -> bool:
    """Whether sums and choices meet numbers only: a skipped number is null, which no step of the calculator takes."""
    nodes = data["nodes"]
    _, skipped, _ = evaluated_or_none(data) or ({}, {"?"}, [])
    if "?" in skipped:
        return False
    return not any(
        node["id"] not in skipped and node.get("needs") == "any" and (needs_of(node, nodes) & skipped)
        and node["kind"] != "sleep" and node["kind"] != "wait"
        for node in nodes
    )  # fmt: skip


def evaluated_or_none(data: dict[str, Any]) -> tuple[dict[str, Any], set[str], list[str]] | None:
    try:
        return evaluated(data)
    except (StopIteration, TypeError):
        return None


def settled(data: dict[str, Any]) -> dict[str, Any]:
    """The plan, with nodes that would meet a skipped one's null made to need all of what they depend on."""
    while not usable(data) and any("needs" in node for node in data["nodes"]):
        next(node for node in data["nodes"] if "needs" in node).pop("needs")
    return data


async def answer(app: App) -> None:
    """Answer for tools in doubt: none of them has acted."""
    for record in await app.alist():
        past = Past(await app.aevents(record.run_id))
        if record.finished_at is None:
            for node in past.doubtful:
                await app.aresolve(record.run_id, node, not_done=True)
                break


def in_order(events: list[Event], plan: Plan) -> None:
    """Every call began after everything that it depends on had ended."""
    graph = Graph(plan.nodes)
    seen: set[str] = set()
    for event in events:
        node = (event.payload.get("node") or "").partition(":")[2].partition("[")[0].partition(":")[0]
        if event.type in {"node_started", "tool_invocation_started"}:
            calls = {name for name in graph.needs[node] if type(graph.nodes[name]).__name__ == "CallNode"}
            skipped = {name for name, state in Course(plan, Past(events)).states.items() if state == "skipped"}
            assert calls - skipped <= seen, f"{node} began before {calls - seen}"
        elif event.type in {"command_committed", "tool_invocation_finished"}:
            seen.add(node)


async def story(store: Store, data: dict[str, Any]) -> None:
    witness: list[str] = []
    app = calculator(store, quick("memory:"), witness)
    entry = app.plan("random", Plan.from_dict(data))
    results, skipped, calls = evaluated(data)
    run = await entry.astart()
    for node in data["nodes"]:
        if node["kind"] == "wait":
            await run.asignal(node["key"], int(node["key"].removeprefix("key")))
    await drain(app)
    events = await run.aevents()
    course = Course(Plan.from_dict(data), Past(events))
    gave = await run.aresult(timeout=10)
    assert gave == {name: results[name] for name in gave}
    assert {name: course.results[name] for name in results} == results
    assert {name for name, state in course.states.items() if state == "skipped"} == skipped
    assert {name for name, state in course.states.items() if state == "done"} == set(results)
    assert Counter(witness) == Counter(calls), "every node is called once, and no other is"
    in_order(events, Plan.from_dict(data))
    assert await app.averify() == {}


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
@given(data=plans())
def test_a_random_plan_gives_what_a_sequential_evaluation_gives(data: dict[str, Any]) -> None:
    play(story(MemoryStore(), settled(data)))


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_random_plans_mean_the_same_on_every_store(backend: str, tmp_path: Path) -> None:
    numbers = iter(range(1000))

    @settings(max_examples=6, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate], derandomize=True)
    @given(data=plans(25))
    def try_one(data: dict[str, Any]) -> None:
        async def closing() -> None:
            store = store_of(backend, tmp_path / f"{next(numbers)}.db")
            try:
                await story(store, settled(data))
            finally:
                await store.close()

        play(closing())

    try_one()


async def survive(store: Store, faulty: FaultyStore, data: dict[str, Any]) -> None:
    witness: list[str] = []

    async def begin(app: App) -> Any:
        run = await app.plan("random", Plan.from_dict(data)).options(key="k").astart()
        for node in data["nodes"]:
            if node["kind"] == "wait":
                await run.asignal(node["key"], int(node["key"].removeprefix("key")), id=f"s-{node['id']}")
        return run

    app = calculator(faulty, quick("memory:", lease_seconds=0.2), witness)
    while not faulty.crashed:
        try:
            await begin(app)
            break
        except (StoreUnavailable, ValueError):
            app.entries.pop(("calc", "random"))
    worker = app.worker()
    working = asyncio.create_task(worker.arun(until_idle=True))
    while not faulty.crashed and not working.done():
        await asyncio.wait([working], timeout=0.01)
    working.cancel()
    await asyncio.wait([working])
    if worker._worker is not None:
        await store.commit([Bury(worker._worker.name)])
    again = calculator(store, quick("memory:", lease_seconds=0.2), witness)
    run = await begin(again)
    for _ in range(6):
        await drain(again)
        await answer(again)
    gave = await run.aresult(timeout=10)
    results, _, calls = evaluated(data)
    assert gave == {name: results[name] for name in gave}
    assert set(witness) == set(calls)
    assert await again.averify() == {}


MIXED = {
    "name": "mixed",
    "limit": 2,
    "nodes": [
        {"id": "a", "kind": "call", "call": "add", "args": {"name": "a", "numbers": [20]}},
        {"id": "b", "kind": "call", "call": "act", "args": {"name": "b", "numbers": [{"$ref": "a"}]}},
        {"id": "c", "kind": "call", "call": "spread", "args": {"name": "c", "number": {"$ref": "b"}}},
        {"id": "m", "kind": "map", "over": {"$ref": "c"}, "call": "add",
         "args": {"name": "m", "numbers": [{"$ref": "item"}]}},
        {"id": "w", "kind": "wait", "key": "key5", "after": ["a"]},
        {"id": "s", "kind": "sleep", "duration": 0, "after": ["a"]},
        {"id": "j", "kind": "job", "job": "half", "args": {"name": "j", "number": {"$ref": "w"}}},
        {"id": "o", "kind": "choice", "value": {"$ref": "b"}, "cases": [{"above": 100, "then": ["x"]}], "else": ["y"]},
        {"id": "x", "kind": "call", "call": "act", "args": {"name": "x", "numbers": []}},
        {"id": "y", "kind": "call", "call": "act", "args": {"name": "y", "numbers": [{"$ref": "j"}]}},
    ],
}  # fmt: skip
GIVES = {"m": [1, 2, 3], "s": None, "y": 4}


async def survive_mixed(store: Store, faulty: FaultyStore) -> None:
    witness: list[str] = []

    async def begin(app: App) -> Any:
        entry = app.entries.get(("calc", "mixed")) or app.plan("mixed", Plan.from_dict(MIXED))
        run = await entry.options(key="k").astart()
        await run.asignal("key5", 5, id="s5")
        return run

    app = calculator(faulty, quick("memory:", lease_seconds=0.2), witness)
    begun = None
    while begun is None and not faulty.crashed:
        try:
            begun = await begin(app)
        except StoreUnavailable:
            continue
    worker = app.worker()
    working = asyncio.create_task(worker.arun(until_idle=True))
    while not faulty.crashed and not working.done():
        await asyncio.wait([working], timeout=0.01)
    working.cancel()
    await asyncio.wait([working])
    if worker._worker is not None:
        await store.commit([Bury(worker._worker.name)])
    again = calculator(store, quick("memory:", lease_seconds=0.2), witness)
    run = await begin(again)
    for _ in range(4):
        await drain(again)
        for node in Past(await run.aevents()).doubtful if (await run.arecord()).finished_at is None else ():
            acted = node.partition(":")[2] in witness
            results = {"b": 23, "y": 4}
            answered = {"done": results[node.partition(":")[2]]} if acted else {"not_done": True}
            await again.aresolve(run.id, node, **answered)
            break
    assert await run.aresult(timeout=10) == GIVES
    tools = [name for name in witness if name in {"b", "x", "y"}]
    assert sorted(tools) == ["b", "y"], f"each tool acts once, and the one that was not chosen never: {tools}"
    assert await again.averify() == {}


@pytest.mark.parametrize("mode", ["crash", "not applied", "applied"])
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_fault_at_any_commit_changes_nothing_of_what_a_plan_gives(backend: str, mode: str, tmp_path: Path) -> None:
    n, failed = 0, True
    while failed:
        n += 1
        inner = store_of(backend, tmp_path / f"{n}.db")
        faulty = FaultyStore(inner, n, mode)

        async def closing(inner: Store, faulty: FaultyStore) -> None:
            try:
                await survive_mixed(inner, faulty)
            finally:
                await inner.close()

        play(closing(inner, faulty))
        failed = faulty.failed
    assert n > 8, "the story has at least eight commits to fail"


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
@given(data=plans(20), fail_at=st.integers(1, 12), mode=st.sampled_from(["crash", "not applied", "applied"]))
def test_a_random_plan_with_a_random_fault_gives_the_same(data: dict[str, Any], fail_at: int, mode: str) -> None:
    inner = MemoryStore()
    play(survive(inner, FaultyStore(inner, fail_at, mode), settled(data)))


def test_the_plans_that_are_tried_have_every_kind_of_node() -> None:
    kinds: set[str] = set()

    @settings(max_examples=80, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate], derandomize=True)
    @given(data=plans())
    def look(data: dict[str, Any]) -> None:
        kinds.update(node["kind"] for node in data["nodes"])
        Plan.from_dict(data)

    look()
    assert kinds == {"call", "wait", "sleep", "job", "map", "choice"}
