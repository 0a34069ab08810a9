"""The plan of a run as a graph: its nodes with all extensions, and what each depends on.

The states of the nodes are in the story of the run, under `nodes`.
"""

from __future__ import annotations

import msgspec

from holdfast.plans.node_states import NodeStates
from holdfast.plans.plan_diagram import what


class PlanNode(msgspec.Struct, frozen=True):
    """A node of a plan.

    Attributes:
        id: Its id in the plan.
        kind: ``call``, ``wait``, ``sleep``, ``job``, ``map`` or ``choice``.
        title: What it does, in a few words.
        needs: The nodes that it depends on.
        chosen_by: The choices among them that decide whether it runs.
        call: Its name in events, and in the `calls` of the story. The items of a map have this name with ``[0]``,
            ``[1]`` and so on.
    """

    id: str
    kind: str
    title: str
    needs: list[str]
    chosen_by: list[str]
    call: str


class PlanView(msgspec.Struct, frozen=True):
    """The plan of a run, with the nodes that extended it while it ran."""

    name: str
    nodes: list[PlanNode]


def plan_view(states: NodeStates) -> PlanView:
    """Return the plan that a run follows."""
    graph = states.graph
    nodes = [
        PlanNode(
            id=name,
            kind=str(node.__struct_config__.tag),
            title=what(node),
            needs=list(graph.needs[name]),
            chosen_by=list(graph.guards.get(name, ())),
            call=states.name_of(name),
        )
        for name, node in graph.nodes.items()
    ]
    return PlanView(states.plan.name, nodes)
