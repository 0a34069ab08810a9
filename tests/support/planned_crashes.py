"""Random plans whose n-th commit goes wrong, for every n: what they give is what a sequential evaluation gives.

The stories of one plan are told at once, for they spend their time waiting; each has an app of its own name.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import App, Plan, RunFailed, RunHandle, StoreUnavailable
from holdfast.machines import Event
from holdfast.plans.node_history import NodeHistory
from holdfast.plans.node_states import NodeStates
from holdfast.store import ReleaseLeases, Store
from holdfast.store.memory import MemoryStore
from support.faults import FaultyStore
from support.planned import Evaluated, Witness, calculator, evaluated, needs_of, signals_of
from support.stories import drain, quick

AT_ONCE = 12  # stories that are told at once, each on a store of its own
AT_ONCE_ON_ONE = 4  # and on one that they share, where each worker hears of all that happens
MODES = ("crash", "not applied", "applied")


async def begin(app: App, data: dict[str, Any]) -> RunHandle:
    """Start the run, or find it, and send the first half of its signals."""
    entry = app.entries.get((app.name, "random")) or app.plan("random", Plan.from_dict(data))
    run: RunHandle = await entry.options(key="k").astart()
    await send(run, data, late=False)
    return run


async def send(run: RunHandle, data: dict[str, Any], *, late: bool) -> None:
    """Send every other signal of a plan; a repeat changes nothing."""
    for place, (key, payload) in enumerate(signals_of(data).items()):
        if place % 2 == late:
            await run.asignal(key, payload, id=f"s-{key}")


async def whole(run: RunHandle, app: App, data: dict[str, Any], witness: Witness) -> None:
    """Work until the run has ended: send what is missing, and answer for tools in doubt what is true of them."""
    await drain(app)
    await send(run, data, late=True)
    while True:
        await drain(app)
        if (await run.arecord()).finished_at is not None:
            return
        events = await run.aevents()
        doubtful, meant = sorted(NodeHistory(events).doubtful), evaluated(data, extensions(events))
        assert doubtful, "a run that does not end asks somebody"
        acted = doubtful[0] in witness.acted
        answer: dict[str, Any] = {"done": given_to(doubtful[0], meant)} if acted else {"not_done": True}
        await app.aresolve(run.id, doubtful[0], **answer)


def given_to(node: str, meant: Evaluated) -> Any:
    """What a tool gives, known by the name that events know it by."""
    name, _, item = node.partition(":")[2].partition("[")
    return meant.results[name][int(item.rstrip("]"))] if item else meant.results[name]


async def until_it_fails(name: str, faulty: FaultyStore, data: dict[str, Any], witness: Witness) -> list[ReleaseLeases]:
    """Play the story on a store that fails once, as one process that dies if it is to; its workers, to be buried."""
    app = calculator(faulty, quick("memory:"), witness, name)
    first, second = app.worker(), app.worker()

    async def told() -> None:
        run = await again_and_again(lambda: begin(app, data))
        await first.arun(until_idle=True)
        await again_and_again(lambda: send(run, data, late=True))
        await second.arun(until_idle=True)

    async def again_and_again(work: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await work()
            except StoreUnavailable:
                if faulty.crashed:
                    raise

    telling = asyncio.create_task(told())
    gone = asyncio.create_task(faulty.gone.wait())
    await asyncio.wait([telling, gone], return_when=asyncio.FIRST_COMPLETED)
    for task in (telling, gone):
        task.cancel()
    ended, _ = await asyncio.gather(telling, gone, return_exceptions=True)
    if isinstance(ended, Exception) and not faulty.crashed:
        raise ended
    return [ReleaseLeases(one._worker.name) for one in (first, second) if one._worker is not None]


async def survive(name: str, store: Store, faulty: FaultyStore, data: dict[str, Any]) -> None:
    """Have one commit go wrong, then another process do the rest; look whether all is as it should be."""
    witness = Witness()
    await store.commit(await until_it_fails(name, faulty, data, witness))
    app = calculator(store, quick("memory:"), witness, name)
    run = await begin(app, data)
    taken = extensions(await run.aevents())
    await whole(run, app, data, witness)
    meant = await as_evaluated(run, data)
    assert extensions(await run.aevents())[: len(taken)] == taken, "what was decided stays so"
    # A step that was added may have been called, and the record of its extension lost; a tool may not.
    refused = {f"{one['id']}_one" for one in data["nodes"] if one.get("call") == "grow" and one["id"] in meant.fails}
    assert set(meant.calls) <= set(witness.called) <= set(meant.calls) | refused
    twice = [node for node, count in Counter(witness.acted).items() if count > 1]
    assert not twice, f"these tools have acted twice: {twice}"
    none = [node for node in witness.acted if meant.states.get(node.partition(":")[2].partition("[")[0]) != "done"]
    assert not none, f"these tools have acted for nodes that there are not: {none}"
    assert await app.averify(run.id) == {}


def extensions(events: list[Event]) -> list[str]:
    """The nodes whose extensions were decided of, in this order."""
    named = [event.payload.get("node") or "" for event in events if event.type == "value_recorded"]
    return [node.removeprefix("extension:") for node in named if node.startswith("extension:")]


async def as_evaluated(run: RunHandle, data: dict[str, Any]) -> Evaluated:
    """The run gave what the plan means, extended as was decided, and its events say the same of every node."""
    events = await run.aevents()
    meant = evaluated(data, extensions(events))
    try:
        gave = await run.aresult(timeout=60)
        assert not meant.fails, "it was to fail"
        assert gave == meant.gives
    except RunFailed as error:
        assert meant.fails, f"it was not to fail: {error}"
        assert f"{len(meant.fails)} of {len(meant.nodes)} nodes" in str(error)
    course = NodeStates(Plan.from_dict(data), NodeHistory(events))
    assert course.states == meant.states
    grown = {node["id"] for node in data["nodes"] if node.get("call") == "grow"}
    results = {name: course.results[name] for name in meant.results if name not in grown}
    assert results == {name: result for name, result in meant.results.items() if name not in grown}
    in_order(events, meant)
    return meant


def in_order(events: list[Event], meant: Evaluated) -> None:
    """Every call began after all calls that it depends on had ended."""
    calls = {node["id"]: node for node in meant.nodes if node["kind"] == "call"}
    seen: set[str] = set()
    for event in events:
        node = (event.payload.get("node") or "").partition(":")[2].partition("[")[0].partition(":")[0]
        if event.type in {"node_started", "tool_invocation_started"}:
            one = next(one for one in meant.nodes if one["id"] == node)
            before = {name for name in needs_of(one, meant.nodes) & set(calls) if meant.states[name] == "done"}
            assert before <= seen, f"{node} began before {before - seen}"
        elif event.type in {"command_committed", "tool_invocation_finished"}:
            seen.add(node)


async def at_every_commit(store: Store | None, data: dict[str, Any], mode: str) -> int:
    """Have commit 1, 2, 3, … go wrong, up to the last there is, each in memory or all on one store; how many did."""
    tried, at_once = 0, AT_ONCE if store is None else AT_ONCE_ON_ONE
    for first in itertools.count(1, at_once):
        outcomes = await asyncio.gather(
            *(_at(n, store or MemoryStore(), data, mode) for n in range(first, first + at_once))
        )
        tried += sum(outcomes)
        if not all(outcomes):
            return tried
    raise AssertionError("counting has no end")


async def _at(n: int, store: Store, data: dict[str, Any], mode: str) -> bool:
    faulty = FaultyStore(store, n, mode)
    try:
        await survive(f"calc{n}", store, faulty, data)
    except Exception as error:
        error.add_note(f"{data['name']}, {len(data['nodes'])} nodes, {mode} at commit {n}")
        raise
    return faulty.failed
