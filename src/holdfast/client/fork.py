"""Forks: a new run that reuses the results of another run up to a node or step, and repeats the rest.

The stream of the new job starts with the reused outcomes as its own events. They are written at its creation, under a
claim that runs no code. Its first attempt replays them like its own. The engine calls no reused step or tool again, and
it does not wait again for waits and children that have ended.

What can fail: the node or step does not exist, or there is no result to reuse. Then the call raises `InvalidArguments`
and starts nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.authoring.signature import fingerprint
from holdfast.errors import InvalidArguments, InvalidPlan
from holdfast.ids import new_id
from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.keys import BUILTIN, ENDED, EXTENSION, ended_name, is_reserved
from holdfast.plans.builder import Draft
from holdfast.plans.checker import Names, check_plan, problems
from holdfast.plans.graph import values_of
from holdfast.plans.model import MapNode, Plan, references
from holdfast.plans.node_history import CallStart, NodeEnd, NodeHistory, label
from holdfast.plans.node_states import SETTLED, NodeStates
from holdfast.store import Submit
from holdfast.store.rows import JobSpec

Written = tuple[str, dict[str, Any]]

# A fork has the facts of the first run, but a time, a key, a parent and a chain of its own.
_OWN = {
    "deadline",
    "idempotency_key",
    "parent",
    "parent_key",
    "trace_id",
    "continues",
    "first",
    "schedule",
    "tells_schedule",
}
_INHERITED = [name for name in JobSpec.__struct_fields__ if name not in _OWN]
_ENDED_WAIT = re.compile(rf"wait:(.*?)(?:(?<!#)#\d+)?{ENDED}", re.DOTALL)  # the end of a wait, with its key


async def fork_command(
    events: Sequence[Event],
    names: Names,
    from_node: str | None,
    from_step: str | None,
    plan: Plan | Draft | dict[str, Any] | None,
) -> Submit:
    """Build the command that creates the new job from the events of the first. See `Client.afork`."""
    other = Plan.from_dict(plan) if isinstance(plan, dict) else plan.plan() if isinstance(plan, Draft) else plan
    # In a thread: the check of a large plan would block the loop.
    return await asyncio.to_thread(forked, events, names, from_node, from_step, other)


def signals_after(events: Sequence[Event], step: str) -> list[tuple[str, str, Any]]:
    """List the signals that have ended waits of the code which a fork from a step does not reuse: id, key, payload."""
    cut = _cut(NodeHistory(events), step)
    found: list[tuple[str, str, Any]] = []
    for event in events[cut:]:
        ended: Any = event.payload
        key: Any = event.payload.get("correlation_key")
        if event.type == HistoryEvent.VALUE_RECORDED:  # the wait ended while its job ran
            ended, key = ended.get("value"), _key_of_wait(str(ended.get("node")))
        elif event.type != JobEvent.WAIT_COMPLETED:
            continue
        if isinstance(key, str) and not is_reserved(key) and ended.get("outcome") == "signal" and ended.get("signal"):
            found.append((ended["signal"], key, ended.get("payload")))
    return found


def _key_of_wait(name: str) -> str | None:
    """Return the key for which a wait of the code waited, from the name of the value that records its end."""
    wait = _ENDED_WAIT.fullmatch(name)
    return wait[1].replace("##", "#") if wait is not None else None


def forked(
    events: Sequence[Event], names: Names, from_node: str | None, from_step: str | None, plan: Plan | None
) -> Submit:
    """Build the command that creates the new job."""
    past = NodeHistory(events)
    created = past.created
    if created.get("plugin") == BUILTIN:  # a fork needs a smaller scope than the purge that it would repeat
        raise InvalidArguments("fork", f"a run of {BUILTIN}.{created.get('entry')} cannot be forked: start another one")
    if past.plan is None:
        if from_step is None or from_node is not None or plan is not None:
            raise InvalidArguments("fork", "the run has no plan: pass from_step=, a step or tool of its code")
        written = [event for _, event in sorted(_of_code(past, from_step), key=lambda pair: pair[0])]
        whole = None
    else:
        if from_step is not None or (from_node is None and plan is None):
            raise InvalidArguments("fork", "the run has a plan: pass from_node=, one of its nodes, or another plan=")
        whole = plan.to_dict() if plan is not None else past.plan
        if plan is not None:
            check_plan(plan, names)
            if missing := plan.not_given(created.get("args") or {}):
                raise InvalidPlan(plan.name, [f"input.{name}: the run has no such input" for name in missing])
        written = list(_of_plan(past, Plan.from_dict(whole), from_node))
    facts = {name: created[name] for name in _INHERITED if created.get(name) is not None}
    facts["fingerprint"] = fingerprint([events[0].job, created.get("args"), whole, from_node, from_step])
    facts["attributes"] = {**facts.get("attributes", {}), "forked_from": events[0].job}
    budget = created.get("budget")
    return Submit(job=new_id(), args=created.get("args"), budget=budget, plan=whole, past=tuple(written), **facts)


def _of_code(past: NodeHistory, step: str) -> Iterator[tuple[int, Written]]:
    """Yield everything that was recorded before the first call of a step, each with its position."""
    cut = _cut(past, step)
    for node, ended in past.ended.items():
        if ended.seq < cut:
            for event in _again(node, past.begun.get(node), ended):
                yield ended.seq, event
    for node, (seq, value) in past.values.items():
        if seq < cut:
            yield seq, (HistoryEvent.VALUE_RECORDED.value, {"node": node, "value": value})


def _cut(past: NodeHistory, step: str) -> int:
    """Return the position of the first call of a step."""
    calls = past.runs | {node: begun.seq for node, begun in past.begun.items()}
    calls |= {node: ended.seq for node, ended in past.ended.items() if ended.wait is not None}
    matches = [seq for node, seq in calls.items() if step in {node, node.partition(":")[0], _named(past, node)}]
    if not matches:
        raise InvalidArguments(
            "fork", f"the run has not called {step!r}; it called {', '.join(sorted(calls)) or 'nothing'}"
        )
    return min(matches)


def _named(past: NodeHistory, node: str) -> str:
    return past.begun[node].name if node in past.begun else node


def _of_plan(past: NodeHistory, plan: Plan, from_node: str | None) -> Iterator[Written]:
    """Yield the outcomes of all nodes that are equal, have succeeded, and depend on no repeated node."""
    assert past.plan is not None, "only of a run with a plan"
    was, now = NodeStates(Plan.from_dict(past.plan), past), NodeStates(plan, past)
    if from_node is not None and from_node not in now.states:
        raise InvalidArguments("fork", f"the plan has no node {from_node!r}; it has {', '.join(now.states)}")
    again = now.graph.descendants([*([from_node] if from_node is not None else []), *_with_other_inputs(was, now)])
    reused, settled = _reused(was, now, again)
    while orphaned := [by for by in now.added if by in settled and _refers_to_others(now, by, settled)]:
        again |= now.graph.descendants(orphaned)
        reused, settled = _reused(was, now, again)
    for name in reused:
        node = now.graph.nodes[name]
        places: Iterable[int | None] = [None]
        if isinstance(node, MapNode):
            places = [place for place, state in enumerate(now.items.get(name, [])) if state == "done"]
        for place in places:
            yield from _outcome(past, label(node, place))
    if not problems(now.plan, None):  # otherwise the new run decides its extensions again
        for by in now.added:  # in the recorded order, which decides between conflicting extensions
            yield from _value(past, f"{EXTENSION}{by}") if by in settled else ()


def _reused(was: NodeStates, now: NodeStates, again: set[str]) -> tuple[list[str], set[str]]:
    """Return the nodes whose outcomes are reused, if they have any, and the set of those that have ended."""
    reused: list[str] = []
    settled: set[str] = set()
    for name in now.graph.order():
        node = now.graph.nodes[name]
        same = name not in again and was.plan.node(name) == node
        failed = now.states[name] == "failed" and not isinstance(node, MapNode)  # e.g. its extension was refused
        if same and not failed and settled.issuperset(now.graph.needs[name]):
            reused.append(name)
            settled |= {name} if now.states[name] in SETTLED else set()
    return reused, settled


def _refers_to_others(now: NodeStates, by: str, settled: set[str]) -> bool:
    """Return whether the extension of a node refers to a repeated extension. Then it depends on that one."""
    added = now.added[by]
    needs = {ref.partition(".")[0] for ref in references(added.output)}
    needs |= {need for node in added.nodes for need in now.graph.needs[node.id]}
    return any(node.id in needs for other, plan in now.added.items() if other not in settled for node in plan.nodes)


def _with_other_inputs(was: NodeStates, now: NodeStates) -> list[str]:
    """Return the nodes that use an input whose default differs in the new plan."""
    before, after = was.results["input"], now.results["input"]
    changed = {f"input.{name}" for name in after if name not in before or before[name] != after[name]}
    return [
        name
        for name, node in now.graph.nodes.items()
        if changed and any(".".join(ref.split(".")[:2]) in changed for ref in references(values_of(node)))
    ]


def _outcome(past: NodeHistory, node: str) -> Iterator[Written]:
    newest = past.newest(node)
    ended = past.ended.get(newest)
    if ended is not None and ended.failure is None:
        yield from _again(node, past.begun.get(newest), ended)
    else:
        yield from _value(past, node)


def _value(past: NodeHistory, node: str) -> Iterator[Written]:
    if node in past.values:
        yield HistoryEvent.VALUE_RECORDED.value, {"node": node, "value": past.values[node][1]}


def _again(node: str, begun: CallStart | None, ended: NodeEnd) -> Iterator[Written]:
    """Yield the events that record an outcome in the new job."""
    if ended.wait is not None or begun is None:
        yield HistoryEvent.VALUE_RECORDED.value, {"node": ended_name(node), "value": ended.wait}
        return
    started = HistoryEvent.TOOL_STARTED if begun.tool else HistoryEvent.NODE_STARTED
    yield started.value, {"node": node, "name": begun.name, "try": 1, "args": begun.args}
    if ended.failure is not None:
        failure = {**ended.failure, "node": node}
        if begun.tool:
            yield HistoryEvent.TOOL_FINISHED.value, failure
        yield HistoryEvent.NODE_FINISHED.value, failure
        return
    if ended.blob is not None:
        reason = f"the result of {node} has {ended.blob['size']:,} bytes, which a fork cannot reuse"
        raise InvalidArguments("fork", f"{reason}: fork from {begun.name}, or from a call before it")
    gave = HistoryEvent.TOOL_FINISHED if begun.tool else HistoryEvent.COMMAND_COMMITTED
    yield gave.value, {"node": node, "name": begun.name, "result": ended.result, "reused": True}
    yield HistoryEvent.NODE_FINISHED.value, {"node": node, "result_type": "success"}
