"""Starts a run anew from where another one was: what came before is reused, what comes behind is done again.

The new job's stream begins with the outcomes that are reused, as events of its own, written when it is created under a
claim that runs no code. Its first attempt finds them as it would find its own. Nothing that is reused is called again:
neither steps nor tools; waits and children that have ended are not waited for again.

What can go wrong: there is no such node or step, or nothing to go on from: `InvalidArguments`, and nothing was started.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.authoring.conductor import EXTENSION
from holdfast.authoring.functions import JobFunction
from holdfast.authoring.signature import checked_name, fingerprint
from holdfast.authoring.signature import checked_payload as kept
from holdfast.client.interface import Client
from holdfast.client.run_handle import RunHandle
from holdfast.config import Config
from holdfast.errors import InvalidArguments, InvalidPlan
from holdfast.ids import new_id
from holdfast.journal import Journal
from holdfast.machines import Event, HistoryEvent
from holdfast.plans.builder import Draft
from holdfast.plans.checker import Names, check_plan, problems
from holdfast.plans.graph import values_of
from holdfast.plans.model import MapNode, Plan, references
from holdfast.plans.node_history import SETTLED, CallStart, NodeEnd, NodeHistory, NodeStates, label
from holdfast.store import Submit

__all__ = ["Forking", "forked"]

Written = tuple[str, dict[str, Any]]


class Forking(Client):
    """A client that has a store, and knows what plans may name."""

    config: Config
    entries: dict[tuple[str, str], JobFunction[..., Any]]

    @abstractmethod
    def names(self) -> Names:
        """Give what plans may name."""

    @abstractmethod
    def _journal(self) -> Journal: ...

    async def afork(
        self,
        run_id: str | RunHandle,
        *,
        from_node: str | None = None,
        from_step: str | None = None,
        plan: Plan | Draft | dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunHandle:
        """Start a new run that reuses what another has done, up to a node or step, which is done again.

        Of a plan, everything is reused that has ended well and does not depend on `from_node`; with another `plan`, of
        that, what is the same in both. Of code, everything that was recorded before `from_step` was first called. What
        is reused is not called again, tools included; what comes behind it is, tools included. The same `key` and the
        same of all this give the same new run.
        """
        given = Plan.from_dict(plan) if isinstance(plan, dict) else plan.plan() if isinstance(plan, Draft) else plan
        name = run_id.id if isinstance(run_id, RunHandle) else run_id
        events = await self.aevents(name)  # what is large takes a while to check, and others are served meanwhile
        submit = await asyncio.to_thread(forked, events, self.names(), from_node, from_step, given)
        kept("the plan of the fork", submit.plan, self.config.payload_bytes_max)
        if key is not None:
            submit = msgspec.structs.replace(submit, idempotency_key=checked_name("key", key))
        submitted = await self._journal().write(submit)
        return RunHandle(self, submitted.job, self.entries.get((submit.plugin, submit.entry)))


def forked(
    events: Sequence[Event], names: Names, from_node: str | None, from_step: str | None, plan: Plan | None
) -> Submit:
    """Put together the command that creates the new job."""
    past = NodeHistory(events)
    said = past.created
    if past.plan is None:
        if from_step is None or from_node is not None or plan is not None:
            raise InvalidArguments("fork", "the run has no plan: say from_step=, a step or tool of its code")
        written = [event for _, event in sorted(_of_code(past, from_step), key=lambda pair: pair[0])]
        whole = None
    else:
        if from_step is not None or (from_node is None and plan is None):
            raise InvalidArguments("fork", "the run has a plan: say from_node=, one of its nodes, or another plan=")
        whole = plan.to_dict() if plan is not None else past.plan
        if plan is not None:
            check_plan(plan, names)
            if missing := plan.not_given(said.get("args") or {}):
                raise InvalidPlan(plan.name, [f"input.{name}: the run was not given it" for name in missing])
        written = list(_of_plan(past, Plan.from_dict(whole), from_node))
    attributes = {**(said.get("attributes") or {}), "forked_from": events[0].job}
    return Submit(
        job=new_id(),
        plugin=said["plugin"],
        entry=said["entry"],
        args=said.get("args"),
        queue=said.get("queue") or "default",
        priority=said.get("priority") or 0,
        max_attempts=said.get("max_attempts") or 5,
        fingerprint=fingerprint([events[0].job, said.get("args"), whole, from_node, from_step]),
        attributes=attributes,
        budget=said.get("budget"),
        group=said.get("group"),
        plan=whole,
        past=tuple(written),
    )


def _of_code(past: NodeHistory, step: str) -> Iterator[tuple[int, Written]]:
    """Give everything that was recorded before a step was first called, each with its place."""
    calls = {node: begun.seq for node, begun in past.begun.items()}
    calls |= {node: ended.seq for node, ended in past.ended.items() if ended.wait is not None}
    found = [seq for node, seq in calls.items() if step in {node, node.partition(":")[0], _named(past, node)}]
    if not found:
        raise InvalidArguments(
            "fork", f"the run has not called {step!r}; it called {', '.join(sorted(calls)) or 'nothing'}"
        )
    cut = min(found)
    for node, ended in past.ended.items():
        if ended.seq < cut:
            for event in _again(node, past.begun.get(node), ended):
                yield ended.seq, event
    for node, (seq, value) in past.values.items():
        if seq < cut:
            yield seq, (HistoryEvent.VALUE_RECORDED.value, {"node": node, "value": value})


def _named(past: NodeHistory, node: str) -> str:
    return past.begun[node].name if node in past.begun else node


def _of_plan(past: NodeHistory, plan: Plan, from_node: str | None) -> Iterator[Written]:
    """Give the outcomes of all nodes that are the same, have ended well, and depend on nothing that is done again."""
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
    if not problems(now.plan, None):  # else what was decided of its extensions is decided anew
        for by in now.added:  # in the order that counted
            yield from _value(past, f"{EXTENSION}{by}") if by in settled else ()


def _reused(was: NodeStates, now: NodeStates, again: set[str]) -> tuple[list[str], set[str]]:
    """List the nodes whose outcomes are reused, as far as they have any; and give those that have ended."""
    reused: list[str] = []
    settled: set[str] = set()
    for name in now.graph.order():
        node = now.graph.nodes[name]
        same = name not in again and was.plan.node(name) == node
        failed = now.states[name] == "failed" and not isinstance(node, MapNode)  # its extension was refused, perhaps
        if same and not failed and settled.issuperset(now.graph.needs[name]):
            reused.append(name)
            settled |= {name} if now.states[name] in SETTLED else set()
    return reused, settled


def _refers_to_others(now: NodeStates, by: str, settled: set[str]) -> bool:
    """Whether what a node has added refers to what another adds that is done again: it comes behind that, then."""
    added = now.added[by]
    needs = {ref.partition(".")[0] for ref in references(added.output)}
    needs |= {need for node in added.nodes for need in now.graph.needs[node.id]}
    return any(node.id in needs for other, plan in now.added.items() if other not in settled for node in plan.nodes)


def _with_other_inputs(was: NodeStates, now: NodeStates) -> list[str]:
    """List the nodes that take an input whose default is another in the new plan."""
    before, behind = was.results["input"], now.results["input"]
    other = {f"input.{name}" for name in behind if name not in before or before[name] != behind[name]}
    return [
        name
        for name, node in now.graph.nodes.items()
        if other and any(".".join(ref.split(".")[:2]) in other for ref in references(values_of(node)))
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
    """Give the events that make an outcome one of another job."""
    if ended.wait is not None or begun is None:
        yield HistoryEvent.VALUE_RECORDED.value, {"node": f"{node}:ended", "value": ended.wait}
        return
    started = HistoryEvent.TOOL_STARTED if begun.tool else HistoryEvent.NODE_STARTED
    yield started.value, {"node": node, "name": begun.name, "try": 1, "args": begun.args}
    if ended.failure is not None:
        failure = {**ended.failure, "node": node}
        if begun.tool:
            yield HistoryEvent.TOOL_FINISHED.value, failure
        yield HistoryEvent.NODE_FINISHED.value, failure
        return
    gave = HistoryEvent.TOOL_FINISHED if begun.tool else HistoryEvent.COMMAND_COMMITTED
    yield gave.value, {"node": node, "name": begun.name, "result": ended.result, "reused": True}
    yield HistoryEvent.NODE_FINISHED.value, {"node": node, "result_type": "success"}
